"""How entries get onto a tape: through memory, or a batch at a time.

Any thread may call the public methods, unless they say that the lock is held. Owns the queue's
one lock, the end of the tape, the memory in front of it, the group commit and the mark of what is
durable. A single push goes into the memory. Under the weak policies that is the mapped staging
buffer, where it is acknowledged; under "always" it is a buffer that the next commit writes out,
where it is not. A put that finds no room raises `NoRoom`: after room was made, the same put is
called again.

The head is here because its window may be on the memory, and because what has left makes room.

A failed or short write is cut back and raised, and the queue continues. A failed cut, or any failed
sync, ends the handle: what was not acknowledged is never tried again on that file.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from forebay.clock import SteadyClock
from forebay.kernels.entry import METADATA_BYTES, encode, encode_sized, measure_sized
from forebay.queues.fifo.bounds import Bounds, TapeEnd
from forebay.queues.fifo.head import HeadFile
from forebay.queues.fifo.options import FifoOptions
from forebay.queues.fifo.staged import StagedEntries
from forebay.queues.fifo.staging import STAGED, STAGED_HEADER
from forebay.queues.fifo.tape import TapeWriter
from forebay.queues.shared.mark import End, TailMark
from forebay.queues.shared.owner import FatalErrors, Owner, Sync, fatal_when_interrupted
from forebay.queues.shared.waiting import NoRoom
from forebay.storage.commit import Ticket
from forebay.storage.filesystem import Directory, Filesystem, Mapping
from forebay.storage.posted import Batch as Posted
from forebay.storage.staging import HEADER_BYTES, Staging
from forebay.storage.tail import Tail, TailFile

_PENDING_BYTES = 1 << 20
NO_BOUND = 2**62


class Room(NamedTuple):
    """How much may be written: bytes, including metadata, and entries."""

    size: int = NO_BOUND
    entries: int = NO_BOUND


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries that are written together, of `size` bytes with their metadata.

    `encode` gets the buffer and their start, and returns their size and the time of the last one.
    """

    encode: Callable[..., tuple[int, int]]
    count: int
    size: int

    @classmethod
    def of(cls, values: list[bytes], total: int) -> Batch:
        """Makes a batch of values that have `total` bytes together."""
        count = len(values)
        return cls(partial(encode, values, 0, count), count, total + count * METADATA_BYTES)


class FifoWriter(Owner):
    """Writes to a fifo that this process owns."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        tape: TapeWriter,
        bounds: Bounds,
        head: HeadFile,
        tail_file: TailFile,
        tail: Tail,
        end: TapeEnd,
        *,
        file_bytes: int,
        version: bytes,
        options: FifoOptions,
        clock: SteadyClock,
        lock: threading.Lock,
    ) -> None:
        """All below `end` is durable; the next entry is written there, in this version."""
        super().__init__(directory, end.number, always=options.sync == "always", lock=lock)
        self.tape = tape
        self.files = tape.files
        self.head = head
        self._bounds = bounds
        self._file_bytes = file_bytes
        self._version = version
        self._options = options
        self._clock = clock
        # What fits into the memory: without a mapping nothing there would survive the process.
        self._memory_bytes = options.staging_bytes - HEADER_BYTES if head.mapped else 0
        if self.always:
            self._memory_bytes = _PENDING_BYTES
        self._most = Room(options.max_bytes or NO_BOUND, options.max_entries or NO_BOUND)
        self._bounded = self._most != Room()
        self.mark: TailMark = TailMark(tail_file, tail, filesystem.boot_id())
        self.stored = end
        self.durable = end
        self.memory: Mapping = bytearray()
        self._staging: Staging | None = None
        self._scratch = bytearray()
        # Whether the mark says that a chunk of the staging buffer is in use.
        self._in_use = False
        now_ms = None if clock.is_system else clock.now_ms
        self.staged = StagedEntries(lock, now_ms, clock.ahead_ms, version, head.mapped)
        self.staged.empty(end.number, end.last_ms)

    @property
    def applied(self) -> int:
        """The number that the next entry gets."""
        return self.staged.number

    @property
    def position(self) -> int:
        """Where on the tape the next entry goes."""
        return self.stored.position + self.staged.position - self.staged.start

    @property
    def has_staged(self) -> bool:
        """Whether there are entries in the memory."""
        return self.staged.number != self.stored.number

    @property
    def readable(self) -> TapeEnd:
        """How far the files may be read: under "always", to the end of what is durable."""
        return self.durable if self.always else self.stored

    @property
    def count(self) -> int:
        """How many entries count for `max_entries`, including those that are lent."""
        return max(0, self.applied - self.head.cursor.number) + len(self.head.lent)

    @property
    def room(self) -> Room:
        """How much may be written now."""
        if not self._bounded:
            return self._most
        used = self.position - self.head.first_position
        return Room(self._most.size - used, self._most.entries - self.count)

    def put(self, value: bytes, ttl: int) -> int:
        """Puts one entry into the memory and returns its id. Lock held.

        One that is too large for the memory is written to the tape. Raises `NoRoom`.
        """
        size = len(value) + METADATA_BYTES
        if size > self._memory_bytes:
            return self.write(Batch.of([value], len(value)), ttl)
        entry_id = self.staged.put(value, ttl)
        if entry_id is None:
            raise NoRoom(size)
        return entry_id

    def write(self, batch: Batch, ttl: int) -> int:
        """Writes entries to the tape and returns the id of the last. Lock held.

        Raises `NoRoom`.
        """
        room = self.room
        if batch.size > room.size or batch.count > room.entries:
            raise NoRoom(batch.size)
        self.drain()
        entry_id = self._write_batch(batch, ttl)
        if not self.always:
            self._publish()
            self.changes.announce()
        return entry_id

    def write_posted(self, posted: Posted) -> Ticket | None:
        """Writes what a client has posted; returns what to wait for. Lock held."""
        total, _ = measure_sized(posted.records, posted.count)
        size = total + posted.count * METADATA_BYTES
        encode_posted = partial(encode_sized, posted.records, posted.count)
        self.write(Batch(encode_posted, posted.count, size), posted.extra)
        return self.awaited(self.applied)

    @fatal_when_interrupted
    def open_memory(self) -> None:
        """Makes room in the memory, as far as the bounds allow. Lock held, memory drained."""
        if not self._memory_bytes or self.staged.is_open:
            return
        if self._staging is None:
            size = HEADER_BYTES + self._memory_bytes
            self._staging = Staging(self._directory, size, mapped=not self.always)
            self.memory = self._staging.buffer
            self.staged.use(self.memory)
        if not self.always:
            self._mark_unclean()
            header = STAGED_HEADER.pack(self.stored.position, self._floor_id(), self._version)
            self._staging.begin(header, self.stored.number)
            # Before the first entry is acknowledged: from here on a missing chunk is a loss.
            self._in_use = True
            self._publish()
        self._begin_memory()

    def _begin_memory(self) -> None:
        end, stop = HEADER_BYTES + self._memory_bytes, NO_BOUND
        if self._bounded:
            room = self.room
            end = min(end, HEADER_BYTES + max(0, room.size))
            stop = self.stored.number + max(0, room.entries)
        self.staged.begin(HEADER_BYTES, end, stop)

    def sync_now(self) -> None:
        """Makes everything durable: the head may stand at an entry in the memory. Lock held."""
        self.drain()
        super().sync_now()

    @fatal_when_interrupted
    def drain(self) -> None:
        """Moves what is in memory to the tape. Lock held."""
        staged, count = self.staged, self.staged.number - self.stored.number
        if not count and not staged.is_open:
            return
        staged.finish()
        # Counted again: until now a push may have come without the lock.
        count = staged.number - self.stored.number
        if count:
            self._drain(count)
        # The memory is empty: the next write takes the place of the chunk on the tape.
        self._in_use = False
        self.head.cursor.leave_memory()
        staged.empty(self.stored.number, self.stored.last_ms)
        if self.always:
            self._begin_memory()

    def _drain(self, count: int) -> None:
        staged = self.staged
        with memoryview(self.memory)[staged.start : staged.position] as data:
            try:
                self._write(data, count, staged.last_ms)
            except OSError as error:
                if self.always:
                    # None of it was acknowledged: all callers that wait for it get the error.
                    staged.empty(self.stored.number, self.stored.last_ms)
                    self.commit.abandon(error, self.stored.number)
                raise
        if not self.always:
            # In the same mark as the entries, which are in the files now.
            self._in_use = False
            self._publish()
            self.changes.announce()

    def close(self, before_clean: Callable[[], int]) -> None:
        """Makes everything durable and marks the queue as cleanly closed.

        `before_clean` runs when all entries are durable and no push or pop runs any more; it
        returns the number of the oldest entry that must be there.
        """

        def mark_clean() -> None:
            begin = before_clean()
            with self.lock:
                self._in_use = False
                self._publish(clean=True, sync=True, begin=begin)

        self._close(self.drain, mark_clean)

    def release_files(self) -> None:
        """Closes all files, even if one of them fails to close."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.mark.close)
            stack.callback(self.tape.close)
            if self._staging is not None:
                stack.callback(self._staging.close)
                self._staging = None
            self.head.cursor.leave_memory()
            self.staged.release_buffer()

    def _floor_id(self) -> int:
        """A bound that the next entry's id is above."""
        return max(0, (self.stored.last_ms << 16) - 1)

    @fatal_when_interrupted
    def _write_batch(self, batch: Batch, ttl: int) -> int:
        if batch.size > len(self._scratch):
            # Kept for the next batch: allocating fresh memory costs as much as all the rest.
            self._scratch = bytearray(max(batch.size, _PENDING_BYTES))
        buffer = memoryview(self._scratch)[: batch.size]
        end = self.stored
        now_ms = self._clock.now_ms()
        _, last_ms = batch.encode(buffer, end.number, now_ms, end.last_ms, ttl, self._version)
        self._write(buffer, batch.count, last_ms)
        self.staged.empty(self.stored.number, last_ms)
        return last_ms << 16 | (self.stored.number - 1) & 0xFFFF

    def _write(self, data: memoryview, count: int, last_ms: int) -> None:
        """Writes the next `count` entries to the tape."""
        self._mark_unclean()
        end = self.stored
        try:
            self.tape.write(data, end.position)
        except OSError as error:
            if self.tape.broken:
                self.fail(error)
            raise
        self._bounds.note_all(data, end, self._floor_id(), self._file_bytes)
        self.stored = TapeEnd(end.number + count, end.position + len(data), last_ms)

    def _mark_unclean(self) -> None:
        if self.mark.last.clean:
            # Before anything is acknowledged: after a crash a clean mark would hide it.
            self._publish(sync=True)

    def _publish(
        self, *, clean: bool = False, sync: bool = False, begin: int | None = None
    ) -> None:
        """Publishes the end in the mark. Lock held."""
        file, position = divmod(self.durable.position, self._file_bytes)
        with FatalErrors(self):
            self.mark.publish(
                self.readable.number,
                self.durable.last_ms,
                durable=End(self.durable.number, file, position, STAGED if self._in_use else b""),
                begin=begin,
                clean=clean,
                sync=sync,
            )

    def _stop(self) -> None:
        self.staged.stop()
        self.head.cursor.stop()

    def _in_files(self) -> Sync:
        return Sync(self.stored.number, self.stored)

    def _note_durable(self, sync: Sync, *, full: bool) -> bool:
        if sync.end >= self.durable.number:
            self.durable = sync.place
            self._publish()
        # With each full file the mark itself is synced, which bounds what recovery has to read.
        return full
