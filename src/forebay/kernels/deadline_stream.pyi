from array import array
from typing import Final

from forebay.kernels.deadline_build import BlockBuilder
from forebay.kernels.deadline_memory import Memory

ROW_NUMBERS: Final = 8

def stream(
    memory: Memory,
    rows: memoryview,
    at: int,
    builder: BlockBuilder,
    number: int,
    seed: int,
    out: bytearray,
    table: array[int],
) -> tuple[int, int, int]: ...
