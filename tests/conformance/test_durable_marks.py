"""The marks of a queue are durable after a close, and soon after the last change.

A power cut that brought back an older mark would cost no value: recovery finds the end again. But
below the mark, what does not verify is told as lost, and above it, it passes for an unfinished end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import BeatsQueue
from forebay.storage import inbox
from tests.crash.forgetful import CrashState, ForgetfulFilesystem
from tests.crash.handing_in import write_parts
from tests.kinds import KINDS
from tests.queues.helpers import SYNCS
from tests.support.clocks import SteppingClock
from tests.support.values import numbered

MARKS = {"tail", "fifo-tail", "fifo-head", "mark", "contents", "deadline-mark", "deadline-manifest"}
each_kind = pytest.mark.parametrize("kind", KINDS)


def open_queue(kind: str, filesystem: ForgetfulFilesystem, clock: SteppingClock, sync: str) -> Any:
    case = KINDS[kind]
    return case.queue(
        "/q", filesystem=filesystem, clock=clock, sync=sync, background=False, **case.small
    )


def marks_of(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if path.rpartition("/")[2] in MARKS}


def states_at_the_end(filesystem: ForgetfulFilesystem) -> Iterator[CrashState]:
    """Yields what a power cut leaves now; first, nothing but what is durable."""
    end = filesystem.operations
    return filesystem.crash_states(points=lambda point: point == end, garbage=False)


def marks_after_a_power_cut(filesystem: ForgetfulFilesystem) -> Iterator[dict[str, bytes]]:
    return (marks_of(state.files()) for state in states_at_the_end(filesystem))


@each_kind
@pytest.mark.parametrize("sync", SYNCS)
def test_the_marks_of_a_new_queue_are_durable(kind: str, sync: str) -> None:
    filesystem = ForgetfulFilesystem()

    queue = open_queue(kind, filesystem, SteppingClock(), sync)

    marks = marks_of(filesystem.files())
    after = list(marks_after_a_power_cut(filesystem))
    queue.close()
    assert marks
    assert all(found == marks for found in after)


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
    left = next(iter(states_at_the_end(filesystem))).restore()
    queue.close()
    assert marks
    assert all(found == marks for found in after)
    with open_queue(kind, left, clock, sync) as queue:
        assert sorted(KINDS[kind].drain(queue)) == sorted([*numbered(5), b"one more"])


@each_kind
@pytest.mark.parametrize("sync", SYNCS)
def test_the_marks_of_a_queue_that_was_recovered_are_durable(kind: str, sync: str) -> None:
    killed = ForgetfulFilesystem()
    queue = open_queue(kind, killed, SteppingClock(), sync)
    KINDS[kind].put_many(queue, numbered(5))
    filesystem = killed.kill()
    queue.close()

    queue = open_queue(kind, filesystem, SteppingClock(), sync)

    marks = marks_of(filesystem.files())
    after = list(marks_after_a_power_cut(filesystem))
    queue.close()
    assert marks
    assert all(found == marks for found in after)


@pytest.mark.parametrize("kind", ["log", "deadline"])
@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_staging_buffer_whose_name_a_power_cut_takes_costs_nothing(kind: str, sync: str) -> None:
    filesystem, clock = ForgetfulFilesystem(), SteppingClock()
    queue = open_queue(kind, filesystem, clock, sync)
    KINDS[kind].put(queue, b"staged")
    queue.sync()
    left = [state for state in states_at_the_end(filesystem) if "/q/staging" not in state.files()]
    queue.close()

    assert left
    for state in left:
        with open_queue(kind, state.restore(), clock, sync) as again:
            assert KINDS[kind].drain(again) == [b"staged"]
            assert again.info().losses == 0


@pytest.mark.parametrize("sync", SYNCS)
def test_the_end_is_durable_when_a_batch_was_adopted(sync: str) -> None:
    filesystem, clock = ForgetfulFilesystem(), SteppingClock()
    queue = open_queue("log", filesystem, clock, sync)
    queue.append_many(numbered(5))
    directory = filesystem.open_directory("/q")
    parts = write_parts(filesystem, clock, directory, "part", [[b"theirs"] * 3])
    inbox.publish(directory, "batch", inbox.Manifest("w", 1, parts))

    taken = queue.adopt()

    ends = {state.files()["/q/tail"] for state in states_at_the_end(filesystem)}
    now = filesystem.files()["/q/tail"]
    queue.close()
    assert (taken, ends) == (3, {now})


def test_the_mark_of_encrypted_events_is_durable_a_moment_later(tmp_path: Path) -> None:
    # Their frames tell which file they are of: a commit does not wait for the mark.
    (tmp_path / "key").write_bytes(bytes(range(16)))
    (tmp_path / "key").chmod(0o600)
    filesystem, clock = ForgetfulFilesystem(), SteppingClock()
    queue = BeatsQueue(
        "/q", filesystem=filesystem, clock=clock, key_file=tmp_path / "key", background=False
    )
    queue.put({"fields": {"value": "one"}})
    before = [state.files()["/q/mark"] for state in states_at_the_end(filesystem)]

    clock.ms += 2_000
    queue.maintain()

    now = filesystem.files()["/q/mark"]
    after = {state.files()["/q/mark"] for state in states_at_the_end(filesystem)}
    queue.close()
    assert before[0] != now
    assert after == {now}


@pytest.mark.parametrize("how", ["maintain", "sync"])
def test_what_a_fifo_gave_out_does_not_come_again(how: str) -> None:
    filesystem, clock = ForgetfulFilesystem(), SteppingClock()
    queue = open_queue("fifo", filesystem, clock, "interval")
    queue.push_many([b"one", b"two"])
    queue.sync()
    queue.pop()

    clock.ms += 2_000
    getattr(queue, how)()

    left = [state.restore() for state in states_at_the_end(filesystem)]
    queue.close()
    assert left
    for machine in left:
        with open_queue("fifo", machine, clock, "interval") as again:
            assert again.pop_many(9) == [b"two"]
