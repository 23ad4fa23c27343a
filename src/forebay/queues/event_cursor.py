"""Walks forward over the events of a queue, a few at a time, round damage.

Holds one segment open. One thread at a time may use it. What cannot be read is given once, in its
place, as `Lost`; the walk goes on past it. That is so for whole segments too: damaged, missing, of
another key, or of a version that is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from forebay.errors import Damaged, ForebayError, UndecodableEvent
from forebay.formats.beats import FRAME_BYTES
from forebay.formats.beats_events import Event, decode_event
from forebay.frames import Damage
from forebay.queues.event_segments import (
    Access,
    EventSegment,
    damage_of,
    index_after,
    is_foreign,
    is_harmless,
)
from forebay.queues.places import End, Place
from forebay.storage.filesystem import Directory
from forebay.storage.segments import Batch, SegmentList


@dataclass(frozen=True, slots=True)
class Lost:
    """A part of the queue that gives no events: damage, or a frame that holds no event."""

    start: Place
    end: Place
    error: ForebayError
    damage: Damage


@dataclass(frozen=True, slots=True)
class Taken:
    """Events that lie one behind the other, perhaps over several segments: so many of each."""

    start: Place
    end: Place
    events: list[Event]
    counts: dict[int, int]


@dataclass(slots=True)
class _Found:
    """Frames of one segment that were scanned and not given out yet."""

    place: Place
    payloads: list[bytes]
    sizes: list[int] | None

    def place_behind(self, count: int) -> Place:
        sizes = self.sizes
        if sizes is None:
            passed = sum(map(len, islice(self.payloads, count))) + count * FRAME_BYTES
        else:
            passed = sum(islice(sizes, count))
        return Place(
            self.place.segment, self.place.position + passed, self.place.frame_index + count
        )

    def drop(self, count: int) -> None:
        self.place = self.place_behind(count)
        del self.payloads[:count]
        if self.sizes is not None:
            del self.sizes[:count]


class EventCursor:
    """A place in a queue, and what comes behind it."""

    def __init__(self, directory: Directory, access: Access, place: Place) -> None:
        self._directory = directory
        self._access = access
        self._segment: EventSegment | None = None
        self._scan: Iterator[Batch | Damage] = iter(())
        self._found: _Found | None = None
        self._lost: Lost | None = None
        self.place = place
        # What costs no event that was there, and is worth telling: a count that is false.
        self.notes: list[Damage] = []
        self._counts: dict[int, int] = {}

    def take(self, segments: SegmentList, end: End, count: int) -> Taken | Lost | None:
        """Gives up to `count` of the next events below `end`, or what is lost there; None at it."""
        start = self.place
        events: list[Event] = []
        self._counts = {}
        try:
            while len(events) < count:
                if self._found is None and not self._fetch(segments, end):
                    break
                if self._found is not None and not self._decode(self._found, count, events):
                    break
        except BaseException:
            # What was taken is not given out: the next call must find it again.
            self.move_to(start)
            raise
        if events:
            return Taken(start, self.place, events, self._counts)
        lost, self._lost = self._lost, None
        if lost is not None:
            self.place = lost.end
        return lost

    def move_to(self, place: Place) -> None:
        """Goes on from another place."""
        self.close()
        self.place = place

    def close(self) -> None:
        """Closes the segment that it holds open."""
        if self._segment is not None:
            self._segment.close()
        self._segment = self._found = self._lost = None
        self._scan = iter(())

    def _decode(self, found: _Found, count: int, events: list[Event]) -> bool:
        """Takes events of what was found; False if one of them is none."""
        wanted = min(count - len(events), len(found.payloads))
        done = 0
        try:
            for payload in islice(found.payloads, wanted):
                events.append(decode_event(payload))
                done += 1
        except UndecodableEvent as error:
            if not events:
                self._lose_frame(found, error)
                return False
        if done:
            segment = found.place.segment
            self._counts[segment] = self._counts.get(segment, 0) + done
            found.drop(done)
            self.place = found.place
        if not found.payloads:
            self._found = None
        return done == wanted

    def _lose_frame(self, found: _Found, error: UndecodableEvent) -> None:
        assert self._segment is not None
        start = found.place
        found.drop(1)
        if not found.payloads:
            self._found = None
        end = found.place
        path = self._segment.path
        damage = Damage(path, start.position, end.position - start.position, str(error), count=1)
        damage = self._segment.in_file(damage)
        trouble = UndecodableEvent(f"{path}, byte {damage.position}: {error}")
        self._lost = Lost(start, end, trouble, damage)

    def _fetch(self, segments: SegmentList, end: End) -> bool:
        """Scans on; False if there is nothing more now, or something is lost first."""
        while self._lost is None:
            if self._segment is None and not self._open(segments, end):
                return False
            segment = self._segment
            if segment is None:
                continue
            item = next(self._scan, None)
            if isinstance(item, Batch):
                place = Place(segment.id, item.position, item.index)
                self._found = _Found(place, list(item.values), segment.stored_sizes(item))
                return True
            if isinstance(item, Damage):
                self._judge(segment, item)
            elif not self._go_on(segment, segments, end):
                return False
        return False

    def _judge(self, segment: EventSegment, damage: Damage) -> None:
        """Takes note of damage; what costs no event, or none that is known, does not stop."""
        told = segment.in_file(damage)
        if is_harmless(damage):
            self.notes.append(told)
            return
        # Never back: a place may lie past the end of a segment that was cut.
        position = max(damage.position + damage.length, self.place.position)
        end = Place(segment.id, position, index_after(damage))
        self._lost = Lost(self.place, end, Damaged(told), told)

    def _go_on(self, segment: EventSegment, segments: SegmentList, end: End) -> bool:
        """Goes on where a scan ended: in the same segment if it has grown, or in the next."""
        raw_size = end.raw_size if segment.id == end.segment else None
        if segment.id >= end.segment and segment.raw.bound == raw_size:
            return False
        if segment.raw.bound is not None:
            segment.grow(raw_size)
            segment.held = self._access.held.get(segment.id)
            self._scan = segment.scan(self.place, finished=raw_size is None)
            return True
        following = segments.after(segment.id)
        if following is None or following > end.segment:
            return False
        self.move_to(Place(following))
        return True

    def _open(self, segments: SegmentList, end: End) -> bool:
        """Opens the segment of the place, or the next one that is there; False behind the end."""
        segment_id = self.place.segment
        if segment_id not in segments.names:
            following = segments.after(segment_id)
            if following is None or following > end.segment:
                return False
            self.place = Place(following)
            segment_id = following
        if segment_id > end.segment:
            return False
        raw_size = end.raw_size if segment_id == end.segment else None
        name = segments.names[segment_id]
        try:
            self._segment = EventSegment(self._directory, segment_id, name, self._access, raw_size)
        except (ForebayError, FileNotFoundError) as error:
            # What the owner has written itself is no unfinished end.
            newest = raw_size is None and segment_id == segments.bases[-1]
            self._pass_over(segments, segment_id, error, newest=newest)
            return True
        if self._segment.header.repaired:
            reason = "the header was damaged; its frames tell what it is"
            size = self._segment.start.position
            self.notes.append(Damage(self._segment.path, 0, size, reason, count=0))
        self._scan = self._segment.scan(self.place, finished=raw_size is None)
        return True

    def _pass_over(
        self,
        segments: SegmentList,
        segment_id: int,
        error: ForebayError | FileNotFoundError,
        *,
        newest: bool,
    ) -> None:
        """Loses a whole segment; what is not ours to read is told by its own error."""
        path = f"{self._directory.path}/{segments.names[segment_id]}"
        held = self._access.held.get(segment_id)
        damage = damage_of(error, path, held, newest=newest)
        done = self.place.frame_index if self.place.segment == segment_id else 0
        if damage.count is not None:
            damage = replace(damage, count=max(0, damage.count - done))
        start, end = self.place, Place(segment_id + 1)
        if is_harmless(damage):
            self.notes.append(damage)
            self.place = end
            return
        foreign = error if is_foreign(error) else None
        told = foreign if isinstance(foreign, ForebayError) else Damaged(damage)
        self._lost = Lost(start, end, told, damage)
