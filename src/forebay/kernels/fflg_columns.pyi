from array import array

from forebay.kernels.fflg import Buffer

class Columns:
    @property
    def rows(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def payload(self) -> bytearray: ...
    @property
    def ends(self) -> bytearray: ...
    @property
    def offsets(self) -> bytearray: ...
    @property
    def micros(self) -> bytearray: ...
    def __init__(self, payload_bytes: int, rows_max: int, values: bool) -> None: ...
    def clear(self) -> None: ...
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
    def positions(self, start: int) -> bytearray: ...

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
