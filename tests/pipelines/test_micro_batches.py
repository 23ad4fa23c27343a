"""One micro-batch: a failure anywhere, then the same batch again, gives each record once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.errors import InvalidOption
from forebay.pipelines.ingest import checkpoint, decoding
from forebay.pipelines.ingest import checkpoint as micro_batches
from forebay.pipelines.ingest.building import Builder
from forebay.pipelines.ingest.checkpoint import MicroBatches
from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.output import (
    COLUMNS_ONLY,
    DECODED,
    LANDED,
    LANDED_DDL,
    Offsets,
    Output,
)
from tests.pipelines.helpers import SCHEMA, event, numbered, places
from tests.pipelines.test_checkpoint import make_checkpoint, place, write_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAMAGED = (
    "path: STRING, position: BIGINT, length: BIGINT, reason: STRING, torn: BOOLEAN, count: BIGINT"
)
# What a batch does, in its order. It is made to fail before the first, and after each of them.
STEPS: list[tuple[Any, str]] = [
    (checkpoint, "make_durable"),
    (checkpoint, "batch_offsets"),
    (Output, "stage"),
    (Builder, "land"),
    (Builder, "derive"),
    (micro_batches, "write_file"),
    (Output, "_link"),
    (Output, "_move_to_pool"),
    (Output, "publish"),
]


class Failure(Exception):
    """What a step is made to raise."""


def failing(real: Any, *, at_once: bool) -> Any:
    """Returns a step that fails before or after its effect."""

    def step(*arguments: Any, **rest: Any) -> None:
        if not at_once:
            real(*arguments, **rest)
        raise Failure

    return step


def prepare(spark: SparkSession, path: Path, **options: Any) -> tuple[DataFrame, MicroBatches]:
    """Makes ten records, one of them bad, and an output that has yet to take them."""
    rows = [
        (str(path / "q"), "log", number, None, bytearray(value), "segment", 0, "ab", None)
        for number, value in enumerate([*map(event, range(9)), b"bad"])
    ]
    definition = Definition.make(**{"source": path / "q", "schema": SCHEMA, **options})
    builder = Builder(definition, decoding.check_columns(spark, definition).json())
    output = Output.at(path / "out")
    output.make({"definition": definition.document()}, output.stage(COLUMNS_ONLY))
    write_offsets(
        make_checkpoint(path / "out" / "_checkpoint", 0, 0), 0, {str(path / "q"): place(10)}
    )
    raw = spark.createDataFrame(rows, f"{LANDED_DDL}, damage STRUCT<{DAMAGED}>")
    return raw, MicroBatches(output, builder, {})


def test_a_failure_before_or_after_any_step_costs_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, write = prepare(spark, tmp_path, decode="raw", schema=None)
    outcomes = []

    for number, (owner, name) in enumerate([STEPS[0], *STEPS]):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing(getattr(owner, name), at_once=number == 0))
            outcomes.append(outcome_of(write, raw))
    write.output.clean()
    write(raw, 0)

    # When the rename is done the batch is there, whatever comes after it, and is skipped.
    assert outcomes == ["failed"] * len(STEPS) + ["skipped"]
    assert places(spark, tmp_path / "out", LANDED) == numbered("q", range(10))
    assert places(spark, tmp_path / "out", DECODED) == numbered("q", range(10))
    assert len(os.listdir(tmp_path / "out" / "_batches")) == 2


def outcome_of(write: MicroBatches, raw: DataFrame) -> str:
    try:
        write(raw, 0)
    except Failure:
        return "failed"
    return "skipped"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT *, explode(array(1, 2)) AS copy FROM records", "returns 18 rows for 9 records"),
        # Some records not at all, and as many others twice.
        (
            "SELECT *, explode(array_repeat(1, INT(2 - id % 2))) FROM records WHERE id < 6",
            "returns 9 rows for 6 records",
        ),
        # Fewer rows than records, one of them twice.
        (
            "SELECT *, explode(array(1, 2)) AS copy FROM records WHERE id = 0",
            "returns 2 rows for 1 records",
        ),
        # As many rows as records, one of them of no record.
        ("SELECT queue, offset + 2 AS offset, timestamp, id FROM records", "returns 9 rows for 7"),
    ],
)
def test_an_sql_that_makes_several_rows_of_a_record_is_refused(
    spark: SparkSession, tmp_path: Path, sql: str, message: str
) -> None:
    raw, write = prepare(spark, tmp_path, sql=sql)

    with pytest.raises(InvalidOption, match=message):
        write(raw, 0)

    assert not write.output.has(0)


def test_a_batch_says_what_it_covers(spark: SparkSession, tmp_path: Path) -> None:
    raw, write = prepare(spark, tmp_path, decode="raw", schema=None)

    write(raw, 0)

    (directory,) = write.output.current().batches().values()
    document = json.loads(Path(directory, "manifest.json").read_text())
    share = document["queues"][str(tmp_path / "q")]
    assert Offsets(**share["offsets"]) == Offsets("ab", 3, 0, 10)
    assert share["counts"]["decoded"] == 10
    assert (share["first_ms"], share["last_ms"]) == (None, None)
