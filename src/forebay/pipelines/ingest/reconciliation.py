"""Proves from the tables that every record of the queues is accounted for, once.

For each queue: the offsets of its range = landed + damaged + trimmed, landed = decoded + rejected +
deduplicated + filtered, each landed offset is in exactly one of the other tables, none is in a
table twice, and the ranges of the batches follow one another without a gap. The counts are taken
from the tables; the counts in the manifests must be the same. For snapshots all this applies to
each batch separately.

A queue is identified by its id: a queue that was created later at the same path has its own proof.
The manifest of a batch states which queue was at a path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import forebay.spark
from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.output import (
    COUNTED,
    DAMAGE,
    DECODED,
    DROPPED,
    DUPLICATE,
    FILTERED,
    LANDED,
    REJECTED,
    Counts,
    Lost,
    Manifest,
    Offsets,
    Output,
    Share,
    account,
    total,
)
from forebay.spark.open_tables import table_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# How often an offset is in each table, in 15 bits of one number.
_PLACES = (LANDED, DECODED, REJECTED, DROPPED)
_BITS = 15
# The columns that are read, of the tables that have them.
_COLUMNS = ("queue", "offset", "queue_id", "why", "torn", "count")
_PROBLEMS_MAX = 20


@dataclass(frozen=True, slots=True)
class QueueProof:
    """One queue: its range, what became of the records, and what does not add up."""

    queue: str
    # Distinguishes the queue from another one at the same path; empty if there is no id.
    id: str
    start: int
    end: int
    # How many offsets there are from `start` up to `end`.
    range: int
    counts: Counts
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result for all queues."""

    out: str
    batches: int
    older: int
    queues: tuple[QueueProof, ...]
    # Problems of the batches as a whole.
    problems: tuple[str, ...]

    @property
    def proven(self) -> bool:
        """Returns whether everything adds up."""
        return not self.problems and not any(proof.problems for proof in self.queues)

    @property
    def counts(self) -> Counts:
        """Returns what became of the records of all queues."""
        return total(proof.counts for proof in self.queues)


def reconcile(
    out: str | os.PathLike[str], *, spark: forebay.spark.SparkSession | None = None
) -> Reconciliation:
    """Compares the tables of an output with the ranges of its batches; changes nothing.

    It may run during an ingest: it covers the batches that are published when it starts. It costs
    one shuffle of queue and offset of every record, and reads no values.
    """
    if spark is None:
        from forebay.spark.session import session

        spark = session()
    output = Output.at(out)
    document = output.document()
    definition = Definition.from_document(document["definition"])
    manifests = output.manifests()
    lives = _Lives(document["starts"])
    for manifest in manifests:
        for queue, share in manifest.queues.items():
            lives.follow(manifest.batch, queue, share)
    reader = _Reader(spark, output, document, definition, manifests)
    unknown = reader.count(lives)
    reader.look_for_strays(lives)
    for manifest in manifests:
        landed = manifest.batch >= document["landed_from"]
        for queue, share in manifest.queues.items():
            lives.of_batch(queue, manifest.batch).check(manifest.batch, share, landed=landed)
    return Reconciliation(
        out=output.path,
        batches=len(manifests),
        older=sum(1 for manifest in manifests if manifest.definition != definition.digest),
        queues=lives.proofs(),
        problems=tuple(_missing_batches(output, [one.batch for one in manifests], unknown)),
    )


class _Lives:
    """The queues and what is known of each: a path may have had several in succession."""

    def __init__(self, starts: dict[str, int]) -> None:
        self._starts = starts
        self._all: list[_Sums] = []
        self._last: dict[str, _Sums] = {}
        self._of_batch: dict[tuple[str, int], _Sums] = {}

    def follow(self, batch: int, queue: str, share: Share) -> None:
        """Adds the range of the next batch of a path."""
        last = self._last.get(queue)
        if last is None or not last.goes_on(share.offsets):
            start = self._starts.get(queue, 0) if last is None else 0
            last = self._add(queue, share.offsets.id, min(start, share.offsets.start))
        last.follow(batch, share)
        self._of_batch[queue, batch] = last

    def of_batch(self, queue: str, batch: int) -> _Sums:
        """Returns the queue that was at a path in a batch."""
        found = self._of_batch.get((queue, batch))
        return found or self._last.get(queue) or self._add(queue, "", 0)

    def numbers(self) -> list[tuple[str, int, int]]:
        """Returns path, batch and queue number for all batches."""
        return [(queue, batch, sums.number) for (queue, batch), sums in self._of_batch.items()]

    def numbered(self, number: int) -> _Sums:
        """Returns the queue with a number."""
        return self._all[number]

    def proofs(self) -> tuple[QueueProof, ...]:
        """Returns the proofs, by path and age."""
        return tuple(sums.proof() for sums in sorted(self._all, key=lambda one: one.queue))

    def _add(self, queue: str, queue_id: str, start: int) -> _Sums:
        sums = _Sums(queue, queue_id, len(self._all), start, start)
        self._all.append(sums)
        self._last[queue] = sums
        return sums


def _missing_batches(output: Output, found: list[int], unknown: set[int]) -> Iterator[str]:
    last = max(found, default=-1)
    missing = sorted(set(range(last + 1)) - set(found))
    for batch in missing[:_PROBLEMS_MAX]:
        yield f"batch {batch} is missing"
    # A batch that is being committed has an intent, and had none or a manifest before and after.
    intent = output.intent()
    committed = {manifest.batch for manifest in intent.manifests} if intent is not None else set()
    for batch in sorted(unknown - set(missing)):
        if batch not in committed and not output.has(batch):
            yield f"batch {batch} has rows in the tables, but no manifest"


@dataclass(slots=True)
class _Rows:
    """What the tables hold of one queue in one batch."""

    counts: dict[str, int] = field(default_factory=dict)
    first: int = 0
    last: int = 0
    below_begin: int = 0
    lost: list[Lost] = field(default_factory=list)
    # The ids in the rows of `landed`; none in tables of an earlier version.
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Sums:
    """What is known of one queue so far."""

    queue: str
    id: str
    number: int
    start: int
    end: int
    range: int = 0
    counts: Counts = field(default_factory=Counts)
    rows: dict[int, _Rows] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def goes_on(self, offsets: Offsets) -> bool:
        """Returns whether a range belongs to this queue, and not to another one at its path.

        A queue created by another program gets an id when Forebay takes it over.
        """
        return offsets.id == self.id or (not self.id and offsets.start == self.end)

    def follow(self, batch: int, share: Share) -> None:
        """Adds the range of the next batch."""
        offsets = share.offsets
        self.id = offsets.id
        if offsets.snapshot is not None:
            # Each snapshot is independent: it is the queue as it was at one moment.
            self.end += offsets.count
            self.range += offsets.count
            return
        if offsets.start > self.end:
            self.problems.append(
                f"offsets {self.end}..{offsets.start} are in no batch; batch {batch} follows"
            )
        elif offsets.start < self.end:
            self.problems.append(
                f"offsets {offsets.start}..{self.end} are in batch {batch} again: the queue "
                "assigned them a second time"
            )
        self.end = offsets.end
        self.range += offsets.count

    def check(self, batch: int, share: Share, *, landed: bool) -> None:
        """Compares the tables of a batch with its range and its manifest.

        If its rows of `landed` were old and are gone, the manifest tells how many there were.
        """
        rows = self.rows.pop(batch, _Rows())
        offsets, says = share.offsets, share.counts
        if not landed:
            rows.counts[LANDED] = says.landed
            if offsets.begin is not None:
                # As many as make the sum of the manifest right.
                known = account(offsets, says.landed, 0, rows.lost)[1]
                rows.below_begin = known - says.trimmed
            rows.first, rows.last = offsets.start, offsets.end - 1
        self._compare(batch, share, rows)

    def _compare(self, batch: int, share: Share, rows: _Rows) -> None:
        offsets, says = share.offsets, share.counts
        landed = rows.counts.get(LANDED, 0)
        damaged, trimmed, missing = account(offsets, landed, rows.below_begin, rows.lost)
        counts = Counts(
            landed=landed,
            decoded=rows.counts.get(DECODED, 0),
            rejected=rows.counts.get(REJECTED, 0),
            deduplicated=rows.counts.get(DUPLICATE, 0),
            filtered=rows.counts.get(FILTERED, 0),
            damaged=damaged,
            trimmed=trimmed,
        )
        self.counts += counts
        if missing:
            what = f"{missing} are missing" if missing > 0 else f"{-missing} too many landed"
            self.problems.append(f"batch {batch}: of {offsets.start}..{offsets.end} {what}")
        if rows.ids - {offsets.id}:
            strangers = ", ".join(sorted(rows.ids - {offsets.id}))
            self.problems.append(f"batch {batch}: rows of another queue landed: {strangers}")
        rest = counts.decoded + counts.rejected + counts.deduplicated + counts.filtered
        if rest != landed:
            self.problems.append(f"batch {batch}: {landed} landed, but {rest} are accounted for")
        within = offsets.start <= rows.first <= rows.last < offsets.end
        if landed and not within and offsets.snapshot is None:
            self.problems.append(
                f"batch {batch}: landed {rows.first} to {rows.last}, which is outside "
                f"{offsets.start}..{offsets.end}"
            )
        for name in COUNTED:
            if getattr(says, name) != getattr(counts, name):
                self.problems.append(
                    f"batch {batch}: its manifest has {getattr(says, name)} {name}, the tables "
                    f"{getattr(counts, name)}"
                )

    def proof(self) -> QueueProof:
        """Returns the proof."""
        for batch, rows in sorted(self.rows.items()):
            self.problems.append(f"batch {batch} has rows its manifest omits: {rows.counts}")
        problems = self.problems[:_PROBLEMS_MAX]
        if len(self.problems) > _PROBLEMS_MAX:
            problems.append(f"and {len(self.problems) - _PROBLEMS_MAX} more")
        return QueueProof(
            self.queue,
            self.id,
            self.start,
            self.end,
            self.range,
            self.counts,
            tuple(problems),
        )


class _Reader:
    """Reads the tables, up to the last batch that existed at the start."""

    def __init__(
        self,
        spark: SparkSession,
        output: Output,
        document: dict[str, Any],
        definition: Definition,
        manifests: list[Manifest],
    ) -> None:
        self._spark = spark
        self._output = output
        self._document = document
        # A snapshot has each item once, and the next snapshot has it again.
        self._place = ["number", "offset", *(["batch"] if definition.snapshots else [])]
        self._manifests = manifests

    def count(self, lives: _Lives) -> set[int]:
        """Counts rows by queue, batch and table; returns batches without a manifest."""
        from pyspark.sql import functions as F

        begins = self._begins()
        parts = []
        for table in _PLACES:
            rows = self._read(table)
            kind = F.col("why") if table == DROPPED else F.lit(table)
            queue_id = F.col("queue_id") if table == LANDED else F.lit(None).cast("string")
            parts.append(
                rows.select("queue", "batch", kind.alias("kind"), "offset", queue_id.alias("id"))
            )
        counted = _union(parts)
        if begins:
            ddl = "queue STRING, batch BIGINT, begin BIGINT"
            known = F.broadcast(self._spark.createDataFrame(begins, ddl))
            counted = counted.join(known, ["queue", "batch"], "left")
        else:
            counted = counted.withColumn("begin", F.lit(None).cast("bigint"))
        grouped = counted.groupBy("queue", "batch", "kind").agg(
            F.count("*").alias("count"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count_if(F.col("offset") < F.col("begin")).alias("below"),
            F.min("id").alias("id"),
            F.max("id").alias("last_id"),
        )
        known_batches = {manifest.batch for manifest in self._manifests}
        unknown: set[int] = set()
        for row in grouped.collect():
            if row["batch"] not in known_batches:
                unknown.add(row["batch"])
                continue
            found = _rows_of(lives, row)
            found.counts[row["kind"]] = row["count"]
            if row["kind"] == LANDED:
                found.first, found.last, found.below_begin = row["first"], row["last"], row["below"]
                found.ids = {name for name in (row["id"], row["last_id"]) if name is not None}
        for row in self._read(DAMAGE).where("NOT torn").collect():
            if row["batch"] in known_batches:
                _rows_of(lives, row).lost.append(Lost(row["offset"], row["count"]))
        return unknown

    def look_for_strays(self, lives: _Lives) -> None:
        """Checks how often each offset of a queue is in each table."""
        from pyspark.sql import functions as F

        parts = [
            self._read(table).select(
                "queue", "batch", "offset", F.lit(1 << (_BITS * place)).alias("seen")
            )
            for place, table in enumerate(_PLACES)
        ]
        ddl = "queue STRING, batch BIGINT, number INT"
        known = F.broadcast(self._spark.createDataFrame(lives.numbers(), ddl))
        # Rows of a batch whose manifest omits them were found by `count`.
        rows = _union(parts).join(known, ["queue", "batch"])
        old = F.max("batch") < self._document["landed_from"]
        each = rows.groupBy(*self._place).agg(F.sum("seen").alias("seen"), old.alias("old"))
        patterns = each.groupBy("number", "seen", "old").agg(
            F.count("*").alias("count"), F.min("offset").alias("first")
        )
        for number, seen, gone, count, first in patterns.collect():
            times = [seen >> (_BITS * place) & ((1 << _BITS) - 1) for place in range(len(_PLACES))]
            if (times[0] == 1 or (gone and times[0] == 0)) and sum(times[1:]) == 1:
                continue
            where = ", ".join(
                f"{table} {number}×" for table, number in zip(_PLACES, times, strict=True) if number
            )
            problem = f"{count} offsets, starting with {first}, are in: {where}"
            lives.numbered(number).problems.append(problem)

    def _read(self, table: str) -> DataFrame:
        return table_frame(self._spark, self._output.path, self._document, table, _COLUMNS)

    def _begins(self) -> list[tuple[str, int, int]]:
        """Returns where queues began, for the batches that found trimmed records."""
        return [
            (queue, manifest.batch, share.offsets.begin)
            for manifest in self._manifests
            for queue, share in manifest.queues.items()
            if share.offsets.begin is not None
        ]


def _rows_of(lives: _Lives, row: Any) -> _Rows:
    sums = lives.of_batch(row["queue"], row["batch"])
    return sums.rows.setdefault(row["batch"], _Rows())


def _union(parts: Iterable[DataFrame]) -> DataFrame:
    first, *rest = parts
    for part in rest:
        first = first.unionAll(part)
    return first
