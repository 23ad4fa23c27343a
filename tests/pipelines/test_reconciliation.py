"""Tests of the proof: whatever is wrong with the tables, it is found and named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.pipelines import reconcile
from forebay.pipelines.ingest.output import Intent, Manifest
from forebay.tables.protocol import DataFile
from tests.pipelines.conftest import Made
from tests.pipelines.helpers import append, event, proof_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lose_a_table(out: Path) -> None:
    shutil.rmtree(out / "decoded" / "batch=1")


def double_a_table(out: Path) -> None:
    table = out / "decoded" / "batch=0"
    for file in list(table.iterdir()):
        shutil.copy(file, table / f"again-{file.name}")


def lose_what_landed(out: Path) -> None:
    shutil.rmtree(out / "landed" / "batch=1")


def lose_the_first_batch(out: Path) -> None:
    (out / "_batches" / "0.json").unlink()


def lose_the_last_batch(out: Path) -> None:
    (out / "_batches" / "1.json").unlink()


def move_rows_to_another_batch(out: Path) -> None:
    for file in (out / "landed" / "batch=0").iterdir():
        file.rename(out / "landed" / "batch=1" / file.name)


def change_a_count(out: Path) -> None:
    path = out / "_batches" / "1.json"
    path.write_text(path.read_text().replace('"filtered": 1', '"filtered": 2'))


def test_tables_that_add_up_are_proven(spark: SparkSession, made: Made) -> None:
    found = reconcile(made.out, spark=spark)

    assert found.proven
    assert (found.batches, found.older) == (2, 0)
    assert found.counts == made.result.counts
    assert [(proof.start, proof.end, proof.range) for proof in found.queues] == [(0, 6, 6)] * 2


def test_a_queue_that_was_removed_and_made_again_is_proven_by_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path / "a", [event(number) for number in range(5)])
    run(spark, tmp_path / "?", tmp_path / "out")
    shutil.rmtree(tmp_path / "a")
    append(tmp_path / "b", [event(0)])
    run(spark, tmp_path / "?", tmp_path / "out")
    append(tmp_path / "a", [event(number) for number in range(3)])
    run(spark, tmp_path / "?", tmp_path / "out")

    found = proof_of(spark, tmp_path / "out")
    landed = spark.read.parquet(f"{tmp_path}/out/landed").select("queue_id", "offset").collect()

    assert [(Path(proof.queue).name, proof.range) for proof in found.queues] == [
        ("a", 5),
        ("a", 3),
        ("b", 1),
    ]
    ids = [proof.id for proof in found.queues]
    assert sorted(landed) == sorted(
        (name, offset)
        for name, count in zip(ids, (5, 3, 1), strict=True)
        for offset in range(count)
    )
    assert len(set(ids)) == 3


def test_a_batch_that_is_being_committed_is_no_problem(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    out = made.copy(tmp_path / "out")
    manifest = out / "_batches" / "1.json"
    files: dict[str, dict[int, list[DataFile]]] = {"landed": {}}
    intent = Intent((Manifest.decode(manifest.read_bytes()),), files)
    (out / "_intent.json").write_bytes(intent.encode())
    manifest.unlink()

    assert proof_of(spark, out).batches == 1


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lose_a_table, "batch 1: its manifest has 3 decoded, the tables 0"),
        (double_a_table, "2 offsets, starting with 1, are in: landed 1×, decoded 2×"),
        (lose_what_landed, "batch 1: of 3..6 3 are missing"),
        (lose_the_first_batch, "offsets 0..3 are in no batch; batch 1 follows"),
        (lose_the_first_batch, "batch 0 is missing"),
        (lose_the_last_batch, "batch 1 has rows in the tables, but no manifest"),
        (move_rows_to_another_batch, "landed 0 to 5, which is outside 3..6"),
        (change_a_count, "batch 1: its manifest has 2 filtered, the tables 1"),
    ],
)
def test_what_does_not_add_up_is_named(
    spark: SparkSession, made: Made, tmp_path: Path, spoil: Callable[[Path], None], problem: str
) -> None:
    out = made.copy(tmp_path / "out")
    spoil(out)

    found = reconcile(out, spark=spark)

    assert not found.proven
    lines = [*found.problems, *(line for proof in found.queues for line in proof.problems)]
    assert any(problem in line for line in lines), lines
