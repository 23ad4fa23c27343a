"""Items of a deadline queue as users get them, made without a Python call for each."""

from __future__ import annotations

from datetime import UTC, datetime

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)


@cython.final
@cython.cclass
class DeadlineItem:
    """An item. One that was dequeued belongs to its taker until the lease ends.

    `token` tells one taker from the next: the id, and how often the item was given out.
    """

    def __init__(
        self,
        id: int,
        value: bytes,
        deadline_ms: int,
        enqueue_ms: int,
        requeue_ms: int,
        dequeue_count: int,
        buried: bool = False,
        reason: str = "",
    ) -> None:
        self.id = id
        self.value = value
        self.deadline_ms = deadline_ms
        self.enqueue_ms = enqueue_ms
        self.requeue_ms = requeue_ms
        self.dequeue_count = dequeue_count
        self.buried = buried
        self.reason = reason

    @property
    def deadline(self):
        """When it is due, in UTC."""
        return datetime.fromtimestamp(self.deadline_ms / 1000.0, UTC)

    @property
    def token(self):
        """The id, and how often the item was given out."""
        return self.id, self.dequeue_count

    @property
    def key(self):
        """Where the queue has it."""
        return self.deadline_ms | (_BURIED_BIT if self.buried else 0), self.id

    def __repr__(self) -> str:
        names = ("id", "value", "deadline_ms", "enqueue_ms", "requeue_ms", "dequeue_count")
        parts = [f"{name}={getattr(self, name)!r}" for name in names]
        if self.buried:
            parts.append(f"buried=True, reason={self.reason!r}")
        return f"DeadlineItem({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeadlineItem):
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self.id, self.deadline_ms, self.dequeue_count))

    def __reduce__(self):
        times = (self.deadline_ms, self.enqueue_ms, self.requeue_ms)
        rest = (self.dequeue_count, bool(self.buried), self.reason)
        return DeadlineItem, (self.id, self.value, *times, *rest)


@cython.cfunc
def make_item(
    deadline: cython.ulonglong,
    id: cython.ulonglong,
    enqueue: cython.ulonglong,
    requeue: cython.ulonglong,
    dequeued: cython.ulonglong,
    value: bytes,
) -> DeadlineItem:
    """Makes an item that is not buried."""
    item: DeadlineItem = DeadlineItem.__new__(DeadlineItem)
    item.id = id
    item.value = value
    item.deadline_ms = deadline
    item.enqueue_ms = enqueue
    item.requeue_ms = requeue
    item.dequeue_count = dequeued
    item.buried = False
    item.reason = ""
    return item
