"""The tables beside the records: `consumers`, `segments` and `damage`.

The first two come from headers and small files: counting the records of a thousand queues reads
none of them. `damage` verifies every record, in as many tasks as a read of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.errors import ForebayError
from forebay.queues.reader import LogReader
from forebay.queues.scanner import OpenSegment
from forebay.spark import logs
from forebay.spark.batch import open_queues
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Task, pack

_QUEUES_PER_TASK = 64


class SmallTableReader(DataSourceReader):
    """The tables `consumers` and `segments`."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Gives the tasks: some queues each."""
        queues = [reader.path for reader in open_queues(self._options.paths)]
        starts = range(0, len(queues), _QUEUES_PER_TASK)
        return [Task(tuple(queues[start : start + _QUEUES_PER_TASK])) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Gives the rows of the queues of one task."""
        rows_of = {"consumers": consumer_rows, "segments": segment_rows}[self._options.table]
        for queue in partition.value or ():
            with LogReader(queue) as reader:
                rows = list(rows_of(reader))
            yield pyarrow.RecordBatch.from_pylist(rows, schema=self._schema)


class DamageReader(DataSourceReader):
    """The table `damage`."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Gives the tasks, of ranges as for a read of the records."""
        ranges = [
            part
            for reader in open_queues(self._options.paths)
            for part in logs.plan(reader, reader.begin, reader.end)
        ]
        return pack(ranges, self._options.partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Gives a row for each damaged place in the ranges of one task."""
        for part in partition.value or ():
            rows = [
                {
                    "queue": part.queue,
                    "kind": part.kind,
                    "segment": os.path.basename(damage.path),
                    "position": damage.position,
                    "length": damage.length,
                    "reason": damage.reason,
                    "torn": damage.torn,
                    "offset": damage.offset,
                    "count": damage.count,
                }
                for damage in logs.read_damage(part)
            ]
            yield pyarrow.RecordBatch.from_pylist(rows, schema=self._schema)


def consumer_rows(reader: LogReader) -> Iterator[dict[str, Any]]:
    """Gives a row for each saved place."""
    for kind, places in (("consumer", reader.consumers()), ("cursor", reader.cursors())):
        for name, offset in sorted(places.items()):
            yield {
                "queue": reader.path,
                "kind": logs.KIND,
                "name": name,
                "type": kind,
                "offset": offset,
                "lag": max(0, reader.end - offset),
            }


def segment_rows(reader: LogReader) -> Iterator[dict[str, Any]]:
    """Gives a row for each segment, and one for what is still in the staging buffer."""
    bases = [base for base in reader.segments.bases if base < reader.written]
    stops = [*bases[1:], reader.written]
    for base, stop in zip(bases, stops, strict=True):
        yield {
            "queue": reader.path,
            "kind": logs.KIND,
            "segment": reader.segments.names[base],
            "first_offset": base,
            "count": stop - base,
            "sealed": stop < reader.written or (reader.tail is not None and reader.tail.clean),
            **_header_facts(reader, base),
        }
    if reader.end > reader.written:
        yield {
            "queue": reader.path,
            "kind": logs.KIND,
            "segment": "staging",
            "first_offset": reader.written,
            "count": reader.end - reader.written,
            "sealed": False,
        }


def _header_facts(reader: LogReader, base: int) -> dict[str, Any]:
    try:
        segment = OpenSegment(reader.directory, reader.segments.names[base], base)
    except (ForebayError, FileNotFoundError):
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
