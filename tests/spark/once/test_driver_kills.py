"""Whole drivers are killed, Java and all; the next one goes on, and every record arrives once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.counting import Count
from tests.spark.once.appending import Appending
from tests.spark.once.checking import check_once
from tests.spark.once.driver import STARTED
from tests.spark.once.queries import LANDED, Query
from tests.support.killing import Program
from tests.support.waiting import wait_until

WINDOWS = (STARTED, "in the middle of read", LANDED)
DRIVER_SECONDS = 400


def kill_in(window: str, query: Query, path: Path, output: Path) -> None:
    """Starts a driver, lets it run until it is in the window, and kills it there."""
    query.points.wait(window)
    driver = Program("tests.spark.once.driver", path, output.parent, output=output)
    try:
        wait_until(lambda: query.points.reached or not driver.running, DRIVER_SECONDS)
        assert query.points.reached, output.read_text()[-4_000:]
    finally:
        driver.kill()


@pytest.mark.full
def test_a_driver_killed_in_any_window_neither_loses_nor_doubles_a_record(
    spark: SparkSession, tmp_path: Path, record_property: Count
) -> None:
    path = tmp_path / "q"
    query = Query(path, tmp_path)
    query.points.make()
    with Appending(path, pause_seconds=0.5) as appending:
        for window in WINDOWS:
            kill_in(window, query, path, tmp_path / "drivers")
            record_property(f"driver killed {window}", 1)

    assert query.run(spark) is None

    check_once(query.landing.rows(), {str(path): appending.values})
    assert query.landing.replays == 1
