"""A Beats queue that a stream follows, without writing into it.

Every look counts the frames that came since the last one, and verifies them: nobody else tells how
many there are. In a directory with a `mark` a look ends where the mark says that it is durable; in
one that Beats writes, behind the last whole frame.

The place in the checkpoint gets `position`, where the next frame begins, and `spans`: the offsets
of the batch, segment by segment. A place at the end of a finished segment is the start of the next
one. So a segment that is gone was read if the place lies behind it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from forebay.damage import Damage
from forebay.queues.beats.place import Place, offset_of, split_offset
from forebay.queues.beats.reader import BeatsReader
from forebay.queues.beats.segments import EventSegment
from forebay.spark.watch import RECORD_BYTES

Span = tuple[int, int]
_GONE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Counted:
    """A segment: how many frames it has, where they end, and whether more can come.

    `position` is 0 where it is not known: behind damage.
    """

    count: int
    position: int
    finished: bool


@dataclass(frozen=True, slots=True)
class BeatsMark:
    """How far a Beats queue can be read: its segments, and those that went since the start."""

    path: str
    queue_id: str
    durable: int
    record_bytes: int
    segments: dict[int, Counted]
    gone: dict[int, int]
    incarnation: int = 0

    def trouble(self, place: dict[str, Any]) -> str | None:
        """Says what a reader that stood at a place has lost since; None if nothing."""
        segment, index = split_offset(place["offset"])
        found = self.segments.get(segment)
        if found is not None:
            if index <= found.count:
                return None
            return f"{self.path}: events of segment {segment} that this stream has read are gone"
        later = [number for number in self.segments if number > segment]
        if not later and index == 0:
            # It is not there yet.
            return None
        unread = -index
        for number in range(segment, min(later, default=segment + 1)):
            if number not in self.gone:
                return f"{self.path}: segment {number} is gone, and may not have been read"
            unread += self.gone[number]
        return f"{self.path}: {unread} events went unread" if unread > 0 else None

    def restart(self, place: dict[str, Any]) -> int:
        """Returns the offset from which on events are new to a reader that lost some."""
        return max(min(int(place["offset"]), self.durable), self._begin)

    def waiting(self, start: int) -> int:
        """Returns how many events lie behind an offset."""
        return sum(last - first for first, last in self.spans(start, self.durable))

    def advance(self, start: int, count: int) -> int:
        """Returns the offset behind so many of the events that are waiting."""
        end = start
        for first, last in self.spans(start, self.durable):
            if count <= 0:
                break
            end = min(first + count, last)
            count -= end - first
        return self.behind(end)

    def spans(self, start: int, end: int) -> list[Span]:
        """Returns the offsets between two, segment by segment."""
        found = []
        for segment, counted in sorted(self.segments.items()):
            first = max(start, offset_of(segment, 0))
            last = min(end, offset_of(segment, counted.count))
            if first < last:
                found.append((first, last))
        return found

    def behind(self, offset: int) -> int:
        """Returns an offset as a place has it: not at the end of a segment that is finished."""
        segment, index = split_offset(offset)
        counted = self.segments.get(segment)
        if counted is None or not counted.finished or index < counted.count:
            return offset
        following = [number for number in self.segments if number > segment]
        return offset_of(min(following, default=segment + 1), 0)

    @property
    def _begin(self) -> int:
        return offset_of(min(self.segments), 0) if self.segments else 0


class BeatsLive:
    """The segments of a Beats queue, counted as they come."""

    def __init__(self, reader: BeatsReader) -> None:
        self._reader = reader
        self._inode = _inode(reader.path)
        self._segments: dict[int, Counted] = {}
        self._gone: dict[int, int] = {}
        # The newest one stays open: what came last can be counted even if it is removed.
        self._held: EventSegment | None = None
        self._stamp: tuple[Any, ...] | None = None
        self._mark = self._make_mark()

    def look(self) -> BeatsMark:
        """Returns where it stands now."""
        stamp = self._look_from_outside()
        if stamp != self._stamp:
            self._reader.refresh()
            self._count_segments()
            self._mark = self._make_mark()
            self._stamp = stamp
        return self._mark

    def is_same(self) -> bool:
        """Says whether it is still the directory at its path."""
        return _inode(self._reader.path) == self._inode

    def fields(self, mark: BeatsMark, place: dict[str, Any], end: int) -> dict[str, Any]:
        """Returns `position` and `spans` of the place at `end`, which follows `place`."""
        spans = mark.spans(place["offset"], end)
        return {"position": self._position(place, end), "spans": [list(span) for span in spans]}

    def close(self) -> None:
        """Closes its files."""
        if self._held is not None:
            self._held.close()
        self._reader.close()

    def _look_from_outside(self) -> tuple[Any, ...]:
        """Returns what changes whenever the queue does, at the cost of two calls or three."""
        directory = os.stat(self._reader.path)
        newest = self._held.file.size() if self._held is not None else 0
        tail = self._reader.read_mark()
        return directory.st_mtime_ns, newest, tail

    def _count_segments(self) -> None:
        numbers = self._reader.numbers
        for segment in [number for number in self._segments if number not in numbers]:
            self._count_rest(segment)
        for segment in numbers:
            counted = self._segments.get(segment)
            if counted is None or not counted.finished:
                self._count(segment, finished=self._is_finished(segment))

    def _is_finished(self, segment: int) -> bool:
        reader = self._reader
        if segment in reader.missing:
            return True
        if reader.tail is None:
            return segment != reader.segments.bases[-1]
        return not reader.is_unfinished(segment) and segment <= reader.tail.segment

    def _count(self, segment: int, *, finished: bool) -> None:
        """Counts what came to a segment; one that cannot be opened stands for one lost frame."""
        before = self._segments.get(segment, Counted(0, 0, finished=False))
        count, position = before.count, before.position
        start = Place(segment, position, count) if position else Place(segment)
        for item in self._reader.scan_segment(segment, start):
            if not isinstance(item, Damage):
                count, position = item.index + len(item.payloads), item.end_position
            elif not item.torn:
                lost = 1 if item.count is None else item.count
                count, position = max(count, (item.offset or 0) + lost), 0
        self._segments[segment] = Counted(count, position, finished)
        if self._reader.segments.bases[-1:] == [segment]:
            self._hold(segment)

    def _hold(self, segment: int) -> None:
        opened = self._reader.open_segment(segment)
        if self._held is not None:
            self._held.close()
        self._held = opened if isinstance(opened, EventSegment) else None

    def _count_rest(self, segment: int) -> None:
        """Takes note that a segment is gone, with all that was in it at the end."""
        counted = self._segments.pop(segment)
        count = counted.count
        if self._held is not None and self._held.id == segment:
            self._held.grow(None)
            start = Place(segment, counted.position, count) if count else Place(segment)
            for item in self._held.scan(start):
                if not isinstance(item, Damage):
                    count = item.index + len(item.values)
        self._gone[segment] = count
        if len(self._gone) > _GONE_MAX:
            del self._gone[min(self._gone)]

    def _make_mark(self) -> BeatsMark:
        tail = self._reader.tail
        events = sum(counted.count for counted in self._segments.values())
        size = sum(counted.position for counted in self._segments.values())
        mark = BeatsMark(
            self._reader.path,
            tail.queue_id.hex() if tail is not None else "",
            0,
            size // events if events and size else RECORD_BYTES,
            dict(self._segments),
            dict(self._gone),
        )
        if not self._segments:
            return mark
        newest = max(self._segments)
        end = mark.behind(offset_of(newest, self._segments[newest].count))
        return replace(mark, durable=end)

    def _position(self, place: dict[str, Any], end: int) -> int:
        """Returns where the frame at `end` begins; 0 if that is not known, or the first one."""
        segment, index = split_offset(end)
        counted = self._segments.get(segment)
        if index == 0 or counted is None:
            return 0
        if index == counted.count:
            return counted.position
        start = Place(segment)
        if place.get("position") and split_offset(place["offset"])[0] == segment:
            start = Place(segment, place["position"], split_offset(place["offset"])[1])
        for item in self._reader.scan_segment(segment, start):
            if not isinstance(item, Damage) and item.index <= index < item.index + len(
                item.payloads
            ):
                return item.positions[index - item.index]
        return 0


def _inode(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return (0, 0)
    return found.st_dev, found.st_ino
