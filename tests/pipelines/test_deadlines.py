"""Snapshots of deadline queues through the ingest: landed whole, once, and accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.errors import InvalidOption
from forebay.pipelines import Counts, plan
from forebay.pipelines.ingest import snapshots
from forebay.pipelines.ingest.building import Builder, StagedFiles
from forebay.pipelines.ingest.output import DAMAGE, DECODED, LANDED
from tests.pipelines.helpers import SCHEMA, append, event, numbered, places, proof_of, run
from tests.queues.deadline_helpers import files_of, open_queue
from tests.support.clocks import FakeClock
from tests.support.values import flip

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class _Late(Builder):
    """Comes to the files a little late: something is done to the queue each time."""

    before: list[Callable[[], object]] = field(default_factory=list)

    def land(self, raw: DataFrame, staged: StagedFiles) -> None:
        """Lands what there is."""
        if self.before:
            self.before.pop()()
        super().land(raw, staged)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """Twenty events in a run, ten in a log; two are released, one requeued, one is no JSON."""
    with open_queue(tmp_path / "q", clock=FakeClock()) as opened:
        opened.enqueue_many([event(number) for number in range(1, 21)])
        opened.freeze()
        opened.enqueue_many([*(event(number) for number in range(21, 30)), b"bad"], delay=60)
        first, second, third = opened.dequeue_many(3)
        opened.release_many([first, second])
        opened.requeue(third, delay=90)
    return tmp_path / "q"


def test_each_run_lands_a_snapshot_and_none_twice(
    spark: SparkSession, queue: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sql = "SELECT * FROM records WHERE id % 10 <> 0"

    first, again = (run(spark, queue, out, sql=sql) for _ in range(2))
    with open_queue(queue, clock=FakeClock()) as opened:
        opened.release_many(opened.dequeue_many(5))
    later = run(spark, queue, out, sql=sql)

    assert first.queues == {str(queue): Counts(landed=28, decoded=25, rejected=1, filtered=2)}
    assert (first.batches, again.batches, later.batches) == ((0,), (), (1,))
    assert later.counts.landed == 23
    proof = proof_of(spark, out)
    assert (proof.counts.landed, proof.queues[0].range) == (51, 51)
    rows = spark.read.parquet(f"{out}/{DECODED}").where("batch = 0 AND id IN (3, 4, 25)")
    waits = "(unix_millis(deadline) - unix_millis(timestamp)) DIV 1000"
    chosen = rows.selectExpr("id", waits, "type", "requeue_time IS NOT NULL", "dequeue_count")
    assert sorted(map(tuple, chosen.collect())) == [
        *((3, 90, "pending", True, 1), (4, 0, "pending", False, 0)),
        (25, 60, "pending", False, 0),
    ]


def test_a_damaged_block_is_accounted_for(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open_queue(tmp_path / "q") as opened:
        opened.enqueue_many([event(number) + bytes(1000) for number in range(1, 101)])
        opened.freeze()
        opened.release_many(opened.dequeue_many(3))
    flip(files_of(tmp_path / "q", ".p.run")[0], 200)

    result = run(spark, tmp_path / "q", out, decode="raw", schema=None)

    counts = result.queues[str(tmp_path / "q")]
    assert counts == Counts(landed=97 - counts.damaged, decoded=97 - counts.damaged, damaged=28)
    assert len(places(spark, out, DAMAGE)) == 1
    assert len(set(places(spark, out, LANDED))) == 69
    proof_of(spark, out)


def test_files_that_are_merged_while_they_land_are_looked_for_again(
    spark: SparkSession, queue: Path, tmp_path: Path
) -> None:
    run(spark, queue, tmp_path / "out")
    job = plan(source=queue, out=tmp_path / "out", schema=SCHEMA)
    with open_queue(queue, clock=FakeClock()) as opened:
        opened.release_many(opened.dequeue_many(5))
        builder = _Late(job.definition, job.output.document()["tables"][DECODED])
        builder.before.append(opened.merge)
        builder.before.append(opened.freeze)

        (manifest,) = snapshots.land(spark, job.output, builder)

    assert (builder.before, manifest.batch, manifest.counts.landed) == ([], 1, 23)
    assert proof_of(spark, tmp_path / "out").counts.rejected == 2


@pytest.mark.full
def test_tables_of_snapshots_are_rebuilt_from_what_landed(
    spark: SparkSession, queue: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(spark, queue, out)
    with open_queue(queue, clock=FakeClock()) as opened:
        opened.release_many(opened.dequeue_many(5))

    run(spark, queue, out, sql="SELECT * FROM records WHERE id > 25", backfill="..")

    assert len(places(spark, out, LANDED)) == 28
    assert places(spark, out, DECODED) == numbered("q", range(26, 30))
    proof_of(spark, out)


def test_settings_that_only_streams_have_are_refused(queue: Path, tmp_path: Path) -> None:
    definition: dict[str, Any] = {"source": queue, "out": tmp_path / "out", "schema": SCHEMA}

    settings: dict[str, Any] = {"trigger": "1s", "consumer_id": "c", "starting": "latest"}
    for name, value in {**settings, "max_offsets_per_trigger": 5}.items():
        with pytest.raises(InvalidOption, match=f"^{name}: the source is a deadline queue"):
            plan(**definition, **{name: value})
    append(tmp_path / "log", [event(1)])
    with pytest.raises(InvalidOption, match="is not: use a separate ingest for each"):
        plan(**{**definition, "source": [queue, tmp_path / "log"]})
    job = plan(**definition)
    assert job.definition.snapshots
    assert json.loads(json.dumps(job.definition.document()))["snapshots"] is True
    assert snapshots.are_wanted([str(tmp_path / "log")]) is False
