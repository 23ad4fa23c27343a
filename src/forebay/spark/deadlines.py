"""Deadline queues as the source sees them: a snapshot of what is in them, in parts.

The offset of an item is its id. Items do not come in the order of their ids, and leave the queue
from anywhere: there is no place that a stream could go on from, so there are none.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.errors import Damaged, DataLoss, InvalidOption
from forebay.queues.deadline.columns import COLUMNS, ColumnBatch, batches
from forebay.queues.deadline.snapshot import Row, Snapshot, SnapshotFiles, take_snapshot
from forebay.spark.deadline_view import KIND, DeadlineView, SnapshotRange, key_of
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, Wanted
from forebay.spark.rows import CONSTANT, Rows
from forebay.storage.filesystem import DiskFilesystem

BY_OFFSET = False
NO_STREAM = (
    "a deadline queue, whose items come and go in the middle: no stream reads it. Read it with "
    "spark.read, or bring snapshots of it into tables by forebay pipeline ingest"
)
_RUN_VERSION, _LOG_VERSION = 2, 1
_REMEDY = "mode PERMISSIVE or DROPMALFORMED reads round it, table=damage lists it"
_logger = logging.getLogger(__name__)


def open_reader(path: str, options: SourceOptions) -> DeadlineView:
    """Opens a deadline queue without owning it."""
    return DeadlineView(path, options)


def queue_id(reader: DeadlineView) -> str:
    """Returns the id of the queue."""
    return reader.snapshot.queue_id


def bounds(reader: DeadlineView, options: SourceOptions) -> tuple[int, int]:
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


def plan(reader: DeadlineView, start: int, end: int, wanted: Wanted) -> Iterator[Range]:
    """Returns the ranges of a snapshot."""
    return reader.ranges()


def read(wanted: Wanted, parts: Iterable[Range]) -> Iterator[Any]:
    """Yields the items, or entries, of ranges as Arrow record batches."""
    for queue, some in itertools.groupby(parts, key=lambda part: part.queue):
        with _Contents(queue, fail_on_data_loss=wanted.fail_on_data_loss) as contents:
            for part in some:
                yield from _read_one(contents, wanted, part)


def read_damage(wanted: Wanted, part: Range) -> Iterator[Damage]:
    """Yields what does not verify in a range."""
    with _Contents(part.queue, fail_on_data_loss=True) as contents:
        yield from contents.mended(part)
        for item in contents.scan(part):
            if isinstance(item, Damage):
                yield item


def consumer_rows(reader: DeadlineView) -> Iterator[dict[str, Any]]:
    """Returns nothing: a deadline queue keeps no places of readers."""
    return iter(())


def segment_rows(reader: DeadlineView) -> Iterator[dict[str, Any]]:
    """Yields a row for each run, from its footer, and for each log.

    Counts are of entries, tombstones too. Of what is damaged, and of logs, they are null.
    """
    for part in reader.snapshot.runs:
        run = reader.files.run(part)
        footer = None if isinstance(run, Damage) else run.footer
        yield {
            "queue": reader.path,
            "kind": KIND,
            "segment": part.name,
            "first_offset": None if footer is None else footer.min_id,
            "count": None if footer is None else footer.count,
            "bytes": max(part.size, 0),
            "version": _RUN_VERSION,
            "sealed": True,
        }
    for log in reader.snapshot.logs:
        yield {
            "queue": reader.path,
            "kind": KIND,
            "segment": log.name,
            "bytes": log.size,
            "version": _LOG_VERSION,
            "sealed": log is not reader.snapshot.logs[-1],
        }


class _Contents:
    """The files of one queue, by the snapshots that ranges are of."""

    def __init__(self, queue: str, *, fail_on_data_loss: bool) -> None:
        self._directory = DiskFilesystem().open_directory(queue)
        self._fail_on_data_loss = fail_on_data_loss
        self._text = ""
        self._files: SnapshotFiles | None = None

    def scan(self, part: Range) -> Iterator[list[Row] | Damage]:
        """Yields what is in a range, and its damage."""
        assert isinstance(part, SnapshotRange)
        files = self._open(part.snapshot)
        if not part.segment:
            yield from files.live(key_of(part.start), key_of(part.end), leads=part.leads)
            return
        for run in files.snapshot.runs:
            if run.name == part.segment:
                yield from files.blocks(run, part.start, part.end)
        for log in files.snapshot.logs:
            if log.name == part.segment:
                yield from _in_lists(files.records(log))

    def mended(self, part: Range) -> Iterator[Damage]:
        """Yields damage that costs nothing, of the first range only."""
        assert isinstance(part, SnapshotRange)
        if part.leads:
            yield from self._open(part.snapshot).mended()

    def __enter__(self) -> _Contents:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._directory.close()

    def _open(self, text: str) -> SnapshotFiles:
        if self._files is None or text != self._text:
            self._close()
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

    def _close(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None


def _in_lists(rows: Iterator[Row | Damage]) -> Iterator[list[Row] | Damage]:
    for is_damage, some in itertools.groupby(rows, key=lambda row: isinstance(row, Damage)):
        if is_damage:
            yield from some  # type: ignore[misc]
        else:
            yield list(some)  # type: ignore[arg-type]


def _read_one(contents: _Contents, wanted: Wanted, part: Range) -> Iterator[Any]:
    rows = Rows(wanted.schema, part)
    for item in contents.scan(part):
        if not isinstance(item, Damage):
            for batch in batches(item):
                yield _record_batch(rows, batch)
        elif wanted.mode == "FAILFAST":
            raise Damaged(item, _REMEDY)
        elif wanted.mode == "PERMISSIVE" and "damage" in wanted.schema.names:
            yield rows.of_damage(item)
        else:
            _logger.warning("%s, byte %s: %s", item.path, item.position, item.reason)


def _record_batch(rows: Rows, batch: ColumnBatch) -> Any:
    columns = []
    for field in rows.schema:
        if field.name in COLUMNS:
            columns.append(batch.column(field.name))
        elif field.name in CONSTANT:
            columns.append(rows.constant(field.name, len(batch), ""))
        else:
            # Damage, and what only other kinds have.
            columns.append(pyarrow.nulls(len(batch), field.type))
    return pyarrow.record_batch(columns, schema=rows.schema)
