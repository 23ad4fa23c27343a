"""The power is cut at every point of a handing in and of an adoption: each batch once and whole."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.storage import inbox
from tests.conformance.kinds import KINDS
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handing_in import write_parts
from tests.queues.helpers import FakeClock, numbered

ADOPTING = ["log", "fifo", "deadline"]
DUE = (1_000).to_bytes(8, "big")
OWN, BATCH = numbered(2, size=20), numbered(3, size=20, first=50)
WRITERS = ["w", "once:w"]


def open_queue(machine: ForgetfulFilesystem, kind: str) -> Any:
    options = {**KINDS[kind].small, "background": False}
    return KINDS[kind].queue("/q", filesystem=machine, **options)


def hand_in(machine: ForgetfulFilesystem, kind: str, writer: str) -> None:
    """Leaves a batch of two parts, and acknowledges it."""
    prefix = DUE if kind == "deadline" else b""
    queue = machine.open_directory("/q")
    rows = [prefix + value for value in BATCH]
    parts = write_parts(machine, FakeClock(), queue, "m", [rows[:1], rows[1:]])
    inbox.publish(queue, "m", inbox.Manifest(writer, 1, parts, kind))
    machine.acknowledge("handed in")
    queue.close()


def look(machine: ForgetfulFilesystem, kind: str) -> tuple[list[bytes], list[str]]:
    """Opens the queue; returns what it holds, and what it has put aside."""
    with open_queue(machine, kind) as queue:
        held = sorted(KINDS[kind].drain(queue))
    aside = [path for path in machine.files() if path.startswith("/q/quarantine/")]
    return held, aside


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ADOPTING)
def test_a_batch_is_taken_once_and_whole_wherever_the_power_is_cut(kind: str, writer: str) -> None:
    machine = ForgetfulFilesystem(seed=1)
    queue = open_queue(machine, kind)
    KINDS[kind].put_many(queue, OWN)
    machine.acknowledge("own")
    since = machine.operations
    hand_in(machine, kind, writer)
    assert queue.adopt() == len(BATCH)
    machine.acknowledge("adopted")
    queue.close()

    seen = 0
    for state in machine.crash_states(4, since=since, garbage=False):
        held, aside = look(state.restore(), kind)
        seen += 1
        assert aside == [], state
        if "handed in" in machine.acknowledgements[: state.acknowledged]:
            assert held == sorted([*OWN, *BATCH]), state
        else:
            assert held in (sorted(OWN), sorted([*OWN, *BATCH])), state
    assert seen > 20
