"""What every kind of queue does alike for the one process that owns it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import Closed, Locked
from tests.kinds import KINDS, Kind
from tests.kinds.toy import ToyKind, toys
from tests.queues.helpers import SYNCS, snapshot
from tests.support.values import numbered

pytestmark = pytest.mark.parametrize(
    "kind", [*KINDS.values(), ToyKind()], ids=lambda kind: kind.name
)
SYNC = pytest.mark.parametrize("sync", SYNCS)


@pytest.fixture(autouse=True)
def _toys() -> Iterator[None]:
    with toys():
        yield


@SYNC
def test_a_reader_without_the_lock_sees_what_is_there_and_changes_nothing(
    tmp_path: Path, kind: Kind, sync: str
) -> None:
    values = numbered(30)
    with kind.queue(tmp_path / "q", sync=sync, background=False, **kind.small) as queue:
        kind.put_many(queue, values[:20])
        for value in values[20:]:
            kind.put(queue, value)
        before = snapshot(tmp_path / "q")
        live = kind.look(tmp_path / "q")
        after = snapshot(tmp_path / "q")
    closed = kind.look(tmp_path / "q")

    assert live == closed == values
    assert before == after


def test_a_directory_has_one_owner_and_a_closed_handle_says_so(tmp_path: Path, kind: Kind) -> None:
    queue = kind.queue(tmp_path / "q")
    with pytest.raises(Locked, match=str(os.getpid())):
        kind.queue(tmp_path / "q")
    queue.close()
    queue.close()

    with pytest.raises(Closed):
        kind.put(queue, b"x")
    with pytest.raises(Closed):
        queue.sync()
    kind.queue(tmp_path / "q").close()


def test_a_child_of_a_fork_may_not_use_the_handle_and_the_parent_goes_on(
    tmp_path: Path, kind: Kind
) -> None:
    with kind.queue(tmp_path / "q", background=False) as queue:
        kind.put(queue, b"before")
        child = os.fork()
        if child == 0:
            try:
                kind.put(queue, b"of the child")
            except Closed:
                os._exit(7)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        kind.put(queue, b"after")

        assert os.waitstatus_to_exitcode(status) == 7
        assert kind.drain(queue) == [b"before", b"after"]
