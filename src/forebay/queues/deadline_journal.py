"""How changes of a deadline queue get into its log, and when they are durable.

Owns the queue's one lock, the open log and the group commit. Any thread may call the public
methods, except where it says that the lock is held. A failed or short write is cut back and raised,
and the queue goes on. A failed cut, or any failed sync, ends the handle.

Ends are counted over all logs, in bytes. A log is durable before the first byte of the next one is
written: what a power cut takes is a suffix.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.errors import Closed, ForebayError
from forebay.formats.deadline_wal import HEADER_BYTES, Batches, Header, Record
from forebay.queues.changes import Changes
from forebay.queues.deadline_names import wal_name
from forebay.queues.unbroken import unbroken
from forebay.storage.commit import GroupCommit
from forebay.storage.filesystem import Buffer, Directory, File, Filesystem, write_all


@dataclass(slots=True)
class WalFile:
    """A log that is open for writing."""

    number: int
    file: File
    batches: Batches
    position: int = HEADER_BYTES
    batch_count: int = 0
    # Up to where it is durable, and up to where it says so.
    durable: int = HEADER_BYTES
    marked: int = HEADER_BYTES

    @property
    def next_batch(self) -> int:
        """The number of the next batch, behind the mark that goes before it."""
        return self.batch_count + (self.durable > self.marked)

    def write(self, records: Sequence[Record]) -> int:
        """Writes a batch behind the others; gives what it takes."""
        return self.write_batch(self.batches.encode(records, self.next_batch))

    def write_batch(self, data: Buffer) -> int:
        """Writes a batch that is encoded as `next_batch`, and before it what is durable by now."""
        number = self.next_batch
        if number > self.batch_count:
            data = b"".join((self.batches.encode_durable(self.durable, self.batch_count), data))
        write_all(self.file, data, self.position)
        self.marked = self.durable
        self.position += len(data)
        self.batch_count = number + 1
        return len(data)


def create_wal(
    filesystem: Filesystem, directory: Directory, number: int, suffix: str = ""
) -> WalFile:
    """Creates a log; neither its name nor its header is durable yet."""
    name = wal_name(number) + suffix
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(name)
    header = Header(number, filesystem.random_bytes(8))
    file = directory.create(name)
    try:
        write_all(file, header.encode(), 0)
    except OSError:
        file.close()
        directory.unlink(name)
        raise
    return WalFile(number, file, Batches(header))


class Journal:
    """The logs of a queue that this process owns."""

    def __init__(self, filesystem: Filesystem, directory: Directory, wal: WalFile) -> None:
        """All that is in `wal` is durable."""
        self._filesystem = filesystem
        self._directory = directory
        self.wal = wal
        self.lock = threading.Lock()
        self.changes = Changes(self.lock)
        # Held while a log is synced or closed, so that none is closed under a sync.
        self._syncing = threading.Lock()
        self.written = 0
        self.durable = 0
        self.commit = GroupCommit(self._sync, 0)
        self._hidden: deque[tuple[int, Callable[[], None]]] = deque()
        self._error: ForebayError | None = None
        self._failed = False

    def check(self) -> None:
        """Raises if the handle can no longer be used."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    @property
    def error(self) -> ForebayError | None:
        """Why the handle can no longer be used; None if it can."""
        return self._error

    def fail(self, error: BaseException) -> None:
        """Ends the handle: everything raises from now on. The first reason stays."""
        self._failed = True
        if self._error is None:
            self._error = (
                error
                if isinstance(error, ForebayError)
                else Closed(f"{self._directory.path} failed and must be reopened: {error!r}")
            )

    @unbroken
    def append(self, records: Sequence[Record]) -> int:
        """Writes a batch; gives the end to wait for. Lock held."""
        return self.append_bytes(self.wal.batches.encode(records, self.wal.next_batch))

    @unbroken
    def append_bytes(self, data: Buffer) -> int:
        """Writes a batch that is encoded for the open log; gives the end. Lock held."""
        self.check()
        position = self.wal.position
        try:
            self.written += self.wal.write_batch(data)
        except OSError:
            try:
                # A part of a batch would pass for a torn end, with good ones behind it.
                self.wal.file.truncate(position)
            except OSError as error:
                self.fail(error)
            raise
        return self.written

    def when_durable(self, end: int, action: Callable[[], None]) -> None:
        """Does something when all below an end is durable, in order. Lock held."""
        if self.durable >= end:
            action()
        else:
            self._hidden.append((end, action))

    def wait(self, end: int) -> None:
        """Returns when all below an end is durable."""
        self.commit.wait(end, 0)

    def sync(self) -> None:
        """Makes all that was written durable."""
        with self.lock:
            self.check()
            end = self.written
        self.wait(end)

    def prepare(self, number: int) -> WalFile:
        """Creates the next log; durable on return, and not in use yet."""
        wal = create_wal(self._filesystem, self._directory, number)
        try:
            wal.file.sync()
            self._directory.sync()
        except OSError:
            wal.file.close()
            with contextlib.suppress(OSError):
                self._directory.unlink(wal_name(number))
            raise
        return wal

    def switch(self, wal: WalFile) -> WalFile:
        """Goes on in another log; gives the one before, which is durable. Lock held.

        The caller has just synced: little is left to do under the lock.
        """
        before = self.wal
        try:
            before.file.sync()
        except OSError as error:
            self.fail(error)
            raise
        self._publish(self.written)
        self.commit.advance(self.written)
        self.wal = wal
        return before

    def retire(self, wal: WalFile) -> None:
        """Closes a log whose runs are durable and removes it."""
        with self._syncing:
            wal.file.close()
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(wal_name(wal.number))

    def end(self) -> None:
        """Refuses everything from now on, and makes durable what was written before."""
        with self.lock:
            if self._error is not None:
                return
            self._error = Closed(f"{self._directory.path} is closed")
            end = self.written
        self.wait(end)

    def close(self, others: Sequence[WalFile]) -> None:
        """Closes all files."""
        with self._syncing:
            for wal in (self.wal, *others):
                wal.file.close()

    def disown(self, error: Closed) -> None:
        """Ends the handle in the child of a fork."""
        self.lock = threading.Lock()
        self.changes = Changes(self.lock)
        self._error = error

    def _publish(self, end: int) -> None:
        """Lets be seen what is durable. Lock held."""
        self.durable = max(self.durable, end)
        while self._hidden and self._hidden[0][0] <= self.durable:
            self._hidden.popleft()[1]()
        self.changes.announce()

    def _sync(self) -> int:
        """Syncs all that is written; led by one thread at a time, without the lock."""
        with self._syncing:
            with self.lock:
                # Who closes the queue still has all synced that was written before.
                if self._failed:
                    self.check()
                end, wal, position = self.written, self.wal, self.wal.position
            try:
                wal.file.sync()
            except OSError as error:
                self.fail(error)
                raise
        with self.lock:
            wal.durable = max(wal.durable, position)
            self._publish(end)
        return end
