"""How verbs wait: for room, or for something to take. They try, and try again at news."""

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
# Those who want the same thing, of whom only one can have it, wait in one line.
ROOM, ITEMS = "room", "items"


class NoRoom(ForebayError):
    """What is to be applied finds no room of `size` bytes now; nothing of it was applied.

    Never leaves a queue: its verb waits for room, or raises `Full`.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


def countdown(clock: Clock, timeout: Duration | None) -> Callable[[], float]:
    """Returns a function that tells how many seconds of a timeout are left; None: it has no end.

    Raises `InvalidOption` for what is no time. Infinity is one, and nothing below 0 waits.
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
    """Applies something under the lock as soon as there is room for it; returns what that returns.

    `apply` raises `NoRoom`. `make_room(size)` is called then, with the lock held: it says whether
    to try again at once, or returns work that does, or raises `Full`. `look_in()`: room may come
    without news after so long.
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
    """Looks until there is something; returns None if no time is left.

    `look_in()`: something may be there without news after so long.
    """
    while True:
        found = yield from look()
        left = 0.0 if found is not None else seconds_left()
        if left <= 0:
            return found
        yield News(changes, left, line, look_in())
