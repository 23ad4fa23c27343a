"""Reads the records of a log directory in order, skipping damage, by offset and by time.

Used by the owner's consumers, by read-only readers and by recovery. Finds an offset or a time by
bisection over the segments' names or headers, then inside one segment. Holds one file open at a
time. One thread at a time may use a scanner.

A version 2 frame contains its index, so a reader may begin in the middle of a segment: it searches
for the next frame that verifies and that is followed by another one that does. What it finds
depends only on the bytes of the segment: two readers that cut a segment at the same position agree
on the record.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from forebay.damage import Damage
from forebay.errors import (
    Damaged,
    ForebayError,
    InvalidOption,
    NotAQueue,
    Overtaken,
    UnsupportedVersion,
)
from forebay.formats.fflg import (
    HEADER_BYTES_MAX,
    OFFSET_MAX,
    Frames,
    Header,
    decode_header,
    parse_segment_name,
    repair_header,
    segment_name,
)
from forebay.queues.log.staged import Record, make_records
from forebay.storage.readable import Content, Store, open_readable
from forebay.storage.segments import SegmentList, check_base, scan_segment

# The errors of opening an unreadable segment; `damage_of` turns them into damage.
UNREADABLE = (Damaged, NotAQueue, UnsupportedVersion)
# The reason of damage if a whole file is missing.
MISSING = "the segment is missing"
# How the records of a segment are read: as objects, or as columns (`columns.py`).
Taking = Callable[[Header], Frames]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive records of one segment or of the staging buffer."""

    offset: int
    values: list[bytes]
    times: list[int] | None
    epoch_ms: int
    segment: str
    position: int
    frame_bytes: int

    def records(self) -> list[Record]:
        """Returns them as objects."""
        return make_records(self.values, self.times, self.offset, self.epoch_ms)

    def since(self, offset: int) -> RecordBatch:
        """Returns the part from an offset on."""
        skip = offset - self.offset
        if skip <= 0:
            return self
        position = self.position
        if isinstance(self.values, list):
            # Columns count the position of each row from where the batch was read.
            position += sum(map(len, self.values[:skip])) + skip * self.frame_bytes
        times = self.times[skip:] if self.times is not None else None
        return replace(
            self, offset=offset, values=self.values[skip:], times=times, position=position
        )

    def until(self, offset: int) -> RecordBatch:
        """Returns the part below an offset."""
        keep = offset - self.offset
        if keep >= len(self.values):
            return self
        times = self.times[:keep] if self.times is not None else None
        return replace(self, values=self.values[:keep], times=times)


class OpenSegment:
    """A segment that is open for reading; `damage` is set if its header had to be repaired."""

    def __init__(self, store: Store, name: str, base: int, frames: Taking = Frames) -> None:
        self.path = f"{store.path}/{name}"
        self.name = name
        self.base = base
        self.damage: Damage | None = None
        self.file = open_readable(store, name)
        try:
            self.frames = frames(self._header())
        except BaseException:
            self.file.close()
            raise

    def _header(self) -> Header:
        data = self.file.pread(HEADER_BYTES_MAX, 0)
        hole = self.file.hole(0, HEADER_BYTES_MAX)
        if hole is not None:
            raise Damaged(Damage(self.path, 0, len(data), hole.reason))
        trouble: ForebayError | None = None
        header: Header | None = None
        try:
            header = decode_header(data, self.path)
            check_base(header.base_offset, self.base, self.path)
            if header.layout.checked:
                return header
        except (Damaged, NotAQueue, UnsupportedVersion) as error:
            trouble = error
        # The flipped bit may be in the version itself: older versions have no check.
        repaired = repair_header(data, self.base)
        if repaired is not None:
            reason = "the header was damaged and could be repaired"
            self.damage = Damage(self.path, 0, HEADER_BYTES_MAX, reason, False, None, 0)
            return repaired
        if header is None or trouble is not None:
            raise trouble or NotAQueue(f"{self.path}: not a segment")
        return header


class Scanner:
    """Walks over the records of a directory."""

    def __init__(
        self,
        store: Store,
        segments: SegmentList,
        frames: Taking = Frames,
        begin: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Opens nothing yet; `begin` returns the offset from which records must exist, if known."""
        self._store = store
        self._segments = segments
        self._frames = frames
        self._begin_now = begin
        self._open: OpenSegment | None = None
        self._place = (-1, 0, 0)

    def look_at(self, segments: SegmentList) -> None:
        """Continues with another snapshot of the segments."""
        self._segments = segments

    def scan(self, start: int, end: int, durable: int) -> Iterator[RecordBatch | Damage]:
        """Yields batches and damage from offset `start` to `end`.

        Records below `durable` must exist; what does not verify above it is a torn end.
        """
        end = min(end, OFFSET_MAX + 1)
        base = self._segments.containing(start)
        if base is None:
            first = next(iter(self._segments.bases), None)
            yield from self._before(first, start, end, durable)
            base = first
        while base is not None and base < end:
            following = self._segments.after(base)
            stop = end if following is None else min(following, end)
            sure = stop if following is not None else max(0, min(durable, stop))
            yield from self._scan_one(base, start, stop, sure)
            base = following

    def offset_at(self, time_ms: int, end: int, durable: int) -> int:
        """Returns the offset of the first record that is not older than a time."""
        bases = self._segments.bases
        number = bisect.bisect_left(bases, time_ms, key=self._first_time_ms) - 1
        if number < 0:
            return min(bases[0], end) if bases else end
        for item in self.scan(bases[number], end, durable):
            if isinstance(item, Damage) or item.times is None:
                continue
            found = bisect.bisect_left(item.times, time_ms - item.epoch_ms)
            if found < len(item.times):
                return item.offset + found
        return end

    def cut(self, base: int, position: int, end: int) -> int:
        """Returns the offset of the first sure record at or after a position; `end` if none is.

        The result depends only on the segment, so two readers may divide a segment there.
        """
        segment = self._segment(base)
        if isinstance(segment, Damage) or not segment.frames.layout.checked:
            return end
        found = frame_from(segment.file, segment.frames, position)
        if found is None:
            return end
        self._place = (base, *found)
        return min(base + found[1], end)

    def close(self) -> None:
        """Closes the file that it holds open."""
        if self._open is not None:
            self._open.file.close()
            self._open = None

    def _before(
        self, first: int | None, start: int, end: int, durable: int
    ) -> Iterator[RecordBatch | Damage]:
        """Yields the damage if there is no segment at `start`, but perhaps one after it."""
        begin = self._segments.begin
        if begin is None or start < begin:
            left = first if begin is None else begin
            if left is not None and start < left < end:
                raise Overtaken(self._store.path, left - start)
            start = max(start, begin or 0)
        stop = min(end, durable if first is None else first)
        if begin is not None and start < stop:
            path = f"{self._store.path}/{self._name_of(begin)}"
            yield Damage(path, 0, 0, MISSING, False, start, stop - start)

    def _tell_missing(self, damage: Damage) -> Damage:
        """Names the segment that may be missing if one ends before the next begins."""
        if damage.torn or damage.length or damage.offset is None:
            return damage
        missing = self._name_of(damage.offset)
        return replace(damage, reason=f"{damage.reason}: it was cut, or {missing} is missing")

    def _name_of(self, base: int) -> str:
        """Returns the name that the segment with this base must have had."""
        digits = max(map(len, self._segments.names.values()), default=0)
        return f"{base:0{digits}x}" if digits > 10 else segment_name(base)

    def _scan_one(
        self, base: int, start: int, stop: int, sure: int
    ) -> Iterator[RecordBatch | Damage]:
        segment = self._segment(base)
        if isinstance(segment, Damage):
            first = max(base, start)
            lost = max(0, sure - first)
            # A header that is cut off is an unfinished end only if no record is missing.
            yield replace(segment, offset=first, count=lost, torn=segment.torn and not lost)
            return
        if segment.damage is not None and start <= base:
            yield segment.damage
        position, index = self._begin(segment, start, stop)
        for item in scan_segment(
            segment.file,
            segment.path,
            segment.frames,
            position=position,
            index=index,
            expected=sure - base,
            limit=stop - base,
        ):
            if isinstance(item, Damage):
                lost = base + (item.offset or 0)
                if lost + (item.count or 1) > start:
                    yield self._tell_missing(replace(item, offset=lost))
                continue
            index = item.index + len(item.values)
            self._place = (base, item.end_position, index)
            if base + index <= start:
                continue
            header = segment.frames.header
            times = item.times if segment.frames.layout.checked else None
            yield RecordBatch(
                base + item.index,
                item.values,
                times,
                header.epoch_ms,
                segment.name,
                item.position,
                segment.frames.layout.frame_bytes,
            ).since(start)

    def _begin(self, segment: OpenSegment, start: int, stop: int) -> tuple[int, int]:
        """Returns position and index of a frame at or before `start`, as near as is known."""
        base, position, index = self._place
        if base != segment.base or base + index > start:
            position, index = segment.frames.layout.header_bytes, 0
        wanted = start - segment.base
        if segment.frames.layout.checked and wanted - index > NEAR:
            return frame_near(segment.file, segment.frames, wanted, stop - segment.base)
        return position, index

    def _segment(self, base: int) -> OpenSegment | Damage:
        if self._open is not None and self._open.base == base:
            return self._open
        self.close()
        try:
            name = self._segments.names[base]
            self._open = OpenSegment(self._store, name, base, self._frames)
        except UNREADABLE as error:
            # This costs only this segment, not those after it.
            return damage_of(error, f"{self._store.path}/{self._segments.names[base]}")
        except FileNotFoundError:
            begin = self._begin_now()
            if begin is None:
                begin = next(iter(list_segments(self._store).bases), base)
            if base < begin:
                raise Overtaken(self._store.path, begin - base) from None
            path = f"{self._store.path}/{self._segments.names[base]}"
            return Damage(path, 0, 0, MISSING)
        return self._open

    def _first_time_ms(self, base: int) -> int:
        segment = self._segment(base)
        if isinstance(segment, Damage):
            # Times never fall: the time of the segment before is low enough, and keeps the order.
            number = self._segments.bases.index(base)
            return self._first_time_ms(self._segments.bases[number - 1]) if number else 0
        if not segment.frames.layout.checked:
            version = segment.frames.header.version
            raise InvalidOption(f"{segment.path} is of version {version}, which has no times")
        return segment.frames.header.epoch_ms + 1


def damage_of(error: Exception, path: str) -> Damage:
    """Returns what keeps a segment from being read, as damage."""
    if isinstance(error, Damaged):
        return error.damage
    if isinstance(error, FileNotFoundError):
        return Damage(path, 0, 0, MISSING)
    return Damage(path, 0, HEADER_BYTES_MAX, str(error).removeprefix(f"{path}: "))


def list_segments(store: Store) -> SegmentList:
    """Lists the segments of a directory; of two with the same base, the one named by us counts."""
    named: dict[int, str] = {}
    for name in sorted(store.names(), key=len, reverse=True):
        base = parse_segment_name(name)
        if base is not None:
            named[base] = name
    return SegmentList(named)


NEAR = 2048
_WINDOW_BYTES = 16 << 10
_STEPS_MAX = 24


def frame_from(file: Content, frames: Frames, position: int) -> tuple[int, int] | None:
    """Returns position and index of the first sure frame at or after a position, or None."""
    size = file.size()
    start = max(position, frames.layout.header_bytes)
    before = start - frames.layout.header_bytes
    window = _WINDOW_BYTES
    while start < size:
        data = file.pread(min(window, size - start), start)
        found = frames.locate(data, 0, before)
        while found is not None:
            place, index = found
            if _is_followed(file, frames, start + place, index + 1, size):
                return start + place, index
            found = frames.locate(data, place + 1, before + place + 1)
        if start + len(data) >= size:
            return None
        # A frame may be larger than the window: search again in a larger one.
        window *= 4
    return None


def frame_near(file: Content, frames: Frames, index: int, count: int) -> tuple[int, int]:
    """Returns position and index of a sure frame at or before an index, about `NEAR` before.

    `count` is an estimate of how many entries there are: the better it is, the fewer steps follow.
    """
    low = (frames.layout.header_bytes, 0)
    high = (file.size(), max(count, index + 1))
    for step in range(_STEPS_MAX):
        if index - low[1] <= NEAR or high[0] - low[0] <= _WINDOW_BYTES:
            break
        share = (index - NEAR // 2 - low[1]) / (high[1] - low[1])
        # Every third step halves: guesses by the average size can stay wrong for many steps.
        guess = low[0] + int((high[0] - low[0]) * (0.5 if step % 3 == 2 else share))
        found = frame_from(file, frames, guess)
        if found is None or found[1] > index:
            high = (guess, high[1] if found is None else found[1])
        elif found[0] > low[0]:
            low = found
        else:
            break
    return low


def _is_followed(file: Content, frames: Frames, position: int, index: int, end: int) -> bool:
    """Says whether a good frame with this index, or nothing, follows the frame at `position`."""
    size = frames.frame_size(file.pread(4, position), 0) or 0
    behind = position + size
    if behind == end:
        return True
    head = file.pread(frames.layout.frame_bytes, behind)
    if not any(head):
        return True
    claimed = frames.frame_size(head, 0)
    if claimed is None or claimed > end - behind:
        return False
    values, _ = Frames(frames.header).scan(file.pread(claimed, behind), 0, index, 1, None)
    return bool(values)
