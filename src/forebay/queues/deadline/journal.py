"""How changes of a deadline queue get into its log, and when they are durable.

Owns the queue's one lock, the open log, the buffer that changes are encoded into and the group
commit. Any thread may call the public methods, unless they say that the lock is held.

Under the weak policies the buffer is the mapped staging buffer: a change is acknowledged there, and
moved into the log when the buffer is full, before a sync, and soon in any case. Under "always" it
is plain memory, which the group commit's leader writes out for all; nothing in it is acknowledged.
A change that is too large for the staging buffer, or every change if there is none, goes to plain
memory too, and is written out before it is acknowledged.

A failed or short write is cut back and raised, and the queue continues: what was acknowledged stays
in the buffer, what was not is undone. A failed cut, or any failed sync, ends the handle.

Ends are counted over all logs, in bytes. A power cut removes a suffix, over all logs too: one log
is durable before the first batch of the next is written, or the next says where it had ended. The
mark says how far the logs are durable, and how far they were written.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from forebay.formats.deadline.manifest import LogRow
from forebay.formats.deadline.mark import CLEAN, STAGED
from forebay.formats.deadline.wal import COPIED, Batches, Header, Origin
from forebay.kernels.deadline import BATCH_BYTES, seal_batch
from forebay.queues.deadline.manifest import ManifestFile
from forebay.queues.deadline.mark import Ends, MarkFile
from forebay.queues.deadline.names import wal_name
from forebay.queues.deadline.replay import STAGED_PLACE
from forebay.queues.deadline.schedule import FULL
from forebay.queues.deadline.state import NO_BOUND, State
from forebay.queues.shared.owner import FatalErrors, Owner, Sync, fatal_when_interrupted
from forebay.storage import atomic
from forebay.storage.commit import NotWritten, Ticket
from forebay.storage.filesystem import Buffer, Directory, File, Filesystem, write_all
from forebay.storage.staging import HEADER_BYTES as STAGED_BYTES
from forebay.storage.staging import Staging

if TYPE_CHECKING:
    from forebay.queues.deadline.schedule import NotMade

_Result = TypeVar("_Result")
# The least size of the memory for changes, and how much of it is kept for later changes.
_MEMORY_BYTES = 64 << 10
_MEMORY_BYTES_KEPT = 4 << 20
# How many more rows memory takes while freezing lags, before new items wait for it again.
_ROWS_AT_ONCE = 1024
# How many ids are reserved in the manifest at a time.
IDS_AT_ONCE = 1 << 20


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
        """Whether it holds nothing but its origin."""
        return self.batch_count <= 1 and not self.copied

    def row(self) -> LogRow:
        """Returns its row in the manifest while it is being written."""
        return LogRow(self.number, self.salt, first_id=self.first_id, copied=self.copied)

    def write_origin(self, origin: Origin) -> int:
        """Writes the origin, which comes first; returns the size of that."""
        self.first_id, self.copied = origin.first_id, origin.copied
        return self.write_batch(self.batches.encode_origin(origin))

    def write_copies(self, buffer: bytearray, size: int) -> int:
        """Writes records copied from other logs as a batch; returns its size.

        They lie after room for the head of the batch and for the note that they are copies.
        """
        buffer[BATCH_BYTES : BATCH_BYTES + len(COPIED)] = COPIED
        end = seal_batch(buffer, len(COPIED) + size, self.batch_count, self.batches.seed)
        with memoryview(buffer) as data:
            return self.write_batch(data[:end])

    def write_batch(self, data: Buffer) -> int:
        """Writes a batch that is encoded with the next number; returns its size."""
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
        state: State,
        *,
        max_bytes: int | None,
        staging_bytes: int,
    ) -> None:
        """Everything in `wal` is durable, and the mark says so.

        `max_bytes`: what logs and runs may take; None: no bound. `staging_bytes`: 0 uses no staging
        buffer.
        """
        super().__init__(directory, 0, always=state.schedule.hides, lock=state.schedule.lock)
        self._filesystem = filesystem
        self.wal = wal
        self._stored = 0
        self.durable = 0
        self.mark: MarkFile = mark
        self._manifest = manifest
        # The size of the logs that existed at the open.
        self.kept_bytes = 0
        self._state = state
        self._schedule = state.schedule
        self._max_bytes = max_bytes
        self._staging = self._open_staging(staging_bytes)
        self._memory = Staging(directory, 0, mapped=False)
        # The open buffer, which is one of the two; whether it is the mapped one.
        self._buffer: Staging | None = None
        self.is_staging = False

    def _open_staging(self, size: int) -> Staging | None:
        """Opens the staging buffer.

        On a full disk there is none, and every batch is written at once: a queue that could not be
        opened could not be drained either.
        """
        if size == 0:
            return None
        try:
            return Staging(self._directory, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return None

    @property
    def position(self) -> int:
        """Where in the open log the next batch goes."""
        return self.wal.position + self._waiting_bytes

    @property
    def applied(self) -> int:
        """The end of all changes that were applied."""
        return self._stored + self._waiting_bytes

    @property
    def used_bytes(self) -> int:
        """How many bytes runs and logs take. Lock held."""
        frozen = sum(segment.bytes for segment in self._state.frozen)
        sets = sum(each.size for each in self._state.view.sets)
        return sets + frozen + self.position + self.kept_bytes

    @property
    def free_bytes(self) -> int:
        """How many bytes new items may take. Lock held."""
        return NO_BOUND if self._max_bytes is None else self._max_bytes - self.used_bytes

    def apply(
        self, change: Callable[[], _Result | NotMade], *, takes: bool = False
    ) -> tuple[_Result, Ticket | None]:
        """Makes a change, and room for it in the buffer. Lock held.

        Returns the ticket that the caller has to wait for; None if it is acknowledged. `takes`: it
        removes something, so on a full disk the reserve makes room for it. A caller that adds items
        has checked `free_bytes` itself.
        """
        self.check()
        return self._apply(change, takes)

    @fatal_when_interrupted
    def _apply(
        self, change: Callable[[], _Result | NotMade], takes: bool
    ) -> tuple[_Result, Ticket | None]:
        before = self.applied
        result = change()
        while result is FULL:
            self._make_room(takes=takes)
            try:
                result = change()
            finally:
                self._publish_begin()
        if self.always:
            return result, self._ticket()
        if not self.is_staging:
            self._drain(takes=takes)
        if self.applied != before:
            self.changes.announce()
        return result, None

    def _make_room(self, *, takes: bool) -> None:
        """Makes room for a change that had none."""
        schedule = self._schedule
        needed, ids = schedule.needed, schedule.needed_ids
        if ids > schedule.ids_end - schedule.next_id:
            self.reserve_ids(ids)
        self._drain(takes=takes)
        self._begin(needed)
        rows = schedule.memories[0].count + ids
        if rows > schedule.items_max:
            # The caller has already waited for freezing.
            schedule.items_max = rows + _ROWS_AT_ONCE

    def reserve_ids(self, count: int) -> None:
        """Reserves `count` ids, so that none of them is used again after a crash."""
        schedule = self._schedule
        if schedule.next_id + count > self._manifest.manifest.next_id:
            self._manifest.reserve_ids(schedule.next_id + count + IDS_AT_ONCE)
        schedule.ids_end = self._manifest.manifest.next_id

    def note_manifest(self) -> None:
        """Writes into the mark which manifest is newest and how many items there are. Lock held.

        That reveals an older manifest in its place. Staged changes that find no room in the log
        stay where they are: the queue already reads from other runs, and there is no way back.
        """
        try:
            self.drain()
        except OSError:
            if self._failed:
                raise
        self._publish_mark()

    def drain(self) -> None:
        """Writes what is in the buffer to the log. Lock held.

        If that fails, what was acknowledged stays in the buffer. What was not is undone, and all
        callers that wait for it get the error.
        """
        self._drain(takes=False)

    @fatal_when_interrupted
    def _drain(self, *, takes: bool) -> None:
        if self._buffer is None:
            return
        schedule, size = self._schedule, self._waiting_bytes
        if size:
            try:
                if takes or (self.always and schedule.takes):
                    atomic.with_reserve(self._directory, self._write_buffer)
                else:
                    self._write_buffer()
            except OSError as error:
                if not self.is_staging:
                    self._undo(error)
                raise
        self.wal.position += size
        self.wal.batch_count = schedule.number
        self._stored += size
        self._close_buffer()
        if not self.always:
            self._publish_mark()

    def _write_buffer(self) -> None:
        position = self.wal.position
        assert self._buffer is not None
        self.files.wrote(self.wal.file)
        try:
            with memoryview(self._buffer.buffer)[STAGED_BYTES : self._schedule.position] as data:
                write_all(self.wal.file, data, position)
        except OSError:
            self._cut_back(position)
            raise

    def _undo(self, error: OSError) -> None:
        """Takes back what is in the buffer, none of which was acknowledged."""
        self._schedule.undo()
        self._close_buffer()
        if self.always:
            self.commit.abandon(error, self._stored)

    def _close_buffer(self) -> None:
        self._buffer, self.is_staging = None, False
        self._schedule.close()
        if self._memory.size > _MEMORY_BYTES_KEPT:
            self._memory = Staging(self._directory, 0, mapped=False)

    def wait(self, end: int) -> None:
        """Returns when everything below an end is durable."""
        self.commit.wait(end)

    def prepare(self, number: int) -> WalFile:
        """Creates the next log; durable on return, and not yet in use."""
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
        """Continues in another log; returns the previous one, which is durable. Lock held.

        The caller has just synced, so little is left to do under the lock.
        """
        self.drain()
        with FatalErrors(self):
            self.files.sync()
        self._publish(self.applied)
        self.commit.advance(self.applied)
        return self._go_on_in(wal, durable=True)

    def switch_unsynced(self, wal: WalFile) -> WalFile:
        """Continues in another log; returns the previous one, durable or not. Lock held.

        Its runs will be durable soon. Then it is removed, and its bytes need never reach the disk.
        """
        self.drain()
        return self._go_on_in(wal, durable=False)

    def _go_on_in(self, wal: WalFile, *, durable: bool) -> WalFile:
        """Continues in a log that names its predecessor; returns the previous log."""
        before = self.wal
        end = self._end_of(before)
        origin = Origin(before.number, before.position, durable, end[3])
        # If that fails, the caller removes the new log, and no sync may find it.
        self._stored += wal.write_origin(origin)
        self.files.wrote(wal.file)
        self.wal = wal
        # Its first batch is not synced, and holds nothing that a power cut may not remove.
        self._publish_mark((wal.number, 0, 0, end[3], end[4]) if durable else None)
        return before

    def retire(self, wal: WalFile) -> None:
        """Closes a log whose runs are durable and removes it."""
        with self.syncing, self.lock:
            self.files.drop(wal.file)
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(wal_name(wal.number))

    def close(self, mark_clean: Callable[[], None]) -> None:
        """Makes everything durable and closes all files; `mark_clean` is called in between."""
        self._close(self.drain, mark_clean)

    def release_files(self) -> None:
        """Closes all files but those of logs that are being frozen."""
        if self._staging is not None:
            self._staging.close()
        self.wal.file.close()
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
        """Writes into the mark that everything is durable and nothing more follows."""
        with self.syncing, self.lock:
            end = self._end_of(self.wal)
            generation = self._manifest.manifest.generation
            # Twice, into both slots: if one is bad, the other must not hold an older mark.
            for _ in range(2):
                self.mark.publish(generation, self.wal.salt, end, end, CLEAN)
            self.mark.sync()

    def _publish(self, end: int) -> None:
        """Makes durable items available to `dequeue`. Lock held."""
        self.durable = max(self.durable, end)
        self._schedule.show(self.durable)
        self.changes.announce()

    def _write_out(self) -> None:
        try:
            self.drain()
        except OSError as error:
            if self.always:
                raise
            # The changes stay in the staging buffer: only a failed sync is final.
            raise NotWritten(error) from None

    def _in_files(self) -> Sync:
        return Sync(self.applied, self._end_of(self.wal))

    def _note_durable(self, sync: Sync, *, full: bool) -> bool:
        self._publish_mark(sync.place)
        self._publish(sync.end)
        return False

    def _disconnect(self) -> None:
        self._schedule.use_lock(self.lock)
        self._stop()

    def _stop(self) -> None:
        """Refuses further changes; what is in the staging buffer stays there."""
        self._buffer, self.is_staging = None, False
        self._schedule.stop()

    def _end_of(self, wal: WalFile) -> Ends:
        """Returns where a log ends. Lock held, nothing in the buffer."""
        schedule = self._schedule
        # Never below 0: with a false manifest the counts do not add up.
        live = max(0, schedule.total + schedule.buried)
        return wal.number, wal.position, wal.batch_count, schedule.next_id, live

    def _publish_mark(self, durable: Ends | None = None) -> None:
        """Writes how far the logs are written, and durable if that has changed. Lock held.

        A mark that cannot be written is only too low: what it would say is in the logs.
        """
        mark = self.mark
        if self.is_staging:
            # The log does not change meanwhile: the ids and items since then are staged.
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
            # A failing disk is reported by the log itself.
            return

    def _begin(self, needed: int) -> None:
        """Opens a buffer for the next batches, with room for the first."""
        wal, buffer = self.wal, self._staging
        if buffer is not None and needed <= buffer.size - STAGED_BYTES:
            place = STAGED_PLACE.pack(wal.position)
            buffer.begin(wal.batches.header.encode() + place, wal.batch_count)
            self.is_staging = True
        else:
            buffer = self._memory
            if needed > buffer.size - STAGED_BYTES:
                # Kept for the next batch: allocating fresh memory costs as much as all the rest.
                size = STAGED_BYTES + max(needed, _MEMORY_BYTES)
                buffer = self._memory = Staging(self._directory, size, mapped=False)
        self._schedule.open(
            buffer.buffer,
            STAGED_BYTES,
            buffer.size,
            wal.batch_count,
            wal.batches.seed,
            self._stored,
            not self.is_staging,
        )
        self._schedule.fresh_end = STAGED_BYTES + self.free_bytes
        self._buffer = buffer

    def _publish_begin(self) -> None:
        """Records in the mark that the staging buffer is in use, before its first batch counts.

        From then on a missing buffer is a loss. A buffer with nothing in it is closed again.
        """
        if not self._waiting_bytes:
            self._close_buffer()
        elif self.is_staging:
            self._publish_mark()

    @property
    def _waiting_bytes(self) -> int:
        return 0 if self._buffer is None else self._schedule.position - STAGED_BYTES

    def _cut_back(self, position: int) -> None:
        """Cuts off part of a batch: it would pass for a torn end, with good batches after it."""
        try:
            self.wal.file.truncate(position)
        except OSError as error:
            self.fail(error)
