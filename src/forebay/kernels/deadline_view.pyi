from collections.abc import Callable
from typing import Final

from forebay.kernels.deadline_block import Block
from forebay.kernels.deadline_build import BlockBuilder

ITEMS: Final = 1
TOMBSTONES: Final = 2
MARKS: Final = 3

class Cursor:
    kind: int
    deadline: int
    id: int
    block: Block
    at: int
    def __init__(
        self, kind: int, load: Callable[[], Block | None], deadline: int, id: int
    ) -> None: ...
    def advance(self) -> bool: ...

class RunView:
    cursors: list[Cursor]
    met: bool
    dead: bool
    marked: bool
    passed: int
    item: Cursor | None
    deadline: int
    id: int
    count: int
    time_ms: int
    def __init__(self) -> None: ...
    def add(self, cursor: Cursor) -> None: ...
    def meet(self) -> bool: ...
    def go_on(self) -> bool: ...

def merge(
    view: RunView,
    full: bool,
    items: BlockBuilder,
    tombstones: BlockBuilder,
    marks: BlockBuilder,
    *,
    limit: int,
) -> int: ...
