"""The tables other than `records`: `consumers`, `segments` and `damage`.

The first two come from headers and small files: counting the records of a thousand queues reads
none of the records. `damage` verifies every record, in as many tasks as are used to read them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.errors import InvalidOption, NotAQueue
from forebay.queues.archive.store import is_archive
from forebay.spark.kinds import (
    UNREADABLE,
    Kind,
    kinds_of,
    open_queue,
    open_queues,
    planned,
    read_damage,
)
from forebay.spark.options import SourceOptions
from forebay.spark.planning import (
    Range,
    ReadRequest,
    Task,
    Unreadable,
    archive_of,
    pack,
    with_archive,
)

_logger = logging.getLogger(__name__)
_QUEUES_PER_TASK = 64


class SmallTableReader(DataSourceReader):
    """The tables `consumers` and `segments`."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._tolerant = options.mode != "FAILFAST"

    def partitions(self) -> list[InputPartition]:
        """Returns the tasks, with several queues each."""
        bad: list[Unreadable] = []
        queues = [
            (reader.path, archive_of(reader))
            for _, reader in open_queues(self._options, bad.append if self._tolerant else None)
        ]
        paths = [archive if is_archive(path) else path for path, archive in queues]
        found = kinds_of(paths) if self._options.table == "consumers" else []
        if len(found) == 1 and found[0].no_consumers:
            raise InvalidOption(
                f"table = 'consumers': {paths[0]} is {found[0].label}, {found[0].no_consumers}"
            )
        starts = range(0, len(queues), _QUEUES_PER_TASK)
        return [Task(tuple(queues[start : start + _QUEUES_PER_TASK])) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields the rows of the queues of one task."""
        rows_of = {"consumers": "consumer_rows", "segments": "segment_rows"}[self._options.table]
        for queue, archive in partition.value or ():
            rows: list[dict[str, Any]] = []
            try:
                kind, reader = open_queue(queue, replace(self._options, archive=archive))
                with reader:
                    of_queue = {"queue": reader.path, "kind": kind.name}
                    rows += ({**of_queue, **row} for row in getattr(kind, rows_of)(reader))
            except (*UNREADABLE, NotAQueue) as error:
                if not self._tolerant:
                    raise
                _logger.warning("%s: %s", queue, error)
            yield pyarrow.RecordBatch.from_pylist(rows, schema=self._schema)


class DamageReader(DataSourceReader):
    """The table `damage`."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._wanted = ReadRequest(None, key_file=options.key_file)

    def partitions(self) -> list[InputPartition]:
        """Returns the tasks, with the same ranges as a read of the records."""
        ranges: list[Range] = []
        bad: list[Unreadable] = []
        for kind, reader in open_queues(self._options, bad.append):
            ranges += planned(self._plan(kind, reader), reader.path, tolerant=True)
        return pack([*ranges, *bad], self._options.partition_bytes, self._options.min_partitions)

    def _plan(self, kind: Kind, reader: Any) -> Iterator[Range]:
        everything = SourceOptions(self._options.paths)
        parts = kind.plan(reader, *kind.bounds(reader, everything), self._wanted)
        yield from with_archive(parts, reader)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields a row for each damaged place in the ranges of one task."""
        rows = [
            {
                "queue": part.queue,
                "kind": part.kind or None,
                "segment": os.path.basename(damage.path),
                "position": damage.position,
                "length": damage.length,
                "reason": damage.reason,
                "torn": damage.torn,
                "offset": damage.offset,
                "count": damage.count,
            }
            for part, damage in read_damage(self._wanted, partition.value or ())
        ]
        yield pyarrow.RecordBatch.from_pylist(rows, schema=self._schema)
