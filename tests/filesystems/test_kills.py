"""`kill -9` on each file system: what was acknowledged is there, as it was, and nothing else.

A child puts, takes away and tells through a pipe what was acknowledged; it is killed at a random
moment, and its directory is opened again and gone on with.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay import BeatsQueue, DeadlineQueue, Event, Fifo, Log
from tests.counting import Count
from tests.crash.test_kills import kill_a_writer, value_at
from tests.queues.helpers import SYNCS

KILLS_EACH = 4
SMALL: dict[str, dict[str, Any]] = {
    "log": {"segment_bytes": 40_000, "staging_bytes": 16_384, "trim_interval_seconds": None},
    "events": {"segment_bytes": 40_000},
    "fifo": {"file_bytes": 40_000, "staging_bytes": 16_384},
    "deadline": {"segment_items": 300, "staging_bytes": 16_384},
}
OPEN: dict[str, Callable[..., Any]] = {
    "log": Log,
    "events": BeatsQueue,
    "fifo": Fifo,
    "deadline": DeadlineQueue,
}

PUT = {
    "log": ("append", "append_many"),
    "fifo": ("push", "push_many"),
    "deadline": ("enqueue", "enqueue_many"),
}


def put(kind: str, queue: Any, values: list[bytes]) -> None:
    if kind == "events":
        queue.put_many([Event(1, 0, {}, {"value": value}) for value in values])
        return
    one, many = PUT[kind]
    if len(values) == 1:
        getattr(queue, one)(values[0])
    else:
        getattr(queue, many)(values)


def held(kind: str, queue: Any) -> list[bytes]:
    """Returns all that is there, oldest first; a queue that gives things out loses them by it."""
    if kind == "log":
        return [record.value for record in queue.consumer("check")]
    if kind == "events":
        found: list[bytes] = []
        while batch := queue.read(1000):
            found += [event.fields["value"] for event in batch]
        return found
    if kind == "fifo":
        return list(queue.pop_many(1_000_000))
    items = queue.dequeue_many(1_000_000)
    return [item.value for item in sorted(items, key=lambda item: item.id)]


def write(path: Path, pipe: int, seed: int, options: dict[str, Any]) -> None:
    """Puts singly and in batches; tells after each how many were acknowledged in all."""
    draw = random.Random(seed)
    kind, end = options["kind"], options["begun"]
    queue = OPEN[kind](path, sync=options["sync"], **SMALL[kind])
    while True:
        count = 1 if draw.random() < 0.9 else draw.randrange(1, 40)
        put(kind, queue, [value_at(end + number) for number in range(count)])
        end += count
        os.write(pipe, end.to_bytes(8, "big"))


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", OPEN)
def test_a_kill_on_any_file_system_loses_nothing_acknowledged(
    disk: Path, kind: str, sync: str, record_property: Count
) -> None:
    draw = random.Random(f"{kind} {sync}")
    begun = 0
    for seed in range(KILLS_EACH):
        options = {"kind": kind, "sync": sync, "begun": begun}
        end = kill_a_writer(write, disk / "q", seed, draw.uniform(0, 0.05), options)
        with OPEN[kind](disk / "q", sync=sync, **SMALL[kind]) as queue:
            found = held(kind, queue)
            told = getattr(queue, "damage", [])

        first = 0 if kind == "log" else begun
        assert [damage for damage in told if not damage.torn] == []
        assert len(found) >= end - first, (seed, len(found), end)
        assert found == [value_at(first + number) for number in range(len(found))]
        begun = first + len(found)
        if kind in ("events", "deadline"):
            # Given out, and not acknowledged: it would come again.
            (disk / "q").rename(disk / f"q{seed}")
            begun = 0

    record_property("kills", KILLS_EACH)
