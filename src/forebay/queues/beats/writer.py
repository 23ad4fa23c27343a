"""How events get into the segments of a Beats queue: group commit, rolling, retries.

Owns the segment being written, `mark` and `contents`. Only the newest segment can hold bytes that
are not durable: a segment is synced before the next one is created, so that what a power cut takes
is always the newest events. A failed or short write is cut back; the events stay pending, and the
puts that wait for them try again (`Retries`: after 1 s, then twice as long each time, up to 30 s).
After the last try they raise the error, and the queue goes on. A failed cut, or any failed sync,
ends the handle.

Any thread may call the public methods; those whose docstring says "lock held" need the lock.
"""

from __future__ import annotations

import contextlib

from forebay.clock import Clock
from forebay.errors import Full
from forebay.formats.beats.crypto import IV_BYTES, Key
from forebay.formats.beats.frames import SegmentEncoder
from forebay.formats.beats.versions import (
    COUNT_POSITION,
    LAYOUTS,
    SEGMENT_ID_MAX,
    encode_count,
    new_header,
    segment_name,
)
from forebay.queues.beats.contents import Contents, Held
from forebay.queues.beats.mark import BeatsMark
from forebay.queues.beats.options import BeatsOptions
from forebay.queues.beats.place import End
from forebay.queues.beats.recovery import next_segment_id
from forebay.queues.shared.owner import FatalErrors, Sync, fatal_when_interrupted
from forebay.queues.shared.segments import SegmentOwner
from forebay.queues.shared.verbs import News, Steps
from forebay.queues.shared.waiting import NoRoom
from forebay.storage.commit import NotWritten, Ticket
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentList, SegmentWriter

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 30.0


class Retries:
    """Plans the retries of a failed write, within a bound."""

    def __init__(self, clock: Clock, bound_seconds: float) -> None:
        self._clock = clock
        self._bound_seconds = bound_seconds
        self._give_up_at: float | None = None
        self._next_at = 0.0
        self._delay_seconds = _FIRST_SECONDS
        # Why the last try failed, while another one is planned.
        self.error: OSError | None = None

    @property
    def seconds_left(self) -> float:
        """How many seconds are left until the next try."""
        return 0.0 if self.error is None else max(0.0, self._next_at - self._clock.monotonic())

    def plan(self, error: OSError) -> bool:
        """Plans the next try after a failure; returns False if there is none."""
        now = self._clock.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._bound_seconds
        left = self._give_up_at - now
        if left <= 0:
            return False
        self._next_at = now + min(self._delay_seconds, left)
        self._delay_seconds = min(2 * self._delay_seconds, _LONGEST_SECONDS)
        self.error = error
        return True

    def end(self) -> None:
        """Ends the retries: the next failure starts again with the first delay."""
        if self._give_up_at is not None:
            self._give_up_at = self.error = None
            self._delay_seconds = _FIRST_SECONDS


class ActiveSegment(SegmentWriter):
    """A new segment, and what has been written to it."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        segment_id: int,
        layout_name: str,
        key: Key | None,
    ) -> None:
        """Creates the file with its header; the caller syncs it and the directory.

        If it raises, the file may exist.
        """
        # A fresh vector for every segment: no two contents may share a keystream.
        iv = filesystem.random_bytes(IV_BYTES) if LAYOUTS[layout_name].encrypted else b""
        header = self._header = new_header(layout_name, iv)
        self._key = key
        self._encoder = SegmentEncoder(header, key)
        self._stateful = header.layout.encrypted or header.layout.compression == "stream"
        self.id = segment_id
        self.count = 0
        # The logical end, while `end` is that of the file.
        self.position = header.layout.header_bytes
        self.spent = False
        super().__init__(directory, segment_name(segment_id), header.encode(), allocate_bytes=0)

    def fit(self, payloads: list[bytes], segment_bytes: int) -> int:
        """Returns how many of the given events fit into it."""
        if self.spent:
            return 0
        return self._encoder.fit(payloads, 0, segment_bytes - self.position)[0]

    def write(self, payloads: list[bytes], count: int) -> None:
        """Writes the first `count` events."""
        before = self._encoder.position
        try:
            self.append(self._encoder.encode(payloads, 0, count))
        except OSError:
            self.spent = self._stateful
            self._encoder = SegmentEncoder(self._header, self._key)
            raise
        self.position += self._encoder.position - before
        self.count += count

    def seal(self) -> None:
        """Writes the end of the segment and its count; the caller syncs."""
        ending = b"" if self.spent else self._encoder.finish()
        if ending:
            self.append(ending)
        if self._header.layout.counted:
            self.patch(encode_count(self.count), COUNT_POSITION)


class BeatsWriter(SegmentOwner[ActiveSegment]):
    """The segments of a Beats queue that this process owns."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        segments: SegmentList,
        missing: set[int],
        contents: Contents,
        mark: BeatsMark,
        *,
        options: BeatsOptions,
        layout_name: str,
        key: Key | None,
        clock: Clock,
    ) -> None:
        """Starts with a mark by which all is durable; new segments are numbered after its segment.

        `missing` are segments that are on record but have no file.
        """
        last = mark.last
        super().__init__(directory, last.written, segments, always=options.sync == "always")
        self._filesystem = filesystem
        self._options = options
        self._layout_name = layout_name
        self._key = key
        self._clock = clock
        # Without encryption, frames of another file verify too: only the mark tells what was
        # written.
        self._mark_each = not LAYOUTS[layout_name].encrypted
        self.missing = missing
        self._contents = contents
        self.mark: BeatsMark = mark
        # The events up to `place` are in the files, those up to `durable` survive a power cut.
        newest = segments.bases[-1] if segments.bases else -1
        self.place = self.durable = End(last.written, newest, 0, None)
        # Where the segments end that this handle has finished.
        self.ends: dict[int, int] = {}
        self._next_id = next_segment_id(last)
        # How many events came before those of the segment being written.
        self._segment_offset = last.written
        self._leftovers: list[str] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._retries = Retries(clock, options.retry_seconds)
        self._closing = False

    @property
    def used_bytes(self) -> int:
        """How many bytes all segments and the pending events take. Lock held."""
        return super().used_bytes + self._pending_bytes

    @property
    def applied(self) -> int:
        """How many events, of all ever put, were given to `put`."""
        return self.place.offset + len(self._pending)

    @property
    def readable(self) -> End:
        """How far events may be read. Lock held."""
        return self.durable if self.always else self.place

    @property
    def active_id(self) -> int | None:
        """The number of the segment being written; None if there is none. Lock held."""
        return self._active.id if self._active is not None else None

    @property
    def active_events(self) -> int:
        """How many events are in the segment being written, or pending. Lock held."""
        active = self._active.count if self._active is not None else 0
        return active + len(self._pending)

    def put(self, payloads: list[bytes], size: int) -> Ticket:
        """Accepts events to be written, which take up to `size` bytes in the files. Lock held."""
        limit = self._options.max_bytes
        if limit is not None and self.used_bytes + size > limit:
            raise NoRoom(size)
        self._submit(payloads, size)
        return Ticket(self.commit, self.applied, self.commit.epoch)

    @fatal_when_interrupted
    def _submit(self, payloads: list[bytes], size: int) -> None:
        self._pending += payloads
        self._pending_bytes += size

    def acknowledging(self, ticket: Ticket) -> Steps[None]:
        """Waits until events are as safe as the policy says: durable, or in the files."""
        return self.settling(ticket, durable=self.always)

    def settling(self, ticket: Ticket, *, durable: bool = True) -> Steps[None]:
        """Waits until events are durable, or only in the files, through retries of a failed write.

        Raises the error if there is no further try.
        """
        while True:
            try:
                if durable:
                    yield ticket
                else:
                    self._write(ticket)
                return
            except OSError:
                self.commit.check(ticket.end, ticket.epoch)
                if self._failed or self._retries.error is None:
                    raise
            yield News(self.changes, self._retries.seconds_left)

    def _write(self, ticket: Ticket) -> None:
        """Writes events to the files, unless another thread has done so or has given them up."""
        with self.lock:
            self.commit.check(ticket.end, ticket.epoch)
            if self.place.offset < ticket.end:
                self.check()
                self.write_pending()

    def drain(self) -> None:
        """Does nothing: what is acknowledged is in the files, and the verbs write the rest."""

    @fatal_when_interrupted
    def write_pending(self) -> bool:
        """Writes the pending events to the files; says whether there were any. Lock held.

        A failed write is not tried again before the next try is due; until then the same error is
        raised.
        """
        if not self._pending:
            return False
        error = self._retries.error
        if error is not None and self._retries.seconds_left > 0 and not self._closing:
            raise error.with_traceback(None)
        try:
            while self._pending:
                self._write_some()
        finally:
            self.changes.announce()
        return True

    def forget(self, segment_id: int) -> None:
        """Forgets a segment that was removed. Lock held."""
        self.ends.pop(segment_id, None)
        self.missing.discard(segment_id)
        self._contents.forget(segment_id)

    def publish(self, *, clean: bool = False, sync: bool = False) -> None:
        """Publishes how much is written. Lock held."""
        written = self.mark.last.durable if self.always else self.place.offset
        with FatalErrors(self):
            self.mark.publish(written=written, clean=clean, sync=sync)

    def stop(self) -> None:
        """Ends the retries of a failed write: the queue is being closed."""
        self._closing = True

    def release_files(self) -> None:
        """Closes all files."""
        self._contents.close()
        super().release_files()

    def _finish(self) -> None:
        # The puts that cannot be written raise the error.
        with contextlib.suppress(OSError):
            self.write_pending()
        self.check_whole()
        super()._finish()
        self._clear_leftovers()

    def _stop(self) -> None:
        self._pending, self._pending_bytes = [], 0

    def _disconnect(self) -> None:
        """Touches nothing: the parent goes on using the files."""

    def _write_some(self) -> None:
        """Writes as many events as fit into a segment, at least one; plans a retry if it fails."""
        try:
            if self._leftovers:
                self._clear_leftovers()
            active, count = self._segment_for(self._pending)
            self.files.wrote(active)
            active.write(self._pending, count)
        except OSError as error:
            if self._active is not None and self._active.broken:
                self.fail(error)
            if not self._failed and (self._closing or not self._retries.plan(error)):
                self._abandon(error)
            raise
        self._retries.end()
        del self._pending[:count]
        if not self._pending:
            self._pending_bytes = 0
        self.place = End(self.place.offset + count, active.id, active.position, active.end)
        if not self.always:
            last = self.mark.last
            if last.written == last.durable:
                # Tell readers in other processes that there is more than what is durable.
                self.publish()
            self.mark.note_live((active.id, active.position, active.end, active.count))

    def _segment_for(self, payloads: list[bytes]) -> tuple[ActiveSegment, int]:
        """Returns a segment with room for at least one event, and how many events fit."""
        active = self._active
        if active is not None:
            count = active.fit(payloads, self._options.segment_bytes)
            if count:
                return active, count
        if self._next_id > SEGMENT_ID_MAX:
            # A Beat could not read the name of the next number.
            text = f"{self._directory.path}: the numbers of segments end at {SEGMENT_ID_MAX}"
            error = Full(f"{text}; move its events to a new queue")
            self._abandon(error)
            raise error
        self.roll()
        segment_id = self._next_id
        # Before the file exists: after a power cut the mark must name it, and must not say "clean".
        # Position 0 says that the file is still being created and may hold anything.
        self._publish_start(segment_id, 0, 0)
        self._next_id += 1
        self._leftovers.append(segment_name(segment_id))
        active = ActiveSegment(
            self._filesystem, self._directory, segment_id, self._layout_name, self._key
        )
        self._leftovers.pop()
        self._active = active
        self._segment_offset = self.place.offset
        self.segments.add(segment_id, active.name)
        with FatalErrors(self):
            # Sync both before anything in it is acknowledged: the name must not exist without the
            # header, nor the file without the name.
            active.sync()
            self._directory.sync()
        self._publish_start(segment_id, active.position, active.end)
        return active, active.fit(payloads, self._options.segment_bytes)

    def _discard(self, name: str) -> None:
        # Its number is not used again.
        self._leftovers.append(name)

    def _sealed(self, active: ActiveSegment) -> None:
        with FatalErrors(self):
            self.files.sync()
        self.ends[active.id] = active.position
        # Record it before the next segment is created: then it is known that this one existed.
        self._contents.add(active.id, Held(active.count, active.end))
        self.place = self.place._replace(raw_size=active.end)
        self._mark_durable(self.place, sync=self._mark_each)
        self._reveal(self._in_files())
        self.place = self.durable = self.place._replace(raw_size=None)

    def _clear_leftovers(self) -> None:
        """Removes the files of segments that could not be created, or that stayed empty."""
        while self._leftovers:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(self._leftovers[-1])
            self._leftovers.pop()

    def _publish_start(self, segment_id: int, position: int, raw_size: int) -> None:
        self._publish_end(End(self.place.offset, segment_id, position, raw_size), 0, sync=True)

    def _publish_end(self, end: End, events: int, *, sync: bool) -> None:
        """Publishes the durable end; `events` is how many of its segment's events are before it."""
        with FatalErrors(self):
            self.mark.publish(
                written=end.offset if self.always else self.place.offset,
                durable=end.offset,
                segment=end.segment,
                position=end.position,
                raw_size=end.raw_size or 0,
                events=events,
                clean=False,
                sync=sync,
            )

    def _abandon(self, error: OSError | Full) -> None:
        """Abandons the pending events: all puts that wait for them raise the error."""
        self._retries.end()
        self._pending, self._pending_bytes = [], 0
        self.commit.abandon(error, self.applied)

    def _mark_durable(self, end: End, *, sync: bool) -> None:
        # Events are numbered in the order of the files: those of this segment are the last ones.
        self._publish_end(end, end.offset - self._segment_offset, sync=sync)

    def _write_out(self) -> None:
        if self.always:
            try:
                self.write_pending()
            except OSError as error:
                if not self._pending:
                    raise
                raise NotWritten(error) from None

    def _in_files(self) -> Sync:
        return Sync(self.place.offset, self.place)

    def _note_durable(self, sync: Sync, *, full: bool) -> bool:
        if sync.end <= self.durable.offset:
            return False
        self._mark_durable(sync.place, sync=False)
        return self._mark_each

    def _reveal(self, sync: Sync) -> None:
        # Never move back: a segment may have been finished while the mark was synced.
        if sync.end > self.durable.offset:
            self.durable = sync.place
        super()._reveal(sync)
