"""Logs for the source: where they begin and end, their ranges, and how one is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.errors import ForebayError, InvalidOption, Overtaken
from forebay.queues.archive.store import open_store, stores_for
from forebay.queues.log.columns import ColumnFrames, ReusedBuffers, column
from forebay.queues.log.reader import LogReader
from forebay.queues.log.scanner import OpenSegment, RecordBatch, Scanner
from forebay.spark import planning
from forebay.spark.kinds import Place, StreamedKind
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Extent, Range, ReadRequest, end_offset, lose, still_meant
from forebay.spark.rows import Contents, RangeRows
from forebay.spark.watch import RECORD_BYTES
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.segments import SegmentList
from forebay.storage.tail import Tail, TailFile

_NAME = "log"
_COLUMNS = ("offset", "timestamp", "value", "position")


class LogKind(StreamedKind):
    """Logs, in the order of their offsets."""

    name = _NAME
    label = "a log"
    has_cursors = True
    is_written = True

    def open_reader(self, path: str, options: SourceOptions) -> LogReader:
        """Opens a log without owning it."""
        return LogReader(path, filesystem=stores_for(path, options.archive))

    def bounds(self, reader: LogReader, options: SourceOptions) -> tuple[int, int]:
        """Returns the offsets at which a batch read starts and ends."""
        end = end_offset(_extent(reader), options)
        if options.start_ms is not None:
            # Planning skips whole segments by their headers; the tasks do the rest.
            return reader.begin, end
        return planning.first_offset(_extent(reader), options, "earliest"), end

    def plan(self, reader: LogReader, start: int, end: int, wanted: ReadRequest) -> Iterator[Range]:
        """Yields the ranges of a log from offset `start` to `end`: whole segments, by headers."""
        oldest = min([*reader.segments.bases[:1], reader.written])
        if start < min(oldest, end):
            # The segment is missing: a reader of the whole log reports that.
            yield Range(_NAME, reader.path, start, min(oldest, end))
        for base, stop in _extents(reader):
            if stop <= start or base >= end:
                continue
            part = _segment_range(reader, base, stop, start, end, wanted)
            if part is not None:
                yield part
        lost = reader.beyond and end == reader.end and not wanted.stream
        if end > reader.written or lost:
            # These records are in the staging buffer now and perhaps in the files when the task
            # runs, or they are lost past the end, which a stream does not read.
            yield Range(_NAME, reader.path, min(max(start, reader.written), end), end)

    def open_contents(self, queue: str, wanted: ReadRequest) -> Contents:
        """Opens a log to read ranges of it, in buffers that are reused."""
        return _LogContents(queue, wanted)

    def consumer_rows(self, reader: LogReader) -> Iterator[dict[str, Any]]:
        """Yields a row for each saved position."""
        for kind, places in (("consumer", reader.consumers()), ("cursor", reader.cursors())):
            for name, offset in sorted(places.items()):
                yield {
                    "name": name,
                    "type": kind,
                    "offset": offset,
                    "lag": max(0, reader.end - offset),
                }

    def segment_rows(self, reader: LogReader) -> Iterator[dict[str, Any]]:
        """Yields a row for each segment, and one for what is still in the staging buffer."""
        for base, stop in _extents(reader):
            yield {
                "segment": reader.segments.names[base],
                "first_offset": base,
                "count": stop - base,
                "sealed": stop < reader.written or (reader.tail is not None and reader.tail.clean),
                **_header_facts(reader, base),
            }
        if reader.end > reader.written:
            yield {
                "segment": "staging",
                "first_offset": reader.written,
                "count": reader.end - reader.written,
                "sealed": False,
            }

    def begin(self, reader: LogReader) -> int:
        """Returns the offset of the earliest record."""
        return reader.begin

    def gone(self, reader: LogReader) -> str | None:
        """Describes what was trimmed since the log was created at offset 0; None if nothing."""
        if not reader.begin:
            return None
        return f"{reader.path} begins at offset {reader.begin}: 0..{reader.begin} were trimmed"

    def first_offset(self, reader: LogReader, options: SourceOptions) -> int:
        """Returns the offset at which a stream starts; by default the latest."""
        if options.start_ms is not None:
            return reader.resolve(datetime.fromtimestamp(options.start_ms / 1000, UTC))
        return planning.first_offset(_extent(reader), options, "latest")

    def follow(self, path: str, options: SourceOptions) -> LogLive:
        """Opens a log for a stream."""
        return LogLive(path)

    def holds(self, reader: LogReader, incarnation: int, end: int) -> bool:
        """Returns whether a log still has what it had up to `end` in an incarnation."""
        lost = reader.tail is not None and reader.tail.lost_since(incarnation, end)
        return reader.end >= end and not lost

    def resume(
        self, reader: LogReader, first: int, before: Place, place: Place, options: SourceOptions
    ) -> Iterator[Range]:
        """Yields the ranges of a stream's batch; anything gone by now is data loss."""
        path, tail, end = reader.path, reader.tail, place["offset"]
        if tail is not None and (
            place["id"] not in ("", tail.queue_id.hex())
            or reader.written < end
            or tail.lost_since(place["incarnation"], end)
        ):
            lose(
                options,
                f"{path}: offsets {first}..{end} are not those of the checkpoint: "
                "the queue was created again, or a crash of the machine took them",
            )
            end = still_meant(tail, place, min(end, reader.written))
        if first < reader.begin:
            lose(
                options,
                f"{path} begins at offset {reader.begin}: {first}..{reader.begin} were trimmed",
            )
        yield from self.plan(reader, max(first, reader.begin), end, ReadRequest(None, stream=True))


class _LogContents(Contents):
    """The records of one log, range by range."""

    def __init__(self, queue: str, wanted: ReadRequest) -> None:
        self._wanted = wanted
        self._buffers = ReusedBuffers(values=wanted.wants_values)
        self._stores = stores_for(queue, wanted.archive)
        # Without an archive of its own, the path may still be that of one.
        self._directory = (
            open_store(queue)[1] if self._stores is None else self._stores.open_directory(queue)
        )

    def scan(self, part: Range) -> Iterator[RecordBatch | Damage]:
        """Yields the records of a range, and its damage; raises `Overtaken` if some are gone."""
        frames = partial(ColumnFrames, buffers=self._buffers)
        if not part.segment:
            with LogReader(part.queue, filesystem=self._stores) as reader:
                if reader.begin > part.start:
                    raise Overtaken(part.queue, reader.begin - part.start)
                yield from reader.scan(part.start, part.end, frames)
            return
        scanner = Scanner(self._directory, SegmentList({part.base: part.segment}), frames)
        try:
            start, end = part.start, part.end
            # The first cut is located last: the scanner is then already at that place.
            if part.cut_last:
                end = min(end, scanner.cut(part.base, part.last_byte, part.end))
            if part.cut_first:
                start = max(start, scanner.cut(part.base, part.first_byte, part.end))
            if start < end:
                yield from scanner.scan(start, end, end)
        finally:
            scanner.close()

    def record_batch(self, rows: RangeRows, batch: RecordBatch) -> Any:
        """Returns the records of a batch that are within the requested times."""
        chosen = _within(batch, self._wanted)
        count = len(chosen.values)
        if not count:
            return None
        return rows.record_batch(
            count, chosen.segment, _COLUMNS, lambda field: column(chosen, field.name)
        )

    def close(self) -> None:
        """Closes the directory."""
        self._directory.close()


@dataclass(frozen=True, slots=True)
class LogMark:
    """How far a log is durable."""

    path: str
    queue_id: str
    incarnation: int
    durable: int
    record_bytes: int
    tail: Tail | None = None

    def trouble(self, place: dict[str, Any]) -> str | None:
        """Describes what a reader at a place has lost meanwhile; None if nothing."""
        offset, incarnation = place["offset"], place["incarnation"]
        lost = offset > self.durable
        if self.tail is not None:
            lost = lost or self.tail.lost_since(incarnation, offset)
        if not lost or self._is_behind(place):
            return None
        return (
            f"{self.path}: records below offset {offset} that this stream has read were lost in a "
            "crash of the machine, and their offsets were assigned again"
        )

    def restart(self, place: dict[str, Any]) -> int:
        """Returns the first offset whose records are new to a reader that lost some."""
        offset = min(int(place["offset"]), self.durable)
        if self.tail is None:
            return offset
        passed = self.tail.incarnation - place["incarnation"]
        return min([offset, *self.tail.starts[:passed]])

    def waiting(self, start: int) -> int:
        """Returns how many records follow an offset."""
        return max(0, self.durable - start)

    def advance(self, start: int, count: int) -> int:
        """Returns the offset after `count` of the waiting records."""
        return start + count

    def _is_behind(self, place: dict[str, Any]) -> bool:
        """Returns whether the mark is only out of date: the records that were read still exist.

        The mark is synced less often than the records. After a crash of the machine it may be an
        old one until the owner opens the log again; the stream waits for that.
        """
        return place["incarnation"] == self.incarnation and self._is_there(place["offset"])

    def _is_there(self, offset: int) -> bool:
        """Returns whether all records below an offset exist, no matter what the mark says."""
        with LogReader(self.path) as reader:
            return bool(reader.written >= offset)


class LogLive:
    """A log, followed through its open `tail`.

    A log without a `tail`, because another program writes it, is polled every ten seconds.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        directory = DiskFilesystem().open_directory(path)
        try:
            self._tail_file = TailFile.open(directory, write=False)
        finally:
            directory.close()
        self._mark = LogMark(path, "", 0, 0, RECORD_BYTES)
        if self._tail_file is None:
            with LogReader(path) as reader:
                self._mark = replace(self._mark, durable=reader.written)

    def look(self) -> LogMark:
        """Returns the current mark of the log."""
        tail = self._tail_file.read() if self._tail_file is not None else None
        if tail is not None:
            self._mark = mark_of(self._path, tail)
        return self._mark

    def is_same(self) -> bool:
        """Returns False: a log that was removed and created again has another file of that name."""
        return False

    def fields(self, mark: LogMark, place: dict[str, Any], end: int) -> dict[str, Any]:
        """Returns nothing: the offset of a log is enough."""
        return {}

    def close(self) -> None:
        """Closes its file."""
        if self._tail_file is not None:
            self._tail_file.close()


def mark_of(path: str, tail: Tail) -> LogMark:
    """Returns the mark that a `tail` describes."""
    records = tail.durable - tail.segment
    size = tail.position // records if records > 0 else RECORD_BYTES
    return LogMark(path, tail.queue_id.hex(), tail.incarnation, tail.durable, max(size, 1), tail)


def _segment_range(
    reader: LogReader,
    base: int,
    stop: int,
    start: int,
    end: int,
    wanted: ReadRequest,
) -> Range | None:
    start_ms, end_ms = wanted.start_ms, wanted.end_ms
    name = reader.segments.names[base]
    first, last = max(start, base), min(end, stop)
    try:
        segment = OpenSegment(reader.directory, name, base)
    except (ForebayError, OSError):
        # Its task will report what is wrong with it.
        return Range(_NAME, reader.path, first, last, name, base)
    try:
        size = segment.file.size()
    finally:
        segment.file.close()
    checked = segment.frames.layout.checked
    if start_ms is not None or end_ms is not None:
        if not checked and wanted.times_are_filters:
            return None
        if not checked:
            version = segment.frames.header.version
            raise InvalidOption(f"{segment.path} is of version {version}, which has no times")
        if end_ms is not None and segment.frames.header.epoch_ms + 1 >= end_ms:
            return None
        if start_ms is not None and _begins_before(reader, stop, start_ms):
            return None
    first_byte = size * (first - base) // (stop - base)
    last_byte = size * (last - base) // (stop - base)
    return Range(
        _NAME, reader.path, first, last, name, base, first_byte, last_byte, can_be_cut=checked
    )


def _begins_before(reader: LogReader, base: int, time_ms: int) -> bool:
    """Returns whether the next segment begins before a time, so that this one has nothing later."""
    name = reader.segments.names.get(base)
    if name is None:
        return False
    try:
        segment = OpenSegment(reader.directory, name, base)
    except (ForebayError, OSError):
        return False
    segment.file.close()
    return segment.frames.layout.checked and segment.frames.header.epoch_ms + 1 < time_ms


def _within(batch: RecordBatch, wanted: ReadRequest) -> RecordBatch:
    """Returns the part of a batch that is within the requested times."""
    if wanted.start_ms is None and wanted.end_ms is None:
        return batch
    if batch.times is None and wanted.times_are_filters:
        return batch.until(batch.offset)
    times = column(batch, "timestamp").cast(pyarrow.int64())
    start, stop = 0, len(times)
    if wanted.start_ms is not None:
        start = _first_at(times, wanted.start_ms * 1000)
    if wanted.end_ms is not None:
        stop = _first_at(times, wanted.end_ms * 1000)
    return batch.until(batch.offset + stop).since(batch.offset + start)


def _first_at(times: Any, micros: int) -> int:
    """Returns the index of the first time that is not below the given one; times must ascend."""
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if times[middle].as_py() < micros:
            low = middle + 1
        else:
            high = middle
    return low


def _extent(reader: LogReader) -> Extent:
    def places() -> dict[str, int]:
        return reader.cursors() | reader.consumers()

    return Extent(reader.path, reader.begin, reader.durable, reader.end, places)


def _extents(reader: LogReader) -> Iterator[tuple[int, int]]:
    """Returns the first offset of each segment and of the next one; nothing for an empty log."""
    bases = [base for base in reader.segments.bases if base < reader.written]
    return itertools.pairwise([*bases, reader.written])


def _header_facts(reader: LogReader, base: int) -> dict[str, Any]:
    try:
        segment = OpenSegment(reader.directory, reader.segments.names[base], base)
    except (ForebayError, OSError):
        return {}
    try:
        size = segment.file.size()
    finally:
        segment.file.close()
    header = segment.frames.header
    facts: dict[str, Any] = {"bytes": size, "version": header.version}
    if header.layout.checked:
        facts["first_timestamp"] = datetime.fromtimestamp((header.epoch_ms + 1) / 1000, UTC)
    return facts


KIND = LogKind()
