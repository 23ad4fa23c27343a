from typing import Final

from forebay.kernels.deadline_build import BlockBuilder
from forebay.kernels.deadline_memory import Memory

ROW_NUMBERS: Final = 8

def can_stream() -> bool: ...

class BlockStream:
    size: int
    blocks: int
    id_count: int
    out: memoryview
    table: memoryview
    ids: memoryview
    def __init__(
        self, builder: BlockBuilder, seed: int, room: int, blocks_max: int, with_ids: bool
    ) -> None: ...
    def start(self, number: int) -> None: ...

def fill_from_memory(output: BlockStream, memory: Memory, rows: memoryview, at: int) -> int: ...
