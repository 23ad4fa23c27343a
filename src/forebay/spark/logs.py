"""Logs as the source sees them: where they begin and end, their ranges, and how one is read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow

from forebay.errors import Damaged, ForebayError, InvalidOption, Overtaken
from forebay.frames import Damage
from forebay.queues.columns import ColumnFrames, ReusedBuffers, column
from forebay.queues.reader import LogReader
from forebay.queues.scanner import OpenSegment, RecordBatch, Scanner
from forebay.spark.planning import Range, Wanted
from forebay.storage.filesystem import Directory, DiskFilesystem
from forebay.storage.segments import SegmentList

KIND = "log"
_REMEDY = "mode PERMISSIVE or DROPMALFORMED reads round it, table=damage lists it"
_logger = logging.getLogger(__name__)


def plan(
    reader: LogReader,
    start: int,
    end: int,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Iterator[Range]:
    """Gives the ranges of a log from offset `start` to `end`; whole segments, from headers only."""
    bases = [base for base in reader.segments.bases if base < reader.written]
    stops = [*bases[1:], reader.written]
    for base, stop in zip(bases, stops, strict=True):
        if stop <= start or base >= end:
            continue
        part = _segment_range(reader, base, stop, start, end, start_ms, end_ms)
        if part is not None:
            yield part
    if end > reader.written:
        # In the staging buffer now, perhaps in the files when the task runs.
        yield Range(KIND, reader.path, max(start, reader.written), end)


def _segment_range(
    reader: LogReader,
    base: int,
    stop: int,
    start: int,
    end: int,
    start_ms: int | None,
    end_ms: int | None,
) -> Range | None:
    name = reader.segments.names[base]
    first, last = max(start, base), min(end, stop)
    try:
        segment = OpenSegment(reader.directory, name, base)
    except (ForebayError, FileNotFoundError):
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
    except (ForebayError, FileNotFoundError):
        return False
    segment.file.close()
    return segment.frames.layout.checked and segment.frames.header.epoch_ms + 1 < time_ms


def read(wanted: Wanted, parts: Sequence[Range]) -> Iterator[Any]:
    """Gives the records of ranges as Arrow record batches, in buffers that are used again."""
    buffers = ReusedBuffers(values="value" in wanted.schema.names)
    for part in parts:
        yield from _read_one(wanted, part, buffers)


def _read_one(wanted: Wanted, part: Range, buffers: ReusedBuffers) -> Iterator[Any]:
    rows = _Rows(wanted, part)
    directory = DiskFilesystem().open_directory(part.queue)
    try:
        for item in _scan(directory, part, buffers):
            if isinstance(item, RecordBatch):
                batch = _within(item, wanted)
                if len(batch.values):
                    yield rows.of_records(batch)
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


def read_damage(part: Range) -> Iterator[Damage]:
    """Gives what does not verify in a range."""
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
    """Gives the part of a batch that lies in the times that were asked for."""
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
    """Gives the number of the first of rising times that is not below one."""
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if times[middle].as_py() < micros:
            low = middle + 1
        else:
            high = middle
    return low


class _Rows:
    """Makes record batches of one range; columns that are the same in every row are made once."""

    def __init__(self, wanted: Wanted, part: Range) -> None:
        self._schema = wanted.schema
        self._part = part
        self._same: dict[tuple[str, str], Any] = {}

    def of_records(self, batch: RecordBatch) -> Any:
        count = len(batch.values)
        columns = [self._column(batch, count, field) for field in self._schema]
        return pyarrow.record_batch(columns, schema=self._schema)

    def of_damage(self, damage: Damage) -> Any:
        row = {
            "queue": self._part.queue,
            "kind": KIND,
            "offset": damage.offset,
            "segment": self._part.segment,
            "position": damage.position,
            "damage": {
                "path": damage.path,
                "position": damage.position,
                "length": damage.length,
                "reason": damage.reason,
                "torn": damage.torn,
                "count": damage.count,
            },
        }
        return pyarrow.RecordBatch.from_pylist([row], schema=self._schema)

    def _column(self, batch: RecordBatch, count: int, field: Any) -> Any:
        if field.name == "queue":
            return self._repeated(field.name, self._part.queue, count)
        if field.name == "kind":
            return self._repeated(field.name, KIND, count)
        if field.name == "segment":
            return self._repeated(field.name, batch.segment, count)
        if field.name == "damage":
            return pyarrow.nulls(count, field.type)
        return column(batch, field.name)

    def _repeated(self, name: str, text: str, count: int) -> Any:
        held = self._same.get((name, text))
        if held is None or len(held) < count:
            held = pyarrow.repeat(pyarrow.scalar(text, pyarrow.string()), count)
            self._same[name, text] = held
        return held.slice(0, count)
