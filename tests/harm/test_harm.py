"""Every kind, policy, state, file and harm: the sum holds, and the cost is what the table says.

Everyday a fifth of the cells is run, another one with each of five seeds (`FOREBAY_SEED`). The
campaign, `./test --full harm`, runs all of them, and again with other bytes hit for each seed. One
case: `python -m tests.harm KIND POLICY STATE FILE HARM [SEED]`.
"""

from __future__ import annotations

import collections
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import Closed
from tests.counting import Count
from tests.harm.cases import run_cell
from tests.harm.cells import SLICES, Cell, all_cells
from tests.harm.harms import NotHere
from tests.harm.recipes import RECIPES, Recipe
from tests.harm.roles import files_by_role, roles_of
from tests.harm.states import STATES, place_of
from tests.kinds import POLICIES
from tests.support.campaigns import seeds
from tests.support.memory import scratch

_SLICE = int(os.environ.get("FOREBAY_SEED", "0")) % SLICES
EVERYDAY = [cell for cell in all_cells() if cell.slice == _SLICE]


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """The directory of the queues under test."""
    with scratch("harm") as made:
        yield made


@pytest.mark.parametrize("cell", EVERYDAY, ids=lambda cell: cell.id)
def test_one_harm_costs_what_the_table_says_and_is_told(
    cell: Cell, root: Path, record_property: Count
) -> None:
    try:
        outcome = run_cell(root, cell)
    except NotHere as reason:
        record_property(f"harm: empty cells, {reason}", 1)
        return

    record_property(f"harm: {outcome.row.text}", 1)
    text = "\n".join([*map(str, outcome.faults), "", *outcome.story])
    assert not outcome.faults, text


# A cell and a seed whose bytes lie within the header of a segment, and are more than one.
HEADERS = [
    (Cell("log", "always", "killed", "segment-2", "zero-part"), 1),
    (Cell("log", "interval", "reopened", "segment-2", "zero-part"), 4),
]


@pytest.mark.parametrize(("cell", "seed"), HEADERS, ids=lambda value: getattr(value, "id", None))
def test_more_than_a_byte_of_a_header_costs_its_segment_and_is_told(
    cell: Cell, seed: int, root: Path
) -> None:
    outcome = run_cell(root, cell, seed)

    assert "zero-part, bytes 0 to 32" in outcome.story[0]
    assert not outcome.faults, "\n".join([*map(str, outcome.faults), "", *outcome.story])


# The only tombstones of a log are in the bad batch: an older copy of a lost item comes back.
REVIVED = [
    (Cell("deadline", "always", "reopened", "wal", "flip-middle"), 1),
    (Cell("deadline", "interval", "reopened", "wal", "zero-part"), 1),
]


@pytest.mark.parametrize(("cell", "seed"), REVIVED, ids=lambda value: getattr(value, "id", None))
def test_a_batch_of_copies_with_tombstones_is_not_counted_as_if_it_had_none(
    cell: Cell, seed: int, root: Path
) -> None:
    outcome = run_cell(root, cell, seed)

    assert not outcome.faults, "\n".join([*map(str, outcome.faults), "", *outcome.story])


@pytest.mark.full
@pytest.mark.parametrize("kind", RECIPES)
def test_every_cell_holds_with_every_seed(kind: str, root: Path, record_property: Count) -> None:
    counts: collections.Counter[str] = collections.Counter()
    failed = []
    for seed in seeds("harm", kind, tests=2 * len(RECIPES)):
        counts[f"harm: seeds of all cells of a {kind}"] += 1
        for cell in all_cells():
            if cell.kind != kind:
                continue
            try:
                outcome = run_cell(root, cell, seed)
            except NotHere as reason:
                counts[f"harm: empty cells, {reason}"] += 1
                continue
            counts[f"harm: {outcome.row.text}"] += 1
            if outcome.faults:
                failed.append(f"{cell.id} {seed}: {outcome.faults[0]}")

    for name, number in counts.items():
        record_property(name, number)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", RECIPES)
def test_every_file_of_a_queue_has_a_role(root: Path, kind: str, policy: str, state: str) -> None:
    place = place_of(root / "made", kind, policy, state)

    assert set(files_by_role(kind, place.queue)) <= set(roles_of(kind))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", RECIPES)
def test_an_owner_whose_directory_is_removed_learns_it_at_the_next_sync(
    kind: str, policy: str, tmp_path: Path
) -> None:
    recipe = RECIPES[kind]
    queue = recipe.open_later(tmp_path / "queue", policy)
    recipe.put(queue, [0])
    queue.sync()

    shutil.rmtree(tmp_path / "queue")
    with pytest.raises(FileNotFoundError, match="removed while it was open"):
        _put_durably(recipe, queue)

    with pytest.raises(Closed):
        recipe.put(queue, [2])
    queue.close()


def _put_durably(recipe: Recipe, queue: Any) -> None:
    recipe.put(queue, [1])
    queue.sync()
