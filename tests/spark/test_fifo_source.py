"""Fifos in a real Spark: read, tapped and written, as a user sees them.

What the readers and writers do in detail is tested without Spark, in test_fifos.py,
test_fifo_stream.py and test_fifo_sink.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import forebay
from forebay.queues.fifo.queue import Fifo
from tests.queues.helpers import numbered

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


def tap(spark: SparkSession, path: Path, out: Path, **options: str) -> Any:
    """Runs a stream into Parquet until all is read; gives the query."""
    query = (
        spark.readStream.format("forebay")
        .options(startingOffsets="earliest", **options)
        .load(str(path))
        .select("offset", "id", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination(240)
    return query


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


def test_a_stream_taps_a_fifo_while_it_is_popped(spark: SparkSession, tmp_path: Path) -> None:
    with Fifo(tmp_path / "q", file_bytes=5_000, sync="os", background=False) as fifo:
        fifo.push_many(numbered(300))
        fifo.sync()
        tap(spark, tmp_path / "q", tmp_path / "out", maxOffsetsPerTrigger="100")
        fifo.push_many(numbered(600, first=300))
        fifo.sync()
        for _ in range(700):
            fifo.pop()
        fifo._reading._release()
        query = tap(spark, tmp_path / "q", tmp_path / "out")
        fifo.push_many(numbered(50, first=900))
        fifo.sync()
        tap(spark, tmp_path / "q", tmp_path / "out")

    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    place = json.loads(query.lastProgress["sources"][0]["endOffset"])["queues"][fifo.path]
    offsets = [row["offset"] for row in rows]
    assert 300 < place["popped"] <= 400
    assert offsets == [*range(300), *range(300 + place["popped"], 950)]
    assert all(row["value"] == numbered(1, first=row["offset"])[0] for row in rows[::50])


def test_a_batch_and_a_stream_are_written_into_a_fifo(spark: SparkSession, tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log") as log:
        log.append_many(numbered(500))
    Fifo(tmp_path / "q", file_bytes=5_000).close()

    frame = load(spark, tmp_path / "log").orderBy("offset").coalesce(1)
    frame.write.format("forebay").mode("append").save(str(tmp_path / "q"))
    query = (
        spark.readStream.format("forebay")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="200")
        .load(str(tmp_path / "log"))
        .writeStream.format("forebay")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "q"))
    )
    query.awaitTermination(240)

    with Fifo(tmp_path / "q") as fifo:
        assert fifo.pop_many(500) == numbered(500)
        assert sorted(fifo.pop_many(1000)) == numbered(500)
