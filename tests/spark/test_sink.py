"""The sink in a real Spark session: every row is in the queue once, in the order of its partition.

Fail points before and after the effect of every hook are in `failing_sink.py`, an owner that
appends and gets killed in `owner.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import forebay
from forebay.queues.log.queue import Log
from tests.counting import Count
from tests.spark.failing_sink import ABORTED, FORMAT, LATE, LATE_DONE, FailingSource, arm
from tests.spark.owners import Owner
from tests.support.waiting import wait_until

HELD_SECONDS = 240


def lines(spark: SparkSession, first: int, end: int, partitions: int = 2) -> DataFrame:
    """Makes rows `row N` of a range, one part of it behind the other in the partitions."""
    return spark.range(first, end, 1, partitions).selectExpr("concat('row ', id) AS value")


def rows(first: int, end: int) -> list[bytes]:
    return [b"row %d" % number for number in range(first, end)]


def write(frame: DataFrame, path: Path, kind: str = "forebay", **options: str) -> None:
    frame.write.format(kind).mode("append").options(**options).save(str(path))


def write_files(directory: Path, count: int, rows_each: int, first: int = 0) -> None:
    """Writes text files, the input of a stream, each under its name at once."""
    directory.mkdir(exist_ok=True)
    for number in range(first, first + count):
        text = "".join(f"row {number * rows_each + row}\n" for row in range(rows_each))
        (directory / f".{number}").write_text(text)
        # Spark takes the files in the order of their times.
        os.utime(directory / f".{number}", (1_000_000_000 + number,) * 2)
        (directory / f".{number}").rename(directory / f"{number:04d}.txt")


def start_stream(
    spark: SparkSession,
    directory: Path,
    path: Path,
    kind: str = "forebay",
    *,
    ends: bool = True,
    **options: str,
) -> Any:
    """Starts a stream over the files, each of them a micro-batch; it ends when all are read."""
    source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory))
    checkpoint = str(directory.parent / "checkpoint")
    writer = source.writeStream.format(kind).option("checkpointLocation", checkpoint)
    if ends:
        writer = writer.trigger(availableNow=True)
    return writer.options(**options).start(str(path))


def values_in(path: Path) -> list[bytes]:
    with forebay.read(path, kind="log") as reader:
        return list(reader.values())


def test_a_new_queue_holds_the_rows_in_order_when_the_write_returns(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(lines(spark, 0, 5_000, partitions=3), tmp_path / "q")

    assert values_in(tmp_path / "q") == rows(0, 5_000)
    assert os.listdir(tmp_path / "q" / "inbox") == []


def test_rows_go_behind_those_of_a_stopped_queue_in_small_segments(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Log(tmp_path / "q") as log:
        log.append(b"first")
    write(lines(spark, 0, 500), tmp_path / "q", segmentBytes="2000")

    assert values_in(tmp_path / "q") == [b"first", *rows(0, 500)]
    with Log(tmp_path / "q") as log:
        assert log.info().segments > 5


@pytest.mark.parametrize("large", ["false", "true"])
@pytest.mark.parametrize("kind", ["string", "binary"])
def test_strings_and_binaries_of_both_widths_are_the_same_bytes(
    spark: SparkSession, tmp_path: Path, kind: str, large: str
) -> None:
    name = "spark.sql.execution.arrow.useLargeVarTypes"
    texts = ["", "é😀", "x" * 5_000]
    frame = spark.createDataFrame([(text,) for text in texts], "value string").coalesce(1)
    spark.conf.set(name, large)
    try:
        write(frame.selectExpr(f"cast(value AS {kind}) AS value"), tmp_path / "q")
    finally:
        spark.conf.unset(name)

    assert values_in(tmp_path / "q") == [text.encode() for text in texts]


def test_a_queue_is_copied_into_another_as_it_was_read(spark: SparkSession, tmp_path: Path) -> None:
    write(lines(spark, 0, 300), tmp_path / "a")
    write(spark.read.format("forebay").load(str(tmp_path / "a")), tmp_path / "b")

    assert values_in(tmp_path / "b") == rows(0, 300)


def test_a_running_owner_in_another_process_takes_the_rows_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    owner = Owner(tmp_path / "q")
    assert owner.wait_for("own")

    write(lines(spark, 0, 200), tmp_path / "q")
    write(lines(spark, 200, 400), tmp_path / "q")

    assert wait_until(lambda: len(rows_in(tmp_path / "q")) == 400)
    owner.kill()
    assert rows_in(tmp_path / "q") == rows(0, 400)
    own = [value for value in values_in(tmp_path / "q") if value.startswith(b"own")]
    assert own[: len(owner.acknowledged)] == owner.acknowledged


def test_a_running_owner_in_the_same_process_takes_the_rows_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Log(tmp_path / "q") as log:
        write(lines(spark, 0, 200), tmp_path / "q")

        assert wait_until(lambda: log.end == 200)


def rows_in(path: Path) -> list[bytes]:
    return [value for value in values_in(path) if value.startswith(b"row")]


def test_an_empty_batch_is_fine_and_leaves_an_empty_queue(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(lines(spark, 0, 10).where("value = ''"), tmp_path / "q")

    assert values_in(tmp_path / "q") == []


def test_a_null_fails_the_batch_with_its_place_and_nothing_of_it_lands(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = lines(spark, 0, 1_000).selectExpr("nullif(value, 'row 700') AS value")
    frame = frame.mapInArrow(held_until(tmp_path / "go on"), frame.schema)
    error = "column 'value' is null in row 200 of partition 1"

    # A task that is killed would leave its part behind: the first has ended when the second fails.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(let_go_on, spark, tmp_path / "go on")
        with pytest.raises(PySparkException, match=error):
            write(frame, tmp_path / "q")

    # The tasks made the directory, and without their parts it would be no queue.
    assert not (tmp_path / "q").exists()
    write(lines(spark, 0, 10), tmp_path / "q")
    assert values_in(tmp_path / "q") == rows(0, 10)


def held_until(file: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Makes a step that passes rows on; the second partition waits for a file before."""

    def passed_on(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1:
            wait_until(file.exists, HELD_SECONDS)
        yield from batches

    return passed_on


def let_go_on(spark: SparkSession, file: Path) -> None:
    """Makes the file when a task of what runs now has ended."""
    tracker = spark.sparkContext.statusTracker()

    def one_is_done() -> bool:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return any(stage.numCompletedTasks for stage in stages if stage is not None)

    wait_until(one_is_done, HELD_SECONDS)
    file.touch()


@pytest.mark.parametrize(
    ("select", "mode", "message"),
    [
        ("value, 1 AS extra", "append", "column 'extra' has no place in a queue"),
        ("value", "overwrite", "a queue is only appended to"),
        ("1 AS value", "append", "column 'value' has type int"),
    ],
)
def test_what_the_sink_does_not_do_is_refused_before_any_task_runs(
    spark: SparkSession, tmp_path: Path, select: str, mode: str, message: str
) -> None:
    frame = lines(spark, 0, 10).selectExpr(*select.split(", "))

    with pytest.raises(PySparkException, match=message):
        frame.write.format("forebay").mode(mode).save(str(tmp_path / "q"))

    assert not (tmp_path / "q").exists()


def test_a_version_of_an_application_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    for version in ("1", "1", "2"):
        first = 100 * int(version)
        frame = lines(spark, first, first + 100)
        write(frame, tmp_path / "q", txnAppId="nightly", txnVersion=version)

    assert values_in(tmp_path / "q") == rows(100, 300)


def test_a_stream_goes_on_after_a_restart_and_writes_each_batch_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    for first in (0, 3):
        write_files(tmp_path / "in", 3, 50, first)
        start_stream(spark, tmp_path / "in", tmp_path / "q").awaitTermination()

    assert values_in(tmp_path / "q") == rows(0, 300)
    with Log(tmp_path / "q") as log:
        assert list((log.info().adopted or {}).values()) == [5]


def test_a_stream_in_complete_mode_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", 1, 5)
    frame = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count()
    stream = frame.select("value").writeStream.format("forebay").outputMode("complete")

    with pytest.raises(PySparkException, match="only appended to"):
        stream.option("checkpointLocation", str(tmp_path / "c")).start(
            str(tmp_path / "q")
        ).processAllAvailable()

    assert not (tmp_path / "q").exists()


FAIL_POINTS = [
    ["before every write"],
    ["after every write"],
    ["before commit"],
    ["after commit"],
    ["before commit", "before abort"],
    ["before commit", "after abort"],
    ["after commit", "before abort"],
    ["after commit", "after abort"],
]


@pytest.mark.parametrize("armed", FAIL_POINTS, ids=", ".join)
def test_a_stream_that_fails_at_a_hook_and_is_restarted_writes_every_row_once(
    spark: SparkSession, tmp_path: Path, armed: list[str], record_property: Count
) -> None:
    arm(tmp_path / "points", *armed)
    write_files(tmp_path / "in", 2, 50)

    with pytest.raises(PySparkException, match=r"Failed: |Writing job failed"):
        run_failing(spark, tmp_path)
    run_failing(spark, tmp_path)

    assert values_in(tmp_path / "q") == rows(0, 100)
    assert not any(has_point(tmp_path, name) for name in armed)
    record_property("sink fail points met", len(armed))


@pytest.mark.parametrize("name", ["before a write", "after a write"])
def test_a_task_that_is_tried_again_writes_its_rows_once(
    spark: SparkSession, tmp_path: Path, name: str, record_property: Count
) -> None:
    arm(tmp_path / "points", name)
    write_files(tmp_path / "in", 2, 50)

    run_failing(spark, tmp_path)

    assert values_in(tmp_path / "q") == rows(0, 100)
    assert not has_point(tmp_path, name)
    record_property("sink fail points met", 1)


def run_failing(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(FailingSource)
    points = str(tmp_path / "points")
    query = start_stream(spark, tmp_path / "in", tmp_path / "q", FORMAT, failAt=points)
    query.awaitTermination()


def has_point(tmp_path: Path, name: str) -> bool:
    return any(point.name.startswith(name) for point in (tmp_path / "points").iterdir())


@pytest.mark.parametrize("name", ["after every write", "before commit", "after commit"])
def test_a_batch_write_that_fails_and_is_done_again_writes_every_row_once(
    spark: SparkSession, tmp_path: Path, name: str, record_property: Count
) -> None:
    spark.dataSource.register(FailingSource)
    arm(tmp_path / "points", name)
    options = {"failAt": str(tmp_path / "points"), "txnAppId": "nightly", "txnVersion": "1"}

    with pytest.raises(PySparkException, match="Failed: "):
        write(lines(spark, 0, 100, partitions=1), tmp_path / "q", FORMAT, **options)
    write(lines(spark, 0, 100, partitions=1), tmp_path / "q", FORMAT, **options)

    assert values_in(tmp_path / "q") == rows(0, 100)
    record_property("sink fail points met", 1)


def test_a_task_that_comes_after_the_abort_publishes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(FailingSource)
    arm(tmp_path / "points", "before every write", LATE)
    inbox = tmp_path / "q" / "inbox"

    with pytest.raises(PySparkException, match="Failed: "):
        write(lines(spark, 0, 100), tmp_path / "q", FORMAT, failAt=str(tmp_path / "points"))
    assert (tmp_path / "points" / ABORTED).exists()
    assert wait_until((tmp_path / "points" / LATE_DONE).exists)
    write(lines(spark, 100, 200), tmp_path / "q")

    assert values_in(tmp_path / "q") == rows(100, 200)
    assert len(os.listdir(inbox)) == 1
