"""The part of a queue that owns its files: one lock, one group commit, and whether it is whole.

A change is *applied* under the lock, where nothing waits for a disk, and *settled* by the group
commit: its leader writes out what waits, syncs without the lock, moves the durable mark and wakes
all callers that wait for something below it. A failed sync ends the handle: what was not
acknowledged is never tried again on that file, and every call raises until the queue is reopened.

An exception raised by a signal handler, such as Ctrl-C, can come between any two steps. Between
"written to the file" and "noted in memory" it would make the next write repeat or skip an entry:
methods marked `fatal_when_interrupted` end the handle then. After reopening the queue is whole.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from forebay.errors import Closed, ForebayError
from forebay.queues.shared.signal import Signal
from forebay.storage.commit import GroupCommit, Ticket
from forebay.storage.filesystem import Directory
from forebay.storage.open_files import OpenFiles

_Result = TypeVar("_Result")


_Arguments = ParamSpec("_Arguments")


class _Fails(Protocol):
    def fail(self, error: BaseException) -> None: ...


_Owner = TypeVar("_Owner", bound=_Fails)


def fatal_when_interrupted(
    method: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Wraps a method that handles disk errors itself; any other error ends the handle."""

    @functools.wraps(method)
    def run(
        owner: _Owner, /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> _Result:
        try:
            return method(owner, *arguments, **keywords)
        except BaseException as error:
            expected = isinstance(error, OSError | ForebayError | TypeError)
            if not expected or isinstance(error, TimeoutError):
                owner.fail(error)
            raise

    return run


class FatalErrors(AbstractContextManager[None]):
    """Ends the handle if the block raises an `OSError`."""

    def __init__(self, owner: _Fails) -> None:
        self._owner = owner

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            self._owner.fail(error)


class _Mark(Protocol):
    synced: bool

    def sync(self) -> None: ...
    def close(self) -> None: ...


class Sync(NamedTuple):
    """How far a sync reaches: the number of what is after its end, and the place of that."""

    end: int
    place: Any


# How many files may have bytes that no sync has covered, before a change waits for the disk.
_UNSYNCED_FILES_MAX = 4


class Owner(ABC):
    """Changes the files of a queue that this process owns. Any thread may call it.

    A kind encodes changes into a buffer and says how the buffer gets into the files (`drain`), how
    far they reach then (`_in_files`), and what the mark says after a sync (`_note_durable`).
    It notes in `files` which of them it has changed. `always`: nothing is acknowledged before it is
    durable.
    """

    mark: _Mark

    def __init__(
        self,
        directory: Directory,
        durable: int,
        *,
        always: bool,
        lock: threading.Lock | None = None,
    ) -> None:
        """Starts with all below `durable` durable."""
        self._directory = directory
        self.always = always
        self.lock = threading.Lock() if lock is None else lock
        self.changes = Signal(self.lock)
        # Held while files are synced without the queue's lock, so that no file is closed meanwhile.
        self.syncing = threading.Lock()
        self.files = OpenFiles()
        self.commit = GroupCommit(self._sync_files, durable)
        self._error: ForebayError | None = None
        self._failed = False

    @property
    def error(self) -> ForebayError | None:
        """Why the handle can no longer be used; None if it can."""
        return self._error

    def check(self) -> None:
        """Raises if the handle can no longer be used."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def check_whole(self) -> None:
        """Raises if the handle failed, but not while it is closing and writes what is left."""
        if self._failed:
            self.check()

    def fail(self, error: BaseException) -> None:
        """Ends the handle: every call raises from now on. The first error is kept."""
        self._failed = True
        self._stop()
        if self._error is None:
            self._error = (
                error
                if isinstance(error, ForebayError)
                else Closed(f"{self._directory.path} failed and must be reopened: {error!r}")
            )
        # All waiting callers must learn of it.
        self.changes.wake()

    def disown(self, error: Closed) -> None:
        """Ends the handle in the child of a fork; a thread that is gone may hold the old lock."""
        self.lock = threading.Lock()
        self.changes = Signal(self.lock)
        self._error = error
        self._disconnect()

    @property
    def path(self) -> str:
        """Where the queue is."""
        return self._directory.path

    def ticket(self) -> Ticket:
        """Drains, and returns the ticket of all that was applied."""
        with self.lock:
            self.check()
            self.drain()
            return self._ticket()

    def awaited(self, end: int) -> Ticket | None:
        """Returns what a change waits for that was just applied, up to `end`. Lock held.

        Under the weak policies that is nothing, unless too many files are unsynced: their number is
        bounded.
        """
        if self.always:
            return Ticket(self.commit, end, self.commit.epoch)
        return self._ticket() if self.files.unsynced > _UNSYNCED_FILES_MAX else None

    def sync(self) -> None:
        """Makes all that was applied durable.

        An interrupt during this wait leaves nothing half done: the next sync settles the changes.
        """
        self.ticket().settle()

    def sync_now(self) -> None:
        """Makes all that is in the files durable, and the mark that says so.

        With the lock held, so that nothing is added meanwhile.
        """
        sync = self._in_files()
        with FatalErrors(self):
            self.files.sync()
            self._note_durable(sync, full=False)
        self.sync_mark()
        self._reveal(sync)

    def sync_mark(self) -> None:
        """Makes the mark durable, so that a recent one is left after a power cut."""
        if not self.mark.synced:
            with FatalErrors(self):
                self.mark.sync()

    @abstractmethod
    def drain(self) -> None:
        """Moves what is applied into the files. Lock held."""

    @abstractmethod
    def release_files(self) -> None:
        """Closes all files."""

    @property
    @abstractmethod
    def applied(self) -> int:
        """The number of what is after all changes that were applied. Lock held."""

    @abstractmethod
    def _in_files(self) -> Sync:
        """Returns how far the files reach. Lock held."""

    @abstractmethod
    def _note_durable(self, sync: Sync, *, full: bool) -> bool:
        """Notes in the mark what a sync has covered; `full`: also a finished file. Lock held.

        Says whether the mark itself must be durable before the sync is acknowledged.
        """

    def _write_out(self) -> None:
        """Writes out what waits for a sync. Lock held."""
        if self.always:
            self.drain()

    def _ticket(self) -> Ticket:
        """Returns the ticket of all that was applied; without the buffer if that acknowledges."""
        end = self.applied if self.always else self._in_files().end
        return Ticket(self.commit, end, self.commit.epoch)

    def _reveal(self, sync: Sync) -> None:
        """Makes readable what a sync made durable, and wakes waiting callers. Lock held."""
        # Before the announcement: a caller that is woken must find it.
        self.commit.advance(sync.end)
        self.changes.announce()

    @abstractmethod
    def _stop(self) -> None:
        """Makes sure that nothing more is applied."""

    def _disconnect(self) -> None:
        """Makes sure that nothing more is applied; touches nothing shared with the parent."""
        self._stop()

    def _close(self, write_out: Callable[[], None], mark_clean: Callable[[], None]) -> None:
        """Makes everything durable, then closes all files, whatever happens.

        `write_out` is called with the lock held, and nothing is applied after it; `mark_clean` is
        called when all is durable. Neither is called for a handle that has failed.
        """
        closed = Closed(f"{self._directory.path} is closed")
        try:
            if self._error is None:
                with self.lock:
                    write_out()
                    # No change may come after this: the clean mark would hide it.
                    self._error = closed
                    self._stop()
                    ticket = self._ticket()
                ticket.settle()
                mark_clean()
        finally:
            # Take `syncing`: another thread may be syncing the files.
            with self.syncing, self.lock:
                self.fail(closed)
                self.release_files()

    def _sync_files(self) -> int:
        """Syncs what is written, then the mark; run by one thread at a time, without the lock."""
        with self.syncing:
            with self.lock:
                if self._failed:
                    self.check()
                self._write_out()
                sync, files = self._in_files(), self.files.begin_sync()
            done = marked = False
            try:
                for file in files:
                    file.sync()
                self._directory.check_there()
                done = True
            except OSError as error:
                self.fail(error)
                raise
            finally:
                with self.lock:
                    done = done and not self._failed
                    try:
                        full = self.files.end_sync(done=done)
                        marked = done and self._note_durable(sync, full=full)
                    except OSError as error:
                        self.fail(error)
                        raise
                    if done and not marked:
                        self._reveal(sync)
            if marked:
                with FatalErrors(self):
                    self.mark.sync()
                with self.lock:
                    self._reveal(sync)
        if self._failed:
            self.check()
        return sync.end
