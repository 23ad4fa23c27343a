"""Spark over many harmed queues in one glob: what it gives out and tells is what was there.

The cells are those of the harm matrix (`tests/harm`), copied side by side below one root, with a
copy of each queue that nobody harmed. One query reads all of them; another one tells the damage.
"""

from __future__ import annotations

import collections
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.damage import Damage
from tests.counting import Count
from tests.harm.cases import Case
from tests.harm.cells import SLICES, Cell, all_cells
from tests.harm.harms import HARMS, NotHere
from tests.harm.judging import Fault, judge_look
from tests.harm.recipes import Seen
from tests.harm.states import copy_queue
from tests.harm.values import marks_in
from tests.support.campaigns import seeds
from tests.support.memory import scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERYDAY_CELLS = 60
BATCH_CELLS = 600
_SEED = int(os.environ.get("FOREBAY_SEED", "0"))
# Without those where the system answers badly only in this process, or the owner lives.
CELLS = [cell for cell in all_cells() if cell.state != "alive" and HARMS[cell.harm].failing is None]


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """The directory of the queues that are copied and harmed."""
    with scratch("spark-harm") as path:
        yield path


def test_one_query_over_many_harmed_queues_gives_out_or_tells_all(
    spark: SparkSession, made: Path, record_property: Count
) -> None:
    cells = [cell for cell in CELLS if cell.slice == _SEED % SLICES]

    count, faults = look(spark, made, cells[:: len(cells) // EVERYDAY_CELLS], _SEED)

    assert count >= EVERYDAY_CELLS / 3
    assert not faults, "\n".join(faults)
    record_property("harmed queues in one query of Spark", count)


@pytest.mark.full
def test_queries_over_all_harmed_queues_give_out_or_tell_all(
    spark: SparkSession, made: Path, record_property: Count
) -> None:
    total, failed = 0, []
    for seed in seeds("spark", "harm", tests=4):
        for cells in _batches():
            count, faults = look(spark, made, cells, seed)
            total += count
            failed += faults

    assert not failed, "\n".join(failed)
    record_property("harmed queues in queries of Spark", total)


def _batches() -> Iterator[list[Cell]]:
    for first in range(0, len(CELLS), BATCH_CELLS):
        yield CELLS[first : first + BATCH_CELLS]


def look(spark: SparkSession, made: Path, cells: list[Cell], seed: int) -> tuple[int, list[str]]:
    """Harms the cells' queues, reads all of them; returns how many, and what does not hold."""
    root = Path(tempfile.mkdtemp(dir=made))
    cases: dict[str, Case] = {}
    try:
        for number, cell in enumerate(cells):
            try:
                case = Case(made / "queues", cell, root / f"case-{number}", seed)
                case.queue.parent.mkdir()
                case.harm()
            except NotHere:
                shutil.rmtree(root / f"case-{number}", ignore_errors=True)
                continue
            cases[str(case.queue)] = case
            whole = root / f"whole-{cell.kind}-{cell.policy}-{cell.state}" / "queue"
            if not whole.exists():
                copy_queue(case.place.queue, whole)
        return len(cases), _judge(spark, root, cases)
    finally:
        shutil.rmtree(root)


def _judge(spark: SparkSession, root: Path, cases: dict[str, Case]) -> list[str]:
    rows = _read(spark, root, columns="queue,offset,value,damage")
    told = _read(spark, root, table="damage")
    faults = [
        f"{queue} was not harmed: {told[queue]}"
        for queue in rows
        if "/whole-" in queue and _losses(told[queue])
    ]
    for queue, case in cases.items():
        cell = case.cell
        whole = rows[str(root / f"whole-{cell.kind}-{cell.policy}-{cell.state}" / "queue")]
        expected = _seen("whole", whole).given
        assert set(expected) >= set(case.place.truth.there)
        among = _seen("spark", rows[queue])
        among.told = [_damage(row["damage"]) for row in rows[queue] if row["damage"] is not None]
        table = Seen("spark", among.given, [_damage(row) for row in told[queue]])
        for seen in (among, table):
            found = judge_look(seen, expected, case.place.truth, case.bounds)
            faults += [f"{cell.id}: {fault}" for fault in found if _counts(cell, fault)]
    return faults


def _counts(cell: Cell, fault: Fault) -> bool:
    """Says whether a fault is one here.

    A task that reads a part of a deadline queue does not know what has left it: of a damaged block
    it tells how many entries were in it, and where tombstones are lost, items come again. Where the
    files do not fit each other it tells that of the whole queue.
    """
    return cell.kind != "deadline" or fault.sort in ("silent", "altered", "order")


def _read(spark: SparkSession, root: Path, **options: str) -> dict[str, list[Any]]:
    """Reads all queues below a root at once; returns the rows of each."""
    reader = spark.read.format("forebay").options(mode="PERMISSIVE", **options)
    found: dict[str, list[Any]] = collections.defaultdict(list)
    for row in reader.load(f"{root}/*/queue").collect():
        found[row["queue"]].append(row)
    return found


def _seen(what: str, rows: list[Any]) -> Seen:
    """Returns the values of rows: events have theirs within their fields."""
    seen = Seen(what)
    for row in rows:
        value = row["value"]
        if value is None:
            continue
        data = bytes(value)
        for _, first, last in marks_in(data) or [(0, 0, len(data))]:
            seen.add(data[first:last])
    return seen


def _losses(rows: list[Any]) -> list[Any]:
    return [row for row in rows if not row["torn"]]


def _damage(row: Any) -> Damage:
    fields = row.asDict()
    path = fields.get("path") or fields.get("segment") or ""
    return Damage(
        f"{fields.get('queue', '')}/{path}",
        fields["position"] or 0,
        fields["length"] or 0,
        fields["reason"],
        bool(fields["torn"]),
        count=fields["count"],
    )
