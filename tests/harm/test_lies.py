"""Side files with odd values under right checks: see `tests/harm/lies.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counting import Count
from tests.harm.lies import Lie, all_lies, run_lie, sample
from tests.harm.recipes import RECIPES
from tests.support.campaigns import seconds_of
from tests.support.cases import SEED
from tests.support.memory import scratch

EVERYDAY_COUNT = 80


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """The directory of the queues under test."""
    with scratch("lies") as made:
        yield made


@pytest.mark.parametrize("kind", RECIPES)
def test_whatever_a_side_file_claims_the_queue_goes_on(
    kind: str, root: Path, record_property: Count
) -> None:
    lies = all_lies(root / "made", kind)

    problems = run(root, sample(lies, EVERYDAY_COUNT, SEED), None)

    record_property("side files that lie", EVERYDAY_COUNT)
    assert not problems, "\n".join(problems)


# Each of these once ended a queue of the kind, with a raw error or by never coming to an end.
KEPT: dict[str, dict[str, tuple[str, ...]]] = {
    "fifo": {
        "fifo-tail": (
            "byte 56 = 0000000000000001",
            "byte 60 = 0000000080000000",
            "byte 60 = 0000000100000000",
            "byte 60 = 7fffffffffffffff",
            "byte 68 = 0000000080000000",
            "byte 68 = 0000000100000000",
            "byte 68 = 0100000000000000",
            "byte 68 = 7fffffffffffffff",
            "byte 72 = 0100000000000000",
        ),
        "fifo-head": ("byte 20 = 7fffffffffffffff", "byte 28 = 7fffffffffffffff"),
    },
    "log": {
        "tail": (
            "byte 40 = 0000000000000001",
            "byte 44 = 0000000080000000",
            "byte 44 = 7fffffffffffffff",
            "byte 48 = 0100000000000000",
        ),
    },
    "deadline": {
        "deadline-manifest": ("byte 24 = 7fffffffffffffff", "byte 24 = ffffffffffffffff"),
        "deadline-mark": (
            "byte 84 = 7fffffffffffffff",
            "byte 84 = ffffffffffffffff",
            "byte 124 = 7fffffffffffffff",
            "byte 124 = ffffffffffffffff",
        ),
    },
}


@pytest.mark.parametrize("kind", KEPT)
def test_no_claim_that_once_ended_a_queue_ends_it_again(kind: str, root: Path) -> None:
    kept = KEPT[kind]
    lies = [lie for lie in all_lies(root / "made", kind) if lie.what in kept.get(lie.file, ())]

    problems = run(root, lies, None)

    assert len(lies) >= sum(map(len, kept.values()))
    assert not problems, "\n".join(problems)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("kind", RECIPES)
def test_no_claim_of_a_side_file_ends_a_queue(
    kind: str, root: Path, record_property: Count
) -> None:
    lies = all_lies(root / "made", kind)
    until = time.monotonic() + seconds_of("harm", 2 * len(RECIPES))
    done: list[Lie] = []

    problems = run(root, sample(lies, len(lies), SEED), until, done)

    record_property(f"side files that lie, of a {kind}", f"{len(done):,} of {len(lies):,}")
    assert not problems, "\n".join(problems)


def run(
    root: Path, lies: list[Lie], until: float | None, done: list[Lie] | None = None
) -> list[str]:
    """Runs cases until the time is over; returns what is wrong with them."""
    problems = []
    for lie in lies:
        if until is not None and time.monotonic() > until:
            break
        try:
            run_lie(root, lie)
        except AssertionError as error:
            problems.append(f"{lie}: {error}")
        if done is not None:
            done.append(lie)
    return problems
