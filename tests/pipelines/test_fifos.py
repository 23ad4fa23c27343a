"""Fifos through the ingest: beside logs, popped meanwhile, damaged, rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.pipelines import Counts
from forebay.pipelines.tables import DAMAGE, DECODED, LANDED
from forebay.queues.fifo.queue import Fifo
from tests.pipelines.helpers import append, event, numbered, places, proof_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def opened(path: Path, **options: Any) -> Fifo:
    return Fifo(path, **{"file_bytes": 1000, "sync": "os", "background": False, **options})


def push(fifo: Fifo, count: int, first: int = 0) -> None:
    fifo.push_many([event(number) for number in range(first, first + count)])
    fifo.sync()


def pop(fifo: Fifo, count: int) -> None:
    """Pops entries, and lets the files go that they were in."""
    for _ in range(count):
        fifo.pop()
    fifo._reading._release()


def test_what_was_popped_before_it_could_be_read_counts_as_trimmed(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, queue = tmp_path / "out", tmp_path / "q" / "fifo"
    (tmp_path / "q").mkdir()
    append(tmp_path / "q" / "log", [event(number) for number in range(5)])
    with opened(queue) as fifo:
        push(fifo, 30)
        pop(fifo, 5)
        first = run(spark, f"{tmp_path}/q/*", out)
        push(fifo, 60, first=30)
        pop(fifo, 70)
        second = run(spark, f"{tmp_path}/q/*", out)

    # A tap begins at what is in the queue; those before the first batch count as well.
    assert first.queues[str(queue)] == Counts(landed=25, decoded=25, trimmed=5)
    counts = second.queues[str(queue)]
    assert 20 < counts.trimmed <= 45
    assert counts == Counts(
        landed=60 - counts.trimmed, decoded=60 - counts.trimmed, trimmed=counts.trimmed
    )
    proof = proof_of(spark, out)
    assert [(Path(one.queue).name, one.range) for one in proof.queues] == [("fifo", 90), ("log", 5)]
    landed = [*range(5, 30), *range(30 + counts.trimmed, 90)]
    assert places(spark, out, DECODED) == numbered("fifo", landed) + numbered("log", range(5))


def test_what_is_lent_out_and_what_is_damaged_is_accounted_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with opened(tmp_path / "q") as fifo:
        push(fifo, 60)
        with fifo.take():
            pop(fifo, 4)
            file = sorted((tmp_path / "q").glob("*.tape"))[2]
            data = bytearray(file.read_bytes())
            data[500] ^= 1
            file.write_bytes(data)

            result = run(spark, tmp_path / "q", out)

    assert result.queues == {f"{tmp_path}/q": Counts(landed=59, decoded=59, damaged=1)}
    assert proof_of(spark, out).counts.landed == 59
    assert len(places(spark, out, DAMAGE)) == 1


@pytest.mark.full
def test_tables_of_a_fifo_are_rebuilt_from_what_landed_when_it_is_popped(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with opened(tmp_path / "q") as fifo:
        push(fifo, 40)
        run(spark, tmp_path / "q", out, starting="earliest")
        pop(fifo, 30)

    run(spark, tmp_path / "q", out, sql="SELECT * FROM records WHERE id % 2 = 0", backfill="..")

    assert len(places(spark, out, LANDED)) == 40
    assert places(spark, out, DECODED) == numbered("q", range(0, 40, 2))
    proof_of(spark, out)
