"""Damage costs the entries that it hits and no others; each is told once, and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay import Damaged, Fifo
from forebay.queues.fifo.names import BOUNDS, HEAD, TAIL
from tests.queues.fifo_helpers import open_fifo, tape_files
from tests.queues.helpers import flip, numbered, snapshot
from tests.support.bad_disk import BadDisk

ENTRY_BYTES = 132


def make(path: Path, count: int = 40, size: int = 100) -> list[bytes]:
    values = numbered(count, size)
    with open_fifo(path) as fifo:
        fifo.push_many(values)
    return values


def drain(fifo: Fifo) -> tuple[list[bytes], list[Damaged]]:
    """Pops everything, round all damage."""
    values: list[bytes] = []
    errors: list[Damaged] = []
    for _ in range(1_000):
        try:
            more = fifo.pop_many(7)
        except Damaged as error:
            errors.append(error)
            continue
        if not more:
            return values, errors
        values += more
    raise AssertionError("the queue does not end")


def salvage(path: Path) -> tuple[list[bytes], int]:
    with forebay.read(path, salvage=True, kind="fifo") as reader:
        return list(reader.values()), sum(damage.count or 0 for damage in reader.damage)


@pytest.mark.parametrize("position", [0, 5, 13, 17, 21, 29, 32, 131])
@pytest.mark.parametrize("number", [0, 7, 20, 39])
def test_a_flipped_byte_costs_the_entry_that_it_hits(
    tmp_path: Path, number: int, position: int
) -> None:
    values = make(tmp_path / "q")
    file, at = divmod(number * ENTRY_BYTES + position, 1_000)
    flip(tape_files(tmp_path / "q")[file], at)
    left = values[:number] + values[number + 1 :]

    seen = salvage(tmp_path / "q")
    with open_fifo(tmp_path / "q") as fifo:
        popped, errors = drain(fifo)
        damaged = fifo.info().damaged

    assert seen == (left, 1)
    assert popped == left
    assert [error.damage.offset for error in errors] == [number]
    assert damaged == 1


def test_a_reader_raises_at_damage_and_says_where(tmp_path: Path) -> None:
    make(tmp_path / "q")
    flip(tape_files(tmp_path / "q")[1], 500)

    with forebay.read(tmp_path / "q") as reader, pytest.raises(Damaged) as caught:
        list(reader)

    assert caught.value.damage.path.endswith("0000000002.tape")
    assert "no entry verifies here" in str(caught.value)


def test_a_zeroed_sector_costs_what_it_touches(tmp_path: Path) -> None:
    values = make(tmp_path / "q")
    with tape_files(tmp_path / "q")[1].open("r+b") as file:
        file.seek(100)
        file.write(bytes(512))

    read, lost = salvage(tmp_path / "q")

    # Bytes 1100 to 1612 of the tape: entries 8 to 12.
    assert read == values[:8] + values[13:]
    assert lost == 5


def test_a_missing_middle_file_costs_what_touches_it(tmp_path: Path) -> None:
    values = make(tmp_path / "q")
    tape_files(tmp_path / "q")[2].unlink()

    read, lost = salvage(tmp_path / "q")
    with open_fifo(tmp_path / "q") as fifo:
        popped, errors = drain(fifo)

    assert read == popped == values[:15] + values[23:]
    assert lost == 8
    assert "verifies" in str(errors[0]) or "missing" in str(errors[0])


@pytest.mark.parametrize("size", [0, 700, 1_400])
def test_a_file_of_the_wrong_size_costs_what_reaches_beyond_it(tmp_path: Path, size: int) -> None:
    values = make(tmp_path / "q")
    with tape_files(tmp_path / "q")[2].open("r+b") as file:
        file.truncate(size)

    read, lost = salvage(tmp_path / "q")
    with open_fifo(tmp_path / "q") as fifo:
        popped, _ = drain(fifo)

    expected = {0: (15, 23), 700: (20, 23), 1_400: (40, 40)}[size]
    assert read == popped == values[: expected[0]] + values[expected[1] :]
    assert lost == expected[1] - expected[0]


def test_damage_inside_an_entry_that_spans_files_costs_only_that_one(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push_many([b"before", b"x" * 3_500, b"after"])
    flip(tape_files(tmp_path / "q")[2], 400)

    assert salvage(tmp_path / "q") == ([b"before", b"after"], 1)


def test_entries_inside_an_entry_are_not_taken_for_entries_of_the_queue(tmp_path: Path) -> None:
    make(tmp_path / "inner", count=5)
    inner = tape_files(tmp_path / "inner")[0].read_bytes()
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push_many([b"one", inner, b"three"])
    flip(tape_files(tmp_path / "q")[0], 35 + 20)

    assert salvage(tmp_path / "q") == ([b"one", b"three"], 1)


def test_without_its_boundaries_a_queue_is_read_round_damage_all_the_same(tmp_path: Path) -> None:
    values = make(tmp_path / "q")
    (tmp_path / "q" / BOUNDS).unlink()
    tape_files(tmp_path / "q")[2].unlink()

    read, _ = salvage(tmp_path / "q")
    with open_fifo(tmp_path / "q") as fifo:
        popped, _ = drain(fifo)

    assert read == popped == values[:15] + values[23:]


def test_boundaries_that_are_lost_are_found_again(tmp_path: Path) -> None:
    make(tmp_path / "q")
    before = (tmp_path / "q" / BOUNDS).read_bytes()
    (tmp_path / "q" / BOUNDS).unlink()

    open_fifo(tmp_path / "q").close()

    # All but the ids, of which a lower bound is enough; the first file is where the head is.
    after = (tmp_path / "q" / BOUNDS).read_bytes()
    rows = [before[start : start + 20] for start in range(32, len(before), 32)]
    assert [after[start : start + 20] for start in range(0, len(after), 32)] == rows


def test_a_head_that_is_lost_after_a_close_costs_nothing(tmp_path: Path) -> None:
    values = make(tmp_path / "q", count=20)
    with open_fifo(tmp_path / "q") as fifo:
        fifo.pop_many(10)
    (tmp_path / "q" / HEAD).write_bytes(bytes(4 * 4_096))

    with open_fifo(tmp_path / "q") as fifo:
        popped, errors = drain(fifo)

    assert popped == values[10:]
    assert errors == []


def test_a_lost_mark_is_found_again_behind_the_last_good_entry(tmp_path: Path) -> None:
    values = make(tmp_path / "q")
    (tmp_path / "q" / TAIL).unlink()

    with open_fifo(tmp_path / "q") as fifo:
        assert len(fifo) == 40
        fifo.push(b"more")
        assert drain(fifo) == ([*values, b"more"], [])


def test_a_lent_entry_that_is_damaged_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    make(tmp_path / "q", count=5)
    fifo = open_fifo(tmp_path / "q")
    fifo.take().__enter__()
    fifo.close()
    flip(tape_files(tmp_path / "q")[0], 40)

    with open_fifo(tmp_path / "q") as again:
        popped, _ = drain(again)

        assert popped == numbered(4, first=1)
        assert again.info().damaged == 1


def test_reading_changes_nothing(tmp_path: Path) -> None:
    make(tmp_path / "q")
    flip(tape_files(tmp_path / "q")[1], 500)
    before = snapshot(tmp_path / "q")

    salvage(tmp_path / "q")

    assert snapshot(tmp_path / "q") == before


def test_every_truncation_of_the_last_file_loses_a_suffix(tmp_path: Path) -> None:
    values = make(tmp_path / "q", count=9)
    file = tape_files(tmp_path / "q")[-1]
    whole = file.read_bytes()

    for size in range(0, 190, 7):
        file.write_bytes(whole[:size])
        read, lost = salvage(tmp_path / "q")
        assert read == values[: len(read)]
        assert len(read) + lost == 9


def test_a_bad_sector_is_known_before_an_entry_lies_on_it(tmp_path: Path) -> None:
    path = tmp_path / "q"
    values = numbered(9, 100_000)
    with open_fifo(path, file_bytes=1_000_000) as fifo:
        fifo.push(values[0])
    name = tape_files(path)[0].name
    disk = BadDisk({name: [(700_000, 700_512)]})
    fifo = open_fifo(path, file_bytes=1_000_000, filesystem=disk)
    for count in (1, 2, 3):
        fifo.push(values[count])
    with pytest.raises(OSError, match="cannot read where the next entry goes"):
        fifo.push_many(values[4:7])
    fifo.close()

    with open_fifo(path, file_bytes=1_000_000, filesystem=disk) as again:
        again.push(values[7])
        files = len(tape_files(path))
        found = again.pop_many(99)

    assert (found, files) == ([*values[:4], values[7]], 2)


def test_a_bad_sector_in_the_next_step_is_known_at_the_open(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with open_fifo(path, file_bytes=1_000_000) as fifo:
        fifo.push(b"one")
    name = tape_files(path)[0].name
    disk = BadDisk({name: [(50_000, 50_512)]})

    with open_fifo(path, file_bytes=1_000_000, filesystem=disk) as again:
        again.push(b"two")
        files = len(tape_files(path))

        assert (again.pop_many(9), files) == ([b"one", b"two"], 2)
