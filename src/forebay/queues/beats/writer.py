"""How events get into the segments of a Beats queue: group commit, rolling, trying again.

Owns the segment being written, `mark` and `contents`. Only the newest segment can hold bytes that
are not durable: a segment is synced before the next one is created, so that what a power cut takes
is always the newest events. A failed or short write is cut back and tried again (`Backoff`: after
1 s, then twice as long each time, up to 30 s), then raised, and the queue goes on. A failed cut, or
any failed sync, ends the handle.

Any thread may call the public methods; those that say "lock held" want it held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import cast

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
from forebay.queues.beats.mark import MarkWriter
from forebay.queues.beats.place import End
from forebay.queues.beats.recovery import next_segment_id
from forebay.queues.shared.options import BeatsOptions
from forebay.queues.shared.owner import Owner, Sync, Ticket, fatal_when_interrupted
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentList, SegmentWriter

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 30.0


class Backoff:
    """The tries of one write, within a bound."""

    def __init__(self, clock: Clock, bound_seconds: float) -> None:
        self._clock = clock
        self._bound_seconds = bound_seconds
        self._give_up_at: float | None = None
        self._delay_seconds = _FIRST_SECONDS

    def next_try(self) -> float | None:
        """Returns the moment of the next try, on the monotonic clock; None to give up."""
        now = self._clock.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._bound_seconds
        left = self._give_up_at - now
        if left <= 0:
            return None
        delay = min(self._delay_seconds, left)
        self._delay_seconds = min(2 * self._delay_seconds, _LONGEST_SECONDS)
        return now + delay

    def succeeded(self) -> None:
        """Starts anew with the next failure."""
        self._give_up_at = None
        self._delay_seconds = _FIRST_SECONDS


class ActiveSegment:
    """A new segment and what was written to it."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        segment_id: int,
        layout_name: str,
        key: Key | None,
    ) -> None:
        """Creates the file with its header; the caller syncs it and the directory.

        If it raises, the file may be there.
        """
        # A fresh vector for every segment: two contents must never share a keystream.
        iv = filesystem.random_bytes(IV_BYTES) if LAYOUTS[layout_name].encrypted else b""
        self._header = new_header(layout_name, iv)
        self._key = key
        self._encoder = SegmentEncoder(self._header, key)
        self._stateful = self._header.layout.encrypted or (
            self._header.layout.compression == "stream"
        )
        self.id = segment_id
        self.name = segment_name(segment_id)
        self.count = 0
        self.position = self._header.layout.header_bytes
        self.spent = False
        self._writer = SegmentWriter(directory, self.name, self._header.encode(), allocate_bytes=0)

    @property
    def raw_size(self) -> int:
        """Where the file ends."""
        return self._writer.end

    @property
    def broken(self) -> bool:
        """Whether bytes of a failed write may be left in the file."""
        return self._writer.broken

    def fits(self, payload: bytes, segment_bytes: int) -> bool:
        """Says whether another event may go into it."""
        room = segment_bytes - self.position
        return not self.spent and self._encoder.fit([payload], 0, room)[0] == 1

    def append(self, payloads: list[bytes], segment_bytes: int) -> int:
        """Writes as many events as fit, at least one; returns how many."""
        room = segment_bytes - self.position
        count, _ = self._encoder.fit(payloads, 0, room)
        before = self._encoder.position
        try:
            self._writer.append(self._encoder.encode(payloads, 0, count))
        except OSError:
            self.spent = self._stateful
            self._encoder = SegmentEncoder(self._header, self._key)
            raise
        self.position += self._encoder.position - before
        self.count += count
        return count

    def finish(self) -> None:
        """Writes what ends the segment; the caller syncs."""
        ending = b"" if self.spent else self._encoder.finish()
        if ending:
            self._writer.append(ending)
        if self._header.layout.counted:
            self._writer.patch(encode_count(self.count), COUNT_POSITION)

    def sync(self) -> None:
        """Makes all that was written durable."""
        self._writer.sync()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


_WAIT_SECONDS = 0.05


class BeatsWriter(Owner):
    """The segments of a Beats queue that this process owns."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        segments: SegmentList,
        missing: set[int],
        contents: Contents,
        marks: MarkWriter,
        *,
        options: BeatsOptions,
        layout_name: str,
        key: Key | None,
        clock: Clock,
    ) -> None:
        """The mark says that all that was found is durable; new segments come after its segment.

        `missing` are segments that are on record and have no file.
        """
        mark = marks.mark
        super().__init__(directory, mark.written)
        self._filesystem = filesystem
        self._options = options
        self._layout_name = layout_name
        self._key = key
        self._clock = clock
        self._always = options.sync == "always"
        # In clear, frames of another file verify as well: only the mark tells what was written.
        self._mark_each = not LAYOUTS[layout_name].encrypted
        self.segments = segments
        self.missing = missing
        self._contents = contents
        self.marks = marks
        marks.fail = self.fail
        # Of the events that were ever put: `written` were handed in, those up to `place` are in the
        # files, those up to `durable` survive a power cut.
        self.written = mark.written
        newest = segments.bases[-1] if segments.bases else -1
        self.place = self.durable = End(mark.written, newest, 0, None)
        # Where the segments end that were written by this handle.
        self.ends: dict[int, int] = {}
        self._next_id = next_segment_id(mark)
        self._active: ActiveSegment | None = None
        # How many events were put before those of the segment being written.
        self._segment_offset = mark.written
        self._retired: list[ActiveSegment] = []
        self._leftovers: list[str] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._backoff = Backoff(clock, options.retry_seconds)
        self._busy = False
        self._closing = False

    @property
    def used_bytes(self) -> int:
        """What all segments take, and what waits to be written. Lock held."""
        active = self._active.raw_size if self._active is not None else 0
        return sum(self.segments.sizes.values()) + active + self._pending_bytes

    @property
    def readable(self) -> End:
        """How far events may be read. Lock held."""
        return self.durable if self._always else self.place

    @property
    def active_events(self) -> int:
        """How many events are in the segment being written, or wait to be. Lock held."""
        active = self._active.count if self._active is not None else 0
        return active + len(self._pending)

    def put(self, payloads: list[bytes], size: int, make_room: Callable[[int], None]) -> None:
        """Puts events; under "always" they are durable on return.

        `make_room(size)` waits, with the lock held, until so many more bytes may be written.
        """
        with self.lock:
            self.check()
            make_room(size)
            self._submit(payloads, size)
            end, epoch = self.written, self.commit.epoch
            if not self._always:
                self.drain()
                # Another thread may have written them, or given them up.
                self.commit.check(end, epoch)
        if self._always:
            self.commit.wait(end, epoch)

    @fatal_when_interrupted
    def _submit(self, payloads: list[bytes], size: int) -> None:
        self._pending += payloads
        self._pending_bytes += size
        self.written += len(payloads)

    @fatal_when_interrupted
    def drain(self) -> None:
        """Writes what was put and is not in the files yet. Lock held; let go of while it waits."""
        while self._busy:
            self.changes.wait(_WAIT_SECONDS)
            self.check_whole()
        if not self._pending:
            return
        self._busy = True
        try:
            while self._pending:
                self._write_some()
        finally:
            self._busy = False
            self.changes.announce()

    @fatal_when_interrupted
    def roll(self) -> None:
        """Finishes the segment being written, durably; the next event starts a new one. Lock held.

        Everything that is pending was written before.
        """
        active, self._active = self._active, None
        if active is None:
            return
        self._retired.append(active)
        if active.count == 0:
            # Nothing was ever in it; its number stays used up.
            self.segments.drop_last()
            self._leftovers.append(active.name)
            return
        try:
            active.finish()
            active.sync()
        except OSError as error:
            self.fail(error)
            raise
        self.segments.sizes[active.id] = active.raw_size
        self.ends[active.id] = active.position
        # Before the next one is made: then this one is known to have been there.
        self._contents.add(active.id, Held(active.count, active.raw_size))
        self._take_durable(self.place._replace(raw_size=active.raw_size))
        self.place = self.durable = self.place._replace(raw_size=None)
        self.commit.advance(self.place.offset)

    def sync_now(self) -> None:
        """Makes what is in the files durable with the lock held."""
        if self._active is None or self.place.offset == self.durable.offset:
            return
        try:
            self._active.sync()
        except OSError as error:
            self.fail(error)
            raise
        self._take_durable(self.place)
        self.commit.advance(self.place.offset)

    def forget(self, segment_id: int) -> None:
        """Takes note that a segment was removed. Lock held."""
        self.ends.pop(segment_id, None)
        self.missing.discard(segment_id)
        self._contents.forget(segment_id)

    def publish(self, *, clean: bool = False, sync: bool = False) -> None:
        """Tells how much is written. Lock held."""
        written = self.marks.mark.durable if self._always else self.place.offset
        self.marks.publish(written=written, clean=clean, sync=sync)

    def stop(self) -> None:
        """Ends the tries of a write that failed: the queue is being closed."""
        self._closing = True

    def close(self) -> None:
        """Makes everything durable and marks the queue as cleanly closed."""
        self._close(self._write_out, self._mark_clean)

    def release_files(self) -> None:
        """Closes all files."""
        for segment in [*self._retired, *([self._active] if self._active else [])]:
            segment.close()
        self._retired = []
        self._active = None
        self._contents.close()
        self.marks.close()

    def _write_out(self) -> None:
        self.drain()
        self.roll()
        self._clear_leftovers()

    def _mark_clean(self) -> None:
        with self.lock:
            self.publish(clean=True, sync=True)

    def _stop(self) -> None:
        self._pending, self._pending_bytes = [], 0

    def _disconnect(self) -> None:
        """Touches nothing: the parent goes on."""

    def _ticket(self) -> Ticket:
        return Ticket(self.written, self.commit.epoch)

    def _write_some(self) -> None:
        """Writes as many events as a segment takes, at least one; tries again within bounds."""
        try:
            self._clear_leftovers()
            active = self._segment_for(self._pending[0])
            count = active.append(self._pending, self._options.segment_bytes)
        except OSError as error:
            if self._active is not None and self._active.broken:
                self.fail(error)
            if self._failed:
                raise
            if not self._wait_to_retry():
                self._abandon(error)
                raise
            return
        self._backoff.succeeded()
        del self._pending[:count]
        if not self._pending:
            self._pending_bytes = 0
        self.place = End(self.place.offset + count, active.id, active.position, active.raw_size)
        mark = self.marks.mark
        if not self._always and mark.written == mark.durable:
            # Readers in other processes learn that more is there than is durable.
            self.publish()
        if not self._always:
            self.marks.note_live((active.id, active.position, active.raw_size, active.count))

    def _segment_for(self, payload: bytes) -> ActiveSegment:
        """Returns a segment with room for an event."""
        active = self._active
        if active is not None and active.fits(payload, self._options.segment_bytes):
            return active
        if self._next_id > SEGMENT_ID_MAX:
            # The next number would have no name that a Beat reads.
            text = f"{self._directory.path}: the numbers of segments end at {SEGMENT_ID_MAX}"
            error = Full(f"{text}; move its events to a new queue")
            self._abandon(error)
            raise error
        self.roll()
        segment_id = self._next_id
        # Before the file is there: after a power cut the mark must name it, and not say "clean". At
        # position 0 it says that the file is only being made, and may hold anything.
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
        try:
            # Both before anything is acknowledged from it: a name without its header is no file.
            active.sync()
            self._directory.sync()
        except OSError as error:
            self.fail(error)
            raise
        self._publish_start(segment_id, active.position, active.raw_size)
        return active

    def _clear_leftovers(self) -> None:
        """Removes files that could not be made, and could not be removed then."""
        while self._leftovers:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(self._leftovers[-1])
            self._leftovers.pop()

    def _publish_start(self, segment_id: int, position: int, raw_size: int) -> None:
        self._publish_end(End(self.place.offset, segment_id, position, raw_size), 0, sync=True)

    def _publish_end(self, end: End, events: int, *, sync: bool) -> None:
        """Tells where the durable end is: `events` of its segment lie before it."""
        self.marks.publish(
            written=end.offset if self._always else self.place.offset,
            durable=end.offset,
            segment=end.segment,
            position=end.position,
            raw_size=end.raw_size or 0,
            events=events,
            clean=False,
            sync=sync,
        )

    def _wait_to_retry(self) -> bool:
        """Waits until the next try is due; False if there is none."""
        due = self._backoff.next_try()
        if due is None or self._closing:
            return False
        while not self._closing:
            left = due - self._clock.monotonic()
            if left <= 0:
                return True
            self.changes.wait(min(left, _WAIT_SECONDS))
            self.check_whole()
        return False

    def _abandon(self, error: OSError | Full) -> None:
        """Gives up what is pending: all who wait for it get the error."""
        self._backoff.succeeded()
        self.written -= len(self._pending)
        self._pending, self._pending_bytes = [], 0
        self.commit.abandon(error, self.written)

    def _take_durable(self, end: End) -> None:
        # Events are put one after the other: those of a segment are the last ones.
        events = end.offset - self._segment_offset
        self.durable = end
        self._publish_end(end, events, sync=self._mark_each)
        self.changes.announce()

    def _begin_sync(self) -> Sync:
        self.drain()
        files = [] if self._active is None else [self._active]
        return Sync(self.place.offset, files, self.place)

    def _end_sync(self, sync: Sync, *, done: bool) -> None:
        if not done:
            return
        for segment in self._retired:
            segment.close()
        self._retired = []
        place = cast(End, sync.note)
        if place.offset > self.durable.offset:
            self._take_durable(place)
