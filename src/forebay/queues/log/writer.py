"""How records get into a log: singly, in batches, durably or by way of the staging buffer.

Any thread may call the public methods. Built on `SegmentLog`, which owns the files; here are the
records that are on their way there: those in the staging buffer (acknowledged under the weak
policies), and those that durable appends have encoded for the next commit (not acknowledged).

The files of a log that is being written: its segments, and what of them is durable.

Owns the queue's one lock, the segment being written, the group commit and `tail`. A failed or short
write is cut back and raised, and the queue goes on. A failed cut, or any failed sync, ends the
handle: what was not acknowledged is never tried again on that file.

The syncs of appends run outside the lock. Creating a segment, adoption and trimming sync with the
lock held: they are rare, and nothing may be appended in between.

Makes the segments of a log, and takes one away whose first write failed.

Called with the queue's lock held. A failed try may leave its file behind; the next segment at the
same offset needs that name, so the file is remembered and removed then.

Records that durable appends have encoded and nobody has written yet.

Whoever leads a commit writes them out for all: many threads share one write as they share one
sync. Nothing in it is acknowledged. Called with the queue's lock held.

The records that wait in the staging buffer: one chunk, the next entries of the open segment.

Called with the queue's lock held, except that any thread may call `put`. A chunk that was stopped
keeps its records until `done`: what was acknowledged is only given up once it is in the segment.

What a queue can take: the bounds of a record, and of all of them together.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from forebay.clock import Clock, SystemClock
from forebay.errors import Closed, ForebayError, Full, InvalidOption, RecordTooLarge
from forebay.formats.fflg import LAYOUTS, MS_MAX, OFFSET_MAX, Frames, Header, Layout, segment_name
from forebay.kernels.appender import Appender
from forebay.kernels.sizes import measure
from forebay.queues.shared.options import LogOptions
from forebay.queues.shared.owner import End, Publisher, Signal, fatal_when_interrupted
from forebay.storage.commit import Epoch, GroupCommit
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentList, SegmentWriter
from forebay.storage.staging import HEADER_BYTES, Staging
from forebay.storage.tail import Tail, TailFile


def check_values(values: list[bytes], layout: Layout, segment_bytes: int) -> int:
    """Refuses records that can never be stored; gives the size of all their frames."""
    total, largest, smallest = measure(values)
    room = segment_bytes - layout.header_bytes - layout.frame_bytes
    if largest > room:
        raise RecordTooLarge(
            f"a record of {largest} bytes does not fit into a segment of "
            f"segment_bytes = {segment_bytes}: at most {room}"
        )
    if smallest == 0 and layout.zero_size_ends:
        raise InvalidOption("an empty record cannot be stored in version 1; use version 2")
    return total + len(values) * layout.frame_bytes


class Chunk:
    """A staging buffer and the kernel that appends to it."""

    def __init__(self, directory: Directory, size: int, lock: threading.Lock, clock: Clock) -> None:
        """Opens or creates the buffer; what was in it is void on return."""
        self._staging = Staging(directory, size)
        # The machine's own clock is read in C, which saves a Python call an append.
        now_ms = None if type(clock) is SystemClock else clock.now_ms
        self._appender = Appender(self._staging.buffer, lock, now_ms)
        self._first = 0
        self._end = 0
        self._base = 0
        self.waiting = False
        self.put = self._appender.append

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._base + self._appender.index

    @property
    def last_ms(self) -> int:
        """The time of the last record."""
        return self._appender.last_ms

    def has_room(self, size: int) -> bool:
        """Says whether a frame of `size` bytes still goes into the chunk."""
        return self.waiting and size <= self._end - self._appender.position

    def begin(self, frames: Frames, index: int, room: int, last_ms: int) -> None:
        """Opens `room` bytes for the entries of a segment from `index` on."""
        header = frames.header
        self._first, self._base = index, header.base_offset
        self._end = HEADER_BYTES + room
        self._staging.begin(header.encode(), index)
        # After a step back of the clock, times go on from the epoch: 0 would be no frame.
        self._appender.last_ms = max(last_ms, header.epoch_ms + 1)
        self._appender.begin(
            HEADER_BYTES, self._end, header.base_offset, index, frames.seed, header.epoch_ms
        )
        self.waiting = True

    def stop(self) -> int:
        """Takes no more records; gives how many wait."""
        self._appender.finish()
        return self._appender.index - self._first if self.waiting else 0

    def frames(self) -> memoryview:
        """Returns the bytes of those that wait; to be released before `close`."""
        return self._staging.chunk(self._appender.position)

    def done(self) -> None:
        """Returns the space free: the records are in the segment."""
        self.waiting = False

    def close(self) -> None:
        """Unmaps and closes the buffer."""
        self._appender.release_buffer()
        self._staging.close()


_BYTES = 1 << 20


class Pending:
    """A buffer of frames, the next entries of the open segment."""

    def __init__(self) -> None:
        # Made at the first record: many a log is opened only to be read.
        self._buffer = memoryview(bytearray())
        self.size = 0
        self.count = 0

    def add(self, frames: Frames, value: bytes, index: int, ms: int, room: int) -> bool:
        """Encodes a record behind the others; False if `room` or the buffer has none for it."""
        start = self.size
        end = start + len(value) + frames.layout.frame_bytes
        if end > room or end > _BYTES:
            return False
        if not self._buffer:
            self._buffer = memoryview(bytearray(_BYTES))
        frames.encode([value], 0, 1, self._buffer[start:], index, ms)
        self.size = end
        self.count += 1
        return True

    def take(self) -> tuple[memoryview, int]:
        """Empties it; gives the frames, valid until the next `add`, and how many they are."""
        data, count = self._buffer[: self.size], self.count
        self.size = self.count = 0
        return data, count


class NewSegments:
    """Creates segments of one version and size in a directory."""

    def __init__(
        self, filesystem: Filesystem, directory: Directory, version: int, segment_bytes: int
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._version = version
        self._checked = LAYOUTS[version].checked
        # Version 1 has nothing that tells preallocated space from entries.
        self._allocate_bytes = segment_bytes if self._checked else 0
        self._leftover: str | None = None

    def create(self, base: int, now_ms: int, size_max: int) -> tuple[SegmentWriter, Frames]:
        """Makes the segment that starts at `base`; the caller syncs the directory.

        No space is set aside beyond `size_max`.
        """
        name = segment_name(base, self._version)
        if self._leftover == name:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(name)
        salt = self._filesystem.random_bytes(8) if self._checked else b""
        header = Header(self._version, base, salt, now_ms - 1 if self._checked else 0)
        self._leftover = name
        writer = SegmentWriter(
            self._directory,
            name,
            header.encode(),
            allocate_bytes=self._allocate_bytes,
            size_max=size_max,
        )
        self._leftover = None
        return writer, Frames(header)

    def discard(self, name: str) -> None:
        """Takes the name of an empty segment away."""
        self._leftover = name
        self._directory.unlink(name)


class SegmentLog:
    """The segments of a log that this process owns."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        segments: SegmentList,
        tail_file: TailFile,
        tail: Tail,
        options: LogOptions,
        version: int,
    ) -> None:
        self._directory = directory
        self._segments = segments
        self.publisher = Publisher(tail_file, tail, filesystem.boot_id(), self.fail)
        self._options = options
        self._layout = LAYOUTS[version]
        self._new_segments = NewSegments(filesystem, directory, version, options.segment_bytes)
        self._always = options.sync == "always"
        self.lock = threading.Lock()
        self.changes = Signal(self.lock)
        self.written = tail.written
        self._place = End(tail.written, tail.segment, tail.position, tail.salt)
        self._last_ms = tail.time_ms
        self.commit = GroupCommit(self._sync_files, tail.durable)
        self._writer: SegmentWriter | None = None
        self._frames: Frames | None = None
        self.sealed: list[SegmentWriter] = []
        self._error: ForebayError | None = None
        self._failed = False

    @property
    def writing(self) -> bool:
        """Whether a segment is being written."""
        return self._writer is not None

    @property
    def used_bytes(self) -> int:
        """What all segments take, without preallocated space that the next records go to."""
        return sum(self._segments.sizes.values()) + (self._writer.end if self._writer else 0)

    @property
    def has_sealed(self) -> bool:
        """Whether there are segments besides the newest."""
        return len(self._segments.bases) > 1

    def check(self) -> None:
        """Raises if the handle can no longer be used."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def roll(self) -> None:
        """Seals the segment being written, into which everything was drained. Lock held."""
        if self._writer is None:
            return
        if self.written == self._segments.bases[-1]:
            # Kept open until the next sync: somebody may be syncing it now.
            self.sealed.append(self._writer)
            name, self._writer, self._frames = self._writer.name, None, None
            self._segments.drop_last()
            self._new_segments.discard(name)
            return
        try:
            self._writer.seal()
        except OSError as error:
            self.fail(error)
            raise
        self._segments.sizes[self._segments.bases[-1]] = self._writer.end
        self.sealed.append(self._writer)
        self._writer = self._frames = None

    def sync_now(self, *, begin: int | None = None) -> None:
        """Makes everything in the files durable with the lock held: nothing comes after it.

        `begin` goes on record with it.
        """
        try:
            for segment in [*self.sealed, *([self._writer] if self._writer else [])]:
                segment.sync()
        except OSError as error:
            self.fail(error)
            raise
        self.publish(durable=self._place, sync=True, begin=begin)
        self.commit.advance(self._place.offset)

    def adopted(self, place: End, time_ms: int) -> None:
        """Takes note of durable segments that were put after the end. Lock held."""
        end = place.offset
        self.written = end
        self._place = place
        self._last_ms = max(self._last_ms, time_ms)
        self.publish(durable=self._place, sync=True)
        self.commit.advance(end)
        self.changes.announce()

    def fail(self, error: BaseException) -> None:
        """Ends the handle: everything raises from now on. The first reason stays."""
        self._failed = True
        if self._error is None:
            self._error = (
                error
                if isinstance(error, ForebayError)
                else Closed(f"{self._directory.path} failed and must be reopened: {error!r}")
            )

    def disown(self, error: Closed) -> None:
        """Ends the handle in the child of a fork, whose lock may be held by nobody that lives."""
        self.lock = threading.Lock()
        self.changes = Signal(self.lock)
        self._error = error

    def release_files(self) -> None:
        """Closes all files."""
        for writer in [*self.sealed, *([self._writer] if self._writer else [])]:
            writer.close()
        self.sealed = []
        self._writer = None
        self.publisher.close()

    def write_pending(self) -> None:
        """Writes what waits for the next commit; here, nothing does."""

    def _check_whole(self) -> None:
        """Raises if the handle failed; while it is closing, what is left is still synced."""
        if self._failed:
            self.check()

    def _segment_for(self, size: int, now_ms: int) -> tuple[SegmentWriter, Frames]:
        """Returns a segment with room for a record of `size` bytes at a time."""
        if self._writer is not None and self._frames is not None:
            used = self._writer.end + self._layout.frame_bytes + size
            elapsed = now_ms - self._frames.header.epoch_ms
            in_time = elapsed <= MS_MAX or not self._layout.checked
            if used <= self._options.segment_bytes and in_time:
                return self._writer, self._frames
            self.roll()
        if self.publisher.tail.clean:
            # Before anything is acknowledged: a clean mark would hide it after a power cut.
            self.publish(sync=True)
        size_max = self._options.segment_bytes
        if self._options.max_bytes is not None:
            # Space that is set aside counts: the disk never holds more than the limit.
            size_max = min(size_max, self._options.max_bytes - self.used_bytes)
        self._writer, self._frames = self._new_segments.create(self.written, now_ms, size_max)
        self._segments.add(self.written, self._writer.name)
        try:
            # After a power cut, what is acknowledged from here on must have a name.
            self._directory.sync()
        except OSError as error:
            self.fail(error)
            raise
        return self._writer, self._frames

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
        assert self._frames is not None
        offset, salt = self._place.offset + count, self._frames.header.salt
        self._place = End(offset, self._segments.bases[-1], writer.end, salt)

    def _sync_files(self) -> int:
        """Syncs all that is written; led by one thread at a time, without the lock."""
        with self.lock:
            self._check_whole()
            self.write_pending()
            end = self._place
            sealed, writer = self.sealed[:], self._writer
        try:
            for segment in sealed:
                segment.sync()
            if writer is not None:
                writer.sync()
            self._directory.check_there()
        except OSError as error:
            self.fail(error)
            raise
        with self.lock:
            self._check_whole()
            if end.offset >= self.publisher.tail.durable:
                self.publish(durable=end, sync=not self._layout.checked or bool(sealed))
            # After the mark: if that fails, they are closed with the other files.
            self.sealed = self.sealed[len(sealed) :]
            self.changes.announce()
        for segment in sealed:
            segment.close()
        return end.offset

    def publish(
        self,
        *,
        durable: End | None = None,
        clean: bool = False,
        begin: int | None = None,
        staged: bool | None = None,
        sync: bool = False,
    ) -> None:
        """Tells where the end is, and where the beginning if that has changed. Lock held."""
        written = self.written
        if self._always:
            # Nothing is readable before it is durable.
            written = durable.offset if durable is not None else self.publisher.tail.durable
        self.publisher.publish(
            written,
            self._last_ms,
            durable=durable,
            clean=clean,
            begin=begin,
            staged=staged,
            sync=sync,
        )


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

    @fatal_when_interrupted
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

    @fatal_when_interrupted
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

    @fatal_when_interrupted
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

    @fatal_when_interrupted
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

    @fatal_when_interrupted
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

    @fatal_when_interrupted
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
