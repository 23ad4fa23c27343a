"""The owner is killed in the middle of adoptions while batches arrive: every row is there once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

import forebay
from forebay.queues.log import Log
from tests.counting import Count
from tests.spark.owner import WINDOWS
from tests.spark.owners import Owner
from tests.spark.test_sink import rows, start_stream, write_files

BATCHES = 50
KILLS = 10
ROWS = 20


def test_an_owner_killed_in_every_step_of_adoption_neither_loses_nor_doubles_a_row(
    spark: SparkSession, tmp_path: Path, record_property: Count
) -> None:
    write_files(tmp_path / "in", BATCHES, ROWS)
    query = start_stream(spark, tmp_path / "in", tmp_path / "q")
    kills: Counter[str] = Counter()
    own: list[bytes] = []
    for number in range(KILLS):
        owner = Owner(tmp_path / "q", first=1_000 * number, window=WINDOWS[number % len(WINDOWS)])
        # Stopped in its window, it holds the lock: batches pile up until it is killed.
        if owner.wait_for("window"):
            kills[WINDOWS[number % len(WINDOWS)]] += 1
        owner.kill()
        own += owner.acknowledged
    query.awaitTermination()

    Log(tmp_path / "q").close()
    with forebay.read(tmp_path / "q") as reader:
        values = list(reader.values())
    assert [value for value in values if value.startswith(b"row")] == rows(0, BATCHES * ROWS)
    assert Counter(own) - Counter(values) == Counter()
    assert max(Counter(values).values()) == 1
    assert (set(kills), kills.total()) == (set(WINDOWS), KILLS)
    for window, count in kills.items():
        record_property(f"owner killed {window}", count)
