"""Beats queues for the source: their ranges, and how one is read and followed.

The offset of an event combines its segment and its place in the segment into one number
(`queues/beats/place.py`). Frames do not contain their place, so one task reads a whole segment. An
unfinished end that a crash left costs no acknowledged event: it is not damage among the records,
and only the table `damage` lists it.

A stream writes nothing to the queue that it follows. Every poll counts and verifies the frames that
arrived since the last poll, because their number is recorded nowhere else. In a directory with a
`mark` a poll ends at the durable end that the mark states; in one that Beats writes, after the last
whole frame. The place in the checkpoint has two more fields: `position`, where the next frame
starts, and `spans`, the offsets of the batch, segment by segment. A place at the end of a finished
segment is the start of the next one. So a missing segment was read if the place is after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow
from pyarrow import compute

from forebay.damage import Damage
from forebay.errors import DataLoss, InvalidOption, UnsupportedVersion
from forebay.formats.beats.text import EventColumns, Text, TextDecoder, decode_columns
from forebay.formats.beats.versions import segment_name
from forebay.queues.archive.store import stores_for
from forebay.queues.beats.place import SEGMENTS_MAX, Place, offset_of, split_offset
from forebay.queues.beats.reader import BeatsReader, Payloads
from forebay.queues.beats.segments import EventSegment, is_harmless
from forebay.spark import planning
from forebay.spark.kinds import StreamedKind
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Extent, Range, ReadRequest, end_offset, lose
from forebay.spark.rows import Contents, RangeRows
from forebay.spark.typed_text import typed
from forebay.spark.watch import RECORD_BYTES

_NAME = "beats"
# The name of the position in `state.dat`.
STATE = "state"
_COLUMNS = ("offset", "timestamp", "value", "position", "timestamp_ns", "flags", "meta", "fields")
_TEXT_BYTES_MAX = 16 << 20
_GONE_MAX = 4096
Span = tuple[int, int]


class BeatsKind(StreamedKind):
    """Beats queues, segment by segment."""

    name = _NAME
    label = "a Beats queue"
    columns = pyarrow.schema(
        [
            ("timestamp_ns", pyarrow.int64()),
            ("flags", pyarrow.int64()),
            ("meta", pyarrow.string()),
            ("fields", pyarrow.string()),
        ]
    )
    documents = ("meta", "fields")

    def open_reader(self, path: str, options: SourceOptions) -> BeatsReader:
        """Opens a Beats queue without owning it."""
        return _open(path, options)

    def bounds(self, reader: BeatsReader, options: SourceOptions) -> tuple[int, int]:
        """Returns the offsets at which a batch read starts and ends."""
        extent = _extent(reader)
        start = planning.first_offset(extent, options, "earliest")
        return start, end_offset(extent, options)

    def plan(
        self, reader: BeatsReader, start: int, end: int, wanted: ReadRequest
    ) -> Iterator[Range]:
        """Yields the ranges of a queue from offset `start` to `end`, one per segment."""
        for segment in reader.numbers:
            first, last = offset_of(segment, 0), offset_of(segment + 1, 0)
            if last <= start or first >= end:
                continue
            name = reader.segments.names.get(segment, segment_name(segment))
            size = reader.size_of(name)
            yield Range(
                _NAME, reader.path, max(start, first), min(end, last), name, segment, 0, size
            )

    def open_contents(self, queue: str, wanted: ReadRequest) -> Contents:
        """Opens a Beats queue to read ranges of it."""
        return _BeatsContents(queue, wanted)

    def consumer_rows(self, reader: BeatsReader) -> Iterator[dict[str, Any]]:
        """Yields a row for the position in `state.dat`."""
        for name, offset in _places(reader).items():
            yield {
                "name": name,
                "type": "state",
                "offset": offset,
            }

    def segment_rows(self, reader: BeatsReader) -> Iterator[dict[str, Any]]:
        """Yields a row for each segment; the count is null where the header does not contain it."""
        for segment in reader.segments.bases:
            name = reader.segments.names[segment]
            row: dict[str, Any] = {
                "segment": name,
                "first_offset": offset_of(segment, 0),
                "bytes": reader.size_of(name),
                "sealed": segment != reader.segments.bases[-1],
            }
            opened = reader.open_segment(segment)
            if opened is not None and not isinstance(opened, Damage):
                row["version"] = opened.header.layout.version
                row["count"] = opened.header.count or None
                row["sealed"] = row["sealed"] or bool(opened.header.count)
                opened.close()
            yield row

    def begin(self, reader: BeatsReader) -> int:
        """Returns the offset of the earliest event that can exist."""
        return _begin(reader)

    def gone(self, reader: BeatsReader) -> str | None:
        """Describes which segments were acknowledged and removed; None if none."""
        place = reader.place()
        first = reader.segments.bases[0] if reader.segments.bases else place.segment
        # Recovery may remove an empty first segment; then nothing is acknowledged yet.
        if not min(first, place.segment):
            return None
        before = "earlier ones were acknowledged and removed"
        return f"{reader.path} begins at segment {first}: {before}"

    def first_offset(self, reader: BeatsReader, options: SourceOptions) -> int:
        """Returns the offset at which a stream starts; by default the latest."""
        return planning.first_offset(_extent(reader), options, "latest")

    def follow(self, path: str, options: SourceOptions) -> BeatsLive:
        """Opens a Beats queue for a stream."""
        return BeatsLive(_open(path, options, durable_only=True))

    def holds(self, reader: BeatsReader, incarnation: int, end: int) -> bool:
        """Returns whether a queue still has what it had up to `end`: segments do not shrink."""
        segment, index = split_offset(end)
        return segment in reader.segments.names or index == 0

    def resume(
        self,
        reader: BeatsReader,
        first: int,
        before: dict[str, Any],
        place: dict[str, Any],
        options: SourceOptions,
    ) -> Iterator[Range]:
        """Yields the ranges of a stream's batch: the spans that its place lists."""
        if reader.tail is not None and place["id"] not in ("", reader.tail.queue_id.hex()):
            lose(options, f"{reader.path} was created again: planned events of it are gone")
            return
        for start, end in place["spans"]:
            segment, index = split_offset(start)
            name = reader.segments.names.get(segment)
            if name is None:
                lose(
                    options, f"{reader.path}: lost {end - start} unread events of segment {segment}"
                )
                continue
            position = before.get("position", 0) if start == before.get("offset") else 0
            size = reader.size_of(name)
            yield Range(
                _NAME,
                reader.path,
                start,
                end,
                name,
                segment,
                0,
                size,
                position=position if index else 0,
            )


class _BeatsContents(Contents):
    """The events of one Beats queue, range by range."""

    def __init__(self, queue: str, wanted: ReadRequest) -> None:
        self._decoder = TextDecoder()
        stores = stores_for(queue, wanted.archive)
        self._reader = BeatsReader(queue, salvage=True, key_file=wanted.key_file, filesystem=stores)

    def scan(self, part: Range) -> Iterator[EventBatch | Damage]:
        """Yields the events of a range, and its damage; frames without an event count as damage.

        Raises `DataLoss` if something planned is not there any more.
        """
        for item in self._scan(part):
            if isinstance(item, Damage):
                yield item
            else:
                yield from _decoded(item, self._decoder)

    def record_batch(self, rows: RangeRows, batch: EventBatch) -> Any:
        """Returns the events of a batch."""
        segment = batch.frames.path.rpartition("/")[2]
        return rows.record_batch(len(batch.columns.numbers), segment, _COLUMNS, batch.column)

    def is_harmless(self, damage: Damage) -> bool:
        """Returns whether damage costs no event."""
        return is_harmless(damage)

    def close(self) -> None:
        """Closes the files."""
        self._reader.close()

    def _scan(self, part: Range) -> Iterator[Payloads | Damage]:
        """Yields the frames of a range, and its damage with offsets.

        Raises `DataLoss` if something planned is not there any more.
        """
        reader = self._reader
        segment, index = split_offset(part.start)
        stop = part.end - offset_of(segment, 0)
        start = Place(segment, part.position, index) if part.position else Place(segment)
        reached = 0
        # A segment that has disappeared since planning is not damage: its owner may have removed
        # it.
        lacking = segment in reader.missing and not part.size
        there = lacking or segment in reader.segments.names
        found = reader.scan_segment(segment, start) if there else ()
        for item in found:
            first = item.index if isinstance(item, Payloads) else item.offset or 0
            if first >= stop:
                break
            if isinstance(item, Payloads):
                reached = item.index + len(item.payloads)
                if reached > index:
                    yield item.part(index, stop)
                continue
            reached = max(reached, first + (1 if item.count is None else item.count))
            if reached > index:
                yield replace(item, offset=offset_of(segment, first))
        if lacking:
            return
        if reached < stop and not (_is_whole(part) and part.segment in reader.directory.names()):
            raise DataLoss(f"{part.queue}: {part.segment} was removed or cut before it was read")


class EventBatch:
    """Some events and their columns, each built when it is requested."""

    def __init__(self, frames: Payloads, columns: EventColumns) -> None:
        self.frames = frames
        self.columns = columns

    def column(self, field: Any) -> Any:
        """Returns one column, in the type of its field."""
        made = getattr(self, f"_{field.name}")()
        if field.name in ("meta", "fields") and field.type != made.type:
            return typed(made, field.type)
        return made

    def _numbers(self) -> Any:
        return _integers(self.columns.numbers)

    def _offset(self) -> Any:
        return compute.add(self._numbers(), offset_of(self.frames.segment, self.frames.index))

    def _position(self) -> Any:
        return pyarrow.array(self.frames.positions, pyarrow.int64()).take(self._numbers())

    def _timestamp_ns(self) -> Any:
        return _integers(self.columns.timestamps_ns)

    def _timestamp(self) -> Any:
        times = self._timestamp_ns()
        # Division rounds towards zero; times before 1970 must round down as well.
        low = compute.if_else(compute.less(times, 0), compute.subtract(times, 999), times)
        return compute.divide(low, 1000).cast(pyarrow.timestamp("us", tz="UTC"))

    def _flags(self) -> Any:
        return pyarrow.array(self.columns.flags, pyarrow.int64())

    def _meta(self) -> Any:
        return _text(self.columns.meta)

    def _fields(self) -> Any:
        return _text(self.columns.fields)

    def _value(self) -> Any:
        parts = (
            '{"timestamp_ns":',
            self._timestamp_ns().cast(pyarrow.string()),
            ',"flags":',
            self._flags().cast(pyarrow.string()),
            ',"meta":',
            self._meta(),
            ',"fields":',
            self._fields(),
            "}",
        )
        joined = compute.binary_join_element_wise(*parts, "")
        return joined.cast(pyarrow.binary())


def _decoded(item: Payloads, decoder: TextDecoder) -> Iterator[EventBatch | Damage]:
    """Yields events as columns, some at a time, and frames without an event as damage."""
    while item.payloads:
        columns = decode_columns(item.payloads, decoder, _TEXT_BYTES_MAX)
        if len(columns.numbers):
            yield EventBatch(item, columns)
        for number, reason in columns.bad:
            yield Damage(
                item.path,
                item.positions[number],
                len(item.payloads[number]),
                reason,
                offset=offset_of(item.segment, item.index + number),
                count=1,
            )
        item = item.part(item.index + columns.taken, item.index + len(item.payloads))


@dataclass(frozen=True, slots=True)
class Counted:
    """A segment: how many frames it has, where they end, and whether no more can arrive.

    `position` is 0 if it is unknown, as after damage.
    """

    count: int
    position: int
    finished: bool


@dataclass(frozen=True, slots=True)
class BeatsMark:
    """How far a Beats queue can be read: its segments, and those removed since the start."""

    path: str
    queue_id: str
    durable: int
    record_bytes: int
    segments: dict[int, Counted]
    gone: dict[int, int]
    incarnation: int = 0

    def trouble(self, place: dict[str, Any]) -> str | None:
        """Describes what a reader at a place has lost meanwhile; None if nothing."""
        segment, index = split_offset(place["offset"])
        found = self.segments.get(segment)
        if found is not None:
            if index <= found.count:
                return None
            return f"{self.path}: events of segment {segment} that this stream has read are gone"
        later = [number for number in self.segments if number > segment]
        if not later and index == 0:
            # It does not exist yet.
            return None
        unread = -index
        for number in range(segment, min(later, default=segment + 1)):
            if number not in self.gone:
                return f"{self.path}: segment {number} is gone and may not have been read"
            unread += self.gone[number]
        return f"{self.path}: lost {unread} unread events" if unread > 0 else None

    def restart(self, place: dict[str, Any]) -> int:
        """Returns the first offset whose events are new to a reader that lost some."""
        return max(min(int(place["offset"]), self.durable), self._begin)

    def waiting(self, start: int) -> int:
        """Returns how many events follow an offset."""
        return sum(last - first for first, last in self.spans(start, self.durable))

    def advance(self, start: int, count: int) -> int:
        """Returns the offset after `count` of the waiting events."""
        end = start
        for first, last in self.spans(start, self.durable):
            if count <= 0:
                break
            end = min(first + count, last)
            count -= end - first
        return self.behind(end)

    def spans(self, start: int, end: int) -> list[Span]:
        """Returns the offsets from `start` to `end`, segment by segment."""
        found = []
        for segment, counted in sorted(self.segments.items()):
            first = max(start, offset_of(segment, 0))
            last = min(end, offset_of(segment, counted.count))
            if first < last:
                found.append((first, last))
        return found

    def behind(self, offset: int) -> int:
        """Returns an offset in the form of a place: never at the end of a finished segment."""
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
    """The segments of a Beats queue, counted as they grow."""

    def __init__(self, reader: BeatsReader) -> None:
        self._reader = reader
        self._inode = _inode(reader.path)
        self._segments: dict[int, Counted] = {}
        self._gone: dict[int, int] = {}
        # The newest segment stays open: its last frames can be counted even if it is removed.
        self._held: EventSegment | None = None
        self._stamp: tuple[Any, ...] | None = None
        self._mark = self._make_mark()

    def look(self) -> BeatsMark:
        """Returns the current mark of the queue."""
        stamp = self._look_from_outside()
        if stamp != self._stamp:
            self._reader.refresh()
            self._count_segments()
            self._mark = self._make_mark()
            self._stamp = stamp
        return self._mark

    def is_same(self) -> bool:
        """Returns whether the directory at the path is still the same."""
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
        """Returns a value that changes whenever the queue does, with two or three system calls."""
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
        """Counts the new frames of a segment; one that cannot be opened counts as a lost frame."""
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
        """Records that a segment is gone, and how many frames it had at the end."""
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
        """Returns where the frame at `end` starts; 0 if unknown, or if it is the first one."""
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


def _open(path: str, options: SourceOptions, *, durable_only: bool = False) -> BeatsReader:
    if options.start_ms is not None or options.end_ms is not None:
        raise InvalidOption(
            f"startingTimestamp, endingTimestamp: {path} is a Beats queue, whose times are not "
            "ordered; filter by the column timestamp"
        )
    reader = BeatsReader(
        path,
        salvage=True,
        key_file=options.key_file,
        durable_only=durable_only,
        filesystem=stores_for(path, options.archive),
    )
    if reader.segments.bases[-1:] > [SEGMENTS_MAX - 2]:
        reader.close()
        raise UnsupportedVersion(f"{path} has segment numbers above {SEGMENTS_MAX}")
    return reader


def _begin(reader: BeatsReader) -> int:
    return offset_of(reader.numbers[0], 0) if reader.numbers else 0


def _extent(reader: BeatsReader) -> Extent:
    newest = reader.numbers[-1] + 1 if reader.numbers else 0
    end = offset_of(newest, 0)
    return Extent(reader.path, _begin(reader), end, end, lambda: _places(reader))


def _places(reader: BeatsReader) -> dict[str, int]:
    place = reader.place()
    return {STATE: offset_of(place.segment, place.frame_index)}


def _is_whole(part: Range) -> bool:
    """Returns whether a range extends to the end of its segment, wherever that is."""
    return part.end == offset_of(part.base + 1, 0)


def _integers(numbers: Any) -> Any:
    return pyarrow.Array.from_buffers(
        pyarrow.int64(), len(numbers), [None, pyarrow.py_buffer(numbers)]
    )


def _text(text: Text) -> Any:
    buffers = [None, pyarrow.py_buffer(text.ends), pyarrow.py_buffer(text.data)]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(text.ends) - 1, buffers)


def _inode(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return (0, 0)
    return found.st_dev, found.st_ino


KIND = BeatsKind()
