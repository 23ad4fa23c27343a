"""The power goes between a micro-batch and the restart of the stream: it loses and skips nothing.

The owner writes under `sync="os"`, so the power cut takes records, and their offsets are given out
again. The stream has read only what was durable. Where a disk had lied about that, the stream says
so.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

import forebay
from forebay.errors import DataLoss
from forebay.queues.log.queue import Log
from tests.counting import Count
from tests.crash.forgetful import CrashState
from tests.queues.helpers import SEGMENT_BYTES
from tests.spark.once.checking import check_once
from tests.spark.once.engine import Engine
from tests.spark.once.machine import Machine
from tests.support.values import numbered

FULL = os.environ.get("FOREBAY_FULL") == "1"
# How many choices of what survives, at each operation of the disk.
CHOICES = 12 if FULL else 3
# The rounds in which full segments are synced in the background, and in which a batch is planned
# but not read when the power goes.
MAINTAINED = (3,)
PLANNED = (2, 5)


@dataclass(frozen=True, slots=True)
class Rest:
    """The query between two micro-batches, and the operations of the disk meanwhile."""

    query: Engine
    since: int
    until: int


def write_and_read(machine: Machine) -> list[Rest]:
    """Lets an owner write in all ways there are, and a stream read after each of them."""
    query = Engine(machine.path)
    rests: list[Rest] = []
    with machine.owner(sync="os") as log:
        for number, synced in enumerate([True, False, True, True, False, True]):
            log.append_many(numbered(5, first=100 * number))
            if synced:
                log.sync()
            for value in numbered(9, first=100 * number + 50):
                log.append(value)
            if number in MAINTAINED:
                log.maintain()
            machine.show()
            query.run()
            if number in PLANNED:
                log.append_many(numbered(3, first=100 * number + 80))
                log.sync()
                machine.show()
                query.plan()
            query.kill()
            rests.append(Rest(copy.deepcopy(query), machine.disk.operations, 0))
    ends = [rest.since for rest in rests[1:]] + [machine.disk.operations]
    return [Rest(rest.query, rest.since, end) for rest, end in zip(rests, ends, strict=True)]


def restart(
    machine: Machine, rest: Rest, states: Iterable[CrashState], outcomes: Counter[str]
) -> None:
    """Starts the machine with each of what a power cut may leave, and goes on with the stream."""
    for number, state in enumerate(states):
        machine.restart(state.files())
        query = copy.deepcopy(rest.query)
        try:
            if number % 2:
                # It may come up before the owner, who alone can bring the queue into order.
                query.run()
                query.kill()
            left = give_offsets_out_again(machine.path)
            query.run()
        except DataLoss:
            assert not is_left(rest.query, values_in(machine.path)), state
            outcomes["detected"] += 1
        else:
            assert is_left(rest.query, left), state
            check_once(query.rows(), {str(machine.path): values_in(machine.path)})
            outcomes["nothing lost"] += 1
        finally:
            query.kill()


def give_offsets_out_again(path: Path) -> list[bytes]:
    """Opens the queue and appends; gives the records that the power cut had left."""
    with Log(path, sync="os", segment_bytes=SEGMENT_BYTES, background=False) as log:
        left = values_in(path)
        log.append_many(numbered(80, first=5_000))
    return left


def values_in(path: Path) -> list[bytes]:
    with forebay.read(path, kind="log") as reader:
        return list(reader.values())


def is_left(query: Engine, left: list[bytes]) -> bool:
    """Says whether all that a query has read or planned to read is among the records."""
    values = [value for _, _, value in query.rows()]
    return values == left[: len(values)] and len(left) >= query.offset


@pytest.mark.slow
def test_a_power_cut_takes_nothing_that_the_stream_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Count
) -> None:
    machine = Machine(tmp_path / "q", monkeypatch)
    outcomes: Counter[str] = Counter()

    for rest in write_and_read(machine):
        restart(machine, rest, machine.crashes(rest.since, rest.until, limit=CHOICES), outcomes)

    assert set(outcomes) == {"nothing lost"}
    record_property("power cuts between two micro-batches", outcomes.total())


@pytest.mark.slow
def test_a_disk_that_lied_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Count
) -> None:
    machine = Machine(tmp_path / "q", monkeypatch)
    outcomes: Counter[str] = Counter()

    first, *_, last = write_and_read(machine)
    # It has forgotten more than it may: it is as it was before the stream read.
    restart(machine, last, machine.crashes(first.since, last.since - 1, limit=1), outcomes)

    assert set(outcomes) == {"nothing lost", "detected"}
    record_property("losses by a lying disk detected", outcomes["detected"])
