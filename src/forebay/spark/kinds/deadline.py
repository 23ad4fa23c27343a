"""Deadline queues for the source: a snapshot of their items, in parts.

The offset of an item is its id. Items are not in the order of their ids, and any of them may leave
the queue at any time: there is no place from which a stream could continue, so there are no
streams. Each range contains the text of the snapshot, which is all that a task needs to read what
the planner saw.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.errors import DataLoss, InvalidOption
from forebay.formats.deadline.items import BURIED_BIT, KeyTuple
from forebay.queues.deadline.columns import COLUMNS, ColumnBatch, batches
from forebay.queues.deadline.runs import LAST_KEY
from forebay.queues.deadline.slices import Row, SnapshotReader
from forebay.spark.kinds import Kind
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, ReadRequest
from forebay.spark.rows import Contents, RangeRows

_NAME = "deadline"
_TIMESTAMP = pyarrow.timestamp("us", tz="UTC")
_RUN_VERSION, _LOG_VERSION = 2, 1
# The approximate size of a range; a few times as much is in memory at once.
_RANGE_BYTES = 4 << 20
_ID_BITS = 64
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotRange(Range):
    """A part of a snapshot: the range between two keys in all files, or some blocks of one file.

    `start` and `end` are keys as numbers, or block numbers. `leads` marks the first range, which
    also reports damage before its keys.
    """

    snapshot: str = ""
    leads: bool = False


class DeadlineKind(Kind):
    """Deadline queues, as they are at one moment."""

    name = _NAME
    label = "a deadline queue"
    columns = pyarrow.schema(
        [
            ("deadline", _TIMESTAMP),
            ("id", pyarrow.int64()),
            ("type", pyarrow.string()),
            ("enqueue_time", _TIMESTAMP),
            ("requeue_time", _TIMESTAMP),
            ("dequeue_count", pyarrow.int64()),
            ("reason", pyarrow.string()),
        ]
    )
    by_offset = False
    lands_snapshots = True
    no_stream = (
        "whose items come and go in the middle: no stream reads it. Read it with spark.read, or "
        "load snapshots of it into tables with forebay pipeline ingest"
    )

    def open_reader(self, path: str, options: SourceOptions) -> DeadlineSource:
        """Opens a snapshot of a deadline queue: the one in the options, or a new one."""
        return DeadlineSource(path, options)

    def queue_id(self, reader: DeadlineSource) -> str:
        """Returns the id of the queue."""
        return reader.snapshot.queue_id

    def bounds(self, reader: DeadlineSource, options: SourceOptions) -> tuple[int, int]:
        """Returns no bounds; raises if the options have any that do not apply here."""
        given = {
            "startingOffsets": options.start not in (None, "earliest"),
            "endingOffsets": options.end not in (None, "latest"),
            "startingTimestamp": options.start_ms is not None,
            "endingTimestamp": options.end_ms is not None,
        }
        for name, is_given in given.items():
            if is_given:
                raise InvalidOption(
                    f"{name}: {reader.path} is a deadline queue, whose items are in the order of "
                    "their deadlines; use startingDeadline and endingDeadline"
                )
        return 0, 0

    def plan(
        self, reader: DeadlineSource, start: int, end: int, wanted: ReadRequest
    ) -> Iterator[Range]:
        """Returns the ranges of a snapshot."""
        return reader.ranges()

    def open_contents(self, queue: str, wanted: ReadRequest) -> Contents:
        """Opens a queue to read ranges of snapshots of it."""
        return _DeadlineContents(queue, wanted)

    def segment_rows(self, reader: DeadlineSource) -> Iterator[dict[str, Any]]:
        """Yields a row for each run, from its footer, and for each log.

        Counts include tombstones. They are null for logs and for damaged files.
        """
        for part in reader.snapshot.runs:
            run = reader.run(part)
            footer = None if isinstance(run, Damage) else run.footer
            yield {
                "segment": part.name,
                "first_offset": None if footer is None else footer.min_id,
                "count": None if footer is None else footer.count,
                "bytes": max(part.size, 0),
                "version": _RUN_VERSION,
                "sealed": True,
            }
        for log in reader.snapshot.logs:
            yield {
                "segment": log.name,
                "bytes": log.size,
                "version": _LOG_VERSION,
                "sealed": log is not reader.snapshot.logs[-1],
            }


class DeadlineSource(SnapshotReader):
    """A snapshot, and the ranges of it that the options select."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        super().__init__(path, options.snapshots.get(path))
        self._options = options

    def ranges(self) -> Iterator[Range]:
        """Yields the ranges to read: entries as they are in the files, or live items.

        The table of damage is based on the live items: only this view shows what is missing.
        """
        text = self.snapshot.encode()
        size = min(_RANGE_BYTES, self._options.partition_bytes)
        if self._options.view == "raw":
            for blocks in self.by_file(size):
                yield SnapshotRange(
                    *(_NAME, self.path, blocks.first, blocks.end),
                    segment=blocks.name,
                    last_byte=blocks.size,
                    snapshot=text,
                )
            return
        for keys in self.by_key(self._zones(), size):
            yield SnapshotRange(
                *(_NAME, self.path, _number_of(keys.start), _number_of(keys.end)),
                last_byte=keys.size,
                snapshot=text,
                leads=keys.leads,
            )

    def _zones(self) -> list[tuple[KeyTuple, KeyTuple]]:
        """Returns the key ranges of the selected items; buried ones come last."""
        start, end = self._options.start_deadline_ms, self._options.end_deadline_ms
        if start is None and end is None:
            return [((0, 0), LAST_KEY)]
        first, last = start or 0, BURIED_BIT if end is None else min(end, BURIED_BIT)
        if first >= last:
            raise InvalidOption(f"startingDeadline = {first}: must be below endingDeadline")
        return [((first | bit, 0), (last + bit, 0)) for bit in (0, BURIED_BIT)]


class _DeadlineContents(Contents):
    """The files of one queue, as of the snapshots of its ranges."""

    def __init__(self, queue: str, wanted: ReadRequest) -> None:
        self._queue = queue
        self._fail_on_data_loss = wanted.fail_on_data_loss
        self._text = ""
        self._reader: SnapshotReader | None = None

    def scan(self, part: Range) -> Iterator[ColumnBatch | Damage]:
        """Yields the contents of a range, and its damage."""
        for item in self._scan(part):
            if isinstance(item, Damage):
                yield item
            else:
                yield from batches(item)

    def record_batch(self, rows: RangeRows, batch: ColumnBatch) -> Any:
        """Returns the entries of a batch."""
        return rows.record_batch(len(batch), "", COLUMNS, lambda field: batch.column(field.name))

    def mended(self, part: Range) -> Iterable[Damage]:
        """Returns damage that costs nothing, for the first range only."""
        assert isinstance(part, SnapshotRange)
        return self._open(part.snapshot).mended() if part.leads else ()

    def close(self) -> None:
        """Closes the files."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _scan(self, part: Range) -> Iterator[list[Row] | Damage]:
        assert isinstance(part, SnapshotRange)
        reader = self._open(part.snapshot)
        if not part.segment:
            yield from reader.live(_key_of(part.start), _key_of(part.end), leads=part.leads)
            return
        for run in reader.snapshot.runs:
            if run.name == part.segment:
                yield from reader.blocks(run, part.start, part.end)
        for log in reader.snapshot.logs:
            if log.name == part.segment:
                yield from reader.records(log)

    def _open(self, text: str) -> SnapshotReader:
        if self._reader is None or text != self._text:
            self.close()
            self._reader = self._opened(text)
            self._text = text
        return self._reader

    def _opened(self, text: str) -> SnapshotReader:
        try:
            return SnapshotReader(self._queue, text)
        except DataLoss as error:
            if self._fail_on_data_loss:
                raise
            _logger.warning("%s; continuing with what is there now", error)
            return SnapshotReader(self._queue)


def _number_of(key: KeyTuple) -> int:
    """Returns a key as one number, in the order of the keys."""
    return key[0] << _ID_BITS | key[1]


def _key_of(number: int) -> KeyTuple:
    """Returns the key of a number."""
    return number >> _ID_BITS, number & ((1 << _ID_BITS) - 1)


KIND = DeadlineKind()
