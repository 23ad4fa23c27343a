"""The power is cut at every point of a handing in and of an adoption: each batch once and whole."""

from __future__ import annotations

import pytest

from forebay.queues.log.queue import Log
from forebay.storage import inbox
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handing_in import write_parts
from tests.queues.helpers import FakeClock, numbered, values_of

OWN, BATCH = numbered(2, size=20), numbered(3, size=20, first=50)
WRITERS = ["w", "once:w"]


def open_log(machine: ForgetfulFilesystem) -> Log:
    return Log("/q", filesystem=machine, segment_bytes=1000, background=False)


def hand_in(machine: ForgetfulFilesystem, writer: str) -> None:
    """Leaves a batch of two parts, and acknowledges it."""
    queue = machine.open_directory("/q")
    parts = write_parts(machine, FakeClock(), queue, "m", [BATCH[:1], BATCH[1:]])
    inbox.publish(queue, "m", inbox.Manifest(writer, 1, parts))
    machine.acknowledge("handed in")
    queue.close()


def look(machine: ForgetfulFilesystem) -> tuple[list[bytes], list[str]]:
    """Opens the queue; returns what it holds, and what it has put aside."""
    with open_log(machine) as log:
        held = values_of(log.consumer("c", start="earliest").read())
    aside = [path for path in machine.files() if path.startswith("/q/quarantine/")]
    return held, aside


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_a_batch_is_taken_once_and_whole_wherever_the_power_is_cut(writer: str) -> None:
    machine = ForgetfulFilesystem(seed=1)
    log = open_log(machine)
    log.append_many(OWN)
    machine.acknowledge("own")
    since = machine.operations
    hand_in(machine, writer)
    assert log.adopt() == len(BATCH)
    machine.acknowledge("adopted")
    log.close()

    seen = 0
    for state in machine.crash_states(4, since=since, garbage=False):
        held, aside = look(state.restore())
        seen += 1
        assert aside == [], state
        if "handed in" in machine.acknowledgements[: state.acknowledged]:
            assert held == [*OWN, *BATCH], state
        else:
            assert held in (OWN, [*OWN, *BATCH]), state
    assert seen > 20
