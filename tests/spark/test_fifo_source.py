"""Fifos in a real Spark: read, and refused as a stream and as a sink, as a user sees them.

What the readers do in detail is tested without Spark, in test_fifos.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import forebay
from forebay.queues.fifo.queue import Fifo
from tests.support.values import numbered

COUNT = 5000


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "fifo"
    with Fifo(path, sync="os", file_bytes=50_000, ttl_seconds=3600) as fifo:
        fifo.push_many(numbered(COUNT))
        fifo.pop_many(100)
    return path


def load(spark: SparkSession, path: str | Path, **options: Any) -> DataFrame:
    return spark.read.format("forebay").options(**options).load(str(path))


def test_a_fifo_is_a_table(spark: SparkSession, queue: Path) -> None:
    frame = load(spark, queue, maxPartitionBytes="60k")

    assert frame.columns[-3:] == ["id", "ttl_seconds", "expires"]
    assert frame.rdd.getNumPartitions() >= 5
    assert frame.selectExpr(
        "count(*)", "min(offset)", "max(offset)", "count(distinct id)", "sum(length(value))"
    ).first() == (COUNT - 100, 100, COUNT - 1, COUNT - 100, 100 * (COUNT - 100))
    lives = "bool_and(expires = timestamp + interval 1 hour AND ttl_seconds = 3600)"
    times = "bool_and(unix_millis(timestamp) = id DIV 65536)"
    assert frame.selectExpr(lives, times).first() == (True, True)
    one = frame.filter("offset = 1234").select("value")
    assert [tuple(row) for row in one.collect()] == [tuple(numbered(1, first=1234))]


def test_the_small_tables_of_a_fifo(spark: SparkSession, queue: Path) -> None:
    segments = load(spark, queue, table="segments")

    assert segments.selectExpr("sum(count)").first() == (COUNT - 100,)
    assert load(spark, queue, table="damage").count() == 0
    with pytest.raises(PySparkException, match="is a fifo, which has no consumers"):
        load(spark, queue, table="consumers").count()


def test_fifos_and_logs_are_one_table(spark: SparkSession, queue: Path) -> None:
    with forebay.Log(queue.parent / "log") as log:
        log.append_many(numbered(10))

    counted = load(spark, f"{queue.parent}/*").groupBy("kind").count()

    assert {tuple(row) for row in counted.collect()} == {("fifo", COUNT - 100), ("log", 10)}


def test_a_stream_of_a_fifo_is_refused(spark: SparkSession, queue: Path) -> None:
    stream = spark.readStream.format("forebay").load(str(queue))

    with pytest.raises(PySparkException, match=r"is a fifo, .* no stream reads it"):
        stream.writeStream.format("noop").start().processAllAvailable()


def test_a_write_into_a_fifo_is_refused(spark: SparkSession, queue: Path) -> None:
    frame = load(spark, queue).select("value")

    with pytest.raises(PySparkException, match="Spark writes only to a log"):
        frame.write.format("forebay").mode("append").save(str(queue))
