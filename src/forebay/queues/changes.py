"""Lets threads and tasks wait for news of a queue, at no cost while nobody does."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Changes:
    """A condition on the queue's lock. Called with the lock held.

    `listener` may be set by any thread without the lock: it is called with the lock held, so it
    must neither wait nor raise. Who does not want the lock for nothing looks first whether there
    are `watchers` or a listener.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self.watchers = 0
        self.listener: Callable[[], None] | None = None

    def wait(self, seconds: float) -> None:
        """Waits until something was written, made durable, saved or trimmed."""
        self.watchers += 1
        try:
            self._condition.wait(seconds)
        finally:
            self.watchers -= 1

    def announce(self) -> None:
        """Wakes all who wait."""
        if self.watchers:
            self._condition.notify_all()
        listener = self.listener
        if listener is not None:
            listener()
