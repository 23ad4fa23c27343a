"""A directory of the original program is taken over: what is live becomes a deadline queue."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import forebay
from forebay.formats.deadline.items import FileKind, Item, Key, RunEncoder, Stats, file_name
from forebay.queues.deadline.original import scan_folder
from forebay.storage.filesystem import write_all
from tests.crash.forgetful import ForgetfulFilesystem

GOLDEN = Path(__file__).parent.parent / "golden" / "qrono"
FILES = [file for file in sorted(GOLDEN.iterdir()) if file.suffix != ".md" and file.is_file()]


def run_of(*items: Item) -> bytes:
    encoder = RunEncoder()
    return encoder.encode(items) + encoder.finish()


def item(number: int, deadline_ms: int | None = None) -> Item:
    return Item(Key(deadline_ms or 1_000 + number, number), b"item %d" % number, Stats(500, 0, 2))


def make_directory(path: Path, *runs: bytes) -> Path:
    path.mkdir(mode=0o700)
    for number, data in enumerate(runs):
        (path / file_name(number, FileKind.PENDING_RUN_1)).write_bytes(data)
    return path


def live_values(path: Path) -> list[bytes]:
    return [found.value for found in scan_folder(str(path), raw=False) if isinstance(found, Item)]


def test_the_live_items_of_real_files_come_in_order_and_the_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.mkdir(mode=0o700)
    for file in FILES:
        shutil.copy(file, path)
    expected = live_values(path)

    with forebay.DeadlineQueue(path) as queue:
        count = len(queue)
        losses = queue.info().losses

    assert (count, losses) == (len(expected), 0)
    with forebay.read(path, kind="deadline") as reader:
        assert sorted(reader.values()) == sorted(expected)
    assert {file.name for file in FILES} <= {kept.name for kept in (path / "quarantine").iterdir()}
    assert forebay.accept_losses(path) == 0


def test_ids_deadlines_and_counts_stay_and_new_ids_follow(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "q", run_of(item(5), item(900)), run_of(item(7)))

    with forebay.DeadlineQueue(path) as queue:
        found = queue.dequeue_many(10)
        added = queue.enqueue(b"new")

    assert [(one.id, one.deadline_ms, one.dequeue_count) for one in found] == [
        (5, 1_005, 3),
        (7, 1_007, 3),
        (900, 1_900, 3),
    ]
    assert added == 901


@pytest.mark.parametrize("id", [2**64 - 1, 2**64 - 2**39, 2**64 - 2**41])
def test_an_item_whose_id_leaves_none_to_give_out_gets_a_new_one(tmp_path: Path, id: int) -> None:
    path = make_directory(tmp_path / "q", run_of(item(5), item(id, 9_000)))

    with forebay.DeadlineQueue(path) as queue:
        queue.enqueue(b"new")
    with forebay.DeadlineQueue(path) as queue:
        found = queue.dequeue_many(10)
        losses = queue.info().losses

    assert [one.value for one in found] == [b"item 5", b"item %d" % id, b"new"]
    assert [one.id for one in found] == [5, 6, 7]
    assert losses == 0


def test_two_copies_of_an_item_both_stay_under_ids_of_their_own(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "q", run_of(item(5), item(6)), run_of(item(5, 9_000)))

    with forebay.DeadlineQueue(path) as queue:
        found = queue.dequeue_many(10)

    assert [one.value for one in found] == [b"item 5", b"item 6", b"item 5"]
    assert len({one.id for one in found}) == 3


def test_a_damaged_run_is_told_and_the_rest_is_taken_over(tmp_path: Path) -> None:
    good, bad = run_of(item(1)), bytearray(run_of(item(2), item(3)))
    bad[8] |= 1
    path = make_directory(tmp_path / "q", good, bytes(bad))

    with forebay.DeadlineQueue(path) as queue:
        with pytest.raises(forebay.Damaged):
            queue.dequeue()
        found = queue.dequeue_many(10)

    assert [one.value for one in found] == [b"item 1"]


def test_files_of_another_program_are_refused_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.mkdir(mode=0o700)
    (path / "0000000001.log").write_bytes(b"2026-11-18 a line of a log\n")

    with pytest.raises(forebay.NotAQueue):
        forebay.DeadlineQueue(path)

    assert [entry.name for entry in path.iterdir()] == ["0000000001.log"]


@pytest.mark.slow
def test_a_power_cut_at_any_point_loses_nothing() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/q", create=True)
    for number, data in enumerate((run_of(item(1), item(2)), run_of(item(3)))):
        file = directory.create(file_name(number, FileKind.PENDING_RUN_1))
        write_all(file, data, 0)
        file.sync()
        file.close()
    directory.sync()
    directory.close()
    begin = filesystem.operations
    forebay.DeadlineQueue("/q", filesystem=filesystem, background=False).close()

    states = 0
    for state in filesystem.crash_states(points=lambda point: point >= begin):
        states += 1
        machine = state.restore()
        with forebay.DeadlineQueue("/q", filesystem=machine, background=False) as queue:
            assert [one.value for one in queue.dequeue_many(10)] == [
                b"item 1",
                b"item 2",
                b"item 3",
            ]
    assert states > 20
