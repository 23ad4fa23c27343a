"""The tables beside the records: `consumers`, `segments` and `damage`.

The first two come from headers and small files: counting the records of a thousand queues reads
none of them. `damage` verifies every record, in as many tasks as a read of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.errors import InvalidOption
from forebay.spark.kinds import kind_named, kinds_of, open_queue, open_queues
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Task, Wanted, pack

_QUEUES_PER_TASK = 64


class SmallTableReader(DataSourceReader):
    """The tables `consumers` and `segments`."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Gives the tasks: some queues each."""
        queues = [reader.path for _, reader in open_queues(self._options)]
        if self._options.table == "consumers" and kinds_of(queues) == {"fifo"}:
            raise InvalidOption(
                f"table = 'consumers': {queues[0]} is a fifo, which has no consumers; what is lent "
                "out is among its records"
            )
        starts = range(0, len(queues), _QUEUES_PER_TASK)
        return [Task(tuple(queues[start : start + _QUEUES_PER_TASK])) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Gives the rows of the queues of one task."""
        rows_of = {"consumers": "consumer_rows", "segments": "segment_rows"}[self._options.table]
        for queue in partition.value or ():
            kind, reader = open_queue(queue, self._options)
            with reader:
                rows = list(getattr(kind, rows_of)(reader))
            yield pyarrow.RecordBatch.from_pylist(rows, schema=self._schema)


class DamageReader(DataSourceReader):
    """The table `damage`."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted(None, key_file=options.key_file)

    def partitions(self) -> list[InputPartition]:
        """Gives the tasks, of ranges as for a read of the records."""
        everything = SourceOptions(self._options.paths)
        ranges = [
            part
            for kind, reader in open_queues(self._options)
            for part in kind.plan(reader, *kind.bounds(reader, everything), self._wanted)
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
                for damage in kind_named(part.kind).read_damage(self._wanted, part)
            ]
            yield pyarrow.RecordBatch.from_pylist(rows, schema=self._schema)
