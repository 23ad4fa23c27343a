from typing import Final

Buffer = bytes | bytearray | memoryview
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
def find(
    buffer: Buffer, position: int, index: int, seed: int, most: int, before: int = 0
) -> tuple[int, int]: ...
def verify(
    buffer: Buffer, position: int, index: int, seed: int, limit: int, last_ms: int
) -> tuple[int, int, int]: ...
