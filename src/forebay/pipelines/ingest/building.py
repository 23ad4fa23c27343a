"""Builds the tables of one batch: files that nobody reads until the batch is committed.

`landed` and `damage` are written together from the source. Everything else is derived from the
`landed` just written, so that a batch can be rebuilt from `landed` alone, by the same code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, InvalidOption, TooManyRejected
from forebay.pipelines.ingest import decoding, deduplication
from forebay.pipelines.ingest.definition import Deduplicate, Definition, Limit
from forebay.pipelines.ingest.output import (
    DAMAGE,
    DECODED,
    DROPPED,
    DUPLICATE,
    FILTERED,
    ITEM_COLUMNS,
    KEYS,
    LANDED,
    REJECTED,
    SIDE,
    Counts,
    Lost,
    Manifest,
    Offsets,
    Output,
    Share,
    account,
    columns_of,
    ddls,
    new_directory,
)
from forebay.spark.kinds import open_streamed
from forebay.spark.open_tables import arrow_schema, frame
from forebay.spark.options import SourceOptions
from forebay.tables.protocol import DataFile, Target

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


class StagedFiles:
    """Writes, reads and counts the files of one batch."""

    def __init__(
        self,
        spark: SparkSession,
        output: Output,
        columns: Mapping[str, StructType],
        batch: int,
        *,
        rebuild: bool,
    ) -> None:
        self.files: dict[str, list[DataFile]] = {}
        self.counted = Counted()
        self.lost: dict[str, list[Lost]] = {}
        self._spark = spark
        self._output = output
        self._document = output.document()
        self._columns = columns
        self._batch = batch
        generation = self._document["generation"] + (1 if rebuild else 0)
        self._directory = new_directory(batch, generation)

    def write(self, rows: DataFrame, *tables: str, name: str | None = None) -> None:
        """Writes rows to a table, or to several, by the column `SIDE`; adds to it.

        They are counted by queue, under the name of the table or under another one.
        """
        from forebay.pipelines.ingest import writing

        targets = {table: self._target(table) for table in tables}
        done = rows.mapInArrow(writing.writer(targets, name), writing.REPORT_DDL)
        reports = [writing.Report.decode(text) for (text,) in done.collect()]
        for table, target in targets.items():
            written = [file for report in reports for file in report.files.get(table, ())]
            known = self.files.setdefault(table, [])
            known += written
            # A task that ran twice may have left files that nobody reported.
            writing.remove_others(target, known)
        for report in reports:
            for count in report.counts:
                self.counted.add(*count)
            for queue, offset, lost in report.lost:
                self.lost.setdefault(queue, []).append(Lost(offset, lost))

    def discard(self) -> None:
        """Removes all files of this attempt."""
        for table in self._columns:
            self._output.store.remove(self._target(table).directory)

    def replace(self, table: str, rows: DataFrame) -> None:
        """Writes a table again, from rows that may come from its old files."""
        old = list(self.files[table])
        self.counted.forget(table)
        self.write(rows, table)
        self.files[table] = self.files[table][len(old) :]
        for file in old:
            self._output.store.remove(file.name)

    def read(self, table: str, columns: StructType | None = None) -> DataFrame:
        """Returns the rows of a table."""
        return self.read_files(self.files.get(table, ()), table, columns)

    def read_files(
        self, files: Sequence[DataFile], table: str, columns: StructType | None = None
    ) -> DataFrame:
        """Returns the rows of some files of a table, of this batch or of others."""
        wanted = self._columns[table] if columns is None else columns
        return frame(self._spark, self._output.path, files, wanted)

    def count_below(self, queue: str, offset: int) -> int:
        """Counts the landed records of a queue below an offset."""
        from pyspark.sql import functions as F

        rows = self.read(LANDED, columns_of("queue STRING, offset BIGINT"))
        return rows.where((F.col("queue") == queue) & (F.col("offset") < offset)).count()

    def _target(self, table: str) -> Target:
        schema = arrow_schema(self._columns[table])
        if table == KEYS:
            return Target(self._output.path, f"{KEYS}/{self._directory}", schema)
        tables = self._output.tables(self._document)
        return tables[table].target(self._directory, schema, self._batch)


class Counted:
    """How many rows of each queue each table has, which ones, and their time range in µs."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Rows] = {}

    def add(
        self, queue: str, table: str, rows: int, first: int | None, last: int | None, records: int
    ) -> None:
        """Adds a count; `records` is a number that identifies the set of records."""
        old = self._found.get((queue, table), _Rows(0, None, None, 0))
        times = [one for one in (old.first_us, first, old.last_us, last) if one is not None]
        self._found[queue, table] = _Rows(
            old.count + rows,
            min(times, default=None),
            max(times, default=None),
            old.records ^ records,
        )

    def forget(self, table: str) -> None:
        """Removes the counts of a table."""
        self._found = {key: rows for key, rows in self._found.items() if key[1] != table}

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

# Returns the files of the keys that earlier batches kept between two times in µs.
EarlierKeys = Callable[[int, int], Sequence[DataFile]]


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds tables by a definition; `columns` are those of `decoded`, as Spark's JSON."""

    definition: Definition
    columns: str
    max_rejected: Limit | None = None

    def stage(
        self, spark: SparkSession, output: Output, batch: int, *, rebuild: bool = False
    ) -> StagedFiles:
        """Returns where the files of a batch go."""
        return StagedFiles(spark, output, self.tables(), batch, rebuild=rebuild)

    def tables(self) -> dict[str, StructType]:
        """Returns the columns of all tables, and of the keys."""
        known = ddls(snapshots=self.definition.snapshots)
        found = {name: columns_of(ddl) for name, ddl in known.items()}
        keys = {KEYS: columns_of(deduplication.KEYS_DDL)}
        return {**found, **keys, DECODED: columns_of(self.columns)}

    def land(self, raw: DataFrame, staged: StagedFiles) -> None:
        """Writes `landed` and `damage` from the source, which is read once."""
        from pyspark.sql import functions as F

        side = F.when(F.col("damage").isNull(), F.lit(LANDED)).otherwise(F.lit(DAMAGE))
        columns: list[str | Column] = ["queue", "kind", "offset", "timestamp", "value"]
        columns += ["segment", "position", "queue_id"]
        columns += ITEM_COLUMNS if self.definition.snapshots else ()
        columns += [f"damage.{name}" for name in ("length", "reason", "torn", "count")]
        staged.write(raw.select(*columns, side.alias(SIDE)), LANDED, DAMAGE)

    def derive(
        self,
        staged: StagedFiles,
        batch: int,
        offsets: Mapping[str, Offsets],
        earlier_keys: EarlierKeys,
    ) -> Manifest:
        """Writes the other tables of a batch from `landed`; returns its manifest."""
        counted = staged.counted
        keys_us = None
        if staged.files.get(LANDED):
            landed = staged.read(LANDED)
            with decoding.decoded(landed, self.definition) as rows:
                staged.write(rows, DECODED)
            if not counted.are_the_same(LANDED, DECODED):
                self._write_missing(staged, landed)
            if self.definition.deduplicate is not None and counted.total(DECODED):
                keys_us = self._deduplicate(staged, self.definition.deduplicate, earlier_keys)
        if self.max_rejected is not None:
            self._check_rejected(self.max_rejected, staged, batch)
        shares = self._shares(staged, offsets)
        keys = tuple(staged.files.get(KEYS, ()))
        return Manifest(batch, self.definition.digest, shares, keys_us, keys)

    def _write_missing(self, staged: StagedFiles, landed: DataFrame) -> None:
        """Writes the records that did not reach `decoded` to `rejected` and `dropped`."""
        from pyspark.sql import functions as F

        counted = staged.counted
        staged.write(decoding.rejected(landed, self.definition), REJECTED)
        if not counted.are_the_same(LANDED, DECODED, REJECTED):
            place = columns_of("queue STRING, offset BIGINT")
            there = staged.read(DECODED, place).unionAll(staged.read(REJECTED, place))
            gone = landed.select("queue", "offset", "timestamp", F.lit(FILTERED).alias("why"))
            missing = gone.join(there, ["queue", "offset"], "left_anti")
            staged.write(missing, DROPPED, name=FILTERED)
            kept = counted.total(LANDED) - counted.total(REJECTED) - counted.total(FILTERED)
            if counted.total(DECODED) != kept:
                raise InvalidOption(
                    f"sql: returns {counted.total(DECODED)} rows for {kept} records; it may drop "
                    "records, but must not turn one into several rows or change queue or offset"
                )

    def _deduplicate(
        self, staged: StagedFiles, same: Deduplicate, earlier_keys: EarlierKeys
    ) -> tuple[int, int]:
        """Moves duplicates from `decoded` to `dropped`, and writes the keys of the rest."""
        counted = staged.counted
        decoded = staged.read(DECODED)
        first, last = counted.times_us(DECODED)
        within_us = same.within_ms * 1000
        # Every snapshot holds all items: an item of an earlier one is not a duplicate.
        earlier = (
            [] if self.definition.snapshots else earlier_keys(first - within_us, last + within_us)
        )
        kept = staged.read_files(earlier, KEYS) if earlier else None
        before = len(staged.files.get(DROPPED, ()))
        staged.write(deduplication.duplicates(decoded, same, kept), DROPPED, name=DUPLICATE)
        if counted.total(DUPLICATE):
            found = staged.files[DROPPED][before:]
            places = staged.read_files(found, DROPPED).select("queue", "offset")
            staged.replace(DECODED, decoded.join(places, ["queue", "offset"], "left_anti"))
        keys = deduplication.keys_of(staged.read(DECODED), same)
        staged.write(keys.select("key", "time_us").coalesce(1), KEYS)
        return first, last

    def _check_rejected(self, limit: Limit, staged: StagedFiles, batch: int) -> None:
        """Raises if too many records are rejected, with the most frequent reason."""
        landed, rejected = staged.counted.total(LANDED), staged.counted.total(REJECTED)
        if rejected <= limit.allowed(landed):
            return
        reasons = staged.read(REJECTED).groupBy("reason").count()
        first = reasons.orderBy("count", ascending=False).first()
        assert first is not None
        raise TooManyRejected(
            f"batch {batch}: {rejected} of {landed} records rejected, and max_rejected = "
            f"{limit.text!r}; nothing of the batch is published. The most frequent reason: "
            f"{first['reason']} ({first['count']} times)"
        )

    def _shares(self, staged: StagedFiles, offsets: Mapping[str, Offsets]) -> dict[str, Share]:
        """Returns what became of the records of each queue, and accounts for missing ones."""
        lost, counted = staged.lost, staged.counted
        shares: dict[str, Share] = {}
        for queue, covered in offsets.items():
            whole = replace(covered, begin=None)
            landed = counted.rows(queue, LANDED)
            damaged, trimmed, missing = account(whole, landed, 0, lost.get(queue, ()))
            if missing > 0 and covered.snapshot is None:
                # A rebuilt batch states where the queue began the first time.
                begin = _begin_of(queue, covered) if covered.begin is None else covered.begin
                whole = replace(covered, begin=begin)
                below = staged.count_below(queue, begin)
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
