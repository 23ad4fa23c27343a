from typing import Final

from forebay.kernels.buffers import Rows

Buffer = bytes | bytearray | memoryview
METADATA_BYTES: Final = 32

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
