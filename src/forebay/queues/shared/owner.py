"""The part of a queue that owns its files: one lock, one group commit, and whether it is whole.

What is changed is *applied* under the lock, which never waits for a disk, and *settled* by the
group commit: its leader writes out what waits, syncs without the lock, moves the durable mark and
wakes all who wait below it. A failed sync ends the handle: what was not acknowledged is never tried
again on that file, and everything raises until the queue is reopened.

An exception of a signal handler, such as Ctrl-C, can come between any two steps. Between "written
to the file" and "noted in memory" it would make the next write repeat or skip an entry: methods
marked `fatal_when_interrupted` end the handle then. A reopened queue is whole.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from forebay.errors import Closed, ForebayError
from forebay.queues.shared.signal import Signal
from forebay.storage.commit import GroupCommit, Ticket
from forebay.storage.filesystem import Directory
from forebay.storage.tail import Tail, TailFile

_Result = TypeVar("_Result")


_Arguments = ParamSpec("_Arguments")


class _Fails(Protocol):
    def fail(self, error: BaseException) -> None: ...


_Owner = TypeVar("_Owner", bound=_Fails)


def fatal_when_interrupted(
    method: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Wraps a method that handles the errors of the disk itself, and knows no others."""

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


class _Syncable(Protocol):
    def sync(self) -> None: ...


class Sync(NamedTuple):
    """A sync of files: what is durable after it, the files, and what the kind remembers of it."""

    end: int
    files: Sequence[_Syncable]
    note: Any = None


class Owner(ABC):
    """Changes the files of a queue that this process owns. Any thread may call it.

    A kind says what is to be synced (`_begin_sync`) and what follows from it (`_end_sync`).
    """

    def __init__(
        self, directory: Directory, durable: int, lock: threading.Lock | None = None
    ) -> None:
        """All below `durable` is durable."""
        self._directory = directory
        self.lock = threading.Lock() if lock is None else lock
        self.changes = Signal(self.lock)
        # Held while files are synced without the queue's lock, so that none is closed meanwhile.
        self.syncing = threading.Lock()
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
        """Raises if the handle failed; while it is closing, what is left is still written."""
        if self._failed:
            self.check()

    def fail(self, error: BaseException) -> None:
        """Ends the handle: everything raises from now on. The first reason stays."""
        self._failed = True
        self._stop()
        if self._error is None:
            self._error = (
                error
                if isinstance(error, ForebayError)
                else Closed(f"{self._directory.path} failed and must be reopened: {error!r}")
            )
        # Those who wait must learn of it.
        self.changes.wake()

    def disown(self, error: Closed) -> None:
        """Ends the handle in the child of a fork, whose lock may be held by nobody that lives."""
        self.lock = threading.Lock()
        self.changes = Signal(self.lock)
        self._error = error
        self._disconnect()

    @property
    def path(self) -> str:
        """Where the queue is."""
        return self._directory.path

    def ticket(self) -> Ticket:
        """Returns the ticket of all that was applied, and is in the files now."""
        with self.lock:
            self.check()
            self.drain()
            return self._ticket()

    def sync(self) -> None:
        """Makes all that was applied durable.

        An interrupt in this wait leaves nothing half done: the next sync settles it.
        """
        self.ticket().settle()

    @abstractmethod
    def drain(self) -> None:
        """Moves what is applied into the files. Lock held."""

    @abstractmethod
    def release_files(self) -> None:
        """Closes all files."""

    @abstractmethod
    def _ticket(self) -> Ticket:
        """Returns the ticket of all that was applied. Lock held."""

    @abstractmethod
    def _begin_sync(self) -> Sync:
        """Writes out what waits for a sync; says what to sync. Lock held."""

    @abstractmethod
    def _end_sync(self, sync: Sync, *, done: bool) -> _Syncable | None:
        """Moves the durable mark if the sync is done. Lock held.

        Returns the mark if it has to be durable itself before anybody may know.
        """

    def _reveal(self, sync: Sync) -> None:
        """Lets what a sync has made durable be read, and tells those who wait. Lock held."""
        # Before the news: whoever is woken finds it.
        self.commit.advance(sync.end)
        self.changes.announce()

    @abstractmethod
    def _stop(self) -> None:
        """Makes sure that nothing more is applied."""

    def _disconnect(self) -> None:
        """Makes sure that nothing more is applied; touches nothing that the parent shares."""
        self._stop()

    def _close(self, write_out: Callable[[], None], mark_clean: Callable[[], None]) -> None:
        """Makes everything durable, then closes all files, whatever happens.

        `write_out` is called with the lock held, before nothing is applied any more; `mark_clean`
        when all is durable. Neither is called for a handle that has failed.
        """
        closed = Closed(f"{self._directory.path} is closed")
        try:
            if self._error is None:
                with self.lock:
                    write_out()
                    # From here on nobody changes anything: the clean mark would hide it.
                    self._error = closed
                    self._stop()
                    ticket = self._ticket()
                ticket.settle()
                mark_clean()
        finally:
            # Another thread may be syncing them.
            with self.syncing, self.lock:
                self.fail(closed)
                self.release_files()

    def _sync_files(self) -> int:
        """Syncs what is written, then the mark; led by one thread at a time, without the lock."""
        with self.syncing:
            with self.lock:
                if self._failed:
                    self.check()
                sync = self._begin_sync()
            done = False
            try:
                for file in sync.files:
                    file.sync()
                self._directory.check_there()
                done = True
            except OSError as error:
                self.fail(error)
                raise
            finally:
                with self.lock:
                    done = done and not self._failed
                    mark = self._end_sync(sync, done=done)
                    if done and mark is None:
                        self._reveal(sync)
            if mark is not None:
                mark.sync()
                with self.lock:
                    self._reveal(sync)
        if self._failed:
            self.check()
        return sync.end


class End(NamedTuple):
    """An end of the log: the offset after it, the segment that it is in, where in it, its salt."""

    offset: int
    segment: int
    position: int
    salt: bytes = b""


class Publisher:
    """Writes `tail`: tells other processes, and recovery, where the end of a queue is.

    Called with the queue's lock held, except `sync`. The durable mark and its place change together
    and only after a sync: a mark that names a wrong place would make recovery cut good records.
    """

    def __init__(
        self, file: TailFile, tail: Tail, boot_id: bytes, fail: Callable[[BaseException], None]
    ) -> None:
        """`fail` ends the queue's handle: without its mark, nothing more may be acknowledged."""
        self._file = file
        self._boot_id = boot_id
        self._fail = fail
        self.tail = tail
        self.synced = True

    def publish(
        self,
        written: int,
        time_ms: int,
        *,
        durable: End | None = None,
        clean: bool = False,
        begin: int | None = None,
        staged: bool | None = None,
        sync: bool = False,
    ) -> None:
        """Writes a new mark; without `durable`, `begin` or `staged` the old one stays."""
        old = self.tail
        if durable is None:
            durable = End(old.durable, old.segment, old.position, old.salt)
        begin = old.begin if begin is None else begin
        staged = old.staged if staged is None else staged
        self._write(written, time_ms, durable, clean, begin, staged, sync)

    def move(self, written: int, time_ms: int, durable: End) -> None:
        """Writes a mark with a new durable end: what `publish` does most of the time."""
        old = self.tail
        self._write(written, time_ms, durable, False, old.begin, old.staged, False)

    def _write(
        self,
        written: int,
        time_ms: int,
        durable: End,
        clean: bool,
        begin: int | None,
        staged: bool,
        sync: bool,
    ) -> None:
        old = self.tail
        offset, segment, position, salt = durable
        self.tail = Tail(
            old.queue_id,
            self._boot_id,
            written,
            offset,
            segment,
            position,
            time_ms,
            clean,
            old.incarnation,
            old.starts,
            begin,
            salt,
            staged,
        )
        self.synced = False
        try:
            self._file.write(self.tail, sync=sync)
        except OSError as error:
            self._fail(error)
            raise
        self.synced = sync

    def sync(self) -> None:
        """Makes the last mark durable itself."""
        # Before the sync: a mark that is published meanwhile is not covered by it.
        self.synced = True
        try:
            self._file.sync()
        except OSError as error:
            self._fail(error)
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
