from typing import Final

Buffer = bytes | bytearray | memoryview
COMPILED: bool
FRAME_BYTES: Final = 12
GAVE_UP: Final = -2

def encode(values: list[bytes], first: int, count: int, buffer: bytearray | memoryview) -> int: ...
def scan(buffer: Buffer, position: int, limit: int) -> tuple[list[bytes], int]: ...
def find(buffer: Buffer, position: int) -> int: ...
def hop(buffer: Buffer, position: int, target: int) -> int: ...
def gather(
    buffer: Buffer,
    position: int,
    limit: int,
    payload: bytearray | memoryview,
    ends: memoryview,
    positions: memoryview,
) -> tuple[int, int]: ...
def find_block(buffer: Buffer, position: int, stored_max: int) -> int: ...
