from array import array
from collections.abc import Callable, Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview
Record = tuple[int, int, int, int, int, int, int, bytes, bytes]
BATCH_BYTES: Final = 8
FRESH: Final = 1
ITEM: Final = 2
TOMBSTONE: Final = 3
DEQUEUED: Final = 4
PASSED_OVER: Final = 128
FRESH_BYTES: Final = 25
ITEM_BYTES: Final = 38
TOMBSTONE_BYTES: Final = 15
DEQUEUED_BYTES: Final = 25

def seal_batch(buffer: bytearray | memoryview, size: int, number: int, seed: int) -> int: ...
def encode_fresh(
    values: list[bytes],
    deadlines: list[int],
    first: int,
    count: int,
    buffer: bytearray | memoryview,
    id: int,
    enqueue_ms: int,
    number: int,
    seed: int,
) -> int: ...
def encode_tombstones(
    deadlines: list[int],
    ids: list[int],
    buffer: bytearray | memoryview,
    number: int,
    seed: int,
) -> int: ...
def encode_dequeued(
    deadlines: list[int],
    ids: list[int],
    counts: list[int],
    time_ms: int,
    buffer: bytearray | memoryview,
    number: int,
    seed: int,
) -> int: ...
def scan_batches(
    buffer: Buffer, position: int, number: int, seed: int, limit: int, records: list[Record]
) -> tuple[int, int]: ...
def batch_verifies(buffer: Buffer, position: int, number: int, seed: int) -> bool: ...
def find_batch(
    buffer: Buffer, position: int, number: int, seed: int, before: int
) -> tuple[int, int]: ...

Row = tuple[int, int, int, int, int, int, bytes, bytes]
COLUMNS: Final = 8
HEAD_BYTES: Final = 72
IS_TOMBSTONE: Final = 1
IS_BURIED: Final = 2
ITEMS: Final = 1
TOMBSTONES: Final = 2
MARKS: Final = 3
DONE: Final = 0
HUNGRY: Final = 1
FULL: Final = 2
END: Final = 0
MORE: Final = -1

def pack(numbers: list[int], base: int, width: int) -> bytes: ...
def unpack(buffer: Buffer, start: int, index: int, base: int, width: int) -> int: ...
def search_packed(
    buffer: Buffer, start: int, count: int, base: int, width: int, wanted: int
) -> int: ...

class Block:
    count: int
    def __init__(self, body: bytes, count: int) -> None: ...
    def deadline(self, at: int) -> int: ...
    def id(self, at: int) -> int: ...
    def attributes(self, at: int) -> int: ...
    def enqueue_ms(self, at: int) -> int: ...
    def requeue_ms(self, at: int) -> int: ...
    def dequeue_count(self, at: int) -> int: ...
    def reason(self, at: int) -> bytes: ...
    def value(self, at: int) -> bytes: ...
    def row(self, at: int) -> Row: ...
    def search(self, deadline: int, id: int) -> int: ...
    def find_id(self, id: int, at: int) -> int: ...

class BlockBuilder:
    count: int
    def __init__(self, block_bytes: int) -> None: ...
    def fits(self, size: int) -> bool: ...
    def add(
        self,
        deadline: int,
        id: int,
        enqueue: int,
        requeue: int,
        dequeued: int,
        attributes: int,
        reason: bytes,
        value: bytes,
    ) -> None: ...
    def first_key(self) -> tuple[int, int]: ...
    def last_key(self) -> tuple[int, int]: ...
    def id_bounds(self) -> tuple[int, int]: ...
    def ids(self) -> bytearray: ...
    def counts(self) -> tuple[int, int, int]: ...
    def take(self) -> bytes: ...

ROW_NUMBERS: Final = 8

def can_stream() -> bool: ...

class BlockStream:
    size: int
    blocks: int
    id_count: int
    out: memoryview
    table: memoryview
    ids: memoryview
    def __init__(
        self, builder: BlockBuilder, seed: int, room: int, blocks_max: int, with_ids: bool
    ) -> None: ...
    def start(self, number: int) -> None: ...

def sort(cells: memoryview, count: int, size: int, words: int) -> int: ...
def pack_ids(
    ids: array[int], counts: array[int], base: int, id_width: int, block_width: int
) -> bytearray: ...

class KeyHeap:
    count: int
    deadline: int
    id: int
    tag: int
    def __init__(self) -> None: ...
    def push(self, deadline: int, id: int, tag: int) -> None: ...
    def pop(self) -> None: ...

class Cursor:
    kind: int
    deadline: int
    id: int
    block: Block
    at: int
    load: Callable[[], Block | None]
    def __init__(
        self, kind: int, load: Callable[[], Block | None], deadline: int, id: int
    ) -> None: ...
    def advance(self) -> bool: ...

class RunView:
    cursors: list[Cursor]
    met: bool
    dead: bool
    marked: bool
    passed: int
    item: Cursor | None
    deadline: int
    id: int
    count: int
    time_ms: int
    def __init__(self) -> None: ...
    def add(self, cursor: Cursor) -> None: ...
    def meet(self) -> bool: ...
    def go_on(self) -> bool: ...

def merge(
    view: RunView,
    full: bool,
    items: BlockBuilder,
    tombstones: BlockBuilder,
    marks: BlockBuilder,
    *,
    limit: int,
) -> int: ...

class Merger:
    source: int
    kind: int
    passed: int
    block: int
    def __init__(
        self,
        full: bool,
        kinds: list[int],
        seeds: list[int],
        builders: list[BlockBuilder],
        streams: Sequence[BlockStream | None],
    ) -> None: ...
    def feed(self, data: bytes, table: array[int]) -> None: ...
    def forget(self) -> None: ...
    def feed_block(self, block: Block) -> None: ...
    def skip_block(self) -> None: ...
    def end_source(self) -> None: ...
    def run(self) -> int: ...
