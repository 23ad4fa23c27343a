"""How records get into a log: singly, in batches, durably or by way of the staging buffer.

Any thread may call the public methods. Built on `SegmentLog`, which owns the files; here are the
records that are on their way there: those in the staging buffer (acknowledged under the weak
policies), and those that durable appends have encoded for the next commit (not acknowledged).
"""

from __future__ import annotations

from collections.abc import Callable

from forebay.clock import Clock
from forebay.errors import Closed, Full
from forebay.formats.fflg import MS_MAX, OFFSET_MAX
from forebay.queues.capacity import check_values
from forebay.queues.chunk import Chunk
from forebay.queues.options import LogOptions
from forebay.queues.pending import Pending
from forebay.queues.segment_log import SegmentLog
from forebay.queues.unbroken import unbroken
from forebay.storage.commit import Epoch
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentList
from forebay.storage.staging import HEADER_BYTES
from forebay.storage.tail import Tail, TailFile

_UNSYNCED_SEGMENTS_MAX = 4
_BUFFER_BYTES = 1 << 20
# More records than a process can append.
_FAR = 2**48


class LogWriter(SegmentLog):
    """Appends to a log that this process owns."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        segments: SegmentList,
        tail_file: TailFile,
        tail: Tail,
        *,
        options: LogOptions,
        version: int,
        clock: Clock,
        make_room: Callable[[int], int],
    ) -> None:
        """`make_room(size)` waits, with the lock held, until `size` more bytes may be written.

        It gives how many more may be, and lets go of the lock while it waits.
        """
        super().__init__(filesystem, directory, segments, tail_file, tail, options, version)
        self._clock = clock
        self._make_room = make_room
        # Near the last offset every append is looked at; elsewhere none can reach it.
        self._ending = tail.written > OFFSET_MAX - _FAR
        self._bounded = options.max_bytes is not None or self._ending
        self._mapped = options.mapped and directory.maps
        self._buffer = memoryview(bytearray())
        self._pending = Pending()
        self._chunk: Chunk | None = None
        self.put: Callable[[object], int] = self._append_durable if self._always else _cannot_stage

    @property
    def staged(self) -> bool:
        """Whether records wait in the staging buffer."""
        return self._chunk is not None and self._chunk.waiting

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        chunk = self._chunk
        return chunk.next_offset if chunk is not None and chunk.waiting else self.written

    def append_staged(self, value: bytes) -> int:
        """Appends one record by way of the staging buffer; it survives `kill -9` on return."""
        if self._always or not self._layout.checked or not self._mapped:
            return self.append_many([value])
        anew = False
        while True:
            with self.lock:
                self.check()
                if not self._begin_chunk(value, anew=anew):
                    break
                put = self.put
            # Between the lock and this call another thread may have filled the chunk.
            offset = put(value)
            if offset >= 0:
                self._help_sync()
                return offset
            anew = True
        return self.append_many([value])

    def append_many(self, values: list[bytes]) -> int:
        """Appends records and gives the offset of the first; durable under "always"."""
        with self.lock:
            self.check()
            size = check_values(values, self._layout, self._options.segment_bytes)
            segments = 2 + 2 * size // self._options.segment_bytes
            self.drain()
            self._make_room(size + segments * self._layout.header_bytes)
            self.drain()
            first = self.written
            if first + len(values) > OFFSET_MAX + 1:
                left = OFFSET_MAX + 1 - first
                raise Full(f"offsets end at {OFFSET_MAX}: {left} are left; nothing was written")
            done = 0
            while done < len(values):
                done += self._append_some(values, done)
            end, epoch = self.written, self.commit.epoch
            if not self._always:
                self.publish()
                self.changes.announce()
        if self._always:
            self.commit.wait(end, epoch)
        else:
            self._help_sync()
        return first

    def _append_durable(self, value: object) -> int:
        """Appends one record and waits for its sync; -1 if it takes more than that."""
        added = self._add_pending(value)
        if added is None:
            return -1
        offset, epoch = added
        # Nothing is half changed here: an interrupt leaves the record to the next sync.
        self.commit.wait(offset + 1, epoch)
        return offset

    @unbroken
    def _add_pending(self, value: object) -> tuple[int, Epoch] | None:
        """Encodes one record for the next commit; returns its offset and epoch."""
        with self.lock:
            writer, frames = self._writer, self._frames
            if type(value) is not bytes or writer is None or frames is None or self._bounded:
                return None
            self.check()
            now_ms = max(self._clock.now_ms(), self._last_ms, frames.header.epoch_ms + 1)
            ms = now_ms - frames.header.epoch_ms
            if (ms > MS_MAX and self._layout.checked) or (
                not value and self._layout.zero_size_ends
            ):
                return None
            offset, epoch = self.written, self.commit.epoch
            room = self._options.segment_bytes - writer.end
            if not self._pending.add(frames, value, offset - frames.header.base_offset, ms, room):
                return None
            self.written = offset + 1
            self._last_ms = now_ms
            return offset, epoch

    def sync(self) -> None:
        """Makes all that was appended durable."""
        with self.lock:
            self.check()
            self.drain()
            end, epoch = self.written, self.commit.epoch
        self.commit.wait(end, epoch)

    @unbroken
    def drain(self) -> None:
        """Moves what is staged or pending into the segment. Lock held."""
        self.write_pending()
        chunk = self._chunk
        if chunk is None or not chunk.waiting:
            return
        count = chunk.stop()
        if count:
            with chunk.frames() as frames:
                self._write(frames, count)
            self.written += count
            self._last_ms = chunk.last_ms
            self.changes.announce()
        self.publish(staged=False)
        chunk.done()

    @unbroken
    def roll(self) -> None:
        """Seals the segment being written; the next record starts a new one. Lock held."""
        self.drain()
        super().roll()

    @property
    def last_ms(self) -> int:
        """The time of the last record."""
        chunk = self._chunk
        return chunk.last_ms if chunk is not None and chunk.waiting else self._last_ms

    def close(self) -> None:
        """Makes everything durable and marks the queue as cleanly closed."""
        closed = Closed(f"{self._directory.path} is closed")
        try:
            if self._error is None:
                with self.lock:
                    self.roll()
                    # From here on nobody appends: the clean mark would hide what came later.
                    self._error = closed
                    self.put = _cannot_stage
                    end, epoch = self.written, self.commit.epoch
                self.commit.wait(end, epoch)
                with self.lock:
                    self.publish(clean=True, sync=True)
        finally:
            with self.lock:
                self.fail(closed)
                self._release()

    def fail(self, error: BaseException) -> None:
        """Ends the handle: everything raises from now on. The first reason stays."""
        super().fail(error)
        self.put = _cannot_stage
        self._pending.take()
        if self._chunk is not None:
            self._chunk.stop()

    def disown(self, error: Closed) -> None:
        """Ends the handle in the child of a fork; the parent's buffer is not touched."""
        super().disown(error)
        self.put = _cannot_stage

    def _release(self) -> None:
        if self._chunk is not None:
            self._chunk.close()
            self._chunk = None
        self.release_files()

    @unbroken
    def _append_some(self, values: list[bytes], first: int) -> int:
        """Writes as many values as the segment takes, at least one."""
        now_ms = max(self._clock.now_ms(), self._last_ms)
        writer, frames = self._segment_for(len(values[first]), now_ms)
        now_ms = max(now_ms, frames.header.epoch_ms + 1)
        room = self._options.segment_bytes - writer.end
        count, size = frames.fit(values, first, room)
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(max(size, _BUFFER_BYTES)))
        index = self.written - frames.header.base_offset
        ms = now_ms - frames.header.epoch_ms
        frames.encode(values, first, count, self._buffer, index, ms)
        self._write(self._buffer[:size], count)
        self.written += count
        self._last_ms = now_ms
        return count

    @unbroken
    def _begin_chunk(self, value: bytes, *, anew: bool) -> bool:
        """Opens the staging buffer for a record; False if it does not fit there. Lock held."""
        size = check_values([value], self._layout, self._options.segment_bytes)
        if size > self._options.staging_bytes - HEADER_BYTES or self._ending:
            return False
        if self._chunk is not None and self._chunk.has_room(size) and not anew:
            return True
        self.drain()
        available = self._make_room(size + self._layout.header_bytes)
        self.drain()
        writer, frames = self._segment_for(len(value), max(self._clock.now_ms(), self._last_ms))
        if self._chunk is None:
            self._chunk = Chunk(
                self._directory, self._options.staging_bytes, self.lock, self._clock
            )
        room = min(
            self._options.segment_bytes - writer.end,
            self._options.staging_bytes - HEADER_BYTES,
            available - self._layout.header_bytes,
        )
        index = self.written - frames.header.base_offset
        self._chunk.begin(frames, index, room, self._last_ms)
        # Before the first is acknowledged: a buffer that is missing then is damage.
        self.publish(staged=True)
        self.put = self._chunk.put
        return True

    def _help_sync(self) -> None:
        """Makes a writer that outruns the disk wait for it: unsynced segments are bounded."""
        if len(self.sealed) > _UNSYNCED_SEGMENTS_MAX:
            self.commit.wait(self.written, self.commit.epoch)

    @unbroken
    def write_pending(self) -> None:
        """Writes what durable appends left in the buffer; on an error all of them get it."""
        if not self._pending.count:
            return
        data, count = self._pending.take()
        try:
            self._write(data, count)
        except OSError as error:
            self.written -= count
            self.commit.abandon(error, self.written)
            raise


def _cannot_stage(_value: object) -> int:
    return -1
