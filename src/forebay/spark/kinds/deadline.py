"""Deadline queues as the source sees them: a snapshot of what is in them, in parts.

The offset of an item is its id. Items do not come in the order of their ids, and leave the queue
from anywhere: there is no place that a stream could go on from, so there are none. Each range
carries the text of the snapshot, which says all that a task needs to read what the planner saw.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.errors import DataLoss, InvalidOption
from forebay.formats.deadline.items import BURIED_BIT, KeyTuple
from forebay.queues.deadline.columns import COLUMNS, ColumnBatch, batches
from forebay.queues.deadline.slices import SnapshotReader
from forebay.queues.deadline.snapshot import LAST_KEY, Row, Snapshot, SnapshotFiles, take_snapshot
from forebay.spark.kinds import Kind
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, ReadRequest
from forebay.spark.rows import Contents, RangeRows
from forebay.storage.filesystem import DiskFilesystem

_NAME = "deadline"
_TIMESTAMP = pyarrow.timestamp("us", tz="UTC")
_RUN_VERSION, _LOG_VERSION = 2, 1
# What a range holds at most, about: what is in memory at once is some times as much.
_RANGE_BYTES = 4 << 20
_ID_BITS = 64
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotRange(Range):
    """A part of a snapshot: of all files between two keys, or some blocks of one file.

    `start` and `end` are keys as numbers, or numbers of blocks. `leads` says that no range comes
    before it, so that it also tells of damage that lies before its keys.
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
        "bring snapshots of it into tables by forebay pipeline ingest"
    )

    def open_reader(self, path: str, options: SourceOptions) -> DeadlineSource:
        """Opens a snapshot of a deadline queue: the one that the options name, or one of now."""
        return DeadlineSource(path, options)

    def queue_id(self, reader: DeadlineSource) -> str:
        """Returns the id of the queue."""
        return reader.snapshot.queue_id

    def bounds(self, reader: DeadlineSource, options: SourceOptions) -> tuple[int, int]:
        """Returns no bounds; raises if some were asked for that a deadline queue does not have."""
        given = {
            "startingOffsets": options.start not in (None, "earliest"),
            "endingOffsets": options.end not in (None, "latest"),
            "startingTimestamp": options.start_ms is not None,
            "endingTimestamp": options.end_ms is not None,
        }
        for name, is_given in given.items():
            if is_given:
                raise InvalidOption(
                    f"{name}: {reader.path} is a deadline queue, whose items come in the order of "
                    "their deadlines; startingDeadline and endingDeadline choose among them"
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

        Counts are of entries, tombstones too. Of what is damaged, and of logs, they are null.
        """
        for part in reader.snapshot.runs:
            run = reader.files.run(part)
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
    """A snapshot and the ranges of it that options ask for."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        super().__init__(path, options.snapshots.get(path))
        self._options = options

    def ranges(self) -> Iterator[Range]:
        """Yields the ranges of what is wanted: entries as they lie there, or live items.

        The table of damage is that of the live items: only their view knows what is missing.
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
        """Returns the keys between which the items are that are wanted; buried ones come last."""
        start, end = self._options.start_deadline_ms, self._options.end_deadline_ms
        if start is None and end is None:
            return [((0, 0), LAST_KEY)]
        first, last = start or 0, BURIED_BIT if end is None else min(end, BURIED_BIT)
        if first >= last:
            raise InvalidOption(f"startingDeadline = {first}: must be below endingDeadline")
        return [((first | bit, 0), (last + bit, 0)) for bit in (0, BURIED_BIT)]


class _DeadlineContents(Contents):
    """The files of one queue, by the snapshots that ranges are of."""

    def __init__(self, queue: str, wanted: ReadRequest) -> None:
        self._directory = DiskFilesystem().open_directory(queue)
        self._fail_on_data_loss = wanted.fail_on_data_loss
        self._text = ""
        self._files: SnapshotFiles | None = None

    def scan(self, part: Range) -> Iterator[ColumnBatch | Damage]:
        """Yields what is in a range, and its damage."""
        for item in self._scan(part):
            if isinstance(item, Damage):
                yield item
            else:
                yield from batches(item)

    def record_batch(self, rows: RangeRows, batch: ColumnBatch) -> Any:
        """Returns the entries of a batch."""
        return rows.record_batch(len(batch), "", COLUMNS, lambda field: batch.column(field.name))

    def mended(self, part: Range) -> Iterable[Damage]:
        """Returns damage that costs nothing, of the first range only."""
        assert isinstance(part, SnapshotRange)
        return self._open(part.snapshot).mended() if part.leads else ()

    def close(self) -> None:
        """Closes the files."""
        self._close_files()
        self._directory.close()

    def _scan(self, part: Range) -> Iterator[list[Row] | Damage]:
        assert isinstance(part, SnapshotRange)
        files = self._open(part.snapshot)
        if not part.segment:
            yield from files.live(_key_of(part.start), _key_of(part.end), leads=part.leads)
            return
        for run in files.snapshot.runs:
            if run.name == part.segment:
                yield from files.blocks(run, part.start, part.end)
        for log in files.snapshot.logs:
            if log.name == part.segment:
                yield from _in_lists(files.records(log))

    def _open(self, text: str) -> SnapshotFiles:
        if self._files is None or text != self._text:
            self._close_files()
            self._files = self._opened(Snapshot.decode(text))
            self._text = text
        return self._files

    def _opened(self, snapshot: Snapshot) -> SnapshotFiles:
        try:
            return SnapshotFiles(self._directory, snapshot)
        except DataLoss as error:
            if self._fail_on_data_loss:
                raise
            _logger.warning("%s; goes on with what is there now", error)
            return SnapshotFiles(self._directory, take_snapshot(self._directory))

    def _close_files(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None


def _number_of(key: KeyTuple) -> int:
    """Returns a key as one number, which rises as keys do."""
    return key[0] << _ID_BITS | key[1]


def _key_of(number: int) -> KeyTuple:
    """Returns the key that a number stands for."""
    return number >> _ID_BITS, number & ((1 << _ID_BITS) - 1)


def _in_lists(rows: Iterator[Row | Damage]) -> Iterator[list[Row] | Damage]:
    for is_damage, some in itertools.groupby(rows, key=lambda row: isinstance(row, Damage)):
        if is_damage:
            yield from some  # type: ignore[misc]
        else:
            yield list(some)  # type: ignore[arg-type]


KIND = DeadlineKind()
