"""Batches that other processes leave in the `inbox/` of a fifo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import Closed
from forebay.queues.fifo import adoption as fifo_adoption
from forebay.queues.fifo.queue import Fifo
from forebay.storage import inbox
from forebay.storage.filesystem import DiskFilesystem
from tests.queues.helpers import (
    HEADER_BYTES,
    SYNCS,
    FakeClock,
    flip,
    numbered,
    publish,
    wait_until,
    write_part,
)
from tests.support.closing import closed_at_end

each_sync = pytest.mark.parametrize("sync", SYNCS)


def opened(path: Path, **options: Any) -> Fifo:
    return Fifo(path / "q", **{"file_bytes": 1000, "background": False, **options})


def make_fifo(path: Path, count: int = 3) -> Path:
    with opened(path) as fifo:
        fifo.push_many(numbered(count))
    return path / "q"


def hand_in(path: Path, batch: int, *groups: list[bytes], writer: str = "w") -> None:
    names = [f"{writer}-{batch}-{number}.part" for number in range(len(groups))]
    parts = [write_part(path, name, values) for name, values in zip(names, groups, strict=True)]
    publish(path, f"{writer}-{batch}", batch, parts, writer)


def values_in(path: Path) -> list[bytes]:
    with forebay.read(path) as reader:
        return list(reader.values())


def adopted(path: Path) -> inbox.Ledger:
    directory = DiskFilesystem().open_directory(str(path))
    try:
        return inbox.read_ledger(directory)
    finally:
        directory.close()


@each_sync
def test_a_batch_left_for_a_stopped_fifo_is_adopted_at_the_open(tmp_path: Path, sync: str) -> None:
    path = make_fifo(tmp_path)
    hand_in(path, 1, numbered(20, first=3), numbered(2, first=23))

    with opened(tmp_path, sync=sync) as fifo:
        assert (fifo.size, fifo.info()["durable"]) == (25, 25)
        fifo.push(numbered(1, first=25)[0])
        assert fifo.pop_many(100) == numbered(26)
    assert adopted(path) == inbox.Ledger({"w": 1})
    assert os.listdir(path / "inbox") == []


@pytest.mark.slow
@each_sync
def test_a_running_owner_adopts_a_batch_by_itself(tmp_path: Path, sync: str) -> None:
    with opened(tmp_path, sync=sync, background=True) as fifo:
        fifo.push(numbered(1)[0])
        hand_in(tmp_path / "q", 1, numbered(2, first=1))

        assert wait_until(lambda: fifo.size == 3)
        assert fifo.pop_many(9) == numbered(3)


@each_sync
def test_what_waits_in_memory_comes_before_a_batch(tmp_path: Path, sync: str) -> None:
    with opened(tmp_path, sync=sync) as fifo:
        fifo.push(b"before")
        hand_in(tmp_path / "q", 1, [b"batch"])
        assert fifo.adopt() == 1
        fifo.push(b"behind")

        assert [entry.value for entry in closed_at_end(forebay.read(fifo.path))] == [
            b"before",
            b"batch",
            b"behind",
        ]
        with fifo.take() as entry:
            assert entry.value == b"before"
        assert fifo.pop_many(9) == [b"batch", b"behind"]


def test_entries_get_ids_times_and_lives_of_this_queue(tmp_path: Path) -> None:
    clock = FakeClock()
    with opened(tmp_path, clock=clock, ttl_seconds=60) as fifo:
        first = fifo.push(b"a")
        clock.ms += 5000
        hand_in(tmp_path / "q", 1, [b"b", b"c"])
        fifo.adopt()

        entries = list(closed_at_end(forebay.read(fifo.path)))

        assert [entry.offset for entry in entries] == [0, 1, 2]
        assert first < entries[1].id < entries[2].id < fifo.push(b"d")
        assert {entry.time_ms for entry in entries[1:]} == {clock.ms}
        assert {entry.ttl_seconds for entry in entries} == {60}


def test_a_batch_spans_files_and_its_boundaries_are_known(tmp_path: Path) -> None:
    path = make_fifo(tmp_path)
    values = [*numbered(15, first=3), bytes(3500), *numbered(15, first=18)]
    hand_in(path, 1, values)

    with opened(tmp_path) as fifo:
        fifo.push(b"behind")
        expected = [*numbered(3), *values, b"behind"]
        assert values_in(path) == expected
        assert fifo._bounds.after(5) is not None
        assert fifo.pop_many(99) == expected
    sizes = {file.stat().st_size for file in path.glob("*.tape")}
    assert sizes == {1000}


def test_a_batch_is_taken_once(tmp_path: Path) -> None:
    path = make_fifo(tmp_path)
    hand_in(path, 1, [b"once"])
    with opened(tmp_path) as fifo:
        hand_in(path, 1, [b"once"])
        hand_in(path, 2, [b"later"])

        assert fifo.adopt() == 1
        assert fifo.adopt() == 0
    assert values_in(path) == [*numbered(3), b"once", b"later"]
    assert os.listdir(path / "inbox") == []


def test_a_batch_that_does_not_verify_is_set_aside_whole(tmp_path: Path) -> None:
    path = make_fifo(tmp_path)
    hand_in(path, 1, [b"good"], [b"bad"])
    flip(path / "inbox" / "w-1-1.part", HEADER_BYTES + 13)

    with opened(tmp_path) as fifo:
        assert fifo.size == 3

    assert len(os.listdir(path / "quarantine")) == 3


@pytest.mark.parametrize("when_full", ["block", "reject"])
def test_a_batch_waits_until_there_is_room(tmp_path: Path, when_full: str) -> None:
    with opened(tmp_path, max_bytes=5000, when_full=when_full) as fifo:
        fifo.push_many(numbered(30))
        hand_in(tmp_path / "q", 1, numbered(20, first=30))
        assert fifo.adopt() == 0

        fifo.pop_many(30)

        assert fifo.adopt() == 20
        assert fifo.pop_many(99) == numbered(20, first=30)


def test_a_batch_that_is_larger_than_all_room_waits_for_an_empty_queue(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=2000, when_full="reject") as fifo:
        fifo.push(b"last")
        hand_in(tmp_path / "q", 1, numbered(40))
        assert fifo.adopt() == 0

        fifo.pop()

        assert fifo.adopt() == 40
        assert fifo.pop_many(99) == numbered(40)


def test_the_oldest_make_room_for_a_batch_if_the_queue_drops_them(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=5000, when_full="drop_oldest") as fifo:
        fifo.push_many(numbered(30))
        hand_in(tmp_path / "q", 1, numbered(20, first=30))

        assert fifo.adopt() == 20
        assert fifo.info()["dropped"] > 0
        assert fifo.pop_many(99)[-20:] == numbered(20, first=30)


def test_a_copy_that_fails_leaves_the_queue_and_the_batch_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as fifo:
        hand_in(tmp_path / "q", 1, numbered(30))
        with monkeypatch.context() as patch:
            patch.setattr(fifo_adoption._Copy, "finish", no_space)
            with pytest.raises(OSError, match="no space"):
                fifo.adopt()
        assert len(os.listdir(tmp_path / "q" / "inbox")) == 2
        fifo.push(b"before")

        assert fifo.adopt() == 30
        assert fifo.pop_many(99) == [b"before", *numbered(30)]


def test_an_adoption_that_fails_behind_its_decision_ends_the_handle_and_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = opened(tmp_path)
    fifo.push(b"before")
    hand_in(tmp_path / "q", 1, numbered(30))
    with monkeypatch.context() as patch:
        patch.setattr(inbox, "finish_moves", no_space)
        with pytest.raises(OSError, match="no space"):
            fifo.adopt()
    with pytest.raises(Closed):
        fifo.push(b"refused")
    fifo.close()

    with opened(tmp_path) as again:
        assert again.pop_many(99) == [b"before", *numbered(30)]
        assert again.info()["incarnation"] == 1
    assert os.listdir(tmp_path / "q" / "inbox") == []


def no_space(*_: object) -> None:
    raise OSError("no space")
