"""How entries get onto a tape: singly, in batches, durably or by way of the staging buffer.

Any thread may call the public methods, except where it says that the lock is held. Owns the queue's
one lock, the end of the tape, the group commit and the mark of what is durable. Single pushes are
encoded into memory first: under the weak policies that is the mapped staging buffer, and they are
acknowledged there; under "always" it is a buffer of the next commit, and they are not.

A failed or short write is cut back and raised, and the queue goes on. A failed cut, or any failed
sync, ends the handle: what was not acknowledged is never tried again on that file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple, cast

from forebay.clock import SteadyClock
from forebay.kernels.entry import METADATA_BYTES, encode
from forebay.queues.fifo.bounds import Bounds, TapeEnd
from forebay.queues.fifo.staged import StagedEntries
from forebay.queues.fifo.staging import STAGED, STAGED_HEADER
from forebay.queues.fifo.tape import TapeWriter
from forebay.queues.shared.options import FifoOptions
from forebay.queues.shared.owner import End, Owner, Publisher, Sync, Ticket, fatal_when_interrupted
from forebay.storage.commit import Epoch
from forebay.storage.filesystem import Directory, Filesystem, Mapping
from forebay.storage.staging import HEADER_BYTES, Staging
from forebay.storage.tail import Tail, TailFile

_PENDING_BYTES = 1 << 20
_UNSYNCED_FILES_MAX = 4
NO_BOUND = 2**62


class Room(NamedTuple):
    """How much may be written: bytes, metadata included, and entries."""

    size: int = NO_BOUND
    entries: int = NO_BOUND


class FifoWriter(Owner):
    """Writes to a fifo that this process owns."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        tape: TapeWriter,
        bounds: Bounds,
        tail_file: TailFile,
        tail: Tail,
        end: TapeEnd,
        *,
        file_bytes: int,
        version: bytes,
        options: FifoOptions,
        clock: SteadyClock,
    ) -> None:
        """All below `end` is durable, and the next entry is written there, of this version."""
        super().__init__(directory, end.number)
        self.tape = tape
        self._bounds = bounds
        self._file_bytes = file_bytes
        self._version = version
        self._options = options
        self._clock = clock
        self.always = options.sync == "always"
        # Whether single pushes and pops are stores into mapped files.
        self.mapped = not self.always and options.mapped and directory.maps
        self._bounded = options.max_bytes is not None or options.max_entries is not None
        self.publisher = Publisher(tail_file, tail, filesystem.boot_id(), self.fail)
        self.stored = end
        self.durable = end
        self.pusher: StagedEntries | None = None
        self._staging: Staging | None = None
        self.memory: Mapping = bytearray()
        self._scratch = bytearray()
        self._start = 0
        self._room_end = 0
        self._stop_number = 0
        # Whether the mark says that a chunk of the staging buffer is in use.
        self._staged = False
        self.waiting = False
        # Set by the queue: what ends a look into the memory, what ends all pops, what makes room.
        self.before_drain: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self.make_room: Callable[[int, int, float | None], Room] = lambda *_: Room()
        self.put: Callable[[object, int], int] = self._push_durable if self.always else _no_room

    @property
    def number(self) -> int:
        """The number that the next entry gets."""
        pusher = self.pusher
        return pusher.number if pusher is not None and self.waiting else self.stored.number

    @property
    def position(self) -> int:
        """Where on the tape the next entry goes."""
        pusher = self.pusher
        waiting = pusher.position - self._start if pusher is not None and self.waiting else 0
        return self.stored.position + waiting

    @property
    def readable(self) -> TapeEnd:
        """Up to where the files may be read: under "always", what is durable."""
        return self.durable if self.always else self.stored

    @property
    def last_ms(self) -> int:
        """The time of the last entry."""
        pusher = self.pusher
        return pusher.last_ms if pusher is not None and self.waiting else self.stored.last_ms

    def push(self, value: bytes, ttl: int, timeout: float | None) -> int:
        """Pushes one entry and returns its id; durable under "always"."""
        anew = False
        while True:
            with self.lock:
                self.check()
                if not self._begin_chunk(len(value), timeout, anew=anew):
                    break
                put = self.put
            # Between the lock and this call another thread may have filled the chunk.
            entry_id = put(value, ttl)
            if entry_id >= 0:
                self._help_sync()
                return entry_id
            anew = True
        return self.push_many([value], len(value), ttl, timeout)

    def push_many(self, values: list[bytes], total: int, ttl: int, timeout: float | None) -> int:
        """Pushes entries, of `total` bytes, with one commit; returns the id of the last."""
        size = total + len(values) * METADATA_BYTES
        with self.lock:
            self.check()
            self.drain()
            self.make_room(size, len(values), timeout)
            self.drain()
            entry_id = self._write_values(values, size, ttl)
            end, epoch = self.stored.number, self.commit.epoch
            if not self.always:
                self._publish()
                self.changes.announce()
        if self.always:
            self.commit.wait(end, epoch)
        else:
            self._help_sync()
        return entry_id

    def _push_durable(self, value: object, ttl: int) -> int:
        """Pushes one entry and waits for its sync; -1 if it takes more than that."""
        placed = self._put_durable(value, ttl)
        if placed is None:
            return -1
        entry_id, end, epoch = placed
        # An interrupt in this wait leaves nothing half done.
        self.commit.wait(end, epoch)
        return entry_id

    @fatal_when_interrupted
    def _put_durable(self, value: object, ttl: int) -> tuple[int, int, Epoch] | None:
        """Puts one entry into the buffer of the next commit; None if it takes more than that.

        Returns its id, and what to wait for.
        """
        with self.lock:
            if self.pusher is None or type(value) is not bytes:
                return None
            self.check()
            if not self.waiting and not self._bounded:
                self._begin(self.pusher, Room(_PENDING_BYTES))
            entry_id = self.pusher.put(value, ttl)
            if entry_id < 0:
                return None
            return entry_id, self.pusher.number, self.commit.epoch

    def sync_now(self) -> None:
        """Makes everything durable with the lock held: nothing comes after it."""
        self.drain()
        try:
            self.tape.sync()
        except OSError as error:
            self.fail(error)
            raise
        self._take_durable(self.stored, sync=True)
        self.commit.advance(self.stored.number)
        self.changes.announce()

    @fatal_when_interrupted
    def drain(self) -> None:
        """Moves what is in memory onto the tape. Lock held."""
        if not self.waiting or self.pusher is None:
            return
        self.pusher.finish()
        count = self.pusher.number - self.stored.number
        if count:
            self._drain(self.pusher, count)
        # With nothing in it, whatever is written next takes its place.
        self._staged = False
        self.before_drain()
        self.waiting = False

    def _drain(self, pusher: StagedEntries, count: int) -> None:
        with memoryview(self.memory)[self._start : pusher.position] as data:
            try:
                self._write(data, count, pusher.last_ms)
            except OSError as error:
                if self.always:
                    # Nothing of it was acknowledged: all who wait for it get the error.
                    self.waiting = False
                    self.commit.abandon(error, self.stored.number)
                raise
        if not self.always:
            # In the same mark as the entries: they are in the files now.
            self._staged = False
            self._publish()
            self.changes.announce()

    def close(self, before_clean: Callable[[], int]) -> None:
        """Makes everything durable and marks the queue as cleanly closed.

        `before_clean` runs when all entries are durable, and nobody pushes or pops any more; it
        returns the number of the oldest entry that must be there.
        """

        def mark_clean() -> None:
            begin = before_clean()
            with self.lock:
                self._staged = False
                self._publish(clean=True, sync=True, begin=begin)

        self._close(self.drain, mark_clean)

    def release_files(self) -> None:
        """Closes all files, whatever one of them says to that."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.publisher.close)
            stack.callback(self.tape.close)
            if self._staging is not None:
                stack.callback(self._staging.close)
                self._staging = None
            self.waiting = False
            self.before_drain()
            if self.pusher is not None:
                self.pusher.release_buffer()
                self.pusher = None

    def _begin_chunk(self, size: int, timeout: float | None, *, anew: bool) -> bool:
        """Opens the memory for an entry; False if it does not fit there. Lock held."""
        size += METADATA_BYTES
        most = _PENDING_BYTES if self.always else self._options.staging_bytes - HEADER_BYTES
        if size > most or not (self.always or self.mapped):
            return False
        if self.waiting and self.pusher is not None and not anew:
            left = self._room_end - self.pusher.position
            if size <= left and self.pusher.number < self._stop_number:
                return True
        self.drain()
        # It may wait: an interrupt there leaves nothing half done.
        room = self.make_room(size, 1, timeout)
        self.drain()
        self._open_chunk(Room(min(most, room.size), room.entries))
        return True

    @fatal_when_interrupted
    def _open_chunk(self, room: Room) -> None:
        self._open_memory()
        assert self.pusher is not None
        self._mark_unclean()
        if self._staging is not None:
            header = STAGED_HEADER.pack(self.stored.position, self._floor_id(), self._version)
            self._staging.begin(header, self.stored.number)
            # Before the first is acknowledged: from here on a chunk that is gone is a loss.
            self._staged = True
            self._publish()
        self._begin(self.pusher, room)
        if not self.always:
            self.put = self.pusher.push

    def _begin(self, pusher: StagedEntries, room: Room) -> None:
        self._start = 0 if self.always else HEADER_BYTES
        self._room_end = self._start + room.size
        self._stop_number = self.stored.number + room.entries
        pusher.last_ms = self.stored.last_ms
        pusher.begin(self._start, self._room_end, self.stored.number, self._stop_number)
        self.waiting = True

    def _open_memory(self) -> None:
        if self.pusher is not None:
            return
        if self.always:
            self.memory = bytearray(_PENDING_BYTES)
        else:
            self._staging = Staging(self._directory, self._options.staging_bytes)
            self.memory = self._staging.buffer
        now_ms = None if self._clock.is_system else self._clock.now_ms
        self.pusher = StagedEntries(
            self.memory, self.lock, now_ms, self._clock.ahead_ms, self._version
        )

    def _floor_id(self) -> int:
        """What the next entry's id is above."""
        return max(0, (self.stored.last_ms << 16) - 1)

    @fatal_when_interrupted
    def _write_values(self, values: list[bytes], size: int, ttl: int) -> int:
        if size > len(self._scratch):
            # Kept for the next batch: fresh memory costs as much as all the rest.
            self._scratch = bytearray(max(size, _PENDING_BYTES))
        buffer = memoryview(self._scratch)[:size]
        end = self.stored
        now_ms = self._clock.now_ms()
        _, last_ms = encode(
            values, 0, len(values), buffer, end.number, now_ms, end.last_ms, ttl, self._version
        )
        self._write(buffer, len(values), last_ms)
        return last_ms << 16 | (self.stored.number - 1) & 0xFFFF

    def _write(self, data: memoryview, count: int, last_ms: int) -> None:
        """Writes the next `count` entries onto the tape."""
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
        if self.publisher.tail.clean:
            # Before anything is acknowledged: a clean mark would hide it after a crash.
            self._publish(sync=True)

    def _publish(
        self, *, clean: bool = False, sync: bool = False, begin: int | None = None
    ) -> None:
        """Tells where the end is. Lock held."""
        file, position = divmod(self.durable.position, self._file_bytes)
        self.publisher.publish(
            self.readable.number,
            self.durable.last_ms,
            durable=End(self.durable.number, file, position, STAGED if self._staged else b""),
            begin=begin,
            clean=clean,
            sync=sync,
        )

    def _help_sync(self) -> None:
        """Makes a writer that outruns the disk wait for it: unsynced files are bounded."""
        if len(self.tape.unsynced) > _UNSYNCED_FILES_MAX:
            self.commit.wait(self.stored.number, self.commit.epoch)

    def _take_durable(self, end: TapeEnd, *, sync: bool) -> None:
        if end.number >= self.durable.number:
            self.durable = end
            self._publish(sync=sync)

    def _ticket(self) -> Ticket:
        return Ticket(self.stored.number, self.commit.epoch)

    def _stop(self) -> None:
        self.put = _no_room
        if self.pusher is not None:
            self.pusher.finish()
        self.on_failure()

    def _disconnect(self) -> None:
        self.put = _no_room

    def _begin_sync(self) -> Sync:
        if self.always:
            self.drain()
        return Sync(self.stored.number, self.tape.begin_sync(), self.stored)

    def _end_sync(self, sync: Sync, *, done: bool) -> None:
        self.tape.end_sync(done=done)
        if done:
            end = cast(TapeEnd, sync.note)
            # With each full file the mark itself is synced: recovery never reads more than that.
            full = end.position // self._file_bytes > self.durable.position // self._file_bytes
            self._take_durable(end, sync=full)


def _no_room(_value: object, _ttl: int) -> int:
    return -1
