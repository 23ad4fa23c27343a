"""One micro-batch: its range, and a failure anywhere, after which each record is there once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.errors import InvalidOption
from forebay.pipelines.ingest import decoding, micro_batches, writing
from forebay.pipelines.ingest.backfill import document_of
from forebay.pipelines.ingest.building import Builder
from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.micro_batches import MicroBatches, batch_offsets
from forebay.pipelines.ingest.output import DECODED, LANDED, LANDED_DDL, Offsets, Output
from forebay.tables.plain import Table
from tests.pipelines.helpers import SCHEMA, event, numbered, places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAMAGED = (
    "path: STRING, position: BIGINT, length: BIGINT, reason: STRING, torn: BOOLEAN, count: BIGINT"
)
# What a batch does, in its order. It is made to fail before the first, and after each of them.
STEPS: list[tuple[Any, str]] = [
    (micro_batches, "places_in"),
    (Builder, "stage"),
    (writing, "remove_others"),
    (Builder, "land"),
    (micro_batches, "batch_offsets"),
    (Builder, "derive"),
    (Table, "append"),
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
    (path / "out").mkdir()
    output.make({**document_of(builder, {}), "generation": 0, "landed_from": 0})
    raw = spark.createDataFrame(rows, f"{LANDED_DDL}, damage STRUCT<{DAMAGED}>")
    checkpoint = make_checkpoint(path / "checkpoint", {str(path / "q"): place(10)})
    return raw, MicroBatches(output, builder, checkpoint, 0, {}, {})


def make_checkpoint(path: Path, *places: dict[str, Any]) -> str:
    """Writes what Spark writes before it runs a batch."""
    (path / "offsets").mkdir(parents=True)
    for number, queues in enumerate(places):
        text = f"v1\n{{}}\n{json.dumps({'v': 1, 'queues': queues})}"
        (path / "offsets" / str(number)).write_text(text)
    return str(path)


def place(offset: int, **more: Any) -> dict[str, Any]:
    return {"id": "ab", "incarnation": 3, "offset": offset, **more}


def test_the_range_of_a_batch_lies_between_two_places() -> None:
    after = {"/q": place(20)}

    assert batch_offsets({}, after, {}) == {"/q": Offsets("ab", 3, 0, 20)}
    assert batch_offsets({}, after, {"/q": 4}) == {"/q": Offsets("ab", 3, 4, 20)}
    assert batch_offsets({"/q": place(10)}, after, {"/q": 4}) == {"/q": Offsets("ab", 3, 10, 20)}


def test_a_queue_that_came_later_begins_at_0_and_one_without_news_is_left_out() -> None:
    after = {"/q": place(10), "/new": place(7, **{"from": 5}), "/again": place(9)}

    assert batch_offsets({"/q": place(10)}, after, {"/again": 3}) == {
        "/new": Offsets("ab", 3, 0, 7),
        "/again": Offsets("ab", 3, 0, 9),
    }


def test_offsets_that_were_given_out_again_begin_where_the_source_says() -> None:
    after = {"/q": place(12, **{"from": 6})}

    assert batch_offsets({"/q": place(10)}, after, {})["/q"] == Offsets("ab", 3, 6, 12)


def test_another_queue_at_the_same_path_begins_at_0() -> None:
    after = {"/q": place(12, **{"from": 6, "id": "cd"})}

    assert batch_offsets({"/q": place(10)}, after, {"/q": 4})["/q"] == Offsets("cd", 3, 0, 12)


def test_a_run_goes_on_where_the_last_one_ended(spark: SparkSession, tmp_path: Path) -> None:
    raw, write = prepare(spark, tmp_path, decode="raw", schema=None)
    path = make_checkpoint(tmp_path / "next", {"/q": place(5)}, {"/r": place(7)})
    gone = {"/gone": place(3, gone=True)}
    later = replace(write, checkpoint=path, first=4, places={"/q": place(2), **gone})

    later(raw, 0)
    later(raw, 1)

    first, second = later.output.manifests()
    assert (first.batch, second.batch) == (4, 5)
    offsets = [first.queues["/q"].offsets, second.queues["/r"].offsets]
    assert [(one.start, one.end) for one in offsets] == [(2, 5), (0, 7)]
    assert second.places == {"/q": place(5), "/r": place(7), **gone}


def test_a_failure_before_or_after_any_step_costs_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, write = prepare(spark, tmp_path, decode="raw", schema=None)
    outcomes = []

    for number, (owner, name) in enumerate([STEPS[0], *STEPS]):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing(getattr(owner, name), at_once=number == 0))
            write.output.clean()
            outcomes.append(outcome_of(write, raw))
    write.output.clean()

    # When the first table is committed the next run finishes the batch; before, it is done again.
    assert outcomes == ["failed"] * (len(STEPS) + 1)
    assert places(spark, tmp_path / "out", LANDED) == numbered("q", range(10))
    assert places(spark, tmp_path / "out", DECODED) == numbered("q", range(10))
    there = {path.parent.parent.name for path in (tmp_path / "out").rglob("batch=0*/*.parquet")}
    assert there == {LANDED, DECODED}


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

    share = write.output.manifest(0).queues[str(tmp_path / "q")]
    assert share.offsets == Offsets("ab", 3, 0, 10)
    assert share.counts.decoded == 10
    assert (share.first_ms, share.last_ms) == (None, None)
