"""An item of a deadline queue, as a user holds it, and what a deadline may be given as."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from numbers import Real
from typing import cast

from forebay.errors import InvalidOption
from forebay.formats.deadline.items import BURIED_BIT, Item
from forebay.queues.deadline.schedule import DeadlineItem

__all__ = ["DeadlineItem", "Duration", "as_item", "wanted_all", "wanted_ms"]
_SECONDS_MAX = 10.0**11
# The years 2001 to 2286, in seconds.
_SECONDS_FROM, _SECONDS_TO = 10**9, 10**10
Duration = float | timedelta
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
    """Returns what a failed `take` waits before the item is due again: 1 s, doubled each time."""
    return min(2.0 ** min(item.dequeue_count - 1, 20), _RETRY_SECONDS_MAX)


def wanted_ms(now_ms: int, delay: Duration | None, deadline: datetime | int | None) -> int:
    """Returns the deadline that a caller asks for, in ms; without any, it is now.

    Refuses a number that is a time of our days in seconds: as milliseconds it would be in January
    to April 1970, and due at once.
    """
    if delay is not None and deadline is not None:
        raise InvalidOption("delay and deadline: give one of them")
    if delay is not None:
        return _check_deadline(now_ms + int(seconds_of("delay", delay) * 1000 + 0.5), delay)
    if deadline is None:
        return now_ms
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise InvalidOption(f"deadline = {deadline!r}: must have a time zone")
        return _check_deadline(round(deadline.timestamp() * 1000), deadline)
    if type(deadline) is not int:
        raise InvalidOption(
            f"deadline = {deadline!r}: must be a datetime with a time zone, or a whole number of "
            "milliseconds since 1970"
        )
    if _SECONDS_FROM <= deadline < _SECONDS_TO:
        raise InvalidOption(
            f"deadline = {deadline}: looks like seconds; must be milliseconds since 1970"
        )
    return _check_deadline(deadline, deadline)


def seconds_of(name: str, duration: Duration) -> float:
    """Returns a duration in seconds, given as a number or a timedelta; it is not below 0."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, Real)
        or not 0 <= seconds < _SECONDS_MAX
    ):
        raise InvalidOption(
            f"{name} = {duration!r}: must be a number of seconds from 0, or a timedelta"
        )
    return float(seconds)


def check_lease(lease_seconds: float | None) -> None:
    """Refuses a lease that is no time."""
    if lease_seconds is None:
        return
    if (
        isinstance(lease_seconds, bool)
        or not isinstance(lease_seconds, Real)
        or not 0 < lease_seconds < 10.0**9
    ):
        raise InvalidOption(f"lease_seconds = {lease_seconds!r}: must be a number above 0")


def check_value(value: object) -> None:
    """Refuses what is no bytes, by name."""
    if not isinstance(value, bytes | bytearray | memoryview):
        try:
            memoryview(value)  # type: ignore[arg-type]  # that is the question
        except TypeError:
            raise TypeError(f"an item is bytes, not {type(value).__name__}") from None


def _check_deadline(wanted: int, given: object) -> int:
    if wanted >= BURIED_BIT:
        raise InvalidOption(f"deadline = {given!r}: must be below {BURIED_BIT} ms since 1970")
    return max(wanted, 0)


def wanted_all(
    now_ms: int,
    count: int,
    delay: Duration | None,
    deadline: datetime | int | Sequence[datetime | int] | None,
) -> list[int]:
    """Returns the deadlines of so many items, which a caller asks for at once."""
    if deadline is None or not isinstance(deadline, Sequence):
        return [wanted_ms(now_ms, delay, deadline)] * count
    if len(deadline) != count:
        raise InvalidOption(f"deadline: {len(deadline)} of them for {count} values")
    if delay is None and set(map(type, deadline)) == {int}:
        plain = list(cast("Sequence[int]", deadline))
        low, high = min(plain), max(plain)
        if 0 <= low <= high < BURIED_BIT and (low >= _SECONDS_TO or high < _SECONDS_FROM):
            return plain
    return [wanted_ms(now_ms, delay, each) for each in deadline]
