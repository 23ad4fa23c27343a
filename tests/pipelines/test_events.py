"""Beats queues through the ingest: beside logs, damaged, encrypted, rebuilt, gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.pipelines import Counts, reconcile
from forebay.pipelines.ingest.output import DAMAGE, DECODED, LANDED, REJECTED
from forebay.queues.beats.place import offset_of
from tests.pipelines.helpers import append, event, places, proof_of, run
from tests.queues.beats_helpers import (
    PER_SEGMENT,
    copy_golden,
    leave_segment,
    make_key,
    numbered,
    open_queue,
)
from tests.spark.cursors import wait_for_cursors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = "fields STRUCT<message: STRING>, timestamp_ns BIGINT, flags INT, meta STRING"


def fill(path: Path, count: int, first: int = 0, **options: Any) -> None:
    with open_queue(path, **options) as queue:
        queue.put_many(numbered(count, first))


def messages(spark: SparkSession, out: Path) -> list[int]:
    rows = spark.read.parquet(f"{out}/{DECODED}").select("fields.message").collect()
    return sorted(int(message) for (message,) in rows)


def test_logs_and_event_queues_land_in_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    fill(tmp_path / "q" / "agents", 25, version="v3-seed")
    append(tmp_path / "q" / "doors", [event(number) for number in range(5)])
    options = {"key_file": str(make_key(tmp_path / "q")), "consumer_id": "tables"}

    schema = f"id BIGINT, name STRING, {FIELDS}"
    source, out = f"{tmp_path}/q/*", tmp_path / "out"
    run(spark, source, out, schema=schema, max_offsets_per_trigger=20, **options)
    fill(tmp_path / "q" / "agents", 4, first=25, version="v3-seed")
    wait_for_cursors(source, "tables")
    second = run(spark, source, out, schema=schema, **options)

    assert second.queues == {f"{tmp_path}/q/agents": Counts(landed=4, decoded=4)}
    proof = proof_of(spark, out)
    assert [(Path(one.queue).name, one.range) for one in proof.queues] == [
        ("agents", 29),
        ("doors", 5),
    ]
    assert len(places(spark, out, DECODED)) == 34
    assert not (tmp_path / "q" / "agents" / "cursors").exists()


def test_damage_and_frames_that_are_no_event_are_accounted_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path / "q", 30, version="v1")
    file = tmp_path / "q" / "1.seg"
    data = bytearray(file.read_bytes())
    data[150] ^= 1
    file.write_bytes(data)
    (tmp_path / "q" / "2.seg").write_bytes(b"not a segment at all")

    result = run(spark, tmp_path / "q", tmp_path / "out", schema=FIELDS)

    # One event has the flipped byte; the queue knows how many were in the segment.
    damaged = 1 + PER_SEGMENT
    left = 30 - damaged
    counts = Counts(landed=left, decoded=left, damaged=damaged)
    assert result.queues == {f"{tmp_path}/q": counts}
    proof = proof_of(spark, tmp_path / "out")
    assert [one.counts for one in proof.queues] == [counts]
    assert len(places(spark, tmp_path / "out", DAMAGE)) == 2


@pytest.mark.full
def test_what_went_before_it_could_be_counted_is_never_proven(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(3):
        first = 5 * number
        leave_segment(tmp_path / "q", number, "v1", numbered(5, first), count=5)
    out = tmp_path / "out"
    run(spark, tmp_path / "q", out, schema=FIELDS)
    assert messages(spark, out) == list(range(15))
    for number in range(3):
        (tmp_path / "q" / f"{number}.seg").unlink()
    leave_segment(tmp_path / "q", 4, "v1", numbered(5, 20), count=5)

    run(spark, tmp_path / "q", out, schema=FIELDS, fail_on_data_loss=False)

    # Segment 3 may have been there, and nobody can tell what was in it.
    assert messages(spark, out) == [*range(15), *range(20, 25)]
    (proof,) = reconcile(out, spark=spark).queues
    gap = f"offsets {offset_of(2, 5)}..{offset_of(4, 0)} are in no batch; batch 1 follows"
    assert (proof.range, proof.problems) == (20, (gap,))


@pytest.mark.full
def test_a_directory_of_beats_is_rebuilt_by_backfill(spark: SparkSession, tmp_path: Path) -> None:
    path = copy_golden("v1-mid", tmp_path / "q")
    schema = "fields STRUCT<seq: INT>, timestamp_ns BIGINT, flags INT, meta STRING"
    out = tmp_path / "out"
    run(spark, path, out, schema=schema)
    before = places(spark, out, LANDED)

    sql = "SELECT * FROM records WHERE fields.seq % 2 = 0"
    run(spark, path, out, schema=schema, sql=sql, backfill="..")

    assert places(spark, out, LANDED) == before
    assert len(before) == 3633
    counts = proof_of(spark, out).counts
    assert (counts.landed, counts.decoded + counts.filtered) == (3633, 3633)
    assert places(spark, out, REJECTED) == []
