"""What was done when a Beats queue was opened stays done wherever the power is cut afterwards."""

from __future__ import annotations

from forebay import BeatsQueue
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.beats_helpers import SEGMENT_BYTES, numbered, numbers_of


def open_queue(machine: ForgetfulFilesystem) -> BeatsQueue:
    return BeatsQueue("/q", filesystem=machine, background=False, segment_bytes=SEGMENT_BYTES)


def test_a_segment_without_a_header_is_told_once() -> None:
    machine = ForgetfulFilesystem()
    with open_queue(machine) as queue:
        queue.put_many(numbered(3))
    machine.write_file("/q/1.seg", bytes(5))

    queue = open_queue(machine)
    told = len(queue.info().damage)
    end = machine.operations
    states = list(machine.crash_states(points=lambda point: point == end, garbage=False))
    queue.close()

    assert told == 1
    assert states
    for state in states:
        with open_queue(state.restore()) as queue:
            assert (len(queue.info().damage), numbers_of(queue.read(9))) == (0, [0, 1, 2])
