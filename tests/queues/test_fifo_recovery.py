"""What is true of a fifo once it was opened stays true wherever the power is cut from then on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay import Fifo
from tests.crash.forgetful import CrashState, ForgetfulFilesystem
from tests.queues.helpers import SYNCS, numbered

each_sync = pytest.mark.parametrize("sync", SYNCS)


def open_fifo(machine: ForgetfulFilesystem, sync: str = "always") -> Fifo:
    return Fifo("/q", filesystem=machine, sync=sync, background=False, file_bytes=1_000)


def states_at_the_end(machine: ForgetfulFilesystem) -> Iterator[CrashState]:
    """Yields what a power cut leaves now."""
    end = machine.operations
    return machine.crash_states(points=lambda point: point == end, garbage=False)


@each_sync
def test_files_that_recovery_removed_do_not_come_back(sync: str) -> None:
    machine = ForgetfulFilesystem()
    fifo = open_fifo(machine, "os")
    fifo.push_many(numbered(12))
    killed = machine.kill()
    fifo.close()
    before = set(killed.files())

    fifo = open_fifo(killed, sync)
    after = set(killed.files())
    left = [set(state.files()) for state in states_at_the_end(killed)]
    fifo.close()

    assert before - after
    assert left
    assert all(found & before <= after for found in left)


def test_a_head_that_is_made_again_has_its_name_for_good() -> None:
    machine = ForgetfulFilesystem()
    with open_fifo(machine) as fifo:
        fifo.push_many(numbered(5))
    directory = machine.open_directory("/q")
    directory.unlink("fifo-head")
    directory.sync()
    directory.close()

    fifo = open_fifo(machine)
    fifo.pop()
    left = [state.restore() for state in states_at_the_end(machine)]
    fifo.close()

    assert left
    for again in left:
        with open_fifo(again) as fifo:
            assert fifo.pop_many(9) == numbered(4, first=1)
