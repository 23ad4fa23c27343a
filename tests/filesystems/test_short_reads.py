"""A system that reads and writes little at a time changes no result of any queue.

One call of the system moves 2 GiB at most, whatever it is asked for. Here it moves 1,000 bytes:
what would be cut at 2 GiB is cut here, without a gigabyte.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import run
from tests.kinds import KINDS
from tests.queues.helpers import SYNCS
from tests.support.killing import Tell, kill_a_writer

AT_ONCE = 1_000
VALUES = [bytes([number % 251]) * (number * 37 % 5_000) for number in range(1, 200)]


@pytest.fixture(autouse=True)
def _little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pread, os.pwrite

    def read_little(descriptor: int, size: int, position: int) -> bytes:
        return read(descriptor, min(size, AT_ONCE), position)

    def write_little(descriptor: int, data: Any, position: int) -> int:
        with memoryview(data) as view:
            return write(descriptor, view[:AT_ONCE], position)

    monkeypatch.setattr(os, "pread", read_little)
    monkeypatch.setattr(os, "pwrite", write_little)


def fill(queue: Any, kind: str) -> None:
    KINDS[kind].put_many(queue, VALUES[:150])
    for value in VALUES[150:]:
        KINDS[kind].put(queue, value)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_there_after_a_close(tmp_path: Path, kind: str, sync: str) -> None:
    with KINDS[kind].queue(tmp_path / "q", sync=sync) as queue:
        fill(queue, kind)

    looked = KINDS[kind].look(tmp_path / "q")
    checked = run("fsck", tmp_path / "q")
    with KINDS[kind].queue(tmp_path / "q", sync=sync) as queue:
        drained = KINDS[kind].drain(queue)

    assert sorted(looked) == sorted(VALUES)
    assert sorted(drained) == sorted(VALUES)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_there_after_a_kill(tmp_path: Path, kind: str, sync: str) -> None:
    def write(tell: Tell) -> None:
        fill(KINDS[kind].queue(tmp_path / "q", sync=sync, background=False), kind)
        tell(len(VALUES))

    kill_a_writer(write)

    with KINDS[kind].queue(tmp_path / "q", sync=sync) as queue:
        assert sorted(KINDS[kind].drain(queue)) == sorted(VALUES)
