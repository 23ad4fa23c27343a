"""Every kind, policy, state, file and harm: the sum holds, and the cost is what the table says.

Everyday a fifth of the cells is run, another one with each seed (`FOREBAY_SEED`); all of them with
`FOREBAY_SLICES=all`. One case: `python -m tests.harm KIND POLICY STATE FILE HARM`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counting import Count
from tests.harm.cases import run_cell
from tests.harm.cells import SLICES, Cell, all_cells
from tests.harm.harms import NotHere
from tests.harm.known import known_failures
from tests.harm.recipes import POLICIES, RECIPES
from tests.harm.roles import files_by_role, roles_of
from tests.harm.states import STATES, place_of

KNOWN = known_failures()
_ALL = os.environ.get("FOREBAY_SLICES") == "all"
_SLICE = int(os.environ.get("FOREBAY_SEED", "0")) % SLICES
CELLS = [cell for cell in all_cells() if _ALL or cell.slice == _SLICE]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of the queues under test; in memory where the system has such a place."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        shared = tmp_path_factory.mktemp("harm")
    made = Path(tempfile.mkdtemp(prefix="forebay-harm-", dir=shared))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_one_harm_costs_what_the_table_says_and_is_told(
    cell: Cell, root: Path, record_property: Count
) -> None:
    try:
        outcome = run_cell(root, cell)
    except NotHere:
        record_property("harm: empty cells", 1)
        return

    record_property(f"harm: {outcome.row.text}", 1)
    if outcome.faults and cell.id in KNOWN:
        record_property("harm: known failures", 1)
        pytest.xfail(outcome.sorts)
    text = "\n".join([*map(str, outcome.faults), "", *outcome.story])
    assert not outcome.faults, text
    assert cell.id not in KNOWN, f"{cell.id} holds now: take it out of tests/harm/known"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", RECIPES)
def test_every_file_of_a_queue_has_a_role(root: Path, kind: str, policy: str, state: str) -> None:
    place = place_of(root / "made", kind, policy, state)

    assert set(files_by_role(kind, place.queue)) <= set(roles_of(kind))
