"""How records get into a log: the buffer that they are encoded into, and the segments.

Any thread may call the public methods; those whose docstring says "lock held" need the lock. A
record is encoded into a buffer that holds the next entries of the open segment. Under the weak
policies this is the mapped staging buffer, and a record is acknowledged there; under "always" it is
plain memory that the group commit's leader writes out for all callers, and nothing in it is
acknowledged. Batches, and records that do not fit into the buffer, go straight to the segment.

A failed or short write is cut back and raised, and the queue goes on. A failed cut, or any failed
sync, ends the handle. Creating a segment, adoption and trimming sync with the lock held: they are
rare, and nothing may be appended in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from forebay.clock import Clock, SystemClock
from forebay.errors import Full, InvalidOption, RecordTooLarge
from forebay.formats.fflg import LAYOUTS, MS_MAX, OFFSET_MAX, Frames, Header, segment_name
from forebay.kernels.buffers import measure
from forebay.kernels.fflg import encode_sized, fit_sized, measure_sized
from forebay.queues.log.options import LogOptions
from forebay.queues.log.staged import StagedFrames
from forebay.queues.shared.mark import End, TailMark
from forebay.queues.shared.options import SIZE_MAX
from forebay.queues.shared.owner import FatalErrors, Sync, fatal_when_interrupted
from forebay.queues.shared.segments import SegmentOwner
from forebay.queues.shared.waiting import NoRoom
from forebay.storage.commit import Ticket
from forebay.storage.filesystem import Buffer, Directory, Filesystem
from forebay.storage.posted import Batch
from forebay.storage.segments import SegmentList, SegmentWriter
from forebay.storage.staging import HEADER_BYTES, Staging
from forebay.storage.tail import Tail, TailFile

_BUFFER_BYTES = 1 << 20
# More records than a process can append.
_FAR = 2**48


class LogWriter(SegmentOwner["LogSegment"]):
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
    ) -> None:
        super().__init__(directory, tail.durable, segments, always=options.sync == "always")
        self._options = options
        self._clock = clock
        self.mark: TailMark = TailMark(tail_file, tail, filesystem.boot_id())
        self._layout = LAYOUTS[version]
        self._new_segments = NewSegments(filesystem, directory, version, options.segment_bytes)
        # The end of what is in the files.
        self.place = End(tail.written, tail.segment, tail.position, tail.salt)
        self._last_ms = tail.time_ms
        # Near the last offset every record is checked; elsewhere none can reach it.
        self._ending = tail.written > OFFSET_MAX - _FAR
        mapped = options.mapped and directory.maps
        self._buffered = self._layout.checked and (self.always or mapped) and not self._ending
        self._chunk = Chunk(directory, options.staging_bytes, self, clock)
        # Appends a record where the buffer acknowledges it and has room, and returns its offset.
        self.stage: Callable[[object], int | None] = self._chunk.appender.append
        self._scratch = memoryview(bytearray())

    @property
    def writing(self) -> bool:
        """Whether a segment is being written."""
        return self._active is not None

    @property
    def has_sealed(self) -> bool:
        """Whether there are segments besides the newest."""
        return len(self.segments.bases) > 1

    @property
    def staged(self) -> bool:
        """Whether records wait in the buffer."""
        return self._chunk.count > 0

    @property
    def written(self) -> int:
        """The offset after what is in the files."""
        return self.place.offset

    @property
    def applied(self) -> int:
        """The offset that the next record gets."""
        return self._chunk.next_offset if self._chunk.begun else self.place.offset

    @property
    def last_ms(self) -> int:
        """The time of the last record."""
        return self._chunk.appender.last_ms if self._chunk.begun else self._last_ms

    def append(self, value: bytes) -> tuple[Ticket | None, int]:
        """Appends a record; returns what to wait for, and its offset. Lock held."""
        # If the buffer acknowledges, other threads append to it without the lock: try it first, and
        # again each time that it was opened.
        offset = self._chunk.appender.put(value)
        if offset is None:
            size = self.measure([value])
            if not self._buffered or size > self._chunk.size_max:
                return self.append_many([value], size)
            while offset is None:
                self._open_chunk(value, size)
                offset = self._chunk.appender.put(value)
        if not self.always:
            self.changes.announce()
        return self.awaited(offset + 1), offset

    def append_many(self, values: list[bytes], size: int) -> tuple[Ticket | None, int]:
        """Appends records; returns what to wait for, and the offset of the first. Lock held.

        `size` is what `measure` returned for them.
        """
        return self._append_batch(_Values(values), size)

    def append_encoded(self, buffer: Buffer, count: int, size: int) -> tuple[Ticket | None, int]:
        """Appends the `count` records of a buffer; `size` is the result of `measure_encoded`."""
        return self._append_batch(_Encoded(buffer, count), size)

    def append_posted(self, batch: Batch) -> Ticket | None:
        """Appends what a client has posted; returns what to wait for. Lock held."""
        if not self._layout.checked:
            values = batch.values()
            return self.append_many(values, self.measure(values))[0]
        size = self.measure_encoded(batch.records, batch.count)
        return self.append_encoded(batch.records, batch.count, size)[0]

    def _append_batch(self, batch: _Batch, size: int) -> tuple[Ticket | None, int]:
        segments = 2 + 2 * size // self._options.segment_bytes
        self.drain()
        self._claim(size + segments * self._layout.header_bytes)
        first = self.written
        if first + batch.left > OFFSET_MAX + 1:
            left = OFFSET_MAX + 1 - first
            raise Full(f"offsets end at {OFFSET_MAX}: {left} are left; nothing was written")
        while batch.left:
            self._write_some(batch)
        if not self.always:
            self.publish()
            self.changes.announce()
        return self.awaited(self.written), first

    def measure(self, values: list[bytes]) -> int:
        """Refuses records that can never be stored; returns the size of all their frames."""
        total, largest, smallest = measure(values)
        return self._check_sizes(len(values), total, largest, smallest)

    def measure_encoded(self, buffer: Buffer, count: int) -> int:
        """Refuses a buffer that does not hold `count` good records; returns their frames' size."""
        found, total, largest, smallest = measure_sized(buffer)
        if found != count:
            what = "no whole number of" if found < 0 else str(found)
            raise InvalidOption(f"count = {count}: the buffer holds {what} records")
        if not self._layout.checked:
            raise InvalidOption("records in one buffer can only go to segments of version 2")
        return self._check_sizes(count, total, largest, smallest)

    def _check_sizes(self, count: int, total: int, largest: int, smallest: int) -> int:
        room = self._options.segment_bytes - self._layout.header_bytes - self._layout.frame_bytes
        if largest > room:
            raise RecordTooLarge(
                f"a record of {largest} bytes does not fit into a segment of "
                f"segment_bytes = {self._options.segment_bytes}: at most {room}"
            )
        if smallest == 0 and self._layout.zero_size_ends:
            raise InvalidOption("an empty record cannot be stored in version 1; use version 2")
        return total + count * self._layout.frame_bytes

    @fatal_when_interrupted
    def drain(self) -> None:
        """Moves what is in the buffer into the segment, and closes the buffer. Lock held.

        If that fails, acknowledged records stay in the buffer; others are given up, and all callers
        that wait for them get the error.
        """
        chunk = self._chunk
        if not chunk.begun:
            return
        chunk.stop()
        self._write_chunk()
        if not self.always:
            self.changes.announce()
            self.publish(staged=False)
        chunk.done()

    @property
    def unsealed(self) -> int | None:
        """The base of the segment being written, if there are records in it."""
        active = self._active
        if active is None or (active.is_empty and not self.staged):
            return None
        return active.frames.header.base_offset

    @fatal_when_interrupted
    def seal(self) -> None:
        """Finishes the segment being written and begins the next. Lock held.

        Only the file of the next one shows other processes that this one is finished.
        """
        self.roll()
        limit = self._options.max_bytes
        if limit is None or limit - self.used_bytes > self._layout.header_bytes:
            self._begin_segment(max(self._clock.now_ms(), self._last_ms))

    @fatal_when_interrupted
    def _flush(self) -> None:
        """Writes the buffer, which acknowledges nothing, to the segment, and leaves it open."""
        self._write_chunk()
        self._chunk.rewind()

    def _write_chunk(self) -> None:
        chunk, count = self._chunk, self._chunk.count
        if not count:
            return
        try:
            with chunk.frames() as frames:
                self._write(frames, count, chunk.appender.last_ms)
        except OSError as error:
            if self.always:
                chunk.stop()
                chunk.done()
                self.commit.abandon(error, self.place.offset)
            raise

    def adopted(self, place: End, time_ms: int) -> None:
        """Moves the end past durable segments that were adopted after it. Lock held."""
        self.place = place
        self._last_ms = max(self._last_ms, time_ms)
        self.publish(durable=place, sync=True)
        self._reveal(self._in_files())

    def publish(
        self,
        *,
        durable: End | None = None,
        clean: bool = False,
        begin: int | None = None,
        staged: bool | None = None,
        sync: bool = False,
    ) -> None:
        """Publishes where the end is, and the beginning if that has changed. Lock held."""
        written = self.written
        if self.always:
            # Nothing may be read before it is durable.
            written = durable.offset if durable is not None else self.mark.last.durable
        with FatalErrors(self):
            self.mark.publish(
                written,
                self._last_ms,
                durable=durable,
                clean=clean,
                begin=begin,
                staged=staged,
                sync=sync,
            )

    def release_files(self) -> None:
        """Closes all files."""
        self._chunk.close()
        super().release_files()

    def _stop(self) -> None:
        self._chunk.stop()

    def _claim(self, size: int) -> int:
        """Returns how many bytes may be written; raises `NoRoom` if that is less than `size`."""
        limit = self._options.max_bytes
        if limit is None:
            return SIZE_MAX
        left = limit - self.used_bytes
        if size > left:
            raise NoRoom(size)
        return left

    @fatal_when_interrupted
    def _open_chunk(self, value: bytes, size: int) -> None:
        """Opens the buffer for a record. Lock held."""
        self.drain()
        available = self._claim(size + self._layout.header_bytes)
        active = self._segment_for(len(value), max(self._clock.now_ms(), self._last_ms))
        room = min(
            self._options.segment_bytes - active.end,
            self._chunk.size_max,
            available - self._layout.header_bytes,
        )
        index = self.written - active.frames.header.base_offset
        self._chunk.begin(active.frames, index, room, self._last_ms)
        if not self.always:
            # Before the first record is acknowledged: from then on a missing buffer is damage.
            self.publish(staged=True)

    @fatal_when_interrupted
    def _write_some(self, batch: _Batch) -> None:
        """Writes as many records as the segment takes, at least one."""
        now_ms = max(self._clock.now_ms(), self._last_ms)
        active = self._segment_for(batch.next_size, now_ms)
        frames = active.frames
        now_ms = max(now_ms, frames.header.epoch_ms + 1)
        count, size = batch.fit(frames, self._options.segment_bytes - active.end)
        if len(self._scratch) < size:
            # Kept for the next batch: fresh memory costs as much as all the rest of the work.
            self._scratch = memoryview(bytearray(max(size, _BUFFER_BYTES)))
        index = self.written - frames.header.base_offset
        batch.take(count, frames, self._scratch, index, now_ms - frames.header.epoch_ms)
        self._write(self._scratch[:size], count, now_ms)

    def _write(self, data: memoryview, count: int, last_ms: int) -> None:
        """Writes the frames of the next `count` records to the segment."""
        active = self._active
        assert active is not None
        self.files.wrote(active)
        try:
            active.append(data)
        except OSError as error:
            if active.broken:
                self.fail(error)
            raise
        header = active.frames.header
        self.place = End(self.place.offset + count, header.base_offset, active.end, header.salt)
        self._last_ms = last_ms

    def _segment_for(self, size: int, now_ms: int) -> LogSegment:
        """Returns a segment with room for a record of `size` bytes and of the time `now_ms`."""
        active = self._active
        if active is not None:
            used = active.end + self._layout.frame_bytes + size
            elapsed = now_ms - active.frames.header.epoch_ms
            in_time = elapsed <= MS_MAX or not self._layout.checked
            if used <= self._options.segment_bytes and in_time:
                return active
            self.roll()
        if self.mark.last.clean:
            # Before anything is acknowledged: a clean mark would hide it after a power cut.
            self.publish(sync=True)
        return self._begin_segment(now_ms)

    def _begin_segment(self, now_ms: int) -> LogSegment:
        size_max = self._options.segment_bytes
        if self._options.max_bytes is not None:
            # Preallocated space counts too: the files must never take more than the limit.
            size_max = min(size_max, self._options.max_bytes - self.used_bytes)
        active = self._active = self._new_segments.create(self.written, now_ms, size_max)
        self.files.wrote(active)
        self.segments.add(self.written, active.name)
        with FatalErrors(self):
            # The file must still have its name after a power cut: records acknowledged from here on
            # are in it.
            self._directory.sync()
        return active

    def _discard(self, name: str) -> None:
        self._new_segments.discard(name)

    def _write_out(self) -> None:
        if self.always:
            self._flush()

    def _in_files(self) -> Sync:
        return Sync(self.written, self.place)

    def _note_durable(self, sync: Sync, *, full: bool) -> bool:
        if sync.end >= self.mark.last.durable:
            written = sync.end if self.always else self.written
            self.mark.publish(written, self._last_ms, durable=sync.place)
        # Without a check in the entries, only the mark says what was written.
        return full or not self._layout.checked


class _Batch(Protocol):
    """Records to be written, and how many are left."""

    left: int

    @property
    def next_size(self) -> int: ...

    def fit(self, frames: Frames, room: int) -> tuple[int, int]:
        """Returns how many of the next records fit into `room` bytes, and their frames' size."""
        ...

    def take(self, count: int, frames: Frames, out: memoryview, index: int, ms: int) -> None:
        """Writes the frames of the next records into a buffer."""
        ...


class _Values:
    """A batch that is a list."""

    def __init__(self, values: list[bytes]) -> None:
        self._values = values
        self.left = len(values)

    @property
    def next_size(self) -> int:
        return len(self._values[-self.left])

    def fit(self, frames: Frames, room: int) -> tuple[int, int]:
        return frames.fit(self._values, len(self._values) - self.left, room)

    def take(self, count: int, frames: Frames, out: memoryview, index: int, ms: int) -> None:
        frames.encode(self._values, len(self._values) - self.left, count, out, index, ms)
        self.left -= count


class _Encoded:
    """A batch that is one buffer, with the size of each record before its bytes."""

    def __init__(self, buffer: Buffer, count: int) -> None:
        self._buffer = buffer
        self._position = 0
        self.left = count

    @property
    def next_size(self) -> int:
        return int.from_bytes(self._buffer[self._position : self._position + 4], "little")

    def fit(self, frames: Frames, room: int) -> tuple[int, int]:
        return fit_sized(self._buffer, self._position, room, frames.layout.frame_bytes)

    def take(self, count: int, frames: Frames, out: memoryview, index: int, ms: int) -> None:
        self._position = encode_sized(
            self._buffer, self._position, count, out, index, frames.seed, ms
        )
        self.left -= count


class Chunk:
    """The buffer of a log: mapped if it acknowledges, else plain memory.

    Called with the queue's lock held, except `appender.append`. A chunk that was stopped keeps its
    records until `done`: acknowledged records are dropped only once they are in the segment.
    """

    def __init__(self, directory: Directory, size: int, writer: LogWriter, clock: Clock) -> None:
        """Makes no buffer before the first record; `size` is that of the mapped one."""
        self._directory = directory
        self._mapped = not writer.always
        self._size = size if self._mapped else _BUFFER_BYTES
        self._staging: Staging | None = None
        # The machine's own clock is read in C, which saves a Python call per append.
        now_ms = None if type(clock) is SystemClock else clock.now_ms
        self.appender = StagedFrames(writer.lock, now_ms, acknowledges=self._mapped)
        self._first = 0
        self._base = 0
        self.begun = False

    @property
    def size_max(self) -> int:
        """How many bytes of frames it can hold."""
        return self._size - HEADER_BYTES

    @property
    def count(self) -> int:
        """How many records wait in it."""
        return self.appender.index - self._first if self.begun else 0

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._base + self.appender.index

    def begin(self, frames: Frames, index: int, room: int, last_ms: int) -> None:
        """Opens `room` bytes for the entries of a segment from `index` on."""
        if self._staging is None:
            self._staging = Staging(self._directory, self._size, mapped=self._mapped)
            self.appender.use_buffer(self._staging.buffer)
        header = frames.header
        self._first, self._base = index, header.base_offset
        self._staging.begin(header.encode(), index)
        # If the clock was set back, times go on from the epoch: a frame cannot have the time 0.
        self.appender.last_ms = max(last_ms, header.epoch_ms + 1)
        self.appender.begin(
            HEADER_BYTES,
            HEADER_BYTES + room,
            header.base_offset,
            index,
            frames.seed,
            header.epoch_ms,
        )
        self.begun = True

    def rewind(self) -> None:
        """Frees the space for more records: those that waited are in the segment."""
        if self.begun:
            self._first = self.appender.index
            self.appender.rewind(HEADER_BYTES)

    def stop(self) -> None:
        """Accepts no more records."""
        self.appender.finish()

    def frames(self) -> memoryview:
        """Returns the frames of the waiting records; to be released before `close`."""
        assert self._staging is not None
        return memoryview(self._staging.buffer)[HEADER_BYTES : self.appender.position]

    def done(self) -> None:
        """Frees the space: the records are in the segment."""
        self.begun = False

    def close(self) -> None:
        """Unmaps and closes the buffer."""
        self.begun = False
        self.appender.release_buffer()
        if self._staging is not None:
            self._staging.close()
            self._staging = None


class LogSegment(SegmentWriter):
    """The segment that is being written, and how its entries are encoded."""

    frames: Frames


class NewSegments:
    """Creates segments of one version and size in a directory. Called with the lock held.

    A failed attempt may leave its file behind. The next segment at the same offset needs that name,
    so the file is remembered, and removed then; not before, because a batch that was adopted may
    have taken the name.
    """

    def __init__(
        self, filesystem: Filesystem, directory: Directory, version: int, segment_bytes: int
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._version = version
        self._checked = LAYOUTS[version].checked
        # Unchecked versions have nothing that tells preallocated space from entries.
        self._allocate_bytes = segment_bytes if self._checked else 0
        self._leftover: str | None = None

    def create(self, base: int, now_ms: int, size_max: int) -> LogSegment:
        """Creates the segment that starts at `base`; the caller syncs the directory.

        No space is preallocated beyond `size_max`.
        """
        name = segment_name(base, self._version)
        if self._leftover == name:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(name)
        salt = self._filesystem.random_bytes(8) if self._checked else b""
        header = Header(self._version, base, salt, now_ms - 1 if self._checked else 0)
        self._leftover = name
        segment = LogSegment(
            self._directory,
            name,
            header.encode(),
            allocate_bytes=self._allocate_bytes,
            size_max=size_max,
        )
        segment.frames = Frames(header)
        self._leftover = None
        return segment

    def discard(self, name: str) -> None:
        """Removes the file of an empty segment."""
        self._leftover = name
        self._directory.unlink(name)


def as_bytes(value: object) -> bytes:
    """Returns a record as `bytes`; raises `TypeError` for a value that is not bytes-like."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a record is bytes, not {type(value).__name__}")
