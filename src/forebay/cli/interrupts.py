"""Delivers Ctrl-C and SIGTERM at safe points only.

An exception in the middle of an append would leave the queue between two states. Inside this guard
a signal is only recorded; it is raised where the program waits or checks for it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType


class Interrupted(Exception):
    """The user or the system asked the program to stop."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted")
        self.code = 128 + number


class Interrupts:
    """Holds signals back while a queue is changed."""

    def __init__(self) -> None:
        self._pending: int | None = None
        self._waiting = False
        self._old: dict[int, object] = {}

    def check(self) -> None:
        """Raises if a signal has arrived."""
        if self._pending is not None:
            raise Interrupted(self._pending)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Delivers signals at once, for calls that may block indefinitely."""
        self._waiting = True
        try:
            self.check()
            yield
        finally:
            self._waiting = False

    def __enter__(self) -> Interrupts:
        # Only the main thread may set signal handlers; in other threads there is nothing to hold
        # back.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what `signal` returned

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._pending = number
        if self._waiting:
            raise Interrupted(number)
