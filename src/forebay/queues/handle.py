"""The life of a queue that this process owns: how it begins, and the four ways it can end.

It is closed, or forgotten, or ended in the child of a fork, where two processes would write one
queue; or the process dies. `__init__` calls `_own` when all is in order; what fails before that is
its own to clean up.
"""

from __future__ import annotations

import os
import warnings
import weakref
from abc import abstractmethod

from forebay.errors import Closed
from forebay.queues.closing import Closing
from forebay.storage.filesystem import Directory


class Handle(Closing):
    """A queue that is open, until it is not."""

    path: str
    _directory: Directory
    # Until `_own`: what is not open yet is nobody's to close.
    _closed = True

    def close(self) -> None:
        """Makes everything durable and gives the directory back; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self._end()

    def disown(self) -> None:
        """Ends the handle in the child of a fork; the parent's goes on."""
        if self._closed:
            return
        self._closed = True
        self._abandon(Closed(f"{self.path} was opened before a fork; open it in the child"))
        self._give_back_directory()

    def __del__(self) -> None:
        # What was written is in the files; only the clean mark and the last syncs are missing.
        if not self._closed:
            warnings.warn(f"{self.path} was not closed", ResourceWarning, stacklevel=2)
            # The lock goes with the descriptor: the queue can be opened again.
            self._give_back_directory()

    def _own(self) -> None:
        """Takes note that the queue is open, and has it ended in every child of a fork."""
        self._closed = False
        _open_handles.add(self)

    def _give_back_directory(self) -> None:
        """Lets others lock the directory; nothing is written."""
        self._directory.close()

    @abstractmethod
    def _end(self) -> None:
        """Makes everything durable and closes all files. Called once."""

    @abstractmethod
    def _abandon(self, error: Closed) -> None:
        """Has every call raise an error from now on, and touches no file."""


_open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _disown_all() -> None:
    for handle in list(_open_handles):
        handle.disown()


os.register_at_fork(after_in_child=_disown_all)
