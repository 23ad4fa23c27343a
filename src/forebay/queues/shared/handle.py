"""The life of a queue that this process owns: how it begins, and the four ways it can end.

It is closed, or forgotten, or ended in the child of a fork, where two processes would write one
queue; or the process dies. `__init__` calls `_own` when all is in order; what fails before that is
its own to clean up.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
from types import FrameType, GeneratorType, TracebackType
from typing import Self

from forebay.errors import Closed, Reentered
from forebay.queues.shared import verbs
from forebay.storage.filesystem import Directory


class Closing(ABC):
    """Has a `close`, which the end of a `with` calls."""

    @abstractmethod
    def close(self) -> None:
        """Closes it; a second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_PACKAGES = ("forebay.queues.", "forebay.storage.")


class Handle(Closing):
    """A queue that is open, until it is not."""

    path: str
    _directory: Directory
    # Until `_own`: what is not open yet is nobody's to close.
    _closed = True
    # Its last reference went: its own thread must not take it up again.
    _forgotten = False
    _disowned: Closed | None = None

    def close(self) -> None:
        """Makes everything durable and returns the directory back; a second time does nothing.

        Raises `Reentered` in a signal handler that has interrupted a call of this queue: it could
        only wait for locks that the interrupted call holds.
        """
        if self._closed:
            return
        if self._is_entered():
            raise Reentered(
                f"{self.path}: close() inside a call of the same thread, as by a signal handler; "
                "set a flag there, or raise SystemExit, and close after the call"
            )
        self._closed = True
        try:
            self._end()
        except BaseException:
            # An interrupt may leave anything open: nothing more is written to it.
            self._refuse(Closed(f"{self.path} is closed"))
            raise

    def _disown(self) -> None:
        """Ends the handle in the child of a fork; the parent's goes on."""
        if self._closed:
            return
        self._closed = True
        self._disowned = Closed(
            f"{self.path} was opened before a fork, and a queue has one owner: the child can open "
            "it after the parent has closed it"
        )
        self._abandon(self._disowned)
        self._give_back_directory()

    def __del__(self) -> None:
        # What was written is in the files; only the clean mark and the last syncs are missing.
        self._forgotten = True
        if not self._closed:
            # The lock goes with the descriptor: the queue can be opened again. First, because the
            # warning may be an error.
            self._give_back_directory()
            warnings.warn(f"{self.path} was not closed", ResourceWarning, stacklevel=2)

    def _own(self) -> None:
        """Takes note that the queue is open, and has it ended in every child of a fork."""
        self._closed = False
        _open_handles.add(self)

    def _check_process(self) -> None:
        """Raises in the child of a fork, where a lock may be held by nobody that lives."""
        if self._disowned is not None:
            raise self._disowned.with_traceback(None)

    def _is_entered(self) -> bool:
        """Says whether this thread is in the middle of another call of this queue."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            outside = frame.f_code.co_name in ("close", "__exit__", "__del__")
            if module.startswith(_PACKAGES) and not outside:
                part = frame.f_locals.get("self")
                if module == verbs.__name__:
                    # A verb that waits is not on the stack; what drives it has its queue or steps.
                    part = frame.f_locals.get("queue")
                    steps = frame.f_locals.get("steps")
                    if isinstance(steps, GeneratorType) and steps.gi_frame is not None:
                        part = steps.gi_frame.f_locals.get("self")
                if part is self or getattr(part, "_directory", None) is self._directory:
                    return True
                if getattr(part, "_log", None) is self:
                    return True
            frame = frame.f_back
        return False

    def _give_back_directory(self) -> None:
        """Lets others lock the directory; nothing is written."""
        self._directory.close()

    @abstractmethod
    def _end(self) -> None:
        """Makes everything durable and closes all files. Called once."""

    @abstractmethod
    def _refuse(self, error: Closed) -> None:
        """Makes every later call raise an error, or the one that has ended the handle."""

    @abstractmethod
    def _abandon(self, error: Closed) -> None:
        """Makes every later call raise an error, and touches no file."""


_open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _disown_all() -> None:
    for handle in list(_open_handles):
        handle._disown()


os.register_at_fork(after_in_child=_disown_all)
