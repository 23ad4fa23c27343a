"""Tests of rebuilding: which batches, from where, and that readers see all of it or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import forebay.spark
from forebay.errors import InvalidOption, NotAQueue
from forebay.pipelines import Counts, plan
from forebay.pipelines.ingest.backfill import Span, check_change, choose
from forebay.pipelines.ingest.building import Builder
from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.output import (
    DECODED,
    LANDED,
    REJECTED,
    Manifest,
    Offsets,
    Output,
    Share,
)
from tests.pipelines.conftest import Made
from tests.pipelines.helpers import SCHEMA, append, event, numbered, places, proof_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def share(start: int, end: int, first_ms: int | None = None, last_ms: int | None = None) -> Share:
    return Share(Offsets("", 0, start, end), Counts(), first_ms, last_ms)


@pytest.mark.parametrize(
    ("text", "part", "touched"),
    [
        ("..", share(0, 10), True),
        ("10..", share(0, 10), False),
        ("9..", share(0, 10), True),
        ("..10", share(10, 20), False),
        ("..11", share(10, 20), True),
        ("5..6", share(0, 10), True),
        ("1970-01-01T00:00:01Z..1970-01-01T00:00:02Z", share(0, 1, 2000, 3000), False),
        ("1970-01-01T00:00:01Z..1970-01-01T00:00:02Z", share(0, 1, 500, 1000), True),
        ("1970-01-01T00:00:01Z..", share(0, 1), True),
    ],
)
def test_a_range_touches_batches_by_offset_or_by_time(
    text: str, part: Share, touched: bool
) -> None:
    assert Span.parse(text).touches(part) is touched


@pytest.mark.parametrize("text", ["", "5", "a..b", "5..b", "2026-13-01..", "-1..5"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"backfill = .*: must be A\.\.B"):
        Span.parse(text)


def test_a_range_is_rebuilt_by_the_new_definition_or_not_at_all(
    spark: SparkSession, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = made.copy(tmp_path / "out")
    strict: dict[str, Any] = {**made.options, "sql": "SELECT * FROM records WHERE id < 3"}

    monkeypatch.setattr(Output, "publish", die)
    with pytest.raises(KeyboardInterrupt):
        run(spark, made.path / "?", out, **strict, backfill="3..")
    monkeypatch.undo()
    cut_off = places(spark, out, DECODED)
    rebuilt = run(spark, made.path / "?", out, **strict, backfill="3..")

    assert cut_off == places(spark, made.out, DECODED)
    assert rebuilt.batches == (1,)
    assert rebuilt.counts == Counts(landed=6, decoded=1, rejected=1, filtered=4)
    assert places(spark, out, DECODED) == numbered("a", [0, 1, 5]) + numbered("b", [1, 2])
    assert places(spark, out, LANDED) == places(spark, made.out, LANDED)
    assert proof_of(spark, out).older == 1
    # From now on this is the definition.
    assert plan(source=made.path / "?", out=out, schema=SCHEMA, **strict).span is None


def die(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "format", ["parquet", "delta", pytest.param("iceberg", marks=pytest.mark.full)]
)
def test_everything_is_rebuilt_from_landed_if_the_queue_is_gone(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    out = tmp_path / "out"
    append(tmp_path / "q", [b'{"id":"1"}', event(2), event(1), event(2)])
    same: dict[str, Any] = {"max_offsets_per_trigger": 2, "format": format}
    same["deduplicate"] = {"key": "id", "within": "1h"}
    before = run(spark, tmp_path / "q", out, **same)
    shutil.rmtree(tmp_path / "q")
    lenient: dict[str, Any] = {**same, "schema": "id STRING, name STRING"}

    with pytest.raises(InvalidOption, match="columns of decoded change"):
        run(spark, tmp_path / "q", out, **lenient, backfill="2..")
    after = run(spark, tmp_path / "q", out, **lenient, backfill="..")

    # What is decoded only now is the first of its key, and the later one its duplicate.
    assert before.counts == Counts(landed=4, decoded=2, rejected=1, deduplicated=1)
    assert after.counts == Counts(landed=4, decoded=2, deduplicated=2)
    assert places(spark, out, DECODED) == numbered("q", [0, 1])
    assert places(spark, out, REJECTED) == []
    assert dict(forebay.spark.table(spark, out, DECODED).dtypes)["id"] == "string"
    assert proof_of(spark, out).older == 0


@pytest.mark.parametrize(
    ("same", "span", "chosen"),
    [
        (None, "15..25", [1, 2]),
        (None, "99..", []),
        ({"key": "id", "within": "1h"}, "5..6", [0, 1, 2]),
        ({"key": "id", "within": "1h"}, "15..16", [1, 2]),
    ],
)
def test_whole_batches_are_chosen_and_with_deduplication_those_behind_them(
    same: object, span: str, chosen: list[int]
) -> None:
    definition = Definition.make(source="/q", schema="id INT", deduplicate=same)
    manifests = {n: Manifest(n, "", {"/q": share(10 * n, 10 * n + 10)}) for n in range(3)}

    assert choose(manifests, definition, Span.parse(span)) == chosen


@pytest.mark.parametrize(
    ("change", "everything", "message"),
    [
        ({"format": "delta"}, True, "format cannot be changed"),
        ({"source": "/other"}, True, "source cannot be changed"),
        ({"deduplicate": {"key": "id", "within": "2h"}}, False, "deduplicate changes"),
    ],
)
def test_a_change_that_other_batches_would_contradict_is_refused(
    change: dict[str, Any], everything: bool, message: str
) -> None:
    given = {"source": "/q", "schema": "id INT"}
    document = {"definition": Definition.make(**given).document(), "tables": {DECODED: "{}"}}
    builder = Builder(Definition.make(**{**given, **change}), "{}")

    with pytest.raises(InvalidOption, match=message):
        check_change(builder, document, everything=everything)


def test_there_must_be_something_to_rebuild(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotAQueue, match="holds no tables"):
        run(spark, tmp_path / "q", tmp_path / "out", backfill="..")
