"""Deadline queues in a real Spark: read, and refused as a stream, as a user sees them.

What the readers do in detail is tested without Spark, in test_deadlines.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.queues.deadline_helpers import open_queue
from tests.support.clocks import FakeClock
from tests.support.values import numbered

COUNT = 5000


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "jobs"
    with open_queue(path, clock=FakeClock(), sync="os") as opened:
        opened.enqueue_many(numbered(COUNT // 2))
        opened.freeze()
        opened.enqueue_many(numbered(COUNT // 2, first=COUNT // 2), delay=3600)
        done, later, bad = opened.dequeue_many(100), *opened.dequeue_many(2)
        opened.release_many(done)
        opened.requeue(later, delay=7200)
        opened.bury(bad, "no such file")
    return path


def load(spark: SparkSession, path: str | Path, **options: Any) -> DataFrame:
    return spark.read.format("forebay").options(**options).load(str(path))


def test_a_deadline_queue_is_a_table(spark: SparkSession, queue: Path) -> None:
    frame = load(spark, queue, maxPartitionBytes="60k")

    assert frame.rdd.getNumPartitions() >= 5
    counted = frame.groupBy("type").count().collect()
    assert {tuple(row) for row in counted} == {("pending", COUNT - 101), ("buried", 1)}
    waits = "unix_millis(deadline) - unix_millis(enqueue_time)"
    chosen = frame.filter("requeue_time IS NOT NULL OR reason IS NOT NULL").orderBy("id")
    assert [
        tuple(row) for row in chosen.selectExpr("id", waits, "dequeue_count", "reason").collect()
    ] == [
        (101, 7_200_000, 1, None),
        (102, 1, 1, "no such file"),
    ]
    late = load(spark, queue, startingDeadline=str(1_800_000_000_000 + 3_600_000))
    assert late.selectExpr("count(*)", "min(id)").first() == (COUNT // 2 + 1, 101)


def test_the_other_tables_and_the_raw_view(spark: SparkSession, queue: Path) -> None:
    raw = load(spark, queue, view="raw").groupBy("type").count().collect()

    entries = {("pending", COUNT + 1), ("tombstone", 102), ("buried", 1), ("dequeued", 102)}
    assert {tuple(row) for row in raw} == entries
    assert load(spark, queue, table="segments").selectExpr("sum(count)").first() == (COUNT // 2,)
    assert load(spark, queue, table="damage").count() == 0
    assert load(spark, queue, table="consumers").count() == 0


def test_a_stream_of_a_deadline_queue_is_refused(spark: SparkSession, queue: Path) -> None:
    stream = spark.readStream.format("forebay").load(str(queue))

    with pytest.raises(PySparkException, match=r"is a deadline queue, .* no stream reads it"):
        stream.writeStream.format("noop").start().processAllAvailable()
