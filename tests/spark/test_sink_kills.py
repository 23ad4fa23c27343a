"""The owner is killed in the middle of adoptions while batches arrive: every row is there once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

import forebay
from forebay.queues.log.queue import Log
from tests.counting import Count
from tests.spark.owner import WINDOWS
from tests.spark.owners import Owner
from tests.spark.test_sink import rows, start_stream, write_files
from tests.support.waiting import wait_until

KILLS = 10
ROWS = 20
AHEAD = 5
WINDOW_SECONDS = 240


class Feed:
    """Files for the stream, some more than it has read: the batches go on as long as wanted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.count = 0
        self.go_on()

    def go_on(self) -> None:
        """Writes more files if the stream has come close to the last."""
        commits = (self._directory / "checkpoint" / "commits").glob("[0-9]*")
        done = max((int(file.name) for file in commits), default=-1) + 1
        if self.count < done + AHEAD:
            more = done + AHEAD - self.count
            write_files(self._directory / "in", more, ROWS, self.count)
            self.count += more


def stops_in_its_window(owner: Owner, feed: Feed) -> bool:
    """Returns the owner batches to adopt until it is where it is to be killed."""

    def is_there() -> bool:
        feed.go_on()
        return owner.has_said("window")

    return wait_until(is_there, WINDOW_SECONDS)


def test_an_owner_killed_in_every_step_of_adoption_neither_loses_nor_doubles_a_row(
    spark: SparkSession, tmp_path: Path, record_property: Count
) -> None:
    feed = Feed(tmp_path)
    query = start_stream(spark, tmp_path / "in", tmp_path / "q", ends=False)
    kills: Counter[str] = Counter()
    own: list[bytes] = []
    try:
        for number in range(KILLS):
            window = WINDOWS[number % len(WINDOWS)]
            owner = Owner(tmp_path / "q", first=1_000_000 * number, window=window)
            # Stopped in its window, it holds the lock: batches pile up until it is killed.
            kills[window] += stops_in_its_window(owner, feed)
            owner.kill()
            own += owner.acknowledged
        query.processAllAvailable()
    finally:
        query.stop()

    Log(tmp_path / "q").close()
    with forebay.read(tmp_path / "q", kind="log") as reader:
        values = list(reader.values())
    assert [value for value in values if value.startswith(b"row")] == rows(0, feed.count * ROWS)
    assert Counter(own) - Counter(values) == Counter()
    assert max(Counter(values).values()) == 1
    assert (set(+kills), kills.total()) == (set(WINDOWS), KILLS)
    for window, count in kills.items():
        record_property(f"owner killed {window}", count)
