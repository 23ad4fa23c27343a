"""The format `forebay` in a real Spark: reads, SQL, pushdown, errors, streams, as a user sees them.

What the readers do in detail is tested without Spark, in test_batch.py and test_stream.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent

import forebay
from forebay.spark import count
from forebay.spark.lag import LagListener
from tests.queues.helpers import HEADER_BYTES, segment_files
from tests.spark.cursors import wait_for_cursors
from tests.support.values import numbered

COUNT = 5000


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "log"
    with forebay.Log(path, sync="os", segment_bytes=200_000) as log:
        log.append_many(numbered(COUNT))
        log.consumer("billing", start=4000).commit()
    return path


def load(spark: SparkSession, path: str | Path, **options: Any) -> DataFrame:
    return spark.read.format("forebay").options(**options).load(str(path))


def message_of(error: PySparkException) -> str:
    """Returns what a user reads, without the text of Spark's own stack."""
    return str(error)


def test_a_queue_is_a_table(spark: SparkSession, queue: Path) -> None:
    frame = load(spark, queue)

    assert frame.columns == ["queue", "kind", "offset", "timestamp", "value", "segment", "position"]
    assert frame.selectExpr(
        "count(*)", "count(distinct offset)", "min(offset)", "max(offset)", "sum(length(value))"
    ).first() == (COUNT, COUNT, 0, COUNT - 1, 100 * COUNT)
    one = frame.filter("offset = 1234").select("value")
    assert [tuple(row) for row in one.collect()] == [tuple(numbered(1, first=1234))]


def test_every_cut_of_a_segment_reads_every_record_once(spark: SparkSession, queue: Path) -> None:
    frame = load(spark, queue, maxPartitionBytes="50k")

    assert frame.rdd.getNumPartitions() >= 10
    assert [row["offset"] for row in frame.select("offset").collect()] == list(range(COUNT))


def test_several_directories_and_globs_are_one_table(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        with forebay.Log(tmp_path / name) as log:
            log.append_many([name.encode()] * 10)

    named = spark.read.format("forebay").load([f"{tmp_path}/a", f"{tmp_path}/c"])
    matched = load(spark, f"{tmp_path}/[ab]")

    assert sorted(row["value"] for row in named.collect()) == [b"a"] * 10 + [b"c"] * 10
    assert matched.groupBy("queue").count().count() == 2


def test_a_schema_or_columns_leave_the_payload_out(spark: SparkSession, queue: Path) -> None:
    by_option = load(spark, queue, columns="offset,segment")
    by_schema = spark.read.format("forebay").schema("offset BIGINT").load(str(queue))

    assert by_option.columns == ["offset", "segment"]
    assert by_option.selectExpr("sum(offset)").first() == (COUNT * (COUNT - 1) // 2,)
    assert by_schema.selectExpr("sum(offset)").first() == (COUNT * (COUNT - 1) // 2,)


def test_sql_reads_through_a_temporary_view(spark: SparkSession, queue: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW events USING forebay "
        f"OPTIONS (path '{queue}', startingOffsets '4990')"
    )
    try:
        assert spark.sql("SELECT count(*), min(offset) FROM events").first() == (10, 4990)
    finally:
        spark.catalog.dropTempView("events")


def test_filters_skip_segments_where_the_session_allows_it(
    spark: SparkSession, queue: Path
) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    wanted = "offset IN (7, 2500, 4990)"

    found = [row["offset"] for row in _few(spark, queue).filter(wanted).collect()]
    tasks = _few(spark, queue).filter(wanted).rdd.getNumPartitions()
    unasked = _few(spark, queue, pushdown="false").filter(wanted).rdd.getNumPartitions()
    spark.conf.set(setting, "false")
    try:
        refused = _few(spark, queue).filter(wanted).rdd.getNumPartitions()
    finally:
        spark.conf.set(setting, "true")

    assert found == [7, 2500, 4990]
    assert tasks == 3
    assert unasked == refused > 3


def _few(spark: SparkSession, queue: Path, **options: str) -> DataFrame:
    return load(spark, queue, columns="offset", maxPartitionBytes="50k", **options)


def test_the_other_tables(spark: SparkSession, queue: Path) -> None:
    segments = load(spark, queue, table="segments")
    consumers = load(spark, queue, table="consumers")

    assert segments.selectExpr("sum(count)", "count(*)").first() == (COUNT, 3)
    assert count(str(queue), spark=spark) == COUNT
    assert [tuple(row) for row in consumers.select("name", "offset", "lag").collect()] == [
        ("billing", 4000, 1000)
    ]
    assert load(spark, queue, table="damage").count() == 0


def test_damage_in_one_segment_of_many(spark: SparkSession, tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log", sync="os", segment_bytes=20_000) as log:
        log.append_many(numbered(1000))
    broken = segment_files(tmp_path / "log")[3]
    data = bytearray(broken.read_bytes())
    data[HEADER_BYTES + 20] ^= 1
    broken.write_bytes(data)
    lost = int(broken.name, 16)

    with pytest.raises(PySparkException) as raised:
        load(spark, tmp_path / "log").count()
    rest = load(spark, tmp_path / "log", mode="PERMISSIVE")
    listed = load(spark, tmp_path / "log", table="damage").select("segment", "position", "offset")

    assert f"{broken}, byte {HEADER_BYTES}" in message_of(raised.value)
    assert [row["offset"] for row in rest.select("offset").collect()] == [
        offset for offset in range(1000) if offset != lost
    ]
    assert [tuple(row) for row in listed.collect()] == [(broken.name, HEADER_BYTES, lost)]


def test_a_queue_is_read_while_a_process_writes_to_it(spark: SparkSession, tmp_path: Path) -> None:
    stop = threading.Event()
    with forebay.Log(tmp_path / "log", sync="os", segment_bytes=50_000) as log:
        log.append_many(numbered(100))

        def write() -> None:
            while not stop.is_set():
                log.append_many(numbered(20))
                stop.wait(0.001)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            counts = []
            for _ in range(3):
                frame = load(spark, tmp_path / "log")
                offsets = [row["offset"] for row in frame.select("offset").collect()]
                assert offsets == list(range(len(offsets)))
                counts.append(len(offsets))
        finally:
            stop.set()
            writer.join()

    assert counts == sorted(counts)
    assert counts[0] >= 100


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("missing", {}, "missing' does not exist"),
        ("log", {"startingOffsets": "nowhere"}, "startingOffsets = 'nowhere': must be earliest"),
        ("log", {"table": "rows"}, "must be one of records, consumers, segments, damage"),
        ("log", {"startingOffsets": "5001"}, "ends at offset 5000, before 5001"),
        ("log", {"colums": "offset"}, "option 'colums' is unknown"),
    ],
)
def test_bad_input_is_a_clear_error(
    spark: SparkSession, queue: Path, path: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        load(spark, queue.parent / path, **options).count()

    assert message in message_of(raised.value)


class Collected:
    """Runs a stream into memory, by micro-batches with their ids."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self.batches: list[tuple[int, list[int]]] = []

    def run(self, path: str | Path, **options: Any) -> Any:
        stream = self._spark.readStream.format("forebay").options(**options).load(str(path))
        query = (
            stream.select("offset")
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(240)
        assert not query.isActive
        return query

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches.append((batch, [row["offset"] for row in frame.collect()]))


@pytest.fixture
def collected(spark: SparkSession, tmp_path: Path) -> Iterator[Collected]:
    yield Collected(spark, tmp_path / "checkpoint")
    for query in spark.streams.active:
        query.stop()


def test_a_stream_goes_on_where_it_was(collected: Collected, tmp_path: Path) -> None:
    path = tmp_path / "log"
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "300", "consumerId": "spark"}
    with forebay.Log(path, segment_bytes=5_000, background=False) as log:
        log.append_many(numbered(700))
        log.consumer("other", start="latest").commit()
        query = collected.run(path, **options)
        log.append_many(numbered(200))
        log.consumer("other").seek("latest")
        log.consumer("other").commit()
        before = log.trim()
        wait_for_cursors(path, "spark")
        collected.run(path, **options)
        after = log.trim()

    sizes = [len(offsets) for _, offsets in collected.batches]
    assert sizes == [300, 300, 100, 200]
    assert list(chain(*(offsets for _, offsets in collected.batches))) == list(range(900))
    # A batch is committed when the next one is planned: trimming stays one behind.
    assert 0 < before <= 600
    assert before + after <= 900
    assert after > 0
    listener, lags = LagListener(), []
    for progress in query.recentProgress:
        listener.onQueryProgress(QueryProgressEvent(progress))
        lags += [lag.records for lag in listener.lags()]
    assert lags[:3] == [400, 100, 0]


def test_a_stream_of_a_damaged_queue_says_where(
    spark: SparkSession, collected: Collected, tmp_path: Path
) -> None:
    with forebay.Log(tmp_path / "log") as log:
        log.append_many(numbered(100))
    (segment,) = segment_files(tmp_path / "log")
    data = bytearray(segment.read_bytes())
    data[HEADER_BYTES + 30] ^= 1
    segment.write_bytes(data)

    with pytest.raises(PySparkException, match=f"{segment.name}, byte {HEADER_BYTES}"):
        collected.run(tmp_path / "log", startingOffsets="earliest")


def test_only_records_can_be_streamed(spark: SparkSession, queue: Path) -> None:
    with pytest.raises(PySparkException, match="a stream reads records only"):
        (
            spark.readStream.format("forebay")
            .option("table", "segments")
            .load(str(queue))
            .writeStream.format("noop")
            .trigger(availableNow=True)
            .start()
            .awaitTermination(240)
        )
