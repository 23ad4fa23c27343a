"""Fifos for the source: where they begin and end, their ranges, and how one is read.

The offset of an entry is its number. A read returns what is in the queue: the entries that are lent
out, and everything after the head. Entries that are popped during the read may be missing. That is
not data loss: it is the purpose of a queue. No stream reads a fifo, because the stream would remove
nothing and would miss what other processes take.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.errors import DataLoss, NotAQueue
from forebay.formats.entry import file_name
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.columns import COLUMNS, STAGING, ColumnBatch, ColumnScanner
from forebay.queues.fifo.head import read_head
from forebay.queues.fifo.names import list_files
from forebay.queues.fifo.reader import FifoReader, Piece
from forebay.queues.fifo.recovery import find_marks
from forebay.queues.fifo.scanner import Place
from forebay.spark import planning
from forebay.spark.kinds import Kind
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Extent, Range, ReadRequest, end_offset
from forebay.spark.rows import Contents, RangeRows
from forebay.storage.filesystem import DiskFilesystem

_NAME = "fifo"
_TIMESTAMP = pyarrow.timestamp("us", tz="UTC")
# The version of the entry format.
_VERSION = 1
_logger = logging.getLogger(__name__)


class FifoKind(Kind):
    """Fifos, as they are at one moment."""

    name = _NAME
    label = "a fifo"
    columns = pyarrow.schema(
        [("id", pyarrow.int64()), ("ttl_seconds", pyarrow.int64()), ("expires", _TIMESTAMP)]
    )
    no_consumers = "which has no consumers; entries lent out are among its records"
    no_stream = (
        "whose entries leave it when they are taken: no stream reads it. Read it with spark.read, "
        "or have the program that takes the entries append them to a Log"
    )

    def open_reader(self, path: str, options: SourceOptions) -> FifoReader:
        """Opens a fifo without owning it."""
        return FifoReader(path)

    def bounds(self, reader: FifoReader, options: SourceOptions) -> tuple[int, int]:
        """Returns the numbers at which a batch read starts and ends."""
        # The extent starts at 0: entries that were popped are not lost.
        extent = Extent(reader.path, 0, reader.found.mark.number, reader.end, dict)
        end = end_offset(extent, options)
        if options.start_ms is not None:
            # The tasks skip older entries.
            return _begin(reader), end
        first = planning.first_offset(extent, options, "earliest")
        return max(first, _begin(reader)), end

    def plan(
        self, reader: FifoReader, start: int, end: int, wanted: ReadRequest
    ) -> Iterator[Range]:
        """Yields the ranges of the entries from number `start` to `end` that are in the queue."""
        for piece in reader.lent_pieces(start, min(end, reader.end)):
            yield _range_of(reader, piece)
        first = max(start, reader.begin)
        if first < end:
            for piece in reader.pieces(first, end, wanted.end_ms):
                yield _range_of(reader, piece)
        if end == reader.end and any(damage.count is None for damage in reader.found.staged.damage):
            # Entries that the staging buffer has lost come after the end.
            yield Range(_NAME, reader.path, end, end)

    def open_contents(self, queue: str, wanted: ReadRequest) -> Contents:
        """Opens a fifo to read ranges of it, in buffers that are reused."""
        return _FifoContents(queue, wanted)

    def segment_rows(self, reader: FifoReader) -> Iterator[dict[str, Any]]:
        """Yields a row for each file, and one for the entries that are not on the tape yet.

        Only entries that are still in the queue are counted. If no entry begins in a file, or it is
        unknown which one does, the counts of that file and of the one before it are null.
        """
        stored = max(reader.begin, reader.stored.number)
        first = {place.position // reader.file_bytes: place.number for place in reader.boundaries()}
        files = list_files(reader.directory)
        for number in files[:1]:
            # Everything before the first known boundary begins here.
            first.setdefault(number, min(_begin(reader), *first.values(), stored))
        stops = dict(zip(sorted(first), [*sorted(first.values()), stored][1:], strict=True))
        for number in files:
            row: dict[str, Any] = {
                "segment": file_name(number),
                "bytes": reader.file_bytes,
                "version": _VERSION,
                "sealed": number != files[-1],
            }
            if number in first:
                row["first_offset"] = first[number]
                row["count"] = _count(reader, first[number], stops[number])
            yield row
        if reader.end > stored:
            yield {
                "segment": STAGING,
                "first_offset": stored,
                "count": reader.end - stored,
                "sealed": False,
            }


class _FifoContents(Contents):
    """The entries of one fifo, range by range."""

    def __init__(self, queue: str, wanted: ReadRequest) -> None:
        self._wanted = wanted
        self._queue = queue
        filesystem = DiskFilesystem()
        self._directory = filesystem.open_directory(queue)
        head = find_marks(filesystem, self._directory).head
        if head is None:
            self._directory.close()
            raise NotAQueue(f"{queue} is not a fifo: it has neither files nor a head")
        bounds = Bounds(self._directory, head.version)
        self._scanner = ColumnScanner(
            self._directory, head.file_bytes, head.version, bounds, values=wanted.wants_values
        )

    def scan(self, part: Range) -> Iterator[ColumnBatch | Damage]:
        """Yields the entries of a range, and its damage; entries popped meanwhile may be missing.

        Raises `DataLoss` if anything else is missing.
        """
        missing = part.end - part.start
        for item in self._scan(part):
            if isinstance(item, Damage):
                damage = item if part.start == part.end else _clipped(item, part)
                if damage is None or self._was_popped(damage):
                    continue
                missing -= damage.count or 0
                yield damage
                continue
            batch = item.between(part.start, part.end)
            if len(batch):
                missing -= len(batch)
                yield batch
        if missing > 0:
            head = read_head(self._directory)
            if missing > (0 if head is None else head.number) - part.start:
                raise DataLoss(f"{part.queue}: {missing} of {part.start}..{part.end} are gone")
            _logger.warning(
                "%s: %d of %d..%d were popped unread", part.queue, missing, part.start, part.end
            )

    def record_batch(self, rows: RangeRows, batch: ColumnBatch) -> Any:
        """Returns the entries of a batch that are within the requested times."""
        chosen = batch.within(self._wanted.start_ms, self._wanted.end_ms)
        if not len(chosen):
            return None
        return rows.record_batch(
            len(chosen), chosen.segment, COLUMNS, lambda field: chosen.column(field.name)
        )

    def close(self) -> None:
        """Closes the files."""
        self._scanner.close()
        if "_reader" in self.__dict__:
            self._reader.close()
        self._directory.close()

    @functools.cached_property
    def _reader(self) -> FifoReader:
        """Returns a reader for what is above the durable mark, opened when a range needs it."""
        return FifoReader(self._queue)

    def _scan(self, part: Range) -> Iterator[ColumnBatch | Damage]:
        if part.segment:
            start = Place(part.first_byte, part.base, 0)
            yield from self._scanner.scan(start, Place(part.last_byte, part.end, 0))
            return
        found = self._reader.found
        if part.start == part.end:
            yield from (damage for damage in found.staged.damage if damage.count is None)
            return
        for piece in self._reader.pieces(part.start, part.end):
            if piece.place is not None and piece.limit is not None:
                limit = Place(piece.limit.position, piece.end, 0)
                yield from self._scanner.scan(piece.place._replace(last_id=0), limit)
                continue
            # Above the durable mark: first the part in the files, then the part not in them yet.
            yield from self._scanner.scan(found.begin, found.stored)
            for batch in found.staged.batches:
                yield from self._scanner.scan_staged(batch)
            yield from found.staged.damage

    def _was_popped(self, damage: Damage) -> bool:
        """Returns whether missing entries have left the queue and their file was removed."""
        gone = os.path.basename(damage.path) not in self._directory.names()
        head = read_head(self._directory)
        if not gone or head is None or damage.offset is None:
            return False
        # Entries that are lent out have not left the queue.
        return damage.offset < head.number and all(row.number != damage.offset for row in head.lent)


def _begin(reader: FifoReader) -> int:
    """Returns the number of the first entry that has not left the queue."""
    return min([reader.begin, *(row.number for row in reader.lent)])


def _range_of(reader: FifoReader, piece: Piece) -> Range:
    if piece.place is None or piece.limit is None:
        return Range(_NAME, reader.path, piece.start, piece.end)
    return Range(
        _NAME,
        reader.path,
        piece.start,
        piece.end,
        segment=file_name(piece.place.position // reader.file_bytes),
        base=piece.place.number,
        first_byte=piece.place.position,
        last_byte=piece.limit.position,
    )


def _count(reader: FifoReader, start: int, stop: int) -> int:
    lent = sum(1 for row in reader.lent if start <= row.number < stop)
    return lent + max(0, stop - max(start, reader.begin))


def _clipped(damage: Damage, part: Range) -> Damage | None:
    """Returns the part of damage that is within a range."""
    offset, count = damage.offset or 0, damage.count or 0
    start, end = max(offset, part.start), min(offset + count, part.end)
    if start < end:
        return replace(damage, offset=start, count=end - start)
    return damage if count == 0 and part.start <= offset < part.end else None


KIND = FifoKind()
