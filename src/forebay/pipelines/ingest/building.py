"""Builds the tables of one batch, in a directory of its own, in one pass over the queues.

`landed` and `damage` are written together from the source. Everything else is derived from the
`landed` just written, so that a batch can be rebuilt from `landed` alone, by the same code. The
directory is not read by others until it is published.
"""

from __future__ import annotations

import contextlib
import operator
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, InvalidOption
from forebay.pipelines.ingest import decoding, deduplication
from forebay.pipelines.ingest.definition import Deduplicate, Definition
from forebay.pipelines.ingest.output import (
    DAMAGE,
    DAMAGE_DDL,
    DECODED,
    DROPPED,
    DROPPED_DDL,
    DUPLICATE,
    FILTERED,
    ITEM_COLUMNS,
    LANDED,
    REJECTED,
    TABLES,
    Counts,
    Lost,
    Manifest,
    Offsets,
    Share,
    account,
    columns_of,
    ddls,
)
from forebay.spark.kinds import open_streamed
from forebay.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


# Rows of `dropped` that are not merged with the others yet.
FOUND = "found"
# Spark's default, INT96, has no statistics, and most readers convert it to nanoseconds in 64 bits,
# which end in 2262.
_TIMES = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# Two open files per task, one per side, instead of a sort that groups each side.
_WRITERS = {"spark.sql.maxConcurrentOutputFileWriters": "2"}


class StagedFiles:
    """Writes, reads and counts the tables of one batch."""

    def __init__(self, spark: SparkSession, directory: str, format: str) -> None:
        self._spark = spark
        self._directory = directory
        self._format = format

    def has(self, *names: str) -> bool:
        """Returns whether a table, or a part of it, exists."""
        return os.path.isdir(self._path(*names))

    def write(self, table: str, rows: DataFrame, format: str | None = None) -> None:
        """Writes a table."""
        with self._settings(_TIMES):
            rows.write.format(format or self._format).save(self._path(table))

    def write_parted(self, table: str, rows: DataFrame, column: str) -> None:
        """Writes a table in two parts, by the two values of a column, in one pass."""
        with self._settings(_TIMES | _WRITERS):
            rows.write.format(self._format).partitionBy(column).save(self._path(table))

    def read(self, table: str, schema: StructType | str) -> DataFrame:
        """Returns the rows of a table."""
        return self._spark.read.schema(schema).format(self._format).load(self._path(table))

    def rename(self, source: str, target: str) -> None:
        """Renames a table."""
        os.rename(self._path(source), self._path(target))

    def add_to(self, table: str, other: str) -> None:
        """Moves the files of another table with the same columns into a table."""
        if not self.has(table):
            self.rename(other, table)
            return
        for name in os.listdir(self._path(other)):
            os.rename(self._path(other, name), self._path(table, name))

    def remove(self, table: str) -> None:
        """Removes a table."""
        shutil.rmtree(self._path(table), ignore_errors=True)

    def count(self, counted: Counted, tables: Mapping[str, StructType | str]) -> None:
        """Counts the rows of tables by queue, and those of `dropped` also by reason."""
        from pyspark.sql import functions as F

        first, *rest = (self._to_count(table, schema) for table, schema in tables.items())
        for rows in rest:
            first = first.unionAll(rows)
        # One number that identifies the set of records; records that occur twice cancel out.
        records = F.bit_xor(F.xxhash64("queue", "offset"))
        sums = first.groupBy("queue", "name").agg(F.count("*"), F.min("us"), F.max("us"), records)
        for row in sums.collect():
            counted.add(*row)

    def lost(self) -> dict[str, list[Lost]]:
        """Returns what each queue lost to damage; an unfinished end costs nothing."""
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
        # The SQL may leave the time out of `decoded`, or turn it into something else.
        if dict(rows.dtypes).get("timestamp") == "timestamp":
            us = F.unix_micros("timestamp")
        if table == DECODED:
            us = F.coalesce(us, F.lit(0))
        return rows.select("queue", "offset", name.alias("name"), us.alias("us"))

    @contextlib.contextmanager
    def _settings(self, wanted: Mapping[str, str]) -> Iterator[None]:
        """Changes settings of the session temporarily."""
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
    """How many rows of each queue each table has, which ones, and their time range in µs."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Rows] = {}

    def add(
        self, queue: str, table: str, rows: int, first: int | None, last: int | None, records: int
    ) -> None:
        """Adds a count; `records` is a number that identifies the set of records."""
        self._found[queue, table] = _Rows(rows, first, last, records)

    def subtract(self, table: str, other: str) -> None:
        """Subtracts the counts of one table from another."""
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
        """Returns whether a table has exactly the records of some others together, each once.

        Equal counts are not enough: some records may be missing and others may occur twice.
        """
        there = [rows.records for other in others for rows in self._of(other)]
        wanted = [rows.records for rows in self._of(table)]
        return self.total(table) == sum(map(self.total, others)) and reduce(
            operator.xor, there, 0
        ) == reduce(operator.xor, wanted, 0)

    def times_ms(self, queue: str, table: str) -> tuple[int | None, int | None]:
        """Returns the first and last time of one queue, if its records have times."""
        found = self._found.get((queue, table))
        if found is None or found.first_us is None or found.last_us is None:
            return None, None
        return found.first_us // 1000, found.last_us // 1000

    def times_us(self, table: str) -> tuple[int, int]:
        """Returns the first and last time of all queues; a missing time counts as 0."""
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


# The columns requested from the source.
SOURCE_COLUMNS = "queue,kind,offset,timestamp,value,segment,position,queue_id,damage"
_SIDES = "sides"
_KEPT = "kept"
# The columns of `damage`, including those that were packed in a struct.
_DAMAGE_COLUMNS = (
    *("queue", "kind", "segment", "position"),
    *("d.length", "d.reason", "d.torn", "offset", "d.count"),
)
_DAMAGE_FIELDS_DDL = "length BIGINT, reason STRING, torn BOOLEAN, count BIGINT"

# Returns the directories of the keys that earlier batches kept between two times in µs.
EarlierKeys = Callable[[int, int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds tables by a definition; `columns` are those of its SQL, as Spark's JSON."""

    definition: Definition
    columns: str

    def columns_only(self, spark: SparkSession, staged: str) -> None:
        """Writes every table without rows, so that readers find its columns."""
        from pyspark.sql import functions as F

        files = StagedFiles(spark, staged, self.definition.format)
        for table in TABLES:
            columns = self._decoded if table == DECODED else columns_of(self._ddls[table])
            nothing = [F.lit(None).cast(one.dataType).alias(one.name) for one in columns]
            files.write(table, spark.range(0).select(*nothing))

    def land(self, raw: DataFrame, staged: str) -> None:
        """Writes `landed` and `damage` from the source, which is read once."""
        from pyspark.sql import functions as F

        files = StagedFiles(raw.sparkSession, staged, self.definition.format)
        # Both sides of one write have the same columns, so damage is passed as JSON in `value`.
        value = F.when(F.col("damage").isNull(), F.col("value")).otherwise(
            F.encode(F.to_json(F.col("damage")), "UTF-8")
        )
        side = F.when(F.col("damage").isNull(), F.lit(LANDED)).otherwise(F.lit(DAMAGE))
        columns: list[str | Column] = ["queue", "kind", "offset", "timestamp"]
        columns += [value.alias("value"), "segment", "position", "queue_id"]
        columns += ITEM_COLUMNS if self.definition.snapshots else ()
        rows = raw.select(*columns, side.alias("side"))
        files.write_parted(_SIDES, rows, "side")
        if files.has(_SIDES, f"side={LANDED}"):
            files.rename(f"{_SIDES}/side={LANDED}", LANDED)
        if files.has(_SIDES, f"side={DAMAGE}"):
            found = files.read(f"{_SIDES}/side={DAMAGE}", self._ddls[LANDED])
            fields = F.from_json(F.col("value").cast("string"), _DAMAGE_FIELDS_DDL).alias("d")
            whole = found.select("queue", "kind", "segment", "position", "offset", fields)
            files.write(DAMAGE, whole.selectExpr(*_DAMAGE_COLUMNS))
        files.remove(_SIDES)

    def derive(
        self,
        spark: SparkSession,
        batch: int,
        staged: str,
        offsets: Mapping[str, Offsets],
        earlier_keys: EarlierKeys,
    ) -> Manifest:
        """Writes the other tables of a batch from `landed`; returns its manifest."""
        files = StagedFiles(spark, staged, self.definition.format)
        counted = Counted()
        keys_us = None
        if files.has(LANDED):
            landed = files.read(LANDED, self._ddls[LANDED])
            with decoding.decoded(landed, self.definition) as rows:
                files.write(DECODED, rows)
            files.count(counted, {LANDED: self._ddls[LANDED], DECODED: self._decoded})
            if not counted.are_the_same(LANDED, DECODED):
                self._write_missing(files, landed, counted)
            if self.definition.deduplicate is not None and counted.total(DECODED):
                keys_us = self._deduplicate(
                    files, self.definition.deduplicate, counted, earlier_keys
                )
        shares = self._shares(files, offsets, counted)
        return Manifest(batch, self.definition.digest, shares, keys_us)

    @property
    def landed(self) -> str:
        """Returns the columns of `landed` as DDL."""
        return self._ddls[LANDED]

    @property
    def _ddls(self) -> dict[str, str]:
        return ddls(snapshots=self.definition.snapshots)

    @property
    def _decoded(self) -> StructType:
        return columns_of(self.columns)

    def _write_missing(self, files: StagedFiles, landed: DataFrame, counted: Counted) -> None:
        """Writes the records that did not reach `decoded` to `rejected` and `dropped`."""
        from pyspark.sql import functions as F

        files.write(REJECTED, decoding.rejected(landed, self.definition))
        files.count(counted, {REJECTED: self._ddls[REJECTED]})
        if not counted.total(REJECTED):
            files.remove(REJECTED)
        if not counted.are_the_same(LANDED, DECODED, REJECTED):
            there = files.read(DECODED, self._decoded).select("queue", "offset")
            if counted.total(REJECTED):
                rejected = files.read(REJECTED, self._ddls[REJECTED])
                there = there.unionAll(rejected.select("queue", "offset"))
            gone = landed.select("queue", "offset", "timestamp", F.lit(FILTERED).alias("why"))
            files.write(DROPPED, gone.join(there, ["queue", "offset"], "left_anti"))
            files.count(counted, {DROPPED: DROPPED_DDL})
            kept = counted.total(LANDED) - counted.total(REJECTED) - counted.total(FILTERED)
            if counted.total(DECODED) != kept:
                raise InvalidOption(
                    f"sql: returns {counted.total(DECODED)} rows for {kept} records; it may drop "
                    "records, but must not turn one into several rows or change queue or offset"
                )

    def _deduplicate(
        self, files: StagedFiles, same: Deduplicate, counted: Counted, earlier_keys: EarlierKeys
    ) -> tuple[int, int]:
        """Moves duplicates from `decoded` to `dropped`, and writes the keys of the rest."""
        decoded = files.read(DECODED, self._decoded)
        first, last = counted.times_us(DECODED)
        within_us = same.within_ms * 1000
        # Every snapshot holds all items: an item of an earlier one is not a duplicate.
        earlier = (
            [] if self.definition.snapshots else earlier_keys(first - within_us, last + within_us)
        )
        files.write(FOUND, deduplication.duplicates(decoded, same, earlier))
        files.count(counted, {FOUND: DROPPED_DDL})
        if counted.total(DUPLICATE):
            places = files.read(FOUND, DROPPED_DDL).select("queue", "offset")
            files.write(_KEPT, decoded.join(places, ["queue", "offset"], "left_anti"))
            files.remove(DECODED)
            files.rename(_KEPT, DECODED)
            files.add_to(DROPPED, FOUND)
            counted.subtract(DECODED, DUPLICATE)
        files.remove(FOUND)
        kept = deduplication.keys_of(files.read(DECODED, self._decoded), same)
        kept = kept.select("key", "time_us").coalesce(1)
        files.write(deduplication.KEYS, kept, deduplication.KEYS_FORMAT)
        return first, last

    def _shares(
        self, files: StagedFiles, offsets: Mapping[str, Offsets], counted: Counted
    ) -> dict[str, Share]:
        """Returns what became of the records of each queue, and accounts for missing ones."""
        lost = files.lost()
        shares: dict[str, Share] = {}
        for queue, covered in offsets.items():
            whole = replace(covered, begin=None)
            landed = counted.rows(queue, LANDED)
            damaged, trimmed, missing = account(whole, landed, 0, lost.get(queue, ()))
            if missing > 0 and covered.snapshot is None:
                # A rebuilt batch states where the queue began the first time.
                begin = _begin_of(queue, covered) if covered.begin is None else covered.begin
                whole = replace(covered, begin=begin)
                below = files.count_below(queue, begin)
                damaged, trimmed, _ = account(whole, landed, below, lost.get(queue, ()))
            counts = Counts(
                landed=landed,
                decoded=counted.rows(queue, DECODED),
                rejected=counted.rows(queue, REJECTED),
                deduplicated=counted.rows(queue, DUPLICATE),
                filtered=counted.rows(queue, FILTERED),
                damaged=damaged,
                trimmed=trimmed,
            )
            shares[queue] = Share(whole, counts, *counted.times_ms(queue, LANDED))
        return shares


def _begin_of(queue: str, covered: Offsets) -> int:
    """Returns where a queue begins now; past the range if it is gone or was replaced."""
    try:
        kind, reader = open_streamed(queue, SourceOptions((queue,)))
        with reader:
            return kind.begin(reader) if kind.queue_id(reader) == covered.id else covered.end
    except (OSError, ForebayError):
        return covered.end
