from typing import Final

Buffer = bytes | bytearray | memoryview
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

NESTING_MAX: Final = 100
UNDEFINED: Final = 1
TRUNCATED: Final = -1
TOO_DEEP: Final = -2
TAGGED: Final = -3
KEY_NOT_TEXT: Final = -4
TRAILING: Final = -5
MALFORMED: Final = -6
SIMPLE_VALUE: Final = -7
NOT_A_MAP: Final = -8

def check_cbor(data: bytes) -> int: ...

class Transcoder:
    def __init__(self) -> None: ...
    def event(self, payload: bytes) -> tuple[int, int, bytes, bytes] | None: ...

def is_simple(value: object) -> bool: ...
