from array import array
from typing import Final

from forebay.kernels.buffers import Rows

Buffer = bytes | bytearray | memoryview
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
def measure_sized(buffer: Buffer) -> tuple[int, int, int, int]: ...
def fit_sized(buffer: Buffer, position: int, room: int, frame_bytes: int) -> tuple[int, int]: ...
def encode_sized(
    buffer: Buffer,
    start: int,
    count: int,
    target: bytearray | memoryview,
    index: int,
    seed: int,
    ms: int,
) -> int: ...
def scan(
    buffer: Buffer, position: int, index: int, seed: int, limit: int, times: list[int] | None
) -> tuple[list[bytes], int]: ...
def find(
    buffer: Buffer, position: int, index: int, seed: int, most: int, before: int = 0
) -> tuple[int, int]: ...
def verify(
    buffer: Buffer, position: int, index: int, seed: int, limit: int, last_ms: int
) -> tuple[int, int, int]: ...
def encode_unchecked(
    values: list[bytes], first: int, count: int, buffer: bytearray | memoryview
) -> int: ...
def scan_unchecked(
    data: bytes, position: int, limit: int, zero_size_ends: bool
) -> tuple[list[bytes], int]: ...

class Columns(Rows):
    @property
    def offsets(self) -> bytearray: ...
    def take(
        self,
        buffer: Buffer,
        position: int,
        index: int,
        seed: int,
        limit: int,
        base: int,
        epoch_ms: int,
    ) -> tuple[int, int]: ...

def encode_columns(
    ends: Buffer | array[int],
    data: Buffer,
    first: int,
    count: int,
    buffer: bytearray | memoryview,
    index: int,
    seed: int,
    ms: int,
) -> tuple[int, int]: ...
