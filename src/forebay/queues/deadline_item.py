"""An item of a deadline queue, as a user holds it, and what a deadline may be given as."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from forebay.errors import InvalidOption
from forebay.formats.deadline import BURIED_BIT, Item
from forebay.kernels.deadline_item import DeadlineItem

__all__ = ["DeadlineItem", "as_item", "wanted_all", "wanted_ms"]
_SECONDS_MAX = 10.0**11
_RETRY_SECONDS_MAX = 300.0


def as_item(item: Item, dequeue_count: int) -> DeadlineItem:
    """Makes of a stored item what a user gets."""
    return DeadlineItem(
        item.key.id,
        item.value,
        item.key.deadline_ms & ~BURIED_BIT,
        item.stats.enqueue_ms,
        item.stats.requeue_ms,
        dequeue_count,
        item.buried,
        item.reason.decode(errors="replace"),
    )


def retry_seconds(item: DeadlineItem) -> float:
    """Gives what a failed `take` waits before the item is due again: 1 s, doubled each time."""
    return min(2.0 ** min(item.dequeue_count - 1, 20), _RETRY_SECONDS_MAX)


def wanted_ms(now_ms: int, delay: float | None, deadline: datetime | int | None) -> int:
    """Gives the deadline that a caller asks for, in ms; without any, it is now."""
    if delay is not None and deadline is not None:
        raise InvalidOption("delay and deadline: give one of them")
    if delay is not None:
        if isinstance(delay, bool) or not 0 <= delay < _SECONDS_MAX:
            raise InvalidOption(f"delay = {delay!r}: must be a number of seconds from 0")
        wanted = now_ms + round(delay * 1000)
    elif deadline is None:
        return now_ms
    elif isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise InvalidOption(f"deadline = {deadline!r}: must have a time zone")
        wanted = round(deadline.timestamp() * 1000)
    else:
        wanted = deadline
    if type(wanted) is not int or wanted >= BURIED_BIT:
        raise InvalidOption(f"deadline = {deadline!r}: must be below {BURIED_BIT} ms since 1970")
    return max(wanted, 0)


def wanted_all(
    now_ms: int,
    count: int,
    delay: float | None,
    deadline: datetime | int | Sequence[datetime | int] | None,
) -> list[int]:
    """Gives the deadlines of so many items, which a caller asks for at once."""
    if deadline is None or isinstance(deadline, datetime | int):
        return [wanted_ms(now_ms, delay, deadline)] * count
    if len(deadline) != count:
        raise InvalidOption(f"deadline: {len(deadline)} of them for {count} values")
    if delay is None and set(map(type, deadline)) == {int}:
        plain = list(cast("Sequence[int]", deadline))
        if 0 <= min(plain) <= max(plain) < BURIED_BIT:
            return plain
    return [wanted_ms(now_ms, delay, each) for each in deadline]
