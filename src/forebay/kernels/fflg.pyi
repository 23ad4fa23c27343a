from collections.abc import Callable
from mmap import mmap
from threading import Lock, RLock
from typing import Final

Buffer = bytes | bytearray | memoryview
Mapping = mmap | bytearray
COMPILED: bool
FRAME_BYTES: Final = 12

def encode(
    values: list[bytes],
    first: int,
    count: int,
    buffer: bytearray | memoryview,
    index: int,
    seed: int,
    ms: int,
    times: list[int] | None = None,
) -> int: ...
def scan(
    buffer: Buffer, position: int, index: int, seed: int, limit: int, times: list[int] | None
) -> tuple[list[bytes], int]: ...
def find(buffer: Buffer, position: int, index: int, seed: int, most: int) -> tuple[int, int]: ...
def gather(
    buffer: Buffer,
    position: int,
    index: int,
    seed: int,
    limit: int,
    payload: bytearray | memoryview,
    ends: memoryview,
    times: memoryview,
) -> tuple[int, int]: ...

class Appender:
    @property
    def position(self) -> int: ...
    @property
    def index(self) -> int: ...
    last_ms: int
    def __init__(
        self, buffer: Mapping, lock: Lock | RLock, now_ms: Callable[[], int] | None
    ) -> None: ...
    def begin(
        self, start: int, end: int, base: int, index: int, seed: int, epoch_ms: int
    ) -> None: ...
    def finish(self) -> None: ...
    def release_buffer(self) -> None: ...
    def append(self, value: object) -> int: ...
