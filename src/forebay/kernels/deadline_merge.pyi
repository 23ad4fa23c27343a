from array import array
from collections.abc import Sequence
from typing import Final

from forebay.kernels.deadline_block import Block
from forebay.kernels.deadline_build import BlockBuilder
from forebay.kernels.deadline_stream import BlockStream

DONE: Final = 0
HUNGRY: Final = 1
FULL: Final = 2

class Merger:
    source: int
    kind: int
    passed: int
    block: int
    def __init__(
        self,
        full: bool,
        kinds: list[int],
        seeds: list[int],
        builders: list[BlockBuilder],
        streams: Sequence[BlockStream | None],
    ) -> None: ...
    def feed(self, data: bytes, table: array[int]) -> None: ...
    def forget(self) -> None: ...
    def feed_block(self, block: Block) -> None: ...
    def skip_block(self) -> None: ...
    def end_source(self) -> None: ...
    def run(self) -> int: ...
