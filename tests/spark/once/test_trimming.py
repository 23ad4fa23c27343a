"""Trimming follows a stream: segments go while it reads, and none before it has read them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import forebay
from tests.counting import Count
from tests.queues.helpers import segment_files
from tests.spark.cursors import wait_for_cursors
from tests.spark.once.producer import WRITTEN
from tests.support.killing import Program
from tests.support.values import value_at
from tests.support.waiting import wait_until

SEGMENTS = 80
UNLINKED_MIN = 50


def unlinked(directory: Path) -> int:
    """Returns how many segments are gone, of those that the producer surely made."""
    if WRITTEN not in (directory / "output").read_text():
        return 0
    return SEGMENTS - len(segment_files(directory / "q"))


def start(spark: SparkSession, path: Path, directory: Path, **trigger: bool) -> StreamingQuery:
    """Streams the queue into Parquet files: offset and checksum of each record."""
    wait_for_cursors(path, "spark")
    stream = (
        spark.readStream.format("forebay")
        .options(startingOffsets="earliest", maxBytesPerTrigger="8m", consumerId="spark")
        .load(str(path))
        .selectExpr("offset", "crc32(value) AS crc")
        .writeStream.format("parquet")
        .option("path", str(directory / "landed"))
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    return (stream.trigger(**trigger) if trigger else stream).start()


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[Program]:
    process = Program(
        "tests.spark.once.producer", tmp_path / "q", SEGMENTS, output=tmp_path / "output"
    )
    assert wait_until((tmp_path / "q" / "tail").exists)
    yield process
    if process.running:
        process.kill()


def test_segments_go_while_the_stream_reads_and_every_record_arrives_once(
    spark: SparkSession, tmp_path: Path, producer: Program, record_property: Count
) -> None:
    query = start(spark, tmp_path / "q", tmp_path)
    try:
        enough = wait_until(lambda: unlinked(tmp_path) >= UNLINKED_MIN, 240)
        assert producer.finish() == 0
        gone = unlinked(tmp_path)
    finally:
        query.stop()
    start(spark, tmp_path / "q", tmp_path, availableNow=True).awaitTermination(240)

    with forebay.read(tmp_path / "q", kind="log") as reader:
        end = reader.end
    landed = spark.read.parquet(str(tmp_path / "landed")).orderBy("offset").toArrow().to_pydict()
    assert enough
    assert landed["offset"] == list(range(end))
    assert landed["crc"] == [zlib.crc32(value_at(offset)) for offset in range(end)]
    record_property("segments unlinked while a stream read them", gone)
