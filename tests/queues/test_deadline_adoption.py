"""Batches that other processes leave in the `inbox/` of a deadline queue."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forebay.cli.main import main
from forebay.errors import Closed
from forebay.queues.deadline.adoption import NOW, PREFIX, adopt
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.storage import inbox
from forebay.storage.filesystem import DiskFilesystem
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handing_in import write_parts
from tests.queues.deadline_helpers import files_of, must, open_queue, values_of
from tests.queues.helpers import FakeClock, flip, numbered, publish, write_part


def records(values: list[bytes], *deadlines: int) -> list[bytes]:
    """Makes records of a part; without deadlines they are due at once."""
    due = deadlines or (NOW,) * len(values)
    return [PREFIX.pack(ms) + value for ms, value in zip(due, values, strict=True)]


def hand_in(path: Path, batch: int, *groups: list[bytes], writer: str = "w") -> None:
    names = [f"{writer}-{batch}-{number}.part" for number in range(len(groups))]
    parts = [write_part(path, name, values) for name, values in zip(names, groups, strict=True)]
    publish(path, f"{writer}-{batch}", batch, parts, writer, "deadline")


def ledger_of(path: Path) -> inbox.Ledger:
    directory = DiskFilesystem().open_directory(str(path))
    try:
        return inbox.read_ledger(directory)
    finally:
        directory.close()


def test_a_batch_becomes_items_by_their_deadlines(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        queue.enqueue(b"own")
        later = clock.ms + 1000
        hand_in(
            tmp_path / "q",
            *(1, records([b"c", b"a"], later + 5, later), records([b"b", b"now"], later + 1, NOW)),
        )

        assert adopt(queue) == 4
        assert values_of(queue.dequeue_many(9)) == [b"own", b"now"]
        clock.ms += 2000
        items = queue.dequeue_many(9)
        assert values_of(items) == [b"a", b"b", b"c"]
        assert [item.deadline_ms for item in items] == [later, later + 1, later + 5]
        queue.release_many(items)
        assert (len(queue), len({item.id for item in queue.browse()})) == (2, 2)
    assert ledger_of(tmp_path / "q") == inbox.Ledger({"w": 1})
    assert os.listdir(tmp_path / "q" / "inbox") == []
    with open_queue(tmp_path / "q", clock=clock) as queue:
        assert sorted(values_of(queue.browse())) == [b"now", b"own"]


def test_a_batch_is_taken_once_and_a_damaged_one_not_at_all(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        for batch in (1, 1, 2, 0):
            hand_in(tmp_path / "q", batch, records([b"%d" % batch]))
            adopt(queue)
        hand_in(tmp_path / "q", 3, records(numbered(5)))
        flip(tmp_path / "q" / "inbox" / "w-3-0.part", 60)

        assert adopt(queue) == 0
        assert sorted(values_of(queue.browse())) == [b"1", b"2"]
        assert queue.info()["quarantined_files"] == 2


def test_freezing_merging_and_releasing_go_on_beside_adopted_runs(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(10))
        hand_in(tmp_path / "q", 1, records(numbered(10, first=10)))
        adopt(queue)
        queue.release_many(queue.dequeue_many(15))
        queue.freeze()
        hand_in(tmp_path / "q", 2, records(numbered(5, first=20)))
        adopt(queue)
        queue.merge()

        assert values_of(queue.browse()) == numbered(10, first=15)
    with open_queue(tmp_path / "q") as queue:
        assert values_of(queue.dequeue_many(99)) == numbered(10, first=15)


def test_a_batch_without_room_waits(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", max_bytes=3_000) as queue:
        queue.enqueue_many(numbered(10))
        hand_in(tmp_path / "q", 1, records(numbered(20, first=10)))

        assert adopt(queue) == 0
        queue.release_many(queue.dequeue_many(10))
        queue.freeze()
        assert adopt(queue) == 20
        assert queue.pending == 20


def test_parts_are_joined_into_sets_as_large_as_memory_may_be(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", segment_bytes=2_000) as queue:
        groups = [records(numbered(9, first=9 * number)) for number in range(6)]
        hand_in(tmp_path / "q", 1, *groups)

        assert adopt(queue) == 54
        assert len(files_of(tmp_path / "q", ".p.run")) == 3
        assert values_of(queue.dequeue_many(99)) == numbered(54)


def opened(filesystem: ForgetfulFilesystem, **options: Any) -> DeadlineQueue:
    return DeadlineQueue("/q", filesystem=filesystem, background=False, **options)


def hand_in_there(filesystem: ForgetfulFilesystem, clock: FakeClock) -> None:
    directory = filesystem.open_directory("/q")
    groups = [records(numbered(4, 10)), records(numbered(3, 10, first=4))]
    parts = write_parts(filesystem, clock, directory, "b", groups)
    inbox.publish(directory, "b", inbox.Manifest("w", 1, parts, "deadline"))
    directory.close()


def adopt_and_browse(filesystem: ForgetfulFilesystem, clock: FakeClock) -> list[bytes]:
    with opened(filesystem, clock=clock) as queue:
        adopt(queue)
        return sorted(values_of(queue.browse()))


def test_a_power_cut_at_any_step_leaves_the_batch_to_be_taken_once() -> None:
    clock, filesystem = FakeClock(), ForgetfulFilesystem(3)
    queue = opened(filesystem, clock=clock)
    queue.enqueue(b"own")
    hand_in_there(filesystem, clock)
    filesystem.acknowledge("published")
    adopt(queue)
    filesystem.acknowledge("taken")
    queue.release(must(queue.dequeue()))
    filesystem.acknowledge("released")
    queue.close()

    states = [state for state in filesystem.crash_states(4) if state.acknowledged]
    for state in states:
        after = state.restore()
        found = [adopt_and_browse(after, clock) for _ in range(2)]
        whole = [*numbered(7, 10), b"own"]
        assert found[0] == found[1]
        assert found[0] in ([whole, whole[:-1]] if state.acknowledged < 3 else [whole[:-1]])
    assert len(states) > 20


@pytest.mark.parametrize("call", range(1, 80))
def test_a_call_of_the_disk_that_fails_leaves_the_batch_to_be_taken_once(call: int) -> None:
    clock, filesystem = FakeClock(), ForgetfulFilesystem(call)
    queue = opened(filesystem, clock=clock)
    queue.enqueue(b"own")
    hand_in_there(filesystem, clock)
    filesystem.fail_at(call, errno.EIO)

    with contextlib.suppress(OSError):
        adopt(queue)
    filesystem.heal()
    with contextlib.suppress(OSError, Closed):
        adopt(queue)
    queue._closed = True

    assert adopt_and_browse(filesystem.kill(), clock) == [*numbered(7, 10), b"own"]


def test_what_hands_a_batch_in_is_not_foreign_to_the_queue(tmp_path: Path) -> None:
    open_queue(tmp_path / "q").close()
    hand_in(tmp_path / "q", 1, records(numbered(2), 1_000, 2_000))
    open_queue(tmp_path / "q").close()

    result = CliRunner().invoke(main, ["fsck", str(tmp_path / "q")])

    assert (result.exit_code, "foreign" in result.output) == (0, False)
