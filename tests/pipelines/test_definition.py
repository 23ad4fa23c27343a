"""Tests of what defines an output: options are checked by name, changes are found."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.pipelines.ingest.definition import SELECT_ALL, Definition, duration_ms

GOOD: dict[str, Any] = {"source": "/spool/a", "schema": "id BIGINT"}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("5 minutes", 300_000),
        ("1 hour", 3_600_000),
        (" 2H ", 7_200_000),
        ("1d", 86_400_000),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, ms: int) -> None:
    assert duration_ms("within", text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "0s", "1.5h", "1 week", 30, None, "1h30m"])
def test_what_is_no_duration_is_refused_by_the_name_of_its_option(text: object) -> None:
    with pytest.raises(InvalidOption, match=r"within = .* duration"):
        duration_ms("within", text)


def test_a_definition_has_absolute_sorted_paths_and_defaults() -> None:
    made = Definition.make(source=["b", Path("a"), "file:///c"], schema=" id  BIGINT,\n x INT ")

    assert made.source == tuple(
        sorted([str(Path("a").absolute()), str(Path("b").absolute()), "/c"])
    )
    assert made.schema == "id BIGINT, x INT"
    assert (made.decode, made.sql, made.format, made.starting) == (
        "json",
        SELECT_ALL,
        "parquet",
        "earliest",
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": []}, "source = "),
        ({"source": [7]}, "source: 7 is not a path"),
        ({"source": "hdfs://x/y"}, "must be a directory that every executor can see"),
        ({"decode": "xml"}, "decode = 'xml': must be one of json, cbor, text, raw"),
        ({"schema": None}, "schema = None: decode = 'json' needs the columns"),
        ({"decode": "text"}, "decode = 'text' has just text STRING"),
        ({"sql": " "}, "sql = ' '"),
        ({"format": "a b"}, "format = 'a b'"),
        ({"starting": "yesterday"}, "starting = 'yesterday'"),
        ({"starting": -1}, "starting = -1"),
        ({"deduplicate": {"key": "id"}}, "must have exactly key and within"),
        ({"deduplicate": {"key": [], "within": "1h"}}, "deduplicate.key"),
        ({"deduplicate": {"key": "id", "within": "soon"}}, "deduplicate.within = 'soon'"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Definition.make(**{**GOOD, **given})

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("starting", "text"),
    [
        ("latest", "latest"),
        (17, "17"),
        ("0017", "17"),
        ("2026-11-01T09:00:00Z", "2026-11-01T09:00:00+00:00"),
        (datetime(2026, 11, 1, 9, tzinfo=UTC), "2026-11-01T09:00:00+00:00"),
    ],
)
def test_a_start_is_a_word_an_offset_or_a_time(starting: object, text: str) -> None:
    assert Definition.make(**GOOD, starting=starting).starting == text


def test_a_definition_survives_its_document() -> None:
    made = Definition.make(
        **GOOD, sql="SELECT 1;", deduplicate={"key": ["id", "x"], "within": "1h"}, starting=5
    )

    again = Definition.from_document(json.loads(json.dumps(made.document())))

    assert again == made
    assert again.digest == made.digest
    assert again.differences(made) == []


def test_differences_are_named() -> None:
    old = Definition.make(**GOOD)
    new = Definition.make(source="/spool/b", schema="id INT", sql="SELECT queue FROM records")

    assert new.differences(old) == ["source", "schema", "sql"]
    assert new.digest != old.digest


def test_white_space_in_the_schema_is_no_difference() -> None:
    one, other = (
        Definition.make(source="/a", schema=text) for text in ("a  INT,b INT", "a\nINT,b INT")
    )

    assert one == other
