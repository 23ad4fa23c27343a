"""Producer, owner and query are killed at random moments, all at once; every record arrives once.

The producer appends to one queue, the owner adopts what is left in the inbox of another. Of the
query the whole driver is killed some times. That takes long, so more often only one of its
processes is: the one that plans, or one that reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import forebay
from tests.counting import Count
from tests.spark.once.checking import check_once
from tests.spark.once.killing import (
    DRIVER,
    QUERY,
    WINDOWS_OF_QUERY,
    Kills,
    Writers,
    kill_drivers,
    kill_processes,
)
from tests.spark.once.queries import Query
from tests.spark.once.writers import OPENING, ROLES
from tests.support.values import value_at

KILLS = 30
DRIVER_KILLS = 6


@pytest.mark.full
def test_kills_of_everybody_at_random_moments_neither_lose_nor_double_a_record(
    spark: SparkSession, tmp_path: Path, record_property: Count
) -> None:
    path = f"{tmp_path}/queues/*"
    query = Query(path, tmp_path)
    query.points.make(phases=True)
    kills: Kills = Kills()
    with Writers(tmp_path, kills, KILLS) as writers:
        kill_drivers(query, path, tmp_path, kills, DRIVER_KILLS)
        kill_processes(query, spark, kills, KILLS - DRIVER_KILLS)

    assert query.run(spark) is None

    with forebay.read(writers.path("producer"), kind="log") as reader:
        end = reader.end
    assert end >= writers.acknowledged
    written = {
        str(writers.path("producer")): [value_at(offset) for offset in range(end)],
        str(writers.path("owner")): writers.handed_in,
    }
    check_once(query.landing.rows(), written)
    for role, windows in {**ROLES, QUERY: WINDOWS_OF_QUERY}.items():
        assert sum(count for (who, _), count in kills.items() if who == role) >= KILLS
        extra = DRIVER if role == QUERY else OPENING
        assert all(kills[role, window] for window in (extra, *windows)), kills
    for (role, window), count in sorted(kills.items()):
        record_property(f"kills of the {role}, {window}", count)
