from collections.abc import Callable
from typing import Any

from forebay.kernels.deadline_desk import Desk
from forebay.kernels.deadline_item import DeadlineItem

class Clerk(Desk):
    next_id: int
    ids_end: int
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
    def use_lock(self, lock: Any) -> None: ...
    def open(self, buffer: Any, start: int, end: int, number: int, seed: int) -> None: ...
    def close(self) -> None: ...
    def skip(self, size: int) -> None: ...
    def enqueue(self, value: object, delay: object, deadline_ms: object) -> int: ...
    def dequeue(self, count: int, lease_ms: int) -> list[DeadlineItem] | None: ...
    def release(self, items: list[DeadlineItem]) -> bool: ...
    def requeue(
        self, item: DeadlineItem, value: object, delay: object, deadline_ms: object
    ) -> bool: ...
