"""Lets threads and tasks wait for news of a queue, at no cost while nobody does."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Changes:
    """A condition on the queue's lock. Called with the lock held.

    `listener` may be set by any thread without the lock: it is called with the lock held, so it
    must neither wait nor raise. Who does not want the lock for nothing looks first whether there
    are `watchers` or a listener.

    Not a `threading.Condition`: an exception of a signal handler may leave the wait of one without
    the lock, and whoever then gives it back takes it from another thread.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.watchers: list[threading.Lock] = []
        self.listener: Callable[[], None] | None = None

    def wait(self, seconds: float) -> None:
        """Waits until something was written, made durable, saved or trimmed."""
        news = threading.Lock()
        news.acquire()
        self.watchers.append(news)
        try:
            # In here: an exception after any of the two finds the lock taken again.
            self._lock.release()
            news.acquire(timeout=max(0, seconds))
        finally:
            self._lock.acquire()
            if news in self.watchers:
                self.watchers.remove(news)

    def announce(self) -> None:
        """Wakes all who wait."""
        if self.watchers:
            watchers, self.watchers = self.watchers, []
            for news in watchers:
                news.release()
        listener = self.listener
        if listener is not None:
            listener()
