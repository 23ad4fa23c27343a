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
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from forebay.errors import Closed, ForebayError
from forebay.storage.commit import Alarm, Epoch, GroupCommit
from forebay.storage.filesystem import Directory
from forebay.storage.tail import Tail, TailFile

_Result = TypeVar("_Result")
_WAIT_SECONDS_MAX = 3600.0


class Signal:
    """Lets threads and tasks wait for news of a queue, at no cost while nobody does.

    Whoever waits is on the list before it looks once more: a change that comes after that look
    wakes it. `wanted` says that somebody is on the list, or was: a change that takes no lock looks
    at it, and announces itself then. `listener` is called with the lock held, so it must neither
    wait nor raise.

    Not a `threading.Condition`: an exception of a signal handler may leave the wait of one without
    the lock, and whoever then gives it back takes it from another thread.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.watchers: list[Alarm] = []
        self._listener: Callable[[], None] | None = None
        self.wanted = False

    @property
    def listener(self) -> Callable[[], None] | None:
        """What is called at news, with the lock held."""
        return self._listener

    @listener.setter
    def listener(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener
        if listener is not None:
            self.wanted = True

    def wait(self, seconds: float) -> None:
        """Waits for news. Called with the lock held, which is given back meanwhile."""
        alarm = Alarm()
        self.watchers.append(alarm)
        self.wanted = True
        try:
            # In here: an exception after any of the two finds the lock taken again.
            self._lock.release()
            alarm.wait(max(0, seconds))
        finally:
            self._lock.acquire()
            self._forget(alarm)

    def wait_until(
        self, try_once: Callable[[], _Result | None], seconds_left: Callable[[], float]
    ) -> _Result | None:
        """Tries until there is something; None if no time is left. Called without the lock.

        `seconds_left()` is how long it may sleep before the next try; 0 or less: the time is up.
        """
        alarm = Alarm()
        with self._lock:
            self.watchers.append(alarm)
            self.wanted = True
        try:
            while True:
                result = try_once()
                if result is not None:
                    return result
                left = seconds_left()
                if left <= 0:
                    return None
                # An endless wait is cut into long ones: no timeout of a thread may be infinite.
                alarm.wait(min(left, _WAIT_SECONDS_MAX))
        finally:
            with self._lock:
                self._forget(alarm)

    def announce(self) -> None:
        """Wakes all who wait. Lock held."""
        self.wake()
        if self._listener is not None:
            self._listener()

    def answer(self) -> None:
        """Announces a change that found that it is wanted; called without the lock."""
        with self._lock:
            self.wanted = bool(self.watchers) or self._listener is not None
            self.announce()

    def wake(self) -> None:
        """Wakes the threads that wait; any thread may call it without the lock."""
        for alarm in list(self.watchers):
            alarm.set()

    def _forget(self, alarm: Alarm) -> None:
        if alarm in self.watchers:
            self.watchers.remove(alarm)


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


class Ticket(NamedTuple):
    """What was applied: durable when the group commit has passed `end`."""

    end: int
    epoch: Epoch


class _Syncable(Protocol):
    def sync(self) -> None: ...


class Sync(NamedTuple):
    """A sync of files: what is durable after it, the files, and what the kind remembers of it."""

    end: int
    files: Sequence[_Syncable]
    note: object = None


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

    def settle(self, ticket: Ticket) -> None:
        """Returns when what was applied is durable.

        An interrupt in this wait leaves nothing half done: the next sync settles it.
        """
        self.commit.wait(ticket.end, ticket.epoch)

    def sync(self) -> None:
        """Makes all that was applied durable."""
        with self.lock:
            self.check()
            self.drain()
            ticket = self._ticket()
        self.settle(ticket)

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
    def _end_sync(self, sync: Sync, *, done: bool) -> None:
        """Moves the durable mark if the sync is done. Lock held."""

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
                self.settle(ticket)
                mark_clean()
        finally:
            # Another thread may be syncing them.
            with self.syncing, self.lock:
                self.fail(closed)
                self.release_files()

    def _sync_files(self) -> int:
        """Syncs all that is written; led by one thread at a time, without the lock."""
        with self.syncing:
            with self.lock:
                self.check_whole()
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
                    self._end_sync(sync, done=done and not self._failed)
                    self.changes.announce()
        self.check_whole()
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
        self.tail = Tail(
            old.queue_id,
            self._boot_id,
            written,
            durable.offset,
            durable.segment,
            durable.position,
            time_ms,
            clean,
            old.incarnation,
            old.starts,
            old.begin if begin is None else begin,
            durable.salt,
            old.staged if staged is None else staged,
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
