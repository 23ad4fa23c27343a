"""The tables of a batch while they are being made: files in a directory that nobody reads yet."""

from __future__ import annotations

import contextlib
import operator
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from forebay.pipelines.manifest import Lost
from forebay.pipelines.tables import DAMAGE, DAMAGE_DDL, DECODED, DROPPED, LANDED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Rows of `dropped` that have yet to join the others.
FOUND = "found"
# Spark's default, INT96, has no statistics, and most readers take it for nanoseconds in 64 bits,
# which end in 2262.
_TIMES = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# Two files open in a task, one a side, instead of a sort that brings each side together.
_WRITERS = {"spark.sql.maxConcurrentOutputFileWriters": "2"}


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
        with self._settings(_TIMES):
            rows.write.format(format or self._format).save(self._path(table))

    def write_parted(self, table: str, rows: DataFrame, column: str) -> None:
        """Writes a table in parts by the two values of a column, in one pass."""
        with self._settings(_TIMES | _WRITERS):
            rows.write.format(self._format).partitionBy(column).save(self._path(table))

    def read(self, table: str, schema: StructType | str) -> DataFrame:
        """Returns the rows of a table."""
        return self._spark.read.schema(schema).format(self._format).load(self._path(table))

    def rename(self, source: str, target: str) -> None:
        """Returns a table another name."""
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
        # Which records there are, in one number: those that are there twice cancel each other out.
        records = F.bit_xor(F.xxhash64("queue", "offset"))
        sums = first.groupBy("queue", "name").agg(F.count("*"), F.min("us"), F.max("us"), records)
        for row in sums.collect():
            counted.add(*row)

    def lost(self) -> dict[str, list[Lost]]:
        """Returns what damage took of each queue; an unfinished end takes nothing."""
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
        return rows.select("queue", "offset", name.alias("name"), us.alias("us"))

    @contextlib.contextmanager
    def _settings(self, wanted: Mapping[str, str]) -> Iterator[None]:
        """Changes settings of the session for a while."""
        before = {name: str(self._spark.conf.get(name)) for name in wanted}
        for name, value in wanted.items():
            self._spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                self._spark.conf.set(name, value)

    def _path(self, *names: str) -> str:
        return os.path.join(self._directory, *names)


class Counted:
    """How many rows of each queue are in each table, which, and their first and last time in µs."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Rows] = {}

    def add(
        self, queue: str, table: str, rows: int, first: int | None, last: int | None, records: int
    ) -> None:
        """Takes what was counted; `records` is a number that stands for which they are."""
        self._found[queue, table] = _Rows(rows, first, last, records)

    def subtract(self, table: str, other: str) -> None:
        """Takes what was counted of one table off another."""
        for (queue, name), rows in list(self._found.items()):
            if name == other:
                before = self._found[queue, table]
                self._found[queue, table] = replace(before, count=before.count - rows.count)

    def rows(self, queue: str, table: str) -> int:
        """Returns the rows of one queue."""
        found = self._found.get((queue, table))
        return 0 if found is None else found.count

    def total(self, table: str) -> int:
        """Returns the rows of all queues."""
        return sum(rows.count for rows in self._of(table))

    def are_the_same(self, table: str, *others: str) -> bool:
        """Says whether a table has the records that some others have together, each once.

        As many rows are not enough: some may be missing and others there twice.
        """
        there = [rows.records for other in others for rows in self._of(other)]
        wanted = [rows.records for rows in self._of(table)]
        return self.total(table) == sum(map(self.total, others)) and reduce(
            operator.xor, there, 0
        ) == reduce(operator.xor, wanted, 0)

    def times_ms(self, queue: str, table: str) -> tuple[int | None, int | None]:
        """Returns the first and the last time of one queue, if its records have times."""
        found = self._found.get((queue, table))
        if found is None or found.first_us is None or found.last_us is None:
            return None, None
        return found.first_us // 1000, found.last_us // 1000

    def times_us(self, table: str) -> tuple[int, int]:
        """Returns the first and the last time of all queues; no time counts as 0."""
        found = self._of(table)
        return min(rows.first_us or 0 for rows in found), max(rows.last_us or 0 for rows in found)

    def _of(self, table: str) -> list[_Rows]:
        return [rows for (_, name), rows in self._found.items() if name == table]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one queue in one table."""

    count: int
    first_us: int | None
    last_us: int | None
    records: int
