"""The writing half of a log: every change of its state on disk goes through here.

Owns the queue's one lock, the segment being written, the staging buffer, the group commit and
`tail`. Any thread may call the public methods. Nothing slow happens under the lock: syncs run
outside it.

A failed or short write is cut back and raised, and the queue goes on. A failed cut, or any failed
sync, ends the handle: what was not acknowledged is never tried again on that file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from forebay.clock import Clock
from forebay.errors import Closed, ForebayError
from forebay.formats.fflg import LAYOUTS, MS_MAX, Frames
from forebay.queues.capacity import check_values
from forebay.queues.changes import Changes
from forebay.queues.chunk import Chunk
from forebay.queues.new_segments import NewSegments
from forebay.queues.options import LogOptions
from forebay.queues.pending import Pending
from forebay.queues.publishing import End, Publisher
from forebay.storage.commit import GroupCommit
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentList, SegmentWriter
from forebay.storage.staging import HEADER_BYTES
from forebay.storage.tail import Tail, TailFile

_UNSYNCED_SEGMENTS_MAX = 4
_BUFFER_BYTES = 1 << 20


class LogWriter:
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
        self._directory = directory
        self._segments = segments
        self.publisher = Publisher(tail_file, tail, filesystem.boot_id(), self.fail)
        self._options = options
        self._layout = LAYOUTS[version]
        self._new_segments = NewSegments(filesystem, directory, version, options.segment_bytes)
        self._clock = clock
        self._make_room = make_room
        self._always = options.sync == "always"
        self._bounded = options.max_bytes is not None
        self.lock = threading.Lock()
        self.changes = Changes(self.lock)
        self.written = tail.written
        self._place = End(tail.written, tail.segment, tail.position)
        self._last_ms = tail.time_ms
        self.commit = GroupCommit(self._sync_files, tail.durable)
        self._writer: SegmentWriter | None = None
        self._frames: Frames | None = None
        self.sealed: list[SegmentWriter] = []
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._pending = Pending()
        self._chunk: Chunk | None = None
        self._error: BaseException | None = None
        self.put: Callable[[object], int] = self._append_durable if self._always else _cannot_stage

    @property
    def writing(self) -> bool:
        """Whether a segment is being written."""
        return self._writer is not None

    @property
    def used_bytes(self) -> int:
        """What all segments take, without preallocated space."""
        return sum(self._segments.sizes.values()) + (self._writer.end if self._writer else 0)

    @property
    def staged(self) -> bool:
        """Whether records wait in the staging buffer."""
        return self._chunk is not None and self._chunk.waiting

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        chunk = self._chunk
        return chunk.next_offset if chunk is not None and chunk.waiting else self.written

    def check(self) -> None:
        """Raises if the handle can no longer be used."""
        if self._error is not None:
            raise self._error

    def append_staged(self, value: bytes) -> int:
        """Appends one record by way of the staging buffer; it survives `kill -9` on return."""
        if self._always or not self._layout.checked:
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
            segments = 2 + size // self._options.segment_bytes
            self._make_room(size + segments * self._layout.header_bytes)
            self.drain()
            first = self.written
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
        with self.lock:
            writer, frames = self._writer, self._frames
            if type(value) is not bytes or writer is None or frames is None or self._bounded:
                return -1
            self.check()
            now_ms = max(self._clock.now_ms(), self._last_ms, frames.header.epoch_ms + 1)
            ms = now_ms - frames.header.epoch_ms
            if ms > MS_MAX or (not value and self._layout.zero_size_ends):
                return -1
            offset, epoch = self.written, self.commit.epoch
            room = self._options.segment_bytes - writer.end
            if not self._pending.add(frames, value, offset - frames.header.base_offset, ms, room):
                return -1
            self.written = offset + 1
            self._last_ms = now_ms
        self.commit.wait(offset + 1, epoch)
        return offset

    def sync(self) -> None:
        """Makes all that was appended durable."""
        with self.lock:
            self.check()
            self.drain()
            end, epoch = self.written, self.commit.epoch
        self.commit.wait(end, epoch)

    def disown(self, error: Closed) -> None:
        """Ends the handle in the child of a fork, whose lock may be held by nobody that lives."""
        self.lock = threading.Lock()
        self.changes = Changes(self.lock)
        self._error = error
        self.put = _cannot_stage

    def drain(self) -> None:
        """Moves what is staged or pending into the segment. Lock held."""
        self._write_pending()
        chunk = self._chunk
        if chunk is None or not chunk.waiting:
            return
        count = chunk.stop()
        if count:
            with chunk.frames() as frames:
                self._write(frames, count)
            self.written += count
            self._last_ms = chunk.last_ms
            self.publish()
            self.changes.announce()
        chunk.done()

    def roll(self) -> None:
        """Seals the segment being written; the next record starts a new one. Lock held."""
        self.drain()
        if self._writer is None:
            return
        if self.written == self._segments.bases[-1]:
            empty, self._writer, self._frames = self._writer, None, None
            self._segments.drop_last()
            self._new_segments.discard(empty)
            return
        try:
            self._writer.seal()
        except OSError as error:
            self.fail(error)
            raise
        self._segments.sizes[self._segments.bases[-1]] = self._writer.end
        self.sealed.append(self._writer)
        self._writer = self._frames = None

    def adopted(self, base: int, end: int, position: int, time_ms: int) -> None:
        """Takes note of durable segments that were put behind the end. Lock held."""
        self.written = end
        self._place = End(end, base, position)
        self._last_ms = max(self._last_ms, time_ms)
        self.publish(durable=self._place, sync=True)
        self.commit.advance(end)
        self.changes.announce()

    @property
    def last_ms(self) -> int:
        """The time of the last record."""
        chunk = self._chunk
        return chunk.last_ms if chunk is not None and chunk.waiting else self._last_ms

    def close(self) -> None:
        """Makes everything durable and marks the queue as cleanly closed."""
        try:
            if self._error is None:
                with self.lock:
                    self.roll()
                self.commit.wait(self.written, self.commit.epoch)
                with self.lock:
                    self.publish(clean=True, sync=True)
        finally:
            self.fail(Closed(f"{self._directory.path} is closed"))
            self._release()

    def fail(self, error: BaseException) -> None:
        """Ends the handle: everything raises from now on. The first reason stays."""
        if self._error is None:
            self._error = (
                error
                if isinstance(error, ForebayError)
                else Closed(f"{self._directory.path} failed and must be reopened: {error}")
            )
        self.put = _cannot_stage
        self._pending.take()
        if self._chunk is not None:
            self._chunk.stop()

    def _release(self) -> None:
        for writer in [*self.sealed, *([self._writer] if self._writer else [])]:
            writer.close()
        self.sealed = []
        self._writer = None
        if self._chunk is not None:
            self._chunk.close()
            self._chunk = None
        self.publisher.close()

    def _append_some(self, values: list[bytes], first: int) -> int:
        """Writes as many values as the segment takes, at least one."""
        now_ms = max(self._clock.now_ms(), self._last_ms)
        writer, frames = self._segment_for(len(values[first]), now_ms)
        now_ms = max(now_ms, frames.header.epoch_ms + 1)
        room = self._options.segment_bytes - writer.end
        count, size = frames.fit(values, first, room)
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(size))
        index = self.written - frames.header.base_offset
        ms = now_ms - frames.header.epoch_ms
        frames.encode(values, first, count, self._buffer, index, ms)
        self._write(self._buffer[:size], count)
        self.written += count
        self._last_ms = now_ms
        return count

    def _segment_for(self, size: int, now_ms: int) -> tuple[SegmentWriter, Frames]:
        """Gives a segment with room for a record of `size` bytes at a time."""
        if self._writer is not None and self._frames is not None:
            used = self._writer.end + self._layout.frame_bytes + size
            elapsed = now_ms - self._frames.header.epoch_ms
            if used <= self._options.segment_bytes and elapsed <= MS_MAX:
                return self._writer, self._frames
            self.roll()
        if self.publisher.tail.clean:
            # Before anything is acknowledged: a clean mark would hide it after a power cut.
            self.publish(sync=True)
        self._writer, self._frames = self._new_segments.create(self.written, now_ms)
        self._segments.add(self.written, self._writer.name)
        try:
            # After a power cut, what is acknowledged from here on must have a name.
            self._directory.sync()
        except OSError as error:
            self.fail(error)
            raise
        return self._writer, self._frames

    def _begin_chunk(self, value: bytes, *, anew: bool) -> bool:
        """Opens the staging buffer for a record; False if it does not fit there. Lock held."""
        size = check_values([value], self._layout, self._options.segment_bytes)
        if size > self._options.staging_bytes - HEADER_BYTES:
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
        self.put = self._chunk.put
        return True

    def _help_sync(self) -> None:
        """Makes a writer that outruns the disk wait for it: unsynced segments are bounded."""
        if len(self.sealed) > _UNSYNCED_SEGMENTS_MAX:
            self.commit.wait(self.written, self.commit.epoch)

    def _write(self, data: memoryview, count: int) -> None:
        """Writes the frames of the next `count` records to the segment."""
        writer = self._writer
        assert writer is not None
        try:
            writer.append(data)
        except OSError as error:
            if writer.broken:
                self.fail(error)
            raise
        self._place = End(self._place.offset + count, self._segments.bases[-1], writer.end)

    def _write_pending(self) -> None:
        """Writes what durable appends left in the buffer; on an error all of them get it."""
        if not self._pending.count:
            return
        data, count = self._pending.take()
        try:
            self._write(data, count)
        except OSError as error:
            self.written -= count
            self.commit.abandon(error)
            raise

    def _sync_files(self) -> int:
        """Syncs all that is written; led by one thread at a time, without the lock."""
        with self.lock:
            self.check()
            self._write_pending()
            end = self._place
            sealed, writer = self.sealed[:], self._writer
        try:
            for segment in sealed:
                segment.sync()
            if writer is not None:
                writer.sync()
        except OSError as error:
            self.fail(error)
            raise
        with self.lock:
            self.check()
            self.sealed = self.sealed[len(sealed) :]
            self.publish(durable=end, sync=not self._layout.checked or bool(sealed))
            self.changes.announce()
        for segment in sealed:
            segment.close()
        return end.offset

    def publish(
        self, *, durable: End | None = None, clean: bool = False, sync: bool = False
    ) -> None:
        """Tells where the end is. Lock held."""
        written = self.written
        if self._always:
            # Nothing is readable before it is durable.
            written = durable.offset if durable is not None else self.publisher.tail.durable
        self.publisher.publish(written, self._last_ms, durable=durable, clean=clean, sync=sync)


def _cannot_stage(_value: object) -> int:
    return -1
