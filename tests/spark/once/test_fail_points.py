"""The stream fails before and after the effect of every hook; every record arrives once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import forebay
from tests.counting import Count
from tests.spark.once.checking import check_once
from tests.spark.once.failing import HOOKS, READS
from tests.spark.once.queries import LANDED, Query
from tests.support.campaigns import FULL
from tests.support.values import numbered
from tests.support.waiting import wait_until

QUEUES = ("a", "b")
BATCH = 40
# Three small segments a task, two tasks a batch.
OPTIONS = {"maxOffsetsPerTrigger": BATCH, "maxPartitionBytes": "800k"}
# Spark tries a task so often; failures may fall on both.
TRIES, TASKS = 3, 2
# Each costs a query: everyday only those where something has happened that Spark does not know of,
# in hooks that change something, and one attempt of a task that is tried again.
WHEN = ("before", "after") if FULL else ("after",)
ASKING = () if FULL else ("getDefaultReadLimit", "reportLatestOffset")
FAILED = READS if FULL else READS[1:]
TRIED_AGAIN = READS if FULL else READS[1:2]
HOOK_SECONDS = 240


class Story:
    """Two queues that grow and are trimmed, and the stream that reads them."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._query = Query(directory / "queues" / "*", directory, **OPTIONS)
        self._held = ExitStack()
        self.points = self._query.points.make()
        self.landing = self._query.landing
        self.written: dict[str, list[bytes]] = {}
        self.trimmed = 0
        self._logs = [
            self._held.enter_context(
                forebay.Log(directory / "queues" / name, segment_bytes=1_000, background=False)
            )
            for name in QUEUES
        ]

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def run(self) -> str | None:
        """Runs the stream; gives the error, if it failed.

        One batch may be planned already. With another behind it, every hook is called.
        """
        while sum(map(len, self.written.values())) - self.landing.count < 2 * BATCH:
            self._append()
        return self._query.run(self._spark)

    def _append(self) -> None:
        for log in self._logs:
            values = self.written.setdefault(log.path, [])
            more = numbered(BATCH // 2, first=len(values))
            log.append_many(more)
            values += more
            self.trimmed += log.trim()


def test_a_stream_that_failed_at_any_point_of_any_hook_delivers_every_record_once(
    spark: SparkSession, tmp_path: Path, record_property: Count
) -> None:
    moments = [f"{when} {hook}" for hook in HOOKS if hook not in ASKING for when in WHEN]
    moments.append(LANDED)
    with Story(spark, tmp_path) as story:
        for moment in moments:
            story.points.fail(moment)
            if moment.endswith("stop"):
                # Spark calls it only when another hook failed; else it ends the process.
                story.points.fail("before latestOffset")
            assert f"Failed: {moment}" in (story.run() or ""), moment
            assert story.points.disarm() == 0
        for moment in FAILED:
            story.points.fail(moment, TRIES * TASKS)
            assert f"Failed: {moment}" in (story.run() or ""), moment
            assert story.points.disarm() <= TRIES
        for moment in TRIED_AGAIN:
            # Spark tries the task again.
            story.points.fail(moment)
            assert story.run() is None
            assert story.points.disarm() == 0
        check_once(story.landing.rows(), story.written)

    assert story.landing.replays == 1
    assert story.trimmed > 0
    record_property("fail points of the stream met", len(moments) + len(FAILED) + len(TRIED_AGAIN))


def test_a_query_that_failed_in_its_first_batch_goes_on_where_it_began(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(tmp_path / "q", tmp_path, startingOffsets="latest")
    points = query.points.make()
    # More often than all tasks of a batch are tried.
    points.fail("before read", TRIES * TASKS)
    points.wait("after initialOffset")
    with forebay.Log(tmp_path / "q", background=False) as log:
        log.append_many(numbered(3))
        failed = query.start(spark)
        wait_until(lambda: points.reached, HOOK_SECONDS)
        log.append_many(numbered(4))
        points.let_go()
        with pytest.raises(StreamingQueryException, match="Failed: before read"):
            failed.awaitTermination(HOOK_SECONDS)
        log.append_many(numbered(5))
    points.disarm()
    assert query.first_batch() == (3, 7)

    assert query.run(spark) is None

    assert [offset for _, offset, _ in query.landing.rows()] == list(range(3, 12))
