"""Reading a deadline queue without owning it."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay import Damaged, DeadlineReader, NotAQueue
from tests.queues.deadline_helpers import files_of, open_queue
from tests.queues.helpers import flip, numbered, snapshot


def test_a_reader_sees_memory_and_runs_of_a_queue_in_use(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(6))
        queue.freeze()
        queue.release_many(queue.dequeue_many(2))
        (item,) = queue.dequeue_many(1)
        queue.bury(item, "no good")
        queue.enqueue(b"new")
        before = snapshot(tmp_path / "q")

        with DeadlineReader(tmp_path / "q") as reader:
            items = list(reader)
            count = len(reader)

        assert [item.value for item in items] == [*numbered(3, first=3), b"new", numbered(3)[2]]
        assert [item.buried for item in items] == [False] * 4 + [True]
        assert count == 5
        assert snapshot(tmp_path / "q") == before


def test_refresh_follows_freezes_and_merges(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue, DeadlineReader(tmp_path / "q") as reader:
        counts = []
        for _ in range(3):
            queue.enqueue_many(numbered(4))
            queue.freeze()
            queue.merge()
            reader.refresh()
            counts.append(len(reader))

        assert counts == [4, 8, 12]


def test_damage_raises_or_is_read_round(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        for value in numbered(3):
            queue.enqueue(value)
    (wal,) = files_of(tmp_path / "q", ".wal")
    flip(wal, wal.read_bytes().index(b"00000001"))

    with pytest.raises(Damaged):
        DeadlineReader(tmp_path / "q")
    with DeadlineReader(tmp_path / "q", salvage=True) as reader:
        assert list(reader.values()) == [numbered(3)[0], numbered(3)[2]]
        assert len(reader.damage) == 1


def test_due_counts_are_those_of_the_items_in_runs_and_memory(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        for deadline in (1_000, 2_000, 3_000, 4_000):
            queue.enqueue(b"frozen", deadline_ms=deadline)
        queue.freeze()
        queue.enqueue(b"new", deadline_ms=2_500)
        queue.enqueue(b"last", deadline_ms=2**47 - 1)
        queue.release_many(queue.dequeue_many(1))
        queue.bury(queue.dequeue_many(1)[0], "no good")

        with DeadlineReader(tmp_path / "q") as reader:
            counts = reader.due_counts([0, 1_000, 2_500, 2**50, 2_499, 3_000, 2**47 - 2])
            deadlines = [item.deadline_ms for item in reader if not item.buried]

    assert deadlines == [2_500, 3_000, 4_000, 2**47 - 1]
    assert counts == [0, 0, 1, 4, 0, 2, 3]


def test_open_and_read_know_the_kind(tmp_path: Path) -> None:
    open_queue(tmp_path / "q").close()

    with forebay.open(tmp_path / "q") as queue:
        assert type(queue) is forebay.DeadlineQueue
    with forebay.read(tmp_path / "q") as reader:
        assert type(reader) is DeadlineReader


def test_a_directory_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAQueue, match="manifest"):
        DeadlineReader(tmp_path)
