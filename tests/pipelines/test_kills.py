"""Tests that kill the driver of an ingest with SIGKILL, and start the same command again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.pipelines.ingest.output import DECODED, LANDED, REJECTED, Output
from tests.cli.helpers import json_lines
from tests.cli.helpers import run as cli
from tests.counting import Count
from tests.pipelines.helpers import append, event, numbered, places, proof_of
from tests.pipelines.killed_driver import MOMENTS, kill_driver
from tests.spark.cursors import wait_for_cursors
from tests.tables.helpers import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = """
source = "q*"
out = "out"
schema = "id BIGINT, name STRING"
consumer_id = "tables"
max_offsets_per_trigger = 60
"""
# The moment at which only a part is there. Each kill costs the start of a Spark: the other moments
# have their turn in the long tier, and crashes without Spark in `test_output.py`.
MOMENT = "in one table"


def kill_one(file: Path, moment: str, batch: int) -> None:
    kill_driver(file, moment, batch)
    wait_for_cursors(file.parent / "q*", "tables")


@pytest.mark.crash
def test_a_killed_driver_and_the_same_command_again_give_every_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("q1", "q2"):
        append(tmp_path / name, [event(number).ljust(100) for number in range(80)] + [b"bad"])
    file, out = tmp_path / "ingest.toml", tmp_path / "out"
    file.write_text(SETTINGS)

    kill_one(file, MOMENT, 0)
    unfinished = (places(spark, out, DECODED), places(spark, out, LANDED))
    published = Output.at(out).batches()
    # The same command; only that Spark runs here already.
    last = cli("pipeline", "ingest", file, "--json")

    assert (len(unfinished[0]), unfinished[1], published) == (60, [], [])
    assert last.exit_code == 0, last.output
    *batches, result = json_lines(last)
    assert [line["batch"] for line in batches] == result["batches"] == [1, 2]
    everything = numbered("q1", range(81)) + numbered("q2", range(81))
    assert places(spark, out, LANDED) == everything
    assert places(spark, out, DECODED) == [place for place in everything if place[1] < 80]
    assert places(spark, out, REJECTED) == [("q1", 80), ("q2", 80)]
    assert proof_of(spark, out).batches == 3


@pytest.mark.full
@pytest.mark.crash
@pytest.mark.parametrize("format", FORMATS)
def test_killed_drivers_cost_nothing(
    spark: SparkSession, tmp_path: Path, format: str, record_property: Count
) -> None:
    append(tmp_path / "q1", [event(number) for number in range(900)])
    file, out = tmp_path / "ingest.toml", tmp_path / "out"
    file.write_text(SETTINGS.replace("60", "30") + f'format = "{format}"\n')
    moments = [*MOMENTS] * 4

    for moment in moments:
        output = Output.at(out)
        intent = output.intent() if output.exists else None
        # What the last one left unfinished is finished first.
        batch = len(output.batches()) + (intent is not None) if output.exists else 0
        kill_one(file, moment, batch)
    last = cli("pipeline", "ingest", file)

    assert last.exit_code == 0, last.output
    for moment in MOMENTS:
        record_property(f"kills of an ingest into {format}, {moment}", moments.count(moment))
    assert places(spark, out, DECODED) == numbered("q1", range(900))
    assert proof_of(spark, out).batches == 30
