"""The sum of two streams over one glob: every record landed once, or its loss was told.

The queues are made, trimmed, removed, made again, empty and damaged while the queries run and are
killed. Without Spark: a query is planned and read as Spark does it, so that thousands of them run.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.counting import Count
from tests.spark.sum.world import Life, Query, World
from tests.support.campaigns import seeds

# In the last one, two queues come and go at a path between two looks of a query.
EVERYDAY_SEEDS = (0, 1, 2, 3, 4, 5, 51)
STEPS = 40
# Enough for the slower one to read all that is there.
LAST_STEPS = 40


def run_story(root: Path, seed: int) -> tuple[World, list[Query]]:
    """Lets queues live and queries read them."""
    world = World(root, random.Random(seed))
    # One holds trimming back, and reads a few records at a time; one only reads.
    queries = [Query(world, consumerId="one", maxOffsetsPerTrigger="25"), Query(world)]
    for _ in range(STEPS):
        world.step()
        world.draw.choice(queries).run(world.draw.randrange(3))
    for query in queries:
        query.run(LAST_STEPS)
        query.kill()
    return world, queries


def check_sum(world: World, query: Query) -> Counter[str]:
    """Checks that each record is there once, or that somebody said that it is not."""
    found: Counter[str] = Counter()
    rows = [row for batch in sorted(query.rows) for row in query.rows[batch]]
    landed = Counter(place_of(world, row) for row in rows if row["damage"] is None)
    twice = [place for place, count in landed.items() if count > 1]
    assert not twice, f"landed twice: {sorted(twice)[:5]}"
    for life in world.lives:
        damage = [row for row in rows if row["damage"] and row["queue_id"] == life.id]
        # What no look has seen of a queue, nobody can miss when it is removed.
        end = query.seen[life.id] if life.removed else life.written
        wanted = range(query.began[life.id], end)
        missing = [offset for offset in wanted if not landed[life.number, offset]]
        found["landed"] += len(wanted) - len(missing)
        if missing:
            found["missing, and told"] += len(missing)
            told = life.number in query.told.lives
            assert told or all(is_covered(offset, damage) for offset in missing), (life, missing)
        elif is_plain(world, life):
            found["queues without loss or alarm"] += 1
            assert life.number not in query.told.lives
            assert not damage
    return found


def place_of(world: World, row: dict[str, Any]) -> tuple[int, int]:
    """Returns whose record a row is; nothing is altered, nothing said of it that is not so."""
    life = world.lives[json.loads(row["value"])["life"]]
    assert row["value"] == life.value(row["offset"])
    assert (row["queue"], row["queue_id"]) == (str(life.path), life.id)
    return life.number, row["offset"]


def is_covered(offset: int, damage: list[dict[str, Any]]) -> bool:
    """Says whether a row of damage tells of a record, or of an unknown number of them."""
    for row in damage:
        first, count = row["offset"], row["damage"]["count"]
        if count is None or first is None or first <= offset < first + count:
            return True
    return False


def is_plain(world: World, life: Life) -> bool:
    """Says whether nothing ever happened to a queue but appends."""
    alone = sum(other.path == life.path for other in world.lives) == 1
    return alone and not life.harmed and not life.removed and not life.trimmed


@pytest.mark.slow
@pytest.mark.parametrize("seed", EVERYDAY_SEEDS)
def test_every_record_lands_once_or_its_loss_is_told(tmp_path: Path, seed: int) -> None:
    world, queries = run_story(tmp_path, seed)

    for query in queries:
        assert check_sum(world, query)["landed"]


@pytest.mark.full
def test_the_sum_holds_over_many_stories(tmp_path: Path, record_property: Count) -> None:
    done: Counter[str] = Counter()
    for seed in seeds("spark", "sum-of-streams", tests=3):
        world, queries = run_story(tmp_path / str(seed), seed)
        for query in queries:
            done += check_sum(world, query)
            done["killed"] += query.kills
            done["losses raised"] += query.losses
        done += world.done
        done["stories"] += 1

    assert done["stories"]
    for what, count in sorted(done.items()):
        record_property(f"sum of two streams, {what}", count)
