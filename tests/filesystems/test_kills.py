"""`kill -9` on each file system: what was acknowledged is there, as it was, and nothing else.

A child puts, and is killed at a random moment; its directory is opened again, emptied and gone on
with.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.counting import Count
from tests.kinds import KINDS, POLICIES, Kind
from tests.support.campaigns import seeds
from tests.support.killing import Tell, kill_a_writer
from tests.support.mounts import KINDS as FILE_SYSTEMS
from tests.support.values import value_at

KILLS_EACH = 4
SMALL: dict[str, dict[str, Any]] = {
    "log": {"segment_bytes": 40_000, "staging_bytes": 16_384, "trim_interval_seconds": None},
    "beats": {"segment_bytes": 40_000},
    "fifo": {"file_bytes": 40_000, "staging_bytes": 16_384},
    "deadline": {"segment_items": 300, "staging_bytes": 16_384},
}


def write(tell: Tell, open_queue: Callable[[], Any], kind: Kind, begun: int, seed: int) -> None:
    """Puts singly and in batches; tells after each how many were acknowledged in all."""
    draw = random.Random(seed)
    queue, end = open_queue(), begun
    while True:
        if draw.random() < 0.9:
            kind.put(queue, value_at(end))
            end += 1
        else:
            count = draw.randrange(1, 40)
            kind.put_many(queue, [value_at(end + number) for number in range(count)])
            end += count
        tell(end)


def check_kills(path: Path, name: str, sync: str, first_seed: int) -> None:
    """Kills writers of a queue, and looks after each kill for what was acknowledged."""
    kind = KINDS[name]
    open_queue = partial(kind.queue, path / "q", sync=sync, **SMALL[name])
    draw = random.Random(f"{name} {sync} {first_seed}")
    begun = 0
    for seed in range(first_seed, first_seed + KILLS_EACH):
        writer = partial(write, open_queue=open_queue, kind=kind, begun=begun, seed=seed)
        end = kill_a_writer(writer, seconds=draw.uniform(0, 0.05))
        with open_queue() as queue:
            found = kind.drain(queue)
            told = getattr(queue, "damage", [])

        assert [damage for damage in told if not damage.torn] == []
        assert len(found) >= end - begun, (name, sync, seed, len(found), end)
        expected = [value_at(begun + number) for number in range(len(found))]
        assert sorted(found) == sorted(expected)
        assert found == expected or not kind.ordered
        begun += len(found)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("sync", POLICIES)
@pytest.mark.parametrize("name", KINDS)
def test_a_kill_on_any_file_system_loses_nothing_acknowledged(
    disk: Path, name: str, sync: str, record_property: Count
) -> None:
    check_kills(disk, name, sync, 0)

    record_property("kills", KILLS_EACH)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.crash
def test_kills_on_a_file_system_lose_nothing_however_many_there_are(
    disk: Path, request: pytest.FixtureRequest, record_property: Count
) -> None:
    mounted = request.node.callspec.params["disk"]
    cases = list(itertools.product(KINDS, POLICIES))
    kills = 0

    for seed in seeds("filesystems", mounted, tests=len(FILE_SYSTEMS)):
        name, sync = cases[seed % len(cases)]
        with tempfile.TemporaryDirectory(dir=disk) as folder:
            check_kills(Path(folder), name, sync, seed)
        kills += KILLS_EACH

    record_property("kills", kills)
