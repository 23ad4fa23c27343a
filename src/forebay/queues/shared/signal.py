"""How those who wait for a queue learn that it has changed: woken, never polling.

Threads and tasks wait alike. Whoever waits has a seat before it looks once more: a change that
comes after that look wakes it. Those who want the same thing, of whom only one can have it, sit in
one line. A change wakes the one in front; it tries, and when it leaves, for whatever reason, it
wakes the next. So a thousand who wait cost as much as one. Those without a line are all woken.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from typing import Protocol

# No timeout of a thread may be infinite: an endless wait is cut into long ones.
_WAIT_SECONDS_MAX = 3600.0
# The line of those who are all woken.
ALL = ""


class Waker(Protocol):
    """Wakes one who waits."""

    def set(self) -> None:
        """Wakes it. Called from any thread, with the queue's lock held: must not wait or raise."""
        ...


class Seat:
    """The place of one who waits, from its first look to its last.

    Knows its waker weakly: an exception of a signal handler can keep who waits from leaving, and
    a seat that nobody sits on must not take the wake-ups of those after it.
    """

    __slots__ = ("_signal", "_waker", "line")

    def __init__(self, signal: Signal, waker: Waker, line: str) -> None:
        self._signal = signal
        self._waker = weakref.ref(waker, lambda _: signal.forget(self))
        self.line = line

    def join(self) -> None:
        """Takes a seat at the end of the line. Without the lock."""
        self._signal.join(self)

    def wake(self) -> None:
        """Wakes who sits here."""
        waker = self._waker()
        if waker is not None:
            waker.set()

    def seconds(self, give_up_in: float, look_in: float) -> float:
        """Returns how long to sleep at most: only the one in front has to look without a change."""
        seconds = min(give_up_in, look_in) if self._signal.is_front(self) else give_up_in
        return max(0.0, min(seconds, _WAIT_SECONDS_MAX))

    def leave(self) -> None:
        """Gives the seat up: what it was woken for may be for the next. May be called twice."""
        self._signal.forget(self)


class Signal:
    """Tells changes of one queue to those who wait for them, at no cost while nobody does.

    `wanted` says that somebody waits, or did: a change that takes no lock looks at it, and
    announces itself then.

    Not a `threading.Condition`: an exception of a signal handler may leave the wait of one without
    the lock, and whoever then gives it back takes it from another thread.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._lines: dict[str, deque[Seat]] = {ALL: deque()}
        self.wanted = False

    @property
    def is_watched(self) -> bool:
        """Whether somebody waits."""
        return any(self._lines.values())

    def join(self, seat: Seat) -> None:
        """Puts a seat at the end of its line. Called without the lock."""
        with self._lock:
            self._lines.setdefault(seat.line, deque()).append(seat)
            self.wanted = True

    def is_front(self, seat: Seat) -> bool:
        """Says whether a change would wake this seat."""
        line = self._lines[seat.line]
        return seat.line == ALL or not line or line[0] is seat

    def forget(self, seat: Seat) -> None:
        """Takes a seat away and wakes the next of its line.

        Takes no lock, because it may be called where the collector finds a waker that is gone. Each
        step is one call into C.
        """
        line = self._lines.get(seat.line)
        if line is None:
            return
        with contextlib.suppress(ValueError):
            line.remove(seat)
        if seat.line != ALL:
            _wake_first(line)

    def announce(self) -> None:
        """Wakes those who wait. Lock held."""
        if not self.wanted:
            return
        # First: whoever comes meanwhile is wanted.
        self.wanted = False
        if self.is_watched:
            self.wanted = True
            self._wake(everybody=False)

    def answer(self) -> None:
        """Announces a change that found that it is wanted; called without the lock."""
        with self._lock:
            self.announce()

    def wake(self) -> None:
        """Wakes all who wait: the handle has ended. Any thread may call it without the lock."""
        self._wake(everybody=True)

    def _wake(self, *, everybody: bool) -> None:
        for name, line in list(self._lines.items()):
            if everybody or name == ALL:
                for seat in list(line):
                    seat.wake()
            else:
                _wake_first(line)


def _wake_first(line: deque[Seat]) -> None:
    # Another thread may empty it meanwhile.
    with contextlib.suppress(IndexError):
        line[0].wake()
