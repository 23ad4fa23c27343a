"""A system that reads and writes little at a time changes no result of any queue.

One call of the system moves 2 GiB at most, whatever it is asked for. Here it moves 1,000 bytes:
what would be cut at 2 GiB is cut here, without a gigabyte.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import forebay
from tests.cli.helpers import run
from tests.conformance.kinds import KINDS
from tests.queues.helpers import SYNCS

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


def fill(path: Path, kind: str, sync: str) -> None:
    case = KINDS[kind]
    queue = case.queue(path, sync=sync)
    case.put_many(queue, VALUES[:150])
    for value in VALUES[150:]:
        case.put(queue, value)
    queue.close()


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_there_after_a_close(tmp_path: Path, kind: str, sync: str) -> None:
    fill(tmp_path / "q", kind, sync)

    with forebay.read(tmp_path / "q") as reader:
        looked = KINDS[kind].look(reader)
    checked = run("fsck", tmp_path / "q")
    with KINDS[kind].queue(tmp_path / "q", sync=sync) as queue:
        drained = KINDS[kind].drain(queue)

    assert sorted(looked) == sorted(VALUES)
    assert sorted(drained) == sorted(VALUES)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_there_after_a_kill(tmp_path: Path, kind: str, sync: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            case = KINDS[kind]
            queue = case.queue(tmp_path / "q", sync=sync, background=False)
            case.put_many(queue, VALUES[:150])
            for value in VALUES[150:]:
                case.put(queue, value)
        finally:
            # As a kill leaves it: nothing is closed.
            os._exit(0)
    os.waitpid(child, 0)

    with KINDS[kind].queue(tmp_path / "q", sync=sync) as queue:
        assert sorted(KINDS[kind].drain(queue)) == sorted(VALUES)
