"""What a bad disk leaves of a deadline queue: what is whole is served, the rest is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from forebay.errors import Damaged
from forebay.formats.deadline.manifest import NAME
from forebay.queues.deadline.reader import DeadlineReader
from tests.queues.deadline_helpers import counts_of, files_of, must, open_queue, values_of
from tests.queues.helpers import flip, numbered


def test_a_torn_end_of_the_log_is_cut_and_kept_aside(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(3))
        killed = Path(shutil.copytree(tmp_path / "q", tmp_path / "killed"))
        queue.enqueue(b"torn" * 100)
        log = files_of(tmp_path / "q", ".wal")[0].read_bytes()
    (wal,) = files_of(killed, ".wal")
    wal.write_bytes(log[:-1])

    with open_queue(killed) as queue:
        assert values_of(queue.dequeue_many(9)) == numbered(3)
        assert queue.damage == []
        assert queue.info().quarantined_files == 1


def test_damage_before_good_batches_costs_its_batch_alone(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        for value in numbered(3):
            queue.enqueue(value)
    (wal,) = files_of(tmp_path / "q", ".wal")
    flip(wal, wal.read_bytes().index(b"00000001"))

    with open_queue(tmp_path / "q") as queue:
        with pytest.raises(Damaged) as caught:
            queue.dequeue()
        assert caught.value.damage.count == 1
        assert values_of(queue.dequeue_many(9)) == [numbered(3)[0], numbered(3)[2]]
        assert queue.info().damaged == 1
        assert queue.info().quarantined_files == 1
        assert counts_of(queue) == (0, 0, 2, 0)


def test_a_bad_bit_in_the_header_of_the_log_costs_nothing(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(3))
    (wal,) = files_of(tmp_path / "q", ".wal")
    flip(wal, 2)

    with open_queue(tmp_path / "q") as queue:
        assert values_of(queue.dequeue_many(9)) == numbered(3)


def test_a_log_whose_header_is_lost_costs_nothing(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(3))
        queue.freeze()
        queue.enqueue_many(numbered(3))
    (wal,) = files_of(tmp_path / "q", ".wal")
    flip(wal, 2, 17, 25)

    with open_queue(tmp_path / "q") as queue:
        assert values_of(queue.dequeue_many(9)) == [*numbered(3), *numbered(3)]
        assert queue.damage == []


def test_a_bad_block_of_a_run_is_told_once_and_costs_its_items_alone(tmp_path: Path) -> None:
    values = numbered(9, size=20_000)
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(values)
        queue.freeze()
    (run,) = files_of(tmp_path / "q", ".p.run")
    flip(run, run.read_bytes().index(values[4]) + 100)

    with open_queue(tmp_path / "q") as queue:
        for _ in range(4):
            queue.release(must(queue.dequeue()))
        with pytest.raises(Damaged):
            queue.dequeue()
        left = queue.dequeue_many(9)

        assert [item.id for item in left] == [6, 7, 8, 9]
        assert queue.info().damaged == 1
        assert counts_of(queue) == (0, 0, 4, 0)


def test_a_run_without_a_footer_is_read_by_its_blocks(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(9))
        queue.freeze()
    (run,) = files_of(tmp_path / "q", ".p.run")
    flip(run, run.stat().st_size - 1)

    with open_queue(tmp_path / "q") as queue:
        assert queue.pending == 9
        assert values_of(queue.dequeue_many(20)) == numbered(9)


def test_a_run_that_is_gone_costs_its_items_alone(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        for start in (0, 5):
            queue.enqueue_many(numbered(5, first=start))
            queue.freeze()
    files_of(tmp_path / "q", ".p.run")[0].unlink()

    with open_queue(tmp_path / "q") as queue:
        assert queue.pending == 5
        assert queue.info().damaged == 1
        with pytest.raises(Damaged) as caught:
            queue.dequeue()
        assert caught.value.damage.count == 5
        assert values_of(queue.dequeue_many(20)) == numbered(5, first=5)


@pytest.mark.parametrize("gone", [True, False], ids=["removed", "flipped"])
def test_a_lost_manifest_costs_nothing_and_no_id_is_given_twice(tmp_path: Path, gone: bool) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(5))
        queue.release_many(queue.dequeue_many(2))
        queue.freeze()
        queue.enqueue_many(numbered(3, first=5))
    manifest = tmp_path / "q" / NAME
    if gone:
        manifest.unlink()
    else:
        flip(manifest, 20)

    with open_queue(tmp_path / "q") as queue:
        assert queue.enqueue(b"new") > 8
        assert values_of(queue.dequeue_many(20)) == [*numbered(6, first=2), b"new"]


def test_files_of_an_unfinished_freeze_are_removed(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(5))
    (tmp_path / "q" / "00000000ff.p.run").write_bytes(b"half a run")
    (tmp_path / "q" / "00000000ff.wal.new").write_bytes(b"half a log")

    with open_queue(tmp_path / "q") as queue:
        assert queue.pending == 5
        assert files_of(tmp_path / "q", ".run") == []
        assert files_of(tmp_path / "q", ".new") == []


def test_a_log_with_the_bytes_of_another_is_none_and_takes_no_staged_batches(
    tmp_path: Path,
) -> None:
    with open_queue(tmp_path / "q", sync="os", background=False) as queue:
        queue.enqueue_many([b"a"] * 3)
        queue.sync()
        queue.enqueue(b"staged")
        kept = tmp_path / "kept"
        shutil.copytree(tmp_path / "q", kept)
    (log,) = kept.glob("*.wal")
    number = int(log.stem, 16) + 1
    (kept / f"{number:010x}.wal").write_bytes(log.read_bytes()[:28])

    with DeadlineReader(kept) as reader:
        assert [item.value for item in reader] == [b"a", b"a", b"a", b"staged"]
    with open_queue(kept) as queue:
        assert (len(queue), queue.damage) == (4, [])
