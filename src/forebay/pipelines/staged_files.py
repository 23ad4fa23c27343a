"""The tables of a batch while they are being made: files in a directory that nobody reads yet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from forebay.pipelines.manifest import Lost
from forebay.pipelines.tables import DAMAGE, DAMAGE_DDL, DECODED, DROPPED, LANDED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Rows of `dropped` that have yet to join the others.
FOUND = "found"
# Two files open in a task, one a side, instead of a sort that brings each side together.
_WRITERS = ("spark.sql.maxConcurrentOutputFileWriters", "2")


class StagedFiles:
    """Writes, reads and counts the tables of one batch."""

    def __init__(self, spark: SparkSession, directory: str, format: str) -> None:
        self._spark = spark
        self._directory = directory
        self._format = format

    def has(self, *names: str) -> bool:
        """Says whether a table, or a part of it, is there."""
        return os.path.isdir(self._path(*names))

    def write(self, table: str, rows: DataFrame, format: str | None = None) -> None:
        """Writes a table."""
        rows.write.format(format or self._format).save(self._path(table))

    def write_parted(self, table: str, rows: DataFrame, column: str) -> None:
        """Writes a table in parts by the two values of a column, in one pass."""
        before = str(self._spark.conf.get(_WRITERS[0]))
        self._spark.conf.set(*_WRITERS)
        try:
            rows.write.format(self._format).partitionBy(column).save(self._path(table))
        finally:
            self._spark.conf.set(_WRITERS[0], before)

    def read(self, table: str, schema: StructType | str) -> DataFrame:
        """Gives the rows of a table."""
        return self._spark.read.schema(schema).format(self._format).load(self._path(table))

    def rename(self, source: str, target: str) -> None:
        """Gives a table another name."""
        os.rename(self._path(source), self._path(target))

    def add_to(self, table: str, other: str) -> None:
        """Moves the files of another table, with the same columns, to a table."""
        if not self.has(table):
            self.rename(other, table)
            return
        for name in os.listdir(self._path(other)):
            os.rename(self._path(other, name), self._path(table, name))

    def remove(self, table: str) -> None:
        """Removes a table."""
        shutil.rmtree(self._path(table), ignore_errors=True)

    def count(self, counted: Counted, tables: Mapping[str, StructType | str]) -> None:
        """Counts the rows of tables by queue, those of `dropped` by the reason too."""
        from pyspark.sql import functions as F

        first, *rest = (self._to_count(table, schema) for table, schema in tables.items())
        for rows in rest:
            first = first.unionAll(rows)
        sums = first.groupBy("queue", "name").agg(F.count("*"), F.min("us"), F.max("us"))
        for row in sums.collect():
            counted.add(*row)

    def lost(self) -> dict[str, list[Lost]]:
        """Gives what damage took of each queue; an unfinished end takes nothing."""
        found: dict[str, list[Lost]] = {}
        if self.has(DAMAGE):
            rows = self.read(DAMAGE, DAMAGE_DDL).where("NOT torn")
            for queue, offset, count in rows.select("queue", "offset", "count").collect():
                found.setdefault(queue, []).append(Lost(offset, count))
        return found

    def count_below(self, queue: str, offset: int) -> int:
        """Counts the landed records of a queue below an offset."""
        from pyspark.sql import functions as F

        if not self.has(LANDED):
            return 0
        rows = self.read(LANDED, "queue STRING, offset BIGINT")
        return rows.where((F.col("queue") == queue) & (F.col("offset") < offset)).count()

    def _to_count(self, table: str, schema: StructType | str) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self.read(table, schema)
        name = F.col("why") if table in (DROPPED, FOUND) else F.lit(table)
        us = F.lit(None).cast("bigint")
        # The SQL may leave the time out of `decoded`, or make something else of it.
        if dict(rows.dtypes).get("timestamp") == "timestamp":
            us = F.unix_micros("timestamp")
        if table == DECODED:
            us = F.coalesce(us, F.lit(0))
        return rows.select("queue", name.alias("name"), us.alias("us"))

    def _path(self, *names: str) -> str:
        return os.path.join(self._directory, *names)


class Counted:
    """How many rows of each queue are in each table, and their first and last time in µs."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[int, int | None, int | None]] = {}

    def add(self, queue: str, table: str, rows: int, first: int | None, last: int | None) -> None:
        """Takes what was counted."""
        self._found[queue, table] = (rows, first, last)

    def subtract(self, table: str, other: str) -> None:
        """Takes what was counted of one table off another."""
        for (queue, name), (rows, *_) in list(self._found.items()):
            if name == other:
                before, first, last = self._found[queue, table]
                self._found[queue, table] = (before - rows, first, last)

    def rows(self, queue: str, table: str) -> int:
        """Gives the rows of one queue."""
        return self._found.get((queue, table), (0, None, None))[0]

    def total(self, table: str) -> int:
        """Gives the rows of all queues."""
        return sum(rows for (_, name), (rows, *_) in self._found.items() if name == table)

    def times_ms(self, queue: str, table: str) -> tuple[int | None, int | None]:
        """Gives the first and the last time of one queue, if its records have times."""
        _, first, last = self._found.get((queue, table), (0, None, None))
        return (None, None) if first is None or last is None else (first // 1000, last // 1000)

    def times_us(self, table: str) -> tuple[int, int]:
        """Gives the first and the last time of all queues; no time counts as 0."""
        found = [times for (_, name), (_, *times) in self._found.items() if name == table]
        return min(first or 0 for first, _ in found), max(last or 0 for _, last in found)
