"""Makes the tables of one batch, in a directory of its own, in one pass over the queues.

`landed` and `damage` are written from the source together. Everything else is made from `landed` as
it was just written, so that a batch can be made again from `landed` alone, by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, InvalidOption
from forebay.pipelines import decoding, deduplication
from forebay.pipelines.definition import Deduplicate, Definition
from forebay.pipelines.manifest import Counts, Manifest, Offsets, Share, account
from forebay.pipelines.staged_files import FOUND, Counted, StagedFiles
from forebay.pipelines.tables import (
    DAMAGE,
    DECODED,
    DROPPED,
    DROPPED_DDL,
    DUPLICATE,
    FILTERED,
    ITEM_COLUMNS,
    LANDED,
    REJECTED,
    TABLES,
    columns_of,
    ddls,
)
from forebay.spark.kinds import open_queue
from forebay.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# What the source is asked for.
SOURCE_COLUMNS = "queue,kind,offset,timestamp,value,segment,position,queue_id,damage"
_SIDES = "sides"
_KEPT = "kept"
# The columns of `damage`, with those that travelled in a struct.
_DAMAGE_COLUMNS = (
    *("queue", "kind", "segment", "position"),
    *("d.length", "d.reason", "d.torn", "offset", "d.count"),
)
_DAMAGE_FIELDS_DDL = "length BIGINT, reason STRING, torn BOOLEAN, count BIGINT"

# Gives the directories of the keys that earlier batches kept between two times in µs.
EarlierKeys = Callable[[int, int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes tables by a definition; `columns` are those that its SQL gives, as Spark's JSON."""

    definition: Definition
    columns: str

    def columns_only(self, spark: SparkSession, staged: str) -> None:
        """Writes every table without a row, so that readers find its columns."""
        from pyspark.sql import functions as F

        files = StagedFiles(spark, staged, self.definition.format)
        for table in TABLES:
            columns = self._decoded if table == DECODED else columns_of(self._ddls[table])
            nothing = [F.lit(None).cast(one.dataType).alias(one.name) for one in columns]
            files.write(table, spark.range(0).select(*nothing))

    def land(self, raw: DataFrame, staged: str) -> None:
        """Writes `landed` and `damage` of what the source gives; reads it once."""
        from pyspark.sql import functions as F

        files = StagedFiles(raw.sparkSession, staged, self.definition.format)
        # Both sides of one write have the same columns: damage travels as JSON in `value`.
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
        """Writes the other tables of a batch from `landed`; gives its manifest."""
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
        """The columns of `landed`, as DDL."""
        return self._ddls[LANDED]

    @property
    def _ddls(self) -> dict[str, str]:
        return ddls(snapshots=self.definition.snapshots)

    @property
    def _decoded(self) -> StructType:
        return columns_of(self.columns)

    def _write_missing(self, files: StagedFiles, landed: DataFrame, counted: Counted) -> None:
        """Writes the records that did not get to `decoded` to `rejected` and `dropped`."""
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
                    f"sql: gives {counted.total(DECODED)} rows for {kept} records; it may drop "
                    "records, but must not make several rows of one, nor change queue or offset"
                )

    def _deduplicate(
        self, files: StagedFiles, same: Deduplicate, counted: Counted, earlier_keys: EarlierKeys
    ) -> tuple[int, int]:
        """Moves duplicates from `decoded` to `dropped`, and writes the keys of those that stay."""
        decoded = files.read(DECODED, self._decoded)
        first, last = counted.times_us(DECODED)
        within_us = same.within_ms * 1000
        # Every snapshot holds all items: what an earlier one has is no duplicate.
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
        """Says what became of the records of each queue, and explains what is missing."""
        lost = files.lost()
        shares: dict[str, Share] = {}
        for queue, covered in offsets.items():
            whole = replace(covered, begin=None)
            landed = counted.rows(queue, LANDED)
            damaged, trimmed, missing = account(whole, landed, 0, lost.get(queue, ()))
            if missing > 0 and covered.snapshot is None:
                # A batch that is built again says where the queue began the first time.
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
    """Returns where a queue begins now; behind the range if it is gone, or another one."""
    try:
        kind, reader = open_queue(queue, SourceOptions((queue,)))
        with reader:
            return kind.begin(reader) if kind.queue_id(reader) == covered.id else covered.end
    except (OSError, ForebayError):
        return covered.end
