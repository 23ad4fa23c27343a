"""Tests of tables that change without a rebuild: more queues and columns, less history."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import forebay.spark
from forebay.errors import InvalidOption, TooManyRejected
from forebay.pipelines import Counts, vacuum
from forebay.pipelines.ingest.definition import Definition, Limit
from forebay.pipelines.ingest.output import DECODED, LANDED, Output
from tests.pipelines.helpers import append, event, numbered, places, proof_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "format", ["parquet", "delta", pytest.param("iceberg", marks=pytest.mark.full)]
)
def test_queues_and_columns_are_added_and_old_records_let_go(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    out = tmp_path / "out"
    same: dict[str, Any] = {"format": format, "partition_by": "day"}
    append(tmp_path / "a", [event(1), event(2, more=5)])
    append(tmp_path / "b", [event(3, more=2**40)])

    run(spark, [tmp_path / "a"], out, schema="id INT, name STRING", **same)
    grown = "id  int, name string, more BIGINT"
    second = run(spark, [tmp_path / "b", tmp_path / "a"], out, schema=grown, **same)
    if format != "delta":
        append(tmp_path / "a", [event(2**40)])
        run(
            spark,
            [tmp_path / "a", tmp_path / "b"],
            out,
            schema=grown.replace("int", "LONG"),
            **same,
        )

    assert second.queues == {f"{tmp_path}/b": Counts(landed=1, decoded=1)}
    rows = forebay.spark.table(spark, out, DECODED).select("id", "more", "batch", "day").collect()
    today = datetime.now(UTC).date()
    more = [] if format == "delta" else [(2**40, None, 2)]
    assert sorted(row[:3] for row in rows) == [(1, None, 0), (2, None, 0), (3, 2**40, 1), *more]
    assert {abs((row["day"] - today).days) <= 1 for row in rows} == {True}
    assert proof_of(spark, out).older == (1 if format == "delta" else 2)

    vacuum(out, landed="1ms")

    assert places(spark, out, LANDED) == []
    assert places(spark, out, DECODED)[:2] == numbered("a", [0, 1])
    assert proof_of(spark, out).counts.landed == 3 + len(more)


def test_a_batch_with_too_many_rejected_records_is_not_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path / "q", [*map(event, range(8)), b"bad", b""])

    with pytest.raises(Exception, match=r"2 of 10 records rejected, and max_rejected = '10%'"):
        run(spark, tmp_path / "q", tmp_path / "out", max_rejected="10%")
    none = Output.at(tmp_path / "out").batches()
    result = run(spark, tmp_path / "q", tmp_path / "out", max_rejected="20%")

    assert none == []
    assert result.counts == Counts(landed=10, decoded=8, rejected=2)
    assert places(spark, tmp_path / "out", DECODED) == numbered("q", range(8))


@pytest.mark.parametrize(
    ("value", "records", "allowed"),
    [("1%", 200, 2), ("0.5 %", 200, 1), ("100%", 3, 3), ("7", 1000, 7), (7, 1, 7), (0, 9, 0)],
)
def test_a_limit_is_a_share_or_a_number(value: object, records: int, allowed: float) -> None:
    assert Limit.parse("max_rejected", value).allowed(records) == pytest.approx(allowed)


@pytest.mark.parametrize("value", ["", "1.5", "-1", "101%", "many", True, 1.5, None])
def test_what_is_no_limit_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match=r"max_rejected = .*: (must be a share|a number of)"):
        Limit.parse("max_rejected", value)


def test_what_is_read_is_no_part_of_the_digest() -> None:
    one, other = (
        Definition.make(source=source, schema="id INT") for source in ("/a", ["/a", "/b"])
    )

    assert one.digest == other.digest


def test_the_error_has_an_exit_code_of_its_own() -> None:
    from forebay.cli import exits

    assert exits.code_of(TooManyRejected("x")) == exits.REJECTED == 5
