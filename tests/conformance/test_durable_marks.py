"""The marks of a queue are durable after a close, and soon after the last change.

A power cut that brought back an older mark would cost no value: recovery finds the end again. But
below the mark, what does not verify is told as lost, and above it, it passes for an unfinished end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.kinds import KINDS
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.workload import SteppingClock
from tests.queues.helpers import SYNCS, numbered

MARKS = {"tail", "fifo-tail", "fifo-head", "mark", "deadline-mark", "deadline-manifest"}
each_kind = pytest.mark.parametrize("kind", KINDS)


def open_queue(kind: str, filesystem: ForgetfulFilesystem, clock: SteppingClock, sync: str) -> Any:
    case = KINDS[kind]
    return case.queue(
        "/q", filesystem=filesystem, clock=clock, sync=sync, background=False, **case.small
    )


def marks_of(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if path.rpartition("/")[2] in MARKS}


def marks_after_a_power_cut(filesystem: ForgetfulFilesystem) -> Iterator[dict[str, bytes]]:
    end = filesystem.operations
    for state in filesystem.crash_states(points=lambda point: point == end, garbage=False):
        yield marks_of(state.files())


@each_kind
@pytest.mark.parametrize("sync", SYNCS)
def test_the_marks_of_a_closed_queue_are_durable(kind: str, sync: str) -> None:
    filesystem = ForgetfulFilesystem()
    queue = open_queue(kind, filesystem, SteppingClock(), sync)
    KINDS[kind].put_many(queue, numbered(5))
    KINDS[kind].put(queue, b"one more")

    queue.close()

    marks = marks_of(filesystem.files())
    assert marks
    assert all(found == marks for found in marks_after_a_power_cut(filesystem))


@each_kind
@pytest.mark.parametrize("sync", ["always", "interval"])
def test_the_marks_of_an_idle_queue_are_durable_a_moment_later(kind: str, sync: str) -> None:
    filesystem, clock = ForgetfulFilesystem(), SteppingClock()
    queue = open_queue(kind, filesystem, clock, sync)
    KINDS[kind].put_many(queue, numbered(5))
    KINDS[kind].put(queue, b"one more")

    # What is due first, then what that leaves to be done.
    for _ in range(4):
        clock.ms += 2_000
        queue.maintain()

    marks = marks_of(filesystem.files())
    after = list(marks_after_a_power_cut(filesystem))
    queue.close()
    assert marks
    assert all(found == marks for found in after)
