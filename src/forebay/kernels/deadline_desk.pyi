from collections.abc import Callable
from typing import Any

from forebay.kernels.deadline_item import DeadlineItem
from forebay.kernels.deadline_leases import Leases
from forebay.kernels.deadline_memory import Memory
from forebay.kernels.deadline_view import RunView

class Desk:
    leases: Leases
    view: RunView
    memories: list[Memory]
    damage: list[Any]
    total: int
    buried: int
    floor_ms: int
    deadline: int
    id: int
    worn: DeadlineItem | None
    attempts_max: int
    def __init__(
        self,
        find: Callable[[int, int], DeadlineItem],
        tell: Callable[[], None],
    ) -> None: ...
    def choose(self, count: int, now: int, lease_ms: int) -> list[DeadlineItem]: ...
    def mark(self, items: list[DeadlineItem], now: int) -> bool: ...
    def give_back(self, items: list[DeadlineItem]) -> bool: ...
    def kill(self, deadline: int, id: int) -> bool: ...
    def head(self) -> bool: ...
    def load(self) -> DeadlineItem: ...
