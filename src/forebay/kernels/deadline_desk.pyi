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
    next_id: int
    ids_end: int
    deadline: int
    id: int
    worn: DeadlineItem | None
    attempts_max: int
    items_max: int
    position: int
    number: int
    def __init__(
        self,
        lock: Any,
        now_ms: Callable[[], int] | None,
        ahead_ms: int,
        find: Callable[[int, int], DeadlineItem],
        tell: Callable[[], None],
    ) -> None: ...
    def open(self, buffer: Any, start: int, end: int, number: int, seed: int) -> None: ...
    def close(self) -> None: ...
    def skip(self, size: int) -> None: ...
    def enqueue(self, value: object, delay: object, deadline_ms: object) -> int: ...
    def dequeue(self, count: int, lease_ms: int) -> list[DeadlineItem] | None: ...
    def release(self, items: list[DeadlineItem]) -> bool: ...
    def choose(self, count: int, now: int, lease_ms: int) -> list[DeadlineItem]: ...
    def mark(self, items: list[DeadlineItem], now: int) -> bool: ...
    def give_back(self, items: list[DeadlineItem]) -> bool: ...
    def kill(self, deadline: int, id: int) -> bool: ...
    def head(self) -> bool: ...
    def load(self) -> DeadlineItem: ...
