from array import array

from forebay.kernels.fflg import Buffer
from forebay.kernels.rows import Rows

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
