"""Tests of the TOML file: every key is a parameter of `ingest`, and no other is taken."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.pipelines import ingest, plan, read_settings
from forebay.pipelines.ingest.job import known_settings
from tests.sources import ROOT

EVERY_KEY = """
source = ["spool/*", "/var/spool/b"]
out = "tables"
decode = "json"
schema = "id BIGINT"
sql = "SELECT * FROM records"
deduplicate = { key = ["id"], within = "1h" }
format = "iceberg"
partition_by = "day"
catalog = "prod.events"
starting = 2026-11-01T09:00:00Z
consumer_id = "tables"
trigger = "10s"
max_offsets_per_trigger = 1000
fail_on_data_loss = false
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_gives_the_arguments_of_ingest_with_paths_beside_it(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path / "ingest.toml", EVERY_KEY))

    assert settings["source"] == [str(tmp_path / "spool/*"), "/var/spool/b"]
    assert settings["out"] == str(tmp_path / "tables")
    job = plan(**settings)
    assert job.trigger_ms == 10_000
    assert job.options["maxOffsetsPerTrigger"] == "1000"
    assert job.options["failOnDataLoss"] == "false"
    assert job.definition.starting == "2026-11-01T09:00:00+00:00"


def test_every_parameter_but_those_of_programs_can_be_in_a_file() -> None:
    parameters = set(inspect.signature(ingest).parameters)

    assert parameters - set(known_settings()) == {"spark", "on_progress", "stop"}


def test_the_page_lists_every_key_in_the_order_of_the_parameters() -> None:
    page = (ROOT / "docs" / "pipelines.md").read_text()

    table = page.partition("## Settings")[2].partition("## ")[0]

    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == known_settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source = 'a'\nout = 'b'\nshema = 'x'", "'shema' is unknown; known settings: source, out"),
        ("source = 'a'\nout = 'b'\nspark = 'x'", "'spark' is unknown"),
        ("source = 'a'", "out is missing"),
        ("source = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "x.toml", text)

    with pytest.raises(InvalidOption) as caught:
        read_settings(path)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("trigger", "often", "trigger = 'often'"),
        ("max_offsets_per_trigger", 0, "maxOffsetsPerTrigger"),
        ("max_bytes_per_trigger", "many", "maxBytesPerTrigger"),
        ("fail_on_data_loss", "no", "fail_on_data_loss = 'no'"),
        ("backfill", "7", "backfill = '7': must be A..B"),
    ],
)
def test_what_spark_is_not_needed_for_is_checked_before_it_starts(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        plan(source="/spool/a", out=tmp_path / "out", decode="raw", **{name: value})

    assert message in str(caught.value)


def test_backfill_and_trigger_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="exclude each other"):
        plan(source="/a", out=tmp_path, decode="raw", backfill="..", trigger="1s")
