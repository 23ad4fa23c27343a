"""Logs as the source sees them: where they begin and end, their ranges, and how one is read."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, InvalidOption, Overtaken
from forebay.queues.log.columns import ColumnFrames, ReusedBuffers, column
from forebay.queues.log.reader import LogReader
from forebay.queues.log.scanner import OpenSegment, RecordBatch, Scanner
from forebay.spark import bounds as bounds_of
from forebay.spark.bounds import Extent, end_offset, lose, still_meant
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, Wanted
from forebay.spark.rows import CONSTANT, Rows
from forebay.spark.watch import LogLive
from forebay.storage.filesystem import Directory, DiskFilesystem
from forebay.storage.segments import SegmentList

BY_OFFSET = True
NO_STREAM = ""
KIND = "log"
COLUMNS = ("offset", "timestamp", "value", "position")
Place = dict[str, Any]
_REMEDY = "mode PERMISSIVE or DROPMALFORMED reads round it, table=damage lists it"
_logger = logging.getLogger(__name__)


def open_reader(path: str, options: SourceOptions) -> LogReader:
    """Opens a log without owning it."""
    return LogReader(path)


def queue_id(reader: LogReader) -> str:
    """Returns the id of the queue; empty if another program wrote it, or its file is lost."""
    return "" if reader.tail is None else reader.tail.queue_id.hex()


def bounds(reader: LogReader, options: SourceOptions) -> tuple[int, int]:
    """Returns the offsets at which a batch read begins and ends."""
    end = end_offset(_extent(reader), options)
    if options.start_ms is not None:
        # Planning skips whole segments by their headers, the tasks do the rest.
        return reader.begin, end
    return bounds_of.first_offset(_extent(reader), options, "earliest"), end


def begin(reader: LogReader) -> int:
    """Returns the offset of the earliest record."""
    return reader.begin


def gone(reader: LogReader) -> str | None:
    """Says what was trimmed since the log was made: offsets begin at 0; None if nothing."""
    if not reader.begin:
        return None
    return f"{reader.path} begins at offset {reader.begin}: 0..{reader.begin} were trimmed"


def first_offset(reader: LogReader, options: SourceOptions) -> int:
    """Returns the offset at which a stream begins: the latest, if the options do not say."""
    if options.start_ms is not None:
        return reader.resolve(datetime.fromtimestamp(options.start_ms / 1000, UTC))
    return bounds_of.first_offset(_extent(reader), options, "latest")


def follow(path: str, options: SourceOptions) -> LogLive:
    """Opens a log for a stream."""
    return LogLive(path)


def holds(reader: LogReader, incarnation: int, end: int) -> bool:
    """Says whether a log still has what it had up to `end` in an incarnation."""
    lost = reader.tail is not None and reader.tail.lost_since(incarnation, end)
    return reader.end >= end and not lost


def resume(
    reader: LogReader, first: int, before: Place, place: Place, options: SourceOptions
) -> Iterator[Range]:
    """Yields the ranges of a stream's batch; what is gone by now is data loss."""
    path, tail, end = reader.path, reader.tail, place["offset"]
    if tail is not None and (
        place["id"] not in ("", tail.queue_id.hex())
        or reader.written < end
        or tail.lost_since(place["incarnation"], end)
    ):
        lose(
            options,
            f"{path}: offsets {first}..{end} are not what the checkpoint "
            "meant: the queue was made again, or a crash of the machine took them",
        )
        end = still_meant(tail, place, min(end, reader.written))
    if first < reader.begin:
        lose(
            options,
            f"{path} begins at offset {reader.begin}: {first}..{reader.begin} were trimmed",
        )
    yield from plan(reader, max(first, reader.begin), end, Wanted(None, stream=True))


def plan(reader: LogReader, start: int, end: int, wanted: Wanted) -> Iterator[Range]:
    """Gives the ranges of a log from offset `start` to `end`; whole segments, from headers only."""
    oldest = min([*reader.segments.bases[:1], reader.written])
    if start < min(oldest, end):
        # Its segment is missing: a reader of the whole tells so.
        yield Range(KIND, reader.path, start, min(oldest, end))
    for base, stop in _extents(reader):
        if stop <= start or base >= end:
            continue
        part = _segment_range(reader, base, stop, start, end, wanted)
        if part is not None:
            yield part
    lost = reader.beyond and end == reader.end and not wanted.stream
    if end > reader.written or lost:
        # In the staging buffer now, perhaps in the files when the task runs; or lost after the end,
        # which a stream does not read.
        yield Range(KIND, reader.path, min(max(start, reader.written), end), end)


def _segment_range(
    reader: LogReader,
    base: int,
    stop: int,
    start: int,
    end: int,
    wanted: Wanted,
) -> Range | None:
    start_ms, end_ms = wanted.start_ms, wanted.end_ms
    name = reader.segments.names[base]
    first, last = max(start, base), min(end, stop)
    try:
        segment = OpenSegment(reader.directory, name, base)
    except (ForebayError, OSError):
        # What is wrong with it, its task will say.
        return Range(KIND, reader.path, first, last, name, base)
    try:
        size = segment.file.size()
    finally:
        segment.file.close()
    checked = segment.frames.layout.checked
    if start_ms is not None or end_ms is not None:
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
        KIND, reader.path, first, last, name, base, first_byte, last_byte, can_be_cut=checked
    )


def _begins_before(reader: LogReader, base: int, time_ms: int) -> bool:
    """Says whether a segment that follows begins before a time: then so did all before it."""
    name = reader.segments.names.get(base)
    if name is None:
        return False
    try:
        segment = OpenSegment(reader.directory, name, base)
    except (ForebayError, OSError):
        return False
    segment.file.close()
    return segment.frames.layout.checked and segment.frames.header.epoch_ms + 1 < time_ms


def read(wanted: Wanted, parts: Iterable[Range]) -> Iterator[Any]:
    """Yields the records of ranges as Arrow record batches, in buffers that are used again."""
    buffers = ReusedBuffers(values="value" in wanted.schema.names)
    for part in parts:
        yield from _read_one(wanted, part, buffers)


def _read_one(wanted: Wanted, part: Range, buffers: ReusedBuffers) -> Iterator[Any]:
    rows = Rows(wanted.schema, part)
    directory = DiskFilesystem().open_directory(part.queue)
    try:
        for item in _scan(directory, part, buffers):
            if isinstance(item, RecordBatch):
                batch = _within(item, wanted)
                if len(batch.values):
                    yield _record_batch(rows, batch)
            elif wanted.mode == "FAILFAST":
                raise Damaged(item, _REMEDY)
            elif wanted.mode == "PERMISSIVE" and "damage" in wanted.schema.names:
                yield rows.of_damage(item)
            else:
                _logger.warning("%s, byte %s: %s", item.path, item.position, item.reason)
    except Overtaken as error:
        if wanted.fail_on_data_loss:
            raise
        _logger.warning("%s", error)
    finally:
        directory.close()


def read_damage(wanted: Wanted, part: Range) -> Iterator[Damage]:
    """Yields what does not verify in a range."""
    directory = DiskFilesystem().open_directory(part.queue)
    try:
        for item in _scan(directory, part, ReusedBuffers(values=False)):
            if isinstance(item, Damage):
                yield item
    finally:
        directory.close()


def _scan(
    directory: Directory, part: Range, buffers: ReusedBuffers
) -> Iterator[RecordBatch | Damage]:
    frames = partial(ColumnFrames, buffers=buffers)
    if not part.segment:
        with LogReader(part.queue) as reader:
            if reader.begin > part.start:
                raise Overtaken(part.queue, reader.begin - part.start)
            yield from reader.scan(part.start, part.end, frames)
        return
    scanner = Scanner(directory, SegmentList({part.base: part.segment}), frames)
    try:
        start, end = part.start, part.end
        # The first cut comes last: the scanner then begins where it has just been.
        if part.cut_last:
            end = min(end, scanner.cut(part.base, part.last_byte, part.end))
        if part.cut_first:
            start = max(start, scanner.cut(part.base, part.first_byte, part.end))
        if start < end:
            yield from scanner.scan(start, end, end)
    finally:
        scanner.close()


def _within(batch: RecordBatch, wanted: Wanted) -> RecordBatch:
    """Returns the part of a batch that lies in the times that were asked for."""
    if wanted.start_ms is None and wanted.end_ms is None:
        return batch
    times = column(batch, "timestamp").cast(pyarrow.int64())
    start, stop = 0, len(times)
    if wanted.start_ms is not None:
        start = _first_at(times, wanted.start_ms * 1000)
    if wanted.end_ms is not None:
        stop = _first_at(times, wanted.end_ms * 1000)
    return batch.until(batch.offset + stop).since(batch.offset + start)


def _first_at(times: Any, micros: int) -> int:
    """Returns the number of the first of rising times that is not below one."""
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


def _record_batch(rows: Rows, batch: RecordBatch) -> Any:
    count = len(batch.values)
    columns = []
    for field in rows.schema:
        if field.name in CONSTANT:
            columns.append(rows.constant(field.name, count, batch.segment))
        elif field.name in COLUMNS:
            columns.append(column(batch, field.name))
        else:
            # Damage, and what only other kinds have.
            columns.append(pyarrow.nulls(count, field.type))
    return pyarrow.record_batch(columns, schema=rows.schema)


def consumer_rows(reader: LogReader) -> Iterator[dict[str, Any]]:
    """Yields a row for each saved place."""
    for kind, places in (("consumer", reader.consumers()), ("cursor", reader.cursors())):
        for name, offset in sorted(places.items()):
            yield {
                "queue": reader.path,
                "kind": KIND,
                "name": name,
                "type": kind,
                "offset": offset,
                "lag": max(0, reader.end - offset),
            }


def segment_rows(reader: LogReader) -> Iterator[dict[str, Any]]:
    """Yields a row for each segment, and one for what is still in the staging buffer."""
    for base, stop in _extents(reader):
        yield {
            "queue": reader.path,
            "kind": KIND,
            "segment": reader.segments.names[base],
            "first_offset": base,
            "count": stop - base,
            "sealed": stop < reader.written or (reader.tail is not None and reader.tail.clean),
            **_header_facts(reader, base),
        }
    if reader.end > reader.written:
        yield {
            "queue": reader.path,
            "kind": KIND,
            "segment": "staging",
            "first_offset": reader.written,
            "count": reader.end - reader.written,
            "sealed": False,
        }


def _extents(reader: LogReader) -> Iterator[tuple[int, int]]:
    """Returns the first offset of each segment and where the next begins; none of an empty log."""
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
