"""How changes of a deadline queue get into its log, and when they are durable.

Owns the queue's one lock, the open log, the staging buffer and the group commit. Any thread may
call the public methods, except where it says that the lock is held. Under the weak policies a batch
goes to the staging buffer first, if it fits: it is acknowledged there, and moved into the log when
the buffer is full, before a sync, and soon in any case. A failed or short write is cut back and
raised, and the queue goes on. A failed cut, or any failed sync, ends the handle.

Ends are counted over all logs, in bytes. What a power cut takes is a suffix, over all logs too: one
is durable before the first batch of the next is written, or the next says where it had ended. The
mark says up to where the logs are durable, and up to where they were written.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from forebay.errors import Closed
from forebay.formats.deadline.manifest import LogRow
from forebay.formats.deadline.mark import CLEAN, STAGED
from forebay.formats.deadline.wal import COPIED, Batches, Header, Origin, Record
from forebay.kernels.deadline import BATCH_BYTES, seal_batch
from forebay.queues.deadline.manifest import ManifestFile
from forebay.queues.deadline.mark import Ends, MarkFile
from forebay.queues.deadline.names import wal_name
from forebay.queues.deadline.replay import STAGED_PLACE
from forebay.queues.deadline.schedule import LoggedSchedule
from forebay.queues.shared.owner import Owner, Sync, Ticket, fatal_when_interrupted
from forebay.storage import atomic
from forebay.storage.commit import NotWritten
from forebay.storage.filesystem import Buffer, Directory, File, Filesystem, write_all
from forebay.storage.staging import HEADER_BYTES as STAGED_BYTES
from forebay.storage.staging import Staging


@dataclass(slots=True)
class WalFile:
    """A log that is open for writing."""

    number: int
    file: File
    batches: Batches
    position: int
    batch_count: int = 0
    first_id: int = 0
    copied: int = 0
    salt: bytes = b""

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing but where it comes from."""
        return self.batch_count <= 1 and not self.copied

    def row(self) -> LogRow:
        """Returns what the manifest says of it as long as it is written to."""
        return LogRow(self.number, self.salt, first_id=self.first_id, copied=self.copied)

    def write_origin(self, origin: Origin) -> int:
        """Writes, first of all, what it goes on from; returns what that takes."""
        self.first_id, self.copied = origin.first_id, origin.copied
        return self.write_batch(self.batches.encode_origin(origin))

    def write_copies(self, buffer: bytearray, size: int) -> int:
        """Writes records that were brought along as a batch; returns what it takes.

        They lie after room for its head and for the note that they are copies.
        """
        buffer[BATCH_BYTES : BATCH_BYTES + len(COPIED)] = COPIED
        end = seal_batch(buffer, len(COPIED) + size, self.batch_count, self.batches.seed)
        with memoryview(buffer) as data:
            return self.write_batch(data[:end])

    def write_batch(self, data: Buffer) -> int:
        """Writes a batch that is encoded with the next number; returns what it takes."""
        write_all(self.file, data, self.position)
        self.position += len(data)
        self.batch_count += 1
        return len(data)


def create_wal(
    filesystem: Filesystem, directory: Directory, number: int, queue_id: bytes, suffix: str = ""
) -> WalFile:
    """Creates a log; neither its name nor its header is durable yet."""
    name = wal_name(number) + suffix
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(name)
    header = Header(number, filesystem.random_bytes(8), queue_id)
    file = directory.create(name)
    try:
        write_all(file, header.encode(), 0)
    except OSError:
        file.close()
        directory.unlink(name)
        raise
    return WalFile(number, file, Batches(header), header.size, salt=header.salt)


class Journal(Owner):
    """The logs of a queue that this process owns."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        wal: WalFile,
        mark: MarkFile,
        manifest: ManifestFile,
        lock: threading.Lock,
    ) -> None:
        """All that is in `wal` is durable, and the mark says so."""
        super().__init__(directory, 0, lock)
        self._filesystem = filesystem
        self.wal = wal
        self._stored = 0
        self.durable = 0
        self.mark = mark
        self._manifest = manifest
        # What the logs take that were there when the queue was opened.
        self.kept_bytes = 0
        # Logs before this one that were not synced as a whole, the oldest first.
        self._unsynced: list[WalFile] = []
        self._hidden: deque[tuple[int, Callable[[], None]]] = deque()
        self._schedule: LoggedSchedule | None = None
        self._staging: Staging | None = None
        # Whether the schedule may write to the staging buffer.
        self.is_staging = False
        self._marks_writes = False
        # Whether something was written past the buffer that the mark does not say yet.
        self._wrote = False

    def use_schedule(self, schedule: LoggedSchedule, *, marks_writes: bool) -> None:
        """Takes what knows the next id and how many items there are.

        `marks_writes`: no sync follows each change, so the mark tells of each that is written.
        """
        self._schedule = schedule
        self._marks_writes = marks_writes

    def stage(self, size: int) -> None:
        """Lets small batches go to a staging buffer, to which the schedule may write too.

        On a full disk there is none, and every batch is written at once: a queue that could not be
        opened could not be emptied either.
        """
        try:
            self._staging = Staging(self._directory, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    @property
    def next_batch(self) -> int:
        """The number of the next batch. Lock held."""
        if self.is_staging and self._schedule is not None:
            return self._schedule.number
        return self.wal.batch_count

    @property
    def position(self) -> int:
        """Where in the open log the next batch goes."""
        return self.wal.position + self._staged_bytes

    @property
    def written(self) -> int:
        """The end of all that was written."""
        return self._stored + self._staged_bytes

    @fatal_when_interrupted
    def append(self, records: Sequence[Record]) -> int:
        """Writes a batch; returns the end to wait for. Lock held."""
        return self.append_bytes(self.wal.batches.encode(records, self.next_batch))

    def append_taken(self, data: Buffer) -> int:
        """Writes a batch that says what was taken: on a full disk the reserve makes room for it.

        Lock held.
        """
        try:
            return self.append_bytes(data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return atomic.with_reserve(self._directory, lambda: self.append_bytes(data))

    @fatal_when_interrupted
    def append_bytes(self, data: Buffer) -> int:
        """Writes a batch that is encoded as `next_batch`; returns the end. Lock held."""
        self.check()
        schedule, staging = self._schedule, self._staging
        if schedule is not None and staging is not None:
            if len(data) <= staging.size - STAGED_BYTES:
                if not self._put(schedule, staging, data):
                    self.drain()
                    self._put(schedule, staging, data)
                return self.written
            self.drain()
        position = self.wal.position
        try:
            self._stored += self.wal.write_batch(data)
        except OSError:
            self._cut_back(position)
            raise
        self._wrote = self._marks_writes
        return self.written

    def note_manifest(self) -> None:
        """Writes into the mark which manifest is newest and how many items there are. Lock held.

        An older one that takes its place is told by that. What is staged and finds no room in the
        log stays where it is: the queue reads from other runs by now, and there is no way back.
        """
        try:
            self.drain()
        except OSError:
            if self._failed:
                raise
        self._publish_mark()

    def note_written(self) -> None:
        """Writes into the mark what was written past the staging buffer. Lock held.

        After the change is in memory: the mark says how many items there are.
        """
        if self._wrote:
            self._wrote = False
            self._publish_mark()

    @fatal_when_interrupted
    def drain(self) -> None:
        """Moves what is in the staging buffer into the log; if that fails, it stays. Lock held."""
        schedule, staging = self._schedule, self._staging
        if not self.is_staging or schedule is None or staging is None:
            return
        position = self.wal.position
        size = self._staged_bytes
        if size:
            try:
                with staging.chunk(schedule.position) as data:
                    write_all(self.wal.file, data, position)
            except OSError:
                self._cut_back(position)
                raise
        self.wal.position += size
        self.wal.batch_count = schedule.number
        self._stored += size
        self.is_staging = False
        schedule.close()
        self._publish_mark()

    def announce(self) -> None:
        """Wakes all who wait for news of the queue."""
        if self.changes.wanted:
            self.changes.answer()

    def when_durable(self, end: int, action: Callable[[], None]) -> None:
        """Does something when all below an end is durable, in order. Lock held."""
        if self.durable >= end:
            action()
        else:
            self._hidden.append((end, action))

    def wait(self, end: int) -> None:
        """Returns when all below an end is durable."""
        self.commit.wait(end)

    def prepare(self, number: int) -> WalFile:
        """Creates the next log; durable on return, and not in use yet."""
        queue_id = self.mark.queue_id
        wal = create_wal(self._filesystem, self._directory, number, queue_id)
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
        """Goes on in another log; returns the one before, which is durable. Lock held.

        The caller has just synced: little is left to do under the lock.
        """
        self.drain()
        before = self.wal
        try:
            before.file.sync()
        except OSError as error:
            self.fail(error)
            raise
        self._publish(self.written)
        self.commit.advance(self.written)
        return self._go_on_in(wal, durable=True)

    def switch_unsynced(self, wal: WalFile) -> WalFile:
        """Goes on in another log; returns the one before, durable or not. Lock held.

        Its runs will be durable soon. Then it is removed, and its bytes need never get to the disk.
        """
        self.drain()
        before = self._go_on_in(wal, durable=False)
        self._unsynced.append(before)
        return before

    def _go_on_in(self, wal: WalFile, *, durable: bool) -> WalFile:
        """Goes on in a log that says what it goes on from; returns the one before."""
        before = self.wal
        end = self._end_of(before)
        origin = Origin(before.number, before.position, durable, end[3])
        self._stored += wal.write_origin(origin)
        self.wal = wal
        # Its first batch is not synced, and says nothing that a power cut may not take.
        self._publish_mark((wal.number, 0, 0, end[3], end[4]) if durable else None)
        return before

    def retire(self, wal: WalFile) -> None:
        """Closes a log whose runs are durable and removes it."""
        with self.syncing:
            with self.lock:
                self._unsynced = [each for each in self._unsynced if each is not wal]
            wal.file.close()
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(wal_name(wal.number))

    def end(self) -> None:
        """Refuses everything from now on, and makes durable what was written before."""
        with self.lock:
            if self._error is not None:
                return
            self._error = Closed(f"{self._directory.path} is closed")
            self.drain()
            end = self.written
        self.wait(end)

    def release_files(self) -> None:
        """Closes all files."""
        self.close(())

    def close(self, others: Sequence[WalFile]) -> None:
        """Closes all files."""
        with self.syncing:
            self._stop()
            if self._staging is not None:
                self._staging.close()
            for wal in (self.wal, *others):
                wal.file.close()
            self.mark.close()

    def sync_mark(self) -> None:
        """Makes the mark durable, so that a power cut leaves a recent one."""
        with self.syncing:
            with self.lock:
                self.check()
                if self.mark.synced:
                    return
            self.mark.sync()

    def close_mark(self) -> None:
        """Writes into the mark that everything is durable and nothing more comes."""
        with self.syncing, self.lock:
            end = self._end_of(self.wal)
            generation = self._manifest.manifest.generation
            # Twice: a bad slot must not bring back one that says less.
            for _ in range(2):
                self.mark.publish(generation, self.wal.salt, end, end, CLEAN)
            self.mark.sync()

    def _publish(self, end: int) -> None:
        """Makes durable items visible to takers. Lock held."""
        self.durable = max(self.durable, end)
        while self._hidden and self._hidden[0][0] <= self.durable:
            self._hidden.popleft()[1]()
        self.changes.announce()

    def _ticket(self) -> Ticket:
        return Ticket(self.written, self.commit.epoch)

    def _begin_sync(self) -> Sync:
        try:
            self.drain()
        except OSError as error:
            # It stays in the staging buffer: only a failed sync is final.
            raise NotWritten(error) from None
        files = [each.file for each in (*self._unsynced, self.wal)]
        return Sync(self.written, files, (self._end_of(self.wal), list(self._unsynced)))

    def _end_sync(self, sync: Sync, *, done: bool) -> None:
        if done:
            durable, before = cast(tuple[Ends, list[WalFile]], sync.note)
            self._unsynced = [each for each in self._unsynced if each not in before]
            self._publish_mark(durable)
            self._publish(sync.end)

    def _stop(self) -> None:
        """Lets the schedule write no more; what is in the staging buffer stays there."""
        self.is_staging = False
        if self._schedule is not None:
            self._schedule.close()

    def _end_of(self, wal: WalFile) -> Ends:
        """Returns where a log ends, without what is staged. Lock held, nothing staged."""
        schedule = self._schedule
        if schedule is None:
            return wal.number, wal.position, wal.batch_count, 0, 0
        # Never below 0: a manifest that lies makes counts that do not add up.
        live = max(0, schedule.total + schedule.buried)
        return wal.number, wal.position, wal.batch_count, schedule.next_id, live

    def _publish_mark(self, durable: Ends | None = None) -> None:
        """Writes what is written by now, and what is durable if that has changed. Lock held.

        A mark that cannot be written is only low: what it would say is in the logs.
        """
        mark = self.mark
        if self.is_staging:
            # What is in the log does not change: the ids and items since then are staged.
            written, flags = mark.written, STAGED
        elif durable is not None and durable[:2] == (self.wal.number, self.wal.position):
            written, flags = durable, 0
        else:
            written, flags = self._end_of(self.wal), 0
        try:
            mark.publish(
                self._manifest.manifest.generation,
                self.wal.salt,
                mark.durable if durable is None else durable,
                written,
                flags,
            )
        except OSError:
            # The log itself is what tells of a disk that fails.
            return

    def _put(self, schedule: LoggedSchedule, staging: Staging, data: Buffer) -> bool:
        """Puts a batch into the staging buffer; False if it is too large for what is left."""
        begins = not self.is_staging
        if begins:
            self._begin(schedule, staging)
        end = schedule.position + len(data)
        if end > staging.size:
            return False
        staging.buffer[schedule.position : end] = data
        schedule.skip(len(data))
        if begins:
            self._publish_mark()
        return True

    def _begin(self, schedule: LoggedSchedule, staging: Staging) -> None:
        """Begins a chunk for the batches that come next."""
        wal = self.wal
        place = STAGED_PLACE.pack(wal.position)
        staging.begin(wal.batches.header.encode() + place, wal.batch_count)
        schedule.open(staging.buffer, STAGED_BYTES, staging.size, wal.batch_count, wal.batches.seed)
        self.is_staging = True

    @property
    def _staged_bytes(self) -> int:
        if not self.is_staging or self._schedule is None:
            return 0
        return self._schedule.position - STAGED_BYTES

    def _cut_back(self, position: int) -> None:
        """Cuts a part of a batch off: it would pass for a torn end, with good ones after it."""
        try:
            self.wal.file.truncate(position)
        except OSError as error:
            self.fail(error)
