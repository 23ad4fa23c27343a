"""Kinds of queue that have no module here: Spark reads them through their entry in `KINDS` alone.

A batch read returns what the `scan` of the entry yields, numbered from 0, in one range: without
bounds on times, without streams, and with the common columns only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow

from forebay.damage import Damage
from forebay.queues import kinds
from forebay.spark import planning
from forebay.spark.kinds import Kind
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Extent, Range, ReadRequest, end_offset
from forebay.spark.rows import Contents, RangeRows


class PlainKind(Kind):
    """Queues of one kind, as they are at one moment."""

    no_consumers = "which has no consumers"
    no_stream = "which no stream reads; read it with spark.read"

    def __init__(self, record: kinds.Kind) -> None:
        self.name = record.name
        self.label = record.title
        self._record = record

    def open_reader(self, path: str, options: SourceOptions) -> Any:
        """Opens a queue without owning it."""
        return self._record.open_reader(path)

    def queue_id(self, reader: Any) -> str:
        """Returns an empty id: nothing known distinguishes such a queue from another."""
        return ""

    def bounds(self, reader: Any, options: SourceOptions) -> tuple[int, int]:
        """Returns the offsets at which a batch read begins and ends."""
        count = self._record.checks.describe(reader.path).records
        extent = Extent(reader.path, 0, count, count, dict)
        return planning.first_offset(extent, options, "earliest"), end_offset(extent, options)

    def plan(self, reader: Any, start: int, end: int, wanted: ReadRequest) -> Iterator[Range]:
        """Yields one range."""
        yield Range(self.name, reader.path, start, end)

    def open_contents(self, queue: str, wanted: ReadRequest) -> Contents:
        """Opens a queue to read ranges of it."""
        return _PlainContents(self._record, queue)

    def segment_rows(self, reader: Any) -> Iterator[dict[str, Any]]:
        """Yields a row for each file, from what the kind reports about it."""
        for segment in self._record.checks.segments(reader.path):
            yield {"segment": segment.name, "count": segment.records, "bytes": segment.bytes}


@dataclass(slots=True)
class _Batch:
    first: int
    values: list[bytes | None]


class _PlainContents(Contents):
    """The records of one queue."""

    def __init__(self, record: kinds.Kind, queue: str) -> None:
        self._record = record
        self._queue = queue

    def scan(self, part: Range) -> Iterator[_Batch | Damage]:
        """Yields the records of a range, and each damage in its place."""
        offset = 0
        for item in self._record.records.scan(self._queue):
            count = (item.count or 0) if isinstance(item, Damage) else len(item)
            first, end = max(part.start, offset), min(part.end, offset + count)
            if isinstance(item, Damage):
                if first < end or not count:
                    yield item
            elif first < end:
                yield _Batch(first, list(item.values[first - offset : end - offset]))
            offset += count

    def record_batch(self, rows: RangeRows, batch: _Batch) -> Any:
        """Returns records as an Arrow record batch."""

        def column(field: Any) -> Any:
            if field.name == "value":
                return pyarrow.array(batch.values, field.type)
            return pyarrow.array(range(batch.first, batch.first + len(batch.values)), field.type)

        return rows.record_batch(len(batch.values), "", ("offset", "value"), column)

    def close(self) -> None:
        """Does nothing: no file is open between two scans."""
