"""Wakes a thread that sleeps, whatever interrupts who wakes it.

A `threading.Event` is plain Python: an exception of a signal handler, such as Ctrl-C, that comes
while it holds its own lock leaves it locked, and the next who touches it waits for ever. Each step
here is one call into C, before or after which such an exception can come and do no harm.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Alarm:
    """Is set or not. Any thread may set it; one waits for it."""

    def __init__(self) -> None:
        self._marks: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wakes who waits, now or at its next wait."""
        if self._marks.empty():
            self._marks.put(None)

    def clear(self) -> None:
        """Takes it as not set."""
        while not self._marks.empty():
            self.wait(0)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, and clears it; False if the time is up."""
        try:
            self._marks.get(True, seconds)
        except Empty:
            return False
        return True
