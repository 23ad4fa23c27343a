from datetime import datetime
from typing import Final, final

from forebay.kernels.buffers import Rows

Buffer = bytes | bytearray | memoryview
METADATA_BYTES: Final = 32

@final
class Entry:
    @property
    def offset(self) -> int: ...
    @property
    def id(self) -> int: ...
    @property
    def ttl_seconds(self) -> int: ...
    @property
    def value(self) -> bytes: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def time(self) -> datetime: ...
    @property
    def expires_ms(self) -> int | None: ...
    def __init__(self, offset: int, id: int, ttl_seconds: int, value: bytes) -> None: ...
    def has_expired(self, now_ms: int) -> bool: ...

def make_entries(
    offset: int, values: list[bytes], ids: list[int], ttls: list[int]
) -> list[Entry]: ...
def encode(
    values: list[bytes],
    first: int,
    count: int,
    buffer: bytearray | memoryview,
    number: int,
    now_ms: int,
    last_ms: int,
    ttl: int,
    version: bytes,
) -> tuple[int, int]: ...
def measure_sized(records: Buffer, count: int) -> tuple[int, int]: ...
def encode_sized(
    records: Buffer,
    count: int,
    buffer: bytearray | memoryview,
    number: int,
    now_ms: int,
    last_ms: int,
    ttl: int,
    version: bytes,
) -> tuple[int, int]: ...
def scan(
    buffer: Buffer,
    position: int,
    number: int,
    last_id: int,
    limit: int,
    version: bytes,
    ids: list[int] | None = None,
    ttls: list[int] | None = None,
) -> tuple[list[bytes], int, int]: ...
def claimed_size(buffer: Buffer, position: int, version: bytes) -> int: ...
def boundary(buffer: Buffer, at: int) -> tuple[int, int]: ...
def find(
    buffer: bytes,
    position: int,
    number: int,
    last_id: int,
    most: int,
    version: bytes,
    before: int = 0,
) -> tuple[int, int]: ...

class EntryColumns(Rows):
    @property
    def numbers(self) -> bytearray: ...
    @property
    def ids(self) -> bytearray: ...
    @property
    def ttls(self) -> bytearray: ...
    def take(
        self, buffer: Buffer, number: int, last_id: int, limit: int, stop: int, version: bytes
    ) -> tuple[int, int, int]: ...
