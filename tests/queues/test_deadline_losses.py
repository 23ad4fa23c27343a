"""What is lost of a deadline queue is told once, counted, and on record until it is accepted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import forebay
from forebay.cli.main import main
from forebay.errors import Damaged, ForebayError
from forebay.formats.deadline.manifest import NAME as MANIFEST
from forebay.formats.deadline.mark import NAME as MARK
from tests.queues.deadline_helpers import files_of, open_queue, values_of
from tests.queues.helpers import flip, numbered
from tests.support.inside import journal_of

POLICIES = ("always", "interval", "os")
each_policy = pytest.mark.parametrize("sync", POLICIES)


def fill(path: Path, sync: str, *, runs: int = 0) -> list[bytes]:
    """Enqueues 100 items, one by one, after so many sets of 20; returns all values."""
    values = numbered(20 * runs + 100)
    with open_queue(path, sync=sync) as queue:
        for number in range(runs):
            queue.enqueue_many(values[20 * number : 20 * number + 20])
            queue.freeze()
        for value in values[20 * runs :]:
            queue.enqueue(value)
    return values


def take_all(path: Path, **options: Any) -> tuple[list[bytes], list[Damaged]]:
    """Takes everything as an owner; returns it, and what was raised."""
    told: list[Damaged] = []
    found: list[bytes] = []
    with open_queue(path, **options) as queue:
        while True:
            try:
                items = queue.dequeue_many(1000)
            except Damaged as error:
                told.append(error)
                continue
            if not items:
                break
            found += values_of(items)
        assert queue.pending == 0
        assert queue.info().losses == len(told)
    return found, told


def salvage(path: Path) -> tuple[list[bytes], list[int | None]]:
    with forebay.read(path, salvage=True, kind="deadline") as reader:
        found = list(reader.values())
        assert len(reader) == len(found)
        return found, [damage.count for damage in reader.damage if damage.count != 0]


def fsck(path: Path, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["fsck", str(path), *more])
    return result.exit_code, result.output


def the_sum_holds(path: Path, values: list[bytes], lost: int, name: str) -> bool:
    """Everyone gives what is left, and tells how much is not: reader, fsck, owner, fsck again."""
    found, counts = salvage(path)
    assert (len(found), counts) == (len(values) - lost, [lost])
    assert set(found) <= set(values)
    code, output = fsck(path)
    text = f"{lost} item lost" if lost == 1 else f"{lost} items lost"
    assert (code, name in output, text in output) == (4, True, True), output
    with pytest.raises(Damaged):
        list(forebay.read(path))

    taken, told = take_all(path)

    assert taken == found
    assert [error.damage.count for error in told] == [lost]
    code, output = fsck(path)
    assert (code, name in output) == (4, True), output
    assert fsck(path, "--accept")[0] == 0
    assert fsck(path)[0] == 0
    return take_all(path)[1] == []


@each_policy
@pytest.mark.parametrize("item", [0, 50, 99])
@pytest.mark.parametrize("reopened", [False, True], ids=["closed", "reopened"])
def test_a_flipped_bit_costs_few_items_and_is_told(
    tmp_path: Path, sync: str, item: int, reopened: bool
) -> None:
    values = fill(tmp_path / "q", sync)
    if reopened:
        open_queue(tmp_path / "q", sync=sync).close()
    (wal,) = files_of(tmp_path / "q", ".wal")
    flip(wal, wal.read_bytes().index(values[item]))

    _, counts = salvage(tmp_path / "q")

    (lost,) = counts
    assert lost is not None
    assert 1 <= lost <= 70
    assert the_sum_holds(tmp_path / "q", values, lost, wal.name)


@pytest.mark.slow
@each_policy
def test_every_flipped_byte_of_a_closed_log_is_told_or_costs_nothing(
    tmp_path: Path, sync: str
) -> None:
    with open_queue(tmp_path / "q", sync=sync) as queue:
        for value in numbered(5):
            queue.enqueue(value)
    (wal,) = files_of(tmp_path / "q", ".wal")
    whole = wal.read_bytes()

    for position in range(len(whole)):
        flip(wal, position)
        found, counts = salvage(tmp_path / "q")
        assert [count for count in counts if count is None] == [], position
        assert len(found) + sum(count or 0 for count in counts) == 5, position
        wal.write_bytes(whole)


@each_policy
def test_a_bad_batch_of_a_killed_queue_is_told(tmp_path: Path, sync: str) -> None:
    values = numbered(30)
    with open_queue(tmp_path / "q", sync=sync) as queue:
        for value in values[:20]:
            queue.enqueue(value)
        queue.maintain()
        with journal_of(queue).lock:
            journal_of(queue).drain()
        for value in values[20:]:
            queue.enqueue(value)
        killed = Path(shutil.copytree(tmp_path / "q", tmp_path / "killed"))
    (wal,) = files_of(killed, ".wal")
    flip(wal, wal.read_bytes().index(values[19]))

    assert the_sum_holds(killed, values, 1, wal.name)


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_bad_staged_batch_costs_itself(tmp_path: Path, sync: str) -> None:
    values = numbered(30)
    with open_queue(tmp_path / "q", sync=sync) as queue:
        for value in values:
            queue.enqueue(value)
        killed = Path(shutil.copytree(tmp_path / "q", tmp_path / "killed"))
    staging = killed / "staging"
    flip(staging, staging.read_bytes().index(values[10]))

    (wal,) = files_of(killed, ".wal")
    assert the_sum_holds(killed, values, 1, wal.name)


@pytest.mark.parametrize("sync", ["interval", "os"])
@pytest.mark.parametrize("harm", ["removed", "zeroed"])
def test_a_lost_staging_buffer_is_told(tmp_path: Path, sync: str, harm: str) -> None:
    with open_queue(tmp_path / "q", sync=sync) as queue:
        for value in numbered(30):
            queue.enqueue(value)
        killed = Path(shutil.copytree(tmp_path / "q", tmp_path / "killed"))
    staging = killed / "staging"
    if harm == "removed":
        staging.unlink()
    else:
        staging.write_bytes(bytes(staging.stat().st_size))

    assert salvage(killed) == ([], [None])
    assert fsck(killed)[0] == 4
    assert "unknown" in fsck(killed)[1]
    assert len(take_all(killed)[1]) == 1


def test_a_flip_in_the_head_of_the_staging_buffer_costs_nothing(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", sync="os") as queue:
        for value in numbered(30):
            queue.enqueue(value)
        killed = Path(shutil.copytree(tmp_path / "q", tmp_path / "killed"))
    flip(killed / "staging", 20)

    assert salvage(killed) == (numbered(30), [])
    assert take_all(killed) == (numbered(30), [])


def remove(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def make_a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def link(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


HARMS = [remove, empty, zero, make_a_directory, link]
each_harm = pytest.mark.parametrize("harm", HARMS)


@each_policy
@each_harm
def test_a_lost_log_is_told_with_its_count(
    tmp_path: Path, sync: str, harm: Callable[[Path], None]
) -> None:
    values = fill(tmp_path / "q", sync, runs=2)
    (wal,) = files_of(tmp_path / "q", ".wal")
    harm(wal)
    # It may still hold the same batches, and bring them back.
    (tmp_path / "q" / "staging").unlink(missing_ok=True)

    assert the_sum_holds(tmp_path / "q", values, 100, wal.name)


@each_policy
@each_harm
def test_a_lost_run_is_told_with_its_count(
    tmp_path: Path, sync: str, harm: Callable[[Path], None]
) -> None:
    values = fill(tmp_path / "q", sync, runs=3)
    run = files_of(tmp_path / "q", ".p.run")[1]
    harm(run)

    assert the_sum_holds(tmp_path / "q", values, 20, run.name)


@each_harm
def test_what_had_left_a_lost_run_is_not_counted(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    values = numbered(20)
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(values)
        queue.freeze()
        queue.release_many(queue.dequeue_many(7))
        queue.freeze()
    (run,) = files_of(tmp_path / "q", ".p.run")
    harm(run)

    assert salvage(tmp_path / "q") == ([], [13])
    found, told = take_all(tmp_path / "q")
    assert (found, [error.damage.count for error in told]) == ([], [13])


def test_what_had_left_a_bad_block_is_not_counted(tmp_path: Path) -> None:
    values = numbered(9, size=20_000)
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(20))
        queue.freeze()
        queue.enqueue_many(values)
        first = queue.dequeue_many(23)
        queue.release_many(first[20:])
        queue.freeze()
    run = files_of(tmp_path / "q", ".p.run")[0]
    flip(run, run.read_bytes().index(numbered(20)[3]))

    found, told = take_all(tmp_path / "q")
    assert [error.damage.count for error in told] == [20]
    assert found == values[3:]
    assert fsck(tmp_path / "q")[0] == 4


def test_runs_that_are_swapped_are_told(tmp_path: Path) -> None:
    values = fill(tmp_path / "q", "always", runs=2)
    one, other = files_of(tmp_path / "q", ".p.run")
    aside = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(aside)

    found, told = take_all(tmp_path / "q")

    assert found == values[40:]
    assert sum(error.damage.count or 0 for error in told) == 40
    assert fsck(tmp_path / "q")[0] == 4


@pytest.mark.parametrize("end", [".wal", ".p.run"])
def test_the_file_of_a_sibling_queue_is_told(tmp_path: Path, end: str) -> None:
    values = fill(tmp_path / "q", "always", runs=1)
    fill(tmp_path / "sibling", "always", runs=1)
    (mine,) = files_of(tmp_path / "q", end)
    (theirs,) = files_of(tmp_path / "sibling", end)
    mine.write_bytes(theirs.read_bytes())

    assert the_sum_holds(tmp_path / "q", values, 100 if end == ".wal" else 20, mine.name)


def test_an_older_copy_of_the_log_is_told(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(numbered(5))
        (wal,) = files_of(tmp_path / "q", ".wal")
        older = wal.read_bytes()
        for value in numbered(10, first=5):
            queue.enqueue(value)
    wal.write_bytes(older)

    assert the_sum_holds(tmp_path / "q", numbered(15), 10, wal.name)


@pytest.mark.parametrize("name", [MANIFEST, MARK])
def test_an_older_or_foreign_side_file_costs_nothing(tmp_path: Path, name: str) -> None:
    values = numbered(60)
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many(values[:20])
        queue.freeze()
        older = (tmp_path / "q" / name).read_bytes()
        queue.enqueue_many(values[20:40])
        queue.freeze()
        queue.merge()
        queue.enqueue_many(values[40:])
    fill(tmp_path / "sibling", "always")
    foreign = (tmp_path / "sibling" / name).read_bytes()

    for number, content in enumerate((older, foreign, b"", bytes(100), None)):
        copy = tmp_path / f"copy {number}"
        shutil.copytree(tmp_path / "q", copy)
        if content is None:
            (copy / name).unlink()
        else:
            (copy / name).write_bytes(content)
        assert salvage(copy) == (values, []), content
        with forebay.read(copy, kind="deadline") as reader:
            assert list(reader.values()) == values
        assert take_all(copy) == (values, [])


@pytest.mark.parametrize("harm", [make_a_directory, link])
@pytest.mark.parametrize("name", [MANIFEST, MARK, "staging", "reserve"])
def test_a_side_file_that_is_none_is_put_aside(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    values = fill(tmp_path / "q", "os", runs=1)
    harm(tmp_path / "q" / name)

    assert salvage(tmp_path / "q") == (values, [])
    assert take_all(tmp_path / "q", sync="os") == (values, [])
    assert fsck(tmp_path / "q")[0] == 0


def test_quarantine_with_odd_files_is_counted(tmp_path: Path) -> None:
    fill(tmp_path / "q", "always", runs=1)
    (run,) = files_of(tmp_path / "q", ".p.run")
    link(run)

    with open_queue(tmp_path / "q") as queue:
        assert queue.info().quarantined_files == 1
    assert fsck(tmp_path / "q")[0] == 4


@pytest.mark.slow
def test_damage_that_stays_is_raised_once_by_each_handle_until_it_is_accepted(
    tmp_path: Path,
) -> None:
    values = numbered(3000, size=60)
    with open_queue(tmp_path / "q") as queue:
        for start in range(0, 3000, 100):
            queue.enqueue_many(values[start : start + 100])
    (wal,) = files_of(tmp_path / "q", ".wal")
    flip(wal, wal.read_bytes().index(values[1234]))

    for _ in range(2):
        with open_queue(tmp_path / "q") as queue:
            with pytest.raises(Damaged) as caught:
                queue.dequeue()
            assert caught.value.damage.count == 100
            assert queue.dequeue() is not None
            assert queue.pending == 2899
        assert salvage(tmp_path / "q")[1] == [100]
    assert forebay.accept_losses(tmp_path / "q") == 1
    with open_queue(tmp_path / "q") as queue:
        assert queue.dequeue() is not None


def test_a_merge_puts_what_it_cannot_read_on_record_first(tmp_path: Path) -> None:
    values = fill(tmp_path / "q", "always", runs=2)
    with open_queue(tmp_path / "q") as queue:
        run = files_of(tmp_path / "q", ".p.run")[0]
        flip(run, run.read_bytes().index(values[5]))
        queue.merge()
        with pytest.raises(Damaged) as caught:
            queue.dequeue()
        assert caught.value.damage.count == 20
        assert values_of(queue.dequeue_many(1000)) == values[20:]

    assert fsck(tmp_path / "q")[0] == 4
    assert salvage(tmp_path / "q") == (values[20:], [])


def test_nothing_is_told_of_a_queue_in_which_nothing_is_missing(tmp_path: Path) -> None:
    for sync in POLICIES:
        values = fill(tmp_path / sync, sync, runs=2)
        assert fsck(tmp_path / sync)[0] == 0
        assert salvage(tmp_path / sync) == (values, [])
        assert take_all(tmp_path / sync) == (values, [])


@pytest.mark.slow
def test_no_open_is_refused_whatever_file_is_lost(tmp_path: Path) -> None:
    fill(tmp_path / "q", "os", runs=2)
    for file in sorted((tmp_path / "q").iterdir()):
        for harm in HARMS:
            copy = tmp_path / f"{file.name}-{harm.__name__}" / "q"
            shutil.copytree(tmp_path / "q", copy)
            harm(copy / file.name)
            try:
                take_all(copy, sync="os")
            except ForebayError as error:
                pytest.fail(f"{copy}: {error!r}")
