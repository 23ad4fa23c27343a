"""How verbs wait for room or for something to take: they try, and try again after a change."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import TypeVar

from forebay.clock import Clock
from forebay.errors import ForebayError, Full, InvalidOption
from forebay.queues.shared.options import Duration, as_seconds
from forebay.queues.shared.owner import Owner
from forebay.queues.shared.signal import ALL, Signal
from forebay.queues.shared.verbs import News, Steps, Work

_Result = TypeVar("_Result")
# Callers that wait for the same thing, which only one of them can get, wait in one line.
ROOM, ITEMS = "room", "items"


class NoRoom(ForebayError):
    """There is no room now for the `size` bytes of a change; no part of it was applied.

    Never reaches the caller of a queue: the verb waits for room, or raises `Full`.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


def countdown(clock: Clock, timeout: Duration | None) -> Callable[[], float]:
    """Returns a function that returns how many seconds of a timeout are left; None: infinity.

    Raises `InvalidOption` for a value that is not a time. Infinity is allowed; a timeout below 0
    does not wait.
    """
    if timeout is None:
        return lambda: math.inf
    seconds = as_seconds(timeout)
    if not isinstance(seconds, Real) or math.isnan(seconds):
        raise InvalidOption(f"timeout = {timeout!r}: must be a number of seconds, or a timedelta")
    give_up_at = clock.monotonic() + seconds
    return lambda: give_up_at - clock.monotonic()


def when_there_is_room(
    owner: Owner,
    apply: Callable[[], _Result],
    make_room: Callable[[int], Work | bool],
    seconds_left: Callable[[], float],
    look_in: Callable[[], float] = lambda: math.inf,
) -> Steps[_Result]:
    """Calls `apply` under the lock as soon as there is room for it; returns its result.

    If `apply` raises `NoRoom`, `make_room(size)` is called with the lock held: it says whether to
    try again at once, or returns work whose result says so, or raises `Full`. `look_in()`: room may
    come without a change after so many seconds.
    """
    while True:
        with owner.lock:
            owner.check()
            try:
                return apply()
            except NoRoom as none:
                size, again = none.size, make_room(none.size)
        if isinstance(again, Work):
            again = yield again
        if again:
            continue
        left = seconds_left()
        if left <= 0:
            raise Full(f"{owner.path} had no room for {size} bytes in time; nothing was written")
        yield News(owner.changes, left, ROOM, look_in())


def when_found(
    changes: Signal,
    look: Callable[[], Steps[_Result | None]],
    seconds_left: Callable[[], float],
    line: str = ALL,
    look_in: Callable[[], float] = lambda: math.inf,
) -> Steps[_Result | None]:
    """Looks until something is found; returns None if no time is left.

    `look_in()`: something may be there without a change after so many seconds.
    """
    while True:
        found = yield from look()
        left = 0.0 if found is not None else seconds_left()
        if left <= 0:
            return found
        yield News(changes, left, line, look_in())
