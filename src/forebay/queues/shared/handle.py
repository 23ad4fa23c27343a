"""The life of a queue that this process owns: how it begins, and the four ways it can end.

It is closed; or it is garbage collected; or it ends in the child of a fork, where two processes
would write to one queue; or the process dies. `__init__` calls `_own` when everything is open; if
it fails before that, it cleans up itself.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
from types import FrameType, GeneratorType, TracebackType
from typing import Self

from forebay.errors import Closed, Reentered
from forebay.queues.shared import verbs
from forebay.queues.shared.posted import Intake
from forebay.queues.shared.posts import Posts
from forebay.queues.shared.verbs import Steps, verb
from forebay.storage.filesystem import Directory


class Closing(ABC):
    """Has a `close`, which the end of a `with` block calls."""

    @abstractmethod
    def close(self) -> None:
        """Closes it; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


# Above this layer, and imported at first use: most programs share nothing.
CLIENT = "forebay.client.queues"
_PACKAGES = ("forebay.queues.", "forebay.storage.")


class Handle(Closing):
    """An open queue, until it is closed or ended otherwise."""

    path: str
    _directory: Directory
    _posts: Posts
    # True until `_own`: `close` does nothing before the queue is open.
    _closed = True
    # The last reference is gone: the maintenance thread must not use it any more.
    _forgotten = False
    # Takes in what clients have posted, if the kind can do that.
    _intake: Intake | None = None
    _disowned: Closed | None = None

    def __new__(cls, *arguments: object, shared: bool = False, **options: object) -> Self:
        """Makes a handle of this process, or with `shared` one that a server owns."""
        if not shared:
            return super().__new__(cls)
        shared_class: type[Self] = importlib.import_module(CLIENT).class_of(cls)
        return shared_class.__new__(shared_class)

    def close(self) -> None:
        """Makes everything durable and releases the directory; a second call does nothing.

        Raises `Reentered` in a signal handler that has interrupted a call of this queue: it would
        wait for ever for locks that the interrupted call holds.
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
            # An interrupt may leave any file open: nothing more may be written to them.
            self._refuse(Closed(f"{self.path} is closed"))
            raise

    def _disown(self) -> None:
        """Ends the handle in the child of a fork; the parent's handle stays open."""
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
        # All that was written is in the files; only the clean mark and the last syncs are missing.
        self._forgotten = True
        if not self._closed:
            # Closing the descriptor releases the lock: the queue can be opened again. Do it first,
            # because the warning may raise.
            self._give_back_directory()
            warnings.warn(f"{self.path} was not closed", ResourceWarning, stacklevel=2)

    @verb
    def flush(self, ticket: int | None = None) -> Steps[None]:
        """Returns when all that was posted is as safe as a put that has returned.

        With a ticket of `post`, it need not wait for what was posted after it. Raises what
        prevented it; in a shared queue, what could not be stored yet is not lost.
        """
        self._check_process()
        return self._posts.settle()

    def _own(self) -> None:
        """Marks the queue as open, and has it ended in the child of every fork."""
        self._posts = Posts()
        self._closed = False
        _open_handles.add(self)

    def _check_process(self) -> None:
        """Raises in the child of a fork, where a thread that no longer exists may hold a lock."""
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
                    # A waiting verb is not on the stack, but its driver has its queue or steps.
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

    def _close_intake(self) -> None:
        """Closes the files of clients; what is left in them is for the next owner."""
        if self._intake is not None:
            self._intake.close()

    def _give_back_directory(self) -> None:
        """Releases the lock of the directory; nothing is written."""
        self._directory.close()

    @abstractmethod
    def _end(self) -> None:
        """Makes everything durable and closes all files. Called once."""

    @abstractmethod
    def _refuse(self, error: Closed) -> None:
        """Makes every later call raise `error`, or the error that ended the handle earlier."""

    @abstractmethod
    def _abandon(self, error: Closed) -> None:
        """Makes every later call raise `error`, and touches no file."""


_open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _disown_all() -> None:
    for handle in list(_open_handles):
        handle._disown()


os.register_at_fork(after_in_child=_disown_all)
