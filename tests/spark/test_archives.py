"""Archives in Spark, alone and beside their queues: no record twice, none missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import forebay
from forebay import BeatsQueue, Log
from forebay.queues.archive.manifest import NAME
from tests.support.objects import ObjectStore, Remote
from tests.support.values import flip

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

HOST = "host"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Yields a log of which all that is finished is in an archive, and most of that only there."""
    with Log(tmp_path / "spool" / "events", segment_bytes=2_000) as log:
        append(log, 500)
        forebay.archive(log.path, tmp_path / "archive", host=HOST, trim=True)
        log.trim()
        append(log, 100)
        assert log.begin > 400
        yield log


def append(log: Log, count: int) -> None:
    log.append_many([b"%08d" % (log.end + number) for number in range(count)])


def load(spark: SparkSession, *paths: object, **options: str) -> DataFrame:
    return spark.read.format("forebay").options(**options).load([*map(str, paths)])


def offsets_of(rows: DataFrame) -> list[int]:
    """Returns the offsets of records that hold what was appended there."""
    found = rows.select("offset", "value").collect()
    assert all(row.value == b"%08d" % row.offset for row in found)
    return sorted(row.offset for row in found)


def test_archive_and_host_are_one_queue(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    # Another name, as the id counts.
    archive = tmp_path / "archive" / HOST / "moved"
    (tmp_path / "archive" / HOST / "events").rename(archive)

    rows = load(spark, tmp_path / "archive/*/*", tmp_path / "spool/*")

    assert offsets_of(rows) == list(range(600))
    assert [row.queue for row in rows.select("queue").distinct().collect()] == [log.path]
    assert offsets_of(rows.where("offset between 100 and 102 or offset = 599")) == [
        *(100, 101, 102),
        599,
    ]
    later = load(spark, archive, log.path, startingOffsets=f'{{"{log.path}": 450}}')
    assert offsets_of(later) == list(range(450, 600))


def test_the_other_tables_know_it_as_one(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    paths = tmp_path / "archive" / HOST / "events", log.path

    segments = load(spark, *paths, table="segments").collect()

    assert sum(row["count"] for row in segments) == 600
    assert {row.queue for row in segments} == {log.path}
    assert load(spark, *paths, table="damage").count() == 0


def test_what_leaves_the_host_after_the_plan_is_read_from_the_archive(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    rows = load(spark, tmp_path / "archive" / HOST / "events", log.path, maxPartitionBytes="2k")
    planned = rows.select("offset", "value")
    planned.rdd.getNumPartitions()
    append(log, 100)
    forebay.archive(log.path, tmp_path / "archive", host=HOST, trim=True)
    log.trim()

    assert offsets_of(planned)[:600] == list(range(600))


def test_an_archive_is_read_alone(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    end = forebay.describe(tmp_path / "archive" / HOST / "events").records

    rows = load(spark, tmp_path / "archive/*/events")

    assert offsets_of(rows) == list(range(end))


def test_events_of_a_beats_queue_are_in_both_places_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "spool" / "beats"
    with BeatsQueue(path, segment_bytes=4_096) as queue:
        queue.put_many([{"fields": {"number": number}} for number in range(400)])
        forebay.archive(path, tmp_path / "archive", host=HOST)
        queue.read(200).ack()
        queue.put_many([{"fields": {"number": number}} for number in range(400, 450)])

        rows = load(spark, tmp_path / "archive/*/beats", path)
        numbers = rows.selectExpr("int(get_json_object(fields, '$.number')) AS n").collect()

    assert sorted(row.n for row in numbers) == list(range(450))


@pytest.mark.parametrize("what", ["manifest", "object", "frame"])
def test_damage_of_an_archive_never_ends_a_permissive_query(
    spark: SparkSession, log: Log, tmp_path: Path, what: str
) -> None:
    target = tmp_path / "archive" / HOST / "events"
    other = tmp_path / "other"
    with Log(other) as one:
        append(one, 10)
    first = sorted(target.glob("00*"))[0]
    if what == "manifest":
        flip(target / NAME, 30)
    elif what == "object":
        first.unlink()
    else:
        flip(first, 1_000)

    rows = load(
        spark, target, other, mode="PERMISSIVE", columns="queue,offset,value,damage"
    ).collect()
    listed = load(spark, target, other, table="damage").collect()

    found = [row for row in rows if row.damage is not None]
    assert len(found) == len(listed) == 1
    assert {row.queue for row in (*found, *listed)} == {str(target)}
    assert sum(row.queue == str(other) and row.damage is None for row in rows) == 10


def test_an_object_store_is_read_by_ranges(
    spark: SparkSession, log: Log, tmp_path: Path, objects: tuple[ObjectStore, Remote]
) -> None:
    store, remote = objects
    remote.call("archive", log.path, store.address, host=HOST)
    query = f"endpoint_override=127.0.0.1:{store.port}&scheme=http"

    rows = load(spark, f"{store.address}/*/events?{query}", log.path)
    alone = load(spark, f"{store.address}/{HOST}/events?{query}")

    assert offsets_of(rows)[-1] == 599
    assert len(offsets_of(rows)) == 600 - log.begin
    queues: list[Any] = alone.select("queue").distinct().collect()
    assert [row.queue for row in queues] == [f"{store.address}/{HOST}/events"]


def test_a_stream_refuses_an_archive(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    stream = spark.readStream.format("forebay").load(str(tmp_path / "archive" / HOST / "events"))

    with pytest.raises(Exception, match="is an archive"):
        stream.writeStream.format("noop").trigger(availableNow=True).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).start().awaitTermination()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ObjectStore, Remote]]:
    """Yields an S3 server on loopback, and a process that talks to it."""
    store = ObjectStore(tmp_path_factory.mktemp("objects"))
    remote = Remote(store.port, "tests.archive.calls")
    yield store, remote
    remote.close()
    store.close()
