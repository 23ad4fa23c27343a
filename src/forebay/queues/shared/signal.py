"""How waiting callers learn that a queue has changed: they are woken and never poll.

Threads and tasks wait in the same way. A waiter takes a seat and then looks once more: a change
after that look wakes it. Waiters for the same thing, which only one of them can get, form a line.
A change wakes the first in the line; it tries, and when it leaves, for whatever reason, it wakes
the next. So a thousand waiters cost as much as one. Waiters without a line are all woken.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from typing import Protocol

# No timeout of a thread may be infinite: an endless wait is cut into long ones.
_WAIT_SECONDS_MAX = 3600.0
# The line whose waiters are all woken.
ALL = ""


class Waker(Protocol):
    """Wakes one waiter."""

    def set(self) -> None:
        """Wakes it; called from any thread, with the queue's lock held: must not wait or raise."""
        ...


class Seat:
    """The place of one waiter, from its first look to its last.

    Holds only a weak reference to its waker: an exception raised by a signal handler can keep the
    waiter from leaving, and an abandoned seat must not take the wake-ups of the waiters after it.
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
        """Wakes the waiter of this seat."""
        waker = self._waker()
        if waker is not None:
            waker.set()

    def seconds(self, give_up_in: float, look_in: float) -> float:
        """Returns how long to sleep at most: only the first in line looks without a change."""
        seconds = min(give_up_in, look_in) if self._signal.is_front(self) else give_up_in
        return max(0.0, min(seconds, _WAIT_SECONDS_MAX))

    def leave(self) -> None:
        """Leaves the seat and passes its wake-up on to the next. May be called twice."""
        self._signal.forget(self)


class Signal:
    """Announces changes of one queue to its waiters, at no cost while there are none.

    `wanted` says that there is a waiter, or was one: a change that takes no lock checks it, and
    announces itself only then.

    Not a `threading.Condition`: an exception raised by a signal handler may leave its `wait`
    without the lock, and the caller would then release a lock that another thread holds.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._lines: dict[str, deque[Seat]] = {ALL: deque()}
        self.wanted = False

    @property
    def is_watched(self) -> bool:
        """Whether there is a waiter."""
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
        """Removes a seat and wakes the next in its line.

        Takes no lock, because the garbage collector may call it when a waker is gone, in any
        thread. Each step is one call into C.
        """
        line = self._lines.get(seat.line)
        if line is None:
            return
        with contextlib.suppress(ValueError):
            line.remove(seat)
        if seat.line != ALL:
            _wake_first(line)

    def announce(self) -> None:
        """Wakes the waiters: all without a line, and the first of each line. Lock held."""
        if not self.wanted:
            return
        # Clear it first: a waiter that comes meanwhile sets it again.
        self.wanted = False
        if self.is_watched:
            self.wanted = True
            self._wake(everybody=False)

    def answer(self) -> None:
        """Announces a change that found `wanted` set; called without the lock."""
        with self._lock:
            self.announce()

    def wake(self) -> None:
        """Wakes all waiters: the handle has ended. Any thread may call it, without the lock."""
        self._wake(everybody=True)

    def _wake(self, *, everybody: bool) -> None:
        for name, line in list(self._lines.items()):
            if everybody or name == ALL:
                for seat in list(line):
                    seat.wake()
            else:
                _wake_first(line)


def _wake_first(line: deque[Seat]) -> None:
    # Another thread may empty the line meanwhile.
    with contextlib.suppress(IndexError):
        line[0].wake()
