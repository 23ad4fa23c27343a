"""The files that the owner of a queue writes: which of them a sync must cover, when they close.

Call it with the queue's lock held. The files themselves are synced without that lock, by one thread
at a time, between `begin_sync` and `end_sync`: until then none of them is closed, and what is
written to them meanwhile is left to the next sync. A sync that an interrupt ended between two steps
counts for nothing: the next one covers its files again.
"""

from __future__ import annotations

from typing import Protocol


class Writable(Protocol):
    """What is written, synced and closed."""

    def sync(self) -> None: ...
    def close(self) -> None: ...


class OpenFiles:
    """The files that are being written, and full ones that are not durable yet."""

    def __init__(self) -> None:
        # The files with bytes that no sync has covered, the oldest first.
        self._unsynced: dict[Writable, None] = {}
        self._syncing: dict[Writable, None] = {}
        # The files to which nothing more is written, as long as they are open.
        self.finished: list[Writable] = []

    @property
    def unsynced(self) -> int:
        """How many files have bytes that no sync has covered."""
        return len(self._syncing | self._unsynced)

    def wrote(self, file: Writable) -> None:
        """Notes a change of a file; before a write, because a failed one changes it too."""
        self._unsynced[file] = None

    def finish(self, file: Writable) -> None:
        """Has a file closed by the next sync that covers it: nothing more is written to it."""
        self.wrote(file)
        self.finished.append(file)

    def drop(self, file: Writable) -> None:
        """Forgets and closes a file that is about to be removed; no sync may be running on it."""
        self._unsynced.pop(file, None)
        file.close()

    def begin_sync(self) -> list[Writable]:
        """Returns the files to sync, and keeps them open until `end_sync`."""
        self._syncing |= self._unsynced
        self._unsynced = {}
        return list(self._syncing)

    def end_sync(self, *, done: bool) -> bool:
        """Ends the sync that was begun; `done`: it covered all files.

        Says whether a finished file was closed: all of it is durable.
        """
        if not done:
            self._unsynced = self._syncing | self._unsynced
        self._syncing = {}
        return self._close_finished()

    def sync(self) -> None:
        """Syncs all files with the lock held; a sync that runs without it is not disturbed."""
        for file in self._syncing | self._unsynced:
            file.sync()
        self._unsynced = {}
        self._close_finished()

    def close(self) -> None:
        """Closes the finished files, whether they are durable or not."""
        while self.finished:
            self.finished.pop().close()

    def _close_finished(self) -> bool:
        if not self.finished:
            return False
        busy = self._syncing | self._unsynced
        closing = [file for file in self.finished if file not in busy]
        self.finished = [file for file in self.finished if file in busy]
        for file in closing:
            file.close()
        return bool(closing)
