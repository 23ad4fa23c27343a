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

def seal(buffer: bytearray | memoryview, size: int, number: int, seed: int) -> int: ...
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
def scan(
    buffer: Buffer, position: int, number: int, seed: int, limit: int, records: list[Record]
) -> tuple[int, int]: ...
def verifies(buffer: Buffer, position: int, number: int, seed: int) -> bool: ...
def find(buffer: Buffer, position: int, number: int, seed: int, before: int) -> tuple[int, int]: ...
