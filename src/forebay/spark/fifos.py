"""Fifos as the source sees them: where they begin and end, their ranges, and how one is read.

The offset of an entry is its number. A read returns what is in the queue: what is lent out, and all
after the head. What is popped while it runs may be missing. That is no loss of data: it is what a
queue is for. No stream reads a fifo, because it would take nothing out and miss what others take.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.errors import Damaged, DataLoss
from forebay.formats.entry import file_name
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.columns import COLUMNS, STAGING, ColumnBatch, ColumnScanner
from forebay.queues.fifo.head import read_head
from forebay.queues.fifo.names import list_files
from forebay.queues.fifo.scanner import Place
from forebay.spark import bounds as bounds_of
from forebay.spark.bounds import Extent, end_offset
from forebay.spark.fifo_view import KIND, FifoView
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, Wanted
from forebay.spark.rows import CONSTANT, Rows

BY_OFFSET = True
NO_STREAM = (
    "a fifo, whose entries leave it when they are taken: no stream reads it. Read it with "
    "spark.read, or have the program that takes the entries append them to a Log"
)
# Of the entry format.
_VERSION = 1
_REMEDY = "mode PERMISSIVE or DROPMALFORMED reads round it, table=damage lists it"
_logger = logging.getLogger(__name__)


def open_reader(path: str, options: SourceOptions) -> FifoView:
    """Opens a fifo without owning it."""
    return FifoView(path)


def queue_id(reader: FifoView) -> str:
    """Returns the id of the queue; empty if another program wrote it, or its file is lost."""
    return "" if reader.tail is None else reader.tail.queue_id.hex()


def bounds(reader: FifoView, options: SourceOptions) -> tuple[int, int]:
    """Returns the numbers at which a batch read begins and ends."""
    end = end_offset(_extent(reader), options)
    if options.start_ms is not None:
        # The tasks skip what is older.
        return reader.begin, end
    first = bounds_of.first_offset(_extent(reader), options, "earliest")
    return max(first, reader.begin), end


def plan(reader: FifoView, start: int, end: int, wanted: Wanted) -> Iterator[Range]:
    """Yields the ranges of what is in the queue from number `start` to `end`."""
    yield from reader.lent_ranges(start, min(end, reader.end))
    behind = max(start, reader.head.number)
    if behind < end:
        yield from reader.tape_ranges(behind, end, end_ms=wanted.end_ms)
    if end == reader.end and any(damage.count is None for damage in reader.found.staged.damage):
        # What the staging buffer has lost comes after the end.
        yield Range(KIND, reader.path, end, end)


def read(wanted: Wanted, parts: Iterable[Range]) -> Iterator[Any]:
    """Yields the entries of ranges as Arrow record batches, in buffers that are used again."""
    for queue, some in itertools.groupby(parts, key=lambda part: part.queue):
        with _Entries(queue, values="value" in wanted.schema.names) as entries:
            for part in some:
                yield from _read_one(entries, wanted, part)


def read_damage(wanted: Wanted, part: Range) -> Iterator[Damage]:
    """Yields what does not verify in a range."""
    with _Entries(part.queue, values=False) as entries:
        for item in entries.scan(part):
            if isinstance(item, Damage):
                yield item


def consumer_rows(reader: FifoView) -> Iterator[dict[str, Any]]:
    """Returns nothing: a fifo keeps no places of readers."""
    return iter(())


def segment_rows(reader: FifoView) -> Iterator[dict[str, Any]]:
    """Yields a row for each file, and one for what is not on the tape yet.

    Counts are of what has not left the queue. Where no entry begins, or it is not known which, the
    count is null, and with the file before.
    """
    stored = max(reader.head.number, reader.found.stored.number)
    first = {place.position // reader.file_bytes: place.number for place in reader.boundaries()}
    files = list_files(reader.directory)
    for number in files[:1]:
        # Whatever is before the first boundary that is known begins here.
        first.setdefault(number, min(reader.begin, *first.values(), stored))
    stops = dict(zip(sorted(first), [*sorted(first.values()), stored][1:], strict=True))
    for number in files:
        row = {
            "queue": reader.path,
            "kind": KIND,
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
            "queue": reader.path,
            "kind": KIND,
            "segment": STAGING,
            "first_offset": stored,
            "count": reader.end - stored,
            "sealed": False,
        }


def _count(reader: FifoView, start: int, stop: int) -> int:
    lent = sum(1 for row in reader.lent if start <= row.number < stop)
    return lent + max(0, stop - max(start, reader.head.number))


def _extent(reader: FifoView) -> Extent:
    # It begins at 0: what was popped since is no loss.
    return Extent(reader.path, 0, reader.mark.number, reader.end, dict)


class _Entries:
    """The entries of one fifo, by ranges."""

    def __init__(self, queue: str, *, values: bool) -> None:
        self._view = FifoView(queue)
        self._scanner = ColumnScanner(
            self._view.directory,
            self._view.file_bytes,
            self._view.head.version,
            Bounds(self._view.directory, self._view.head.version),
            values=values,
        )

    def scan(self, part: Range) -> Iterator[ColumnBatch | Damage]:
        """Yields the entries of a range, and its damage; what was popped meanwhile may be missing.

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
            if missing > self._head_number() - part.start:
                raise DataLoss(f"{part.queue}: {missing} of {part.start}..{part.end} are gone")
            _logger.warning(
                "%s: %d of %d..%d were popped unread", part.queue, missing, part.start, part.end
            )

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self._scanner.close()
        self._view.close()

    def _scan(self, part: Range) -> Iterator[ColumnBatch | Damage]:
        if part.start == part.end:
            yield from (it for it in self._view.found.staged.damage if it.count is None)
            return
        pieces = [part] if part.segment else self._view.tape_ranges(part.start, part.end)
        for piece in pieces:
            if piece.segment:
                start = Place(piece.first_byte, piece.base, 0)
                yield from self._scanner.scan(start, Place(piece.last_byte, piece.end, 0))
            else:
                yield from self._scan_found()

    def _scan_found(self) -> Iterator[ColumnBatch | Damage]:
        """Yields what is above the durable mark: in the files, and not in them yet."""
        found = self._view.found
        yield from self._scanner.scan(found.begin, found.stored)
        for batch in found.staged.batches:
            yield from self._scanner.scan_staged(batch)
        yield from found.staged.damage

    def _was_popped(self, damage: Damage) -> bool:
        """Says whether what is missing has left the queue, and its file with it."""
        gone = os.path.basename(damage.path) not in self._view.directory.names()
        head = read_head(self._view.directory)
        if not gone or head is None or damage.offset is None:
            return False
        # What is lent out has not left.
        return damage.offset < head.number and all(row.number != damage.offset for row in head.lent)

    def _head_number(self) -> int:
        head = read_head(self._view.directory)
        return 0 if head is None else head.number


def _clipped(damage: Damage, part: Range) -> Damage | None:
    """Returns what of damage lies in a range."""
    offset, count = damage.offset or 0, damage.count or 0
    start, end = max(offset, part.start), min(offset + count, part.end)
    if start < end:
        return replace(damage, offset=start, count=end - start)
    return damage if count == 0 and part.start <= offset < part.end else None


def _read_one(entries: _Entries, wanted: Wanted, part: Range) -> Iterator[Any]:
    rows = Rows(wanted.schema, part)
    try:
        for item in entries.scan(part):
            if isinstance(item, ColumnBatch):
                batch = item.within(wanted.start_ms, wanted.end_ms)
                if len(batch):
                    yield _record_batch(rows, batch)
            elif wanted.mode == "FAILFAST":
                raise Damaged(item, _REMEDY)
            elif wanted.mode == "PERMISSIVE" and "damage" in wanted.schema.names:
                yield rows.of_damage(item)
            else:
                _logger.warning("%s, byte %s: %s", item.path, item.position, item.reason)
    except DataLoss as error:
        if wanted.fail_on_data_loss:
            raise
        _logger.warning("%s", error)


def _record_batch(rows: Rows, batch: ColumnBatch) -> Any:
    columns = []
    for field in rows.schema:
        if field.name in CONSTANT:
            columns.append(rows.constant(field.name, len(batch), batch.segment))
        elif field.name in COLUMNS:
            columns.append(batch.column(field.name))
        else:
            # Damage, and what only other kinds have.
            columns.append(pyarrow.nulls(len(batch), field.type))
    return pyarrow.record_batch(columns, schema=rows.schema)
