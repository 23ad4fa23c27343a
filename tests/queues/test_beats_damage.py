"""Damage in a Beats queue: it costs what it hits, is told once, and is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay import BeatsQueue, BeatsReader, Damaged, Event, UndecodableEvent
from forebay.formats.beats.versions import LAYOUTS
from tests.formats.beats_independent import frame
from tests.queues.beats_helpers import (
    PER_SEGMENT,
    WRITABLE,
    leave_segment,
    make_key,
    numbered,
    numbers_of,
    open_queue,
    state_of,
    take_all,
)
from tests.queues.helpers import flip, snapshot

FRAME_BYTES = 100


def salvage(path: Path) -> tuple[list[int], BeatsReader]:
    with BeatsReader(path, key_file=make_key(path.parent), salvage=True) as reader:
        return numbers_of(reader), reader


def take_round_damage(queue: BeatsQueue) -> tuple[list[int], list[int | None]]:
    """Takes everything; returns the numbers, and how many events each damage is said to cost."""
    found: list[int] = []
    told: list[int | None] = []
    while True:
        try:
            batch = queue.read(7)
        except Damaged as error:
            told.append(error.damage.count)
            continue
        if not batch:
            return found, told
        found += numbers_of(batch)
        batch.ack()


@pytest.mark.parametrize("version", ["v1", "v2", "v2-seed"])
def test_a_flipped_bit_costs_one_event_and_is_told_once(tmp_path: Path, version: str) -> None:
    with open_queue(tmp_path / "q", version) as queue:
        queue.put_many(numbered(6))
    flip(tmp_path / "q" / "0.seg", LAYOUTS[version].body_position + 2 * FRAME_BYTES + 30)

    with open_queue(tmp_path / "q") as queue:
        first = numbers_of(queue.read(10))
        with pytest.raises(Damaged) as caught:
            queue.read(10)
        rest = queue.read(10)
        rest.ack()
        held = state_of(tmp_path / "q")

        assert (first, numbers_of(rest)) == ([0, 1], [3, 4, 5])
        assert caught.value.damage.count == 1
        assert caught.value.damage.position == LAYOUTS[version].body_position + 2 * FRAME_BYTES
        assert held[2] == 0
        assert [damage.count for damage in queue.damage] == [1]


def test_the_place_moves_over_damage_when_all_before_it_is_done(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(6))
    flip(tmp_path / "q" / "0.seg", 12 + 2 * FRAME_BYTES + 30)

    with open_queue(tmp_path / "q") as queue:
        queue.read(2).ack()
        with pytest.raises(Damaged):
            queue.read(2)
        queue.read(1).ack()

    with open_queue(tmp_path / "q") as queue:
        assert state_of(tmp_path / "q") == (0, 12 + 4 * FRAME_BYTES, 4)
        assert take_all(queue) == [4, 5]


@pytest.mark.parametrize("filler", [b"\0", b"\xff"], ids=["zeros", "ones"])
@pytest.mark.parametrize(
    ("first", "end", "lost", "left"),
    [
        (3, 6, [1], [6, 7, 8, 9]),
        # How many were lost in the middle is known at the end.
        (3, 8, [1, 2], [8, 9]),
        (3, 9, [4], [9]),
        (4, 5, [], [5, 6, 7, 8, 9]),
        (0, 5, [], [5, 6, 7, 8, 9]),
    ],
)
def test_damage_round_the_place_costs_only_what_is_not_acknowledged(
    tmp_path: Path, first: int, end: int, lost: list[int], left: list[int], filler: bytes
) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(PER_SEGMENT + 1))
        queue.read(5).ack()
    with open(tmp_path / "q" / "0.seg", "r+b") as file:
        file.seek(12 + first * FRAME_BYTES)
        file.write(filler * (end - first) * FRAME_BYTES)

    with open_queue(tmp_path / "q") as queue:
        found, told = take_round_damage(queue)

        assert (found, told) == (left, lost)
        assert queue.info().outstanding == 0


def test_a_frame_that_holds_no_event_costs_itself(tmp_path: Path) -> None:
    file = leave_segment(tmp_path / "q", 0, "v2", numbered(3))
    data = bytearray(file.read_bytes())
    data[4:8] = (4).to_bytes(4, "little")
    data[12 + FRAME_BYTES : 12 + FRAME_BYTES] = frame(b"\xa1\x64Time\x01")
    file.write_bytes(data)

    with open_queue(tmp_path / "q", "v2") as queue:
        first = numbers_of(queue.read(10))
        with pytest.raises(UndecodableEvent, match=r"0\.seg, byte 112: .*Time"):
            queue.read(10)
        rest = take_all(queue)
    found, reader = salvage(tmp_path / "q")

    assert (first, rest) == ([0], [1, 2])
    assert found == [0, 1, 2]
    assert [damage.count for damage in reader.damage] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("version", LAYOUTS)
def test_salvage_reads_a_segment_that_was_cut_anywhere(tmp_path: Path, version: str) -> None:
    file = leave_segment(tmp_path / "q", 0, version, numbered(4))
    leave_segment(tmp_path / "q", 1, version, numbered(1, first=4))
    whole = file.read_bytes()

    for cut in range(0, len(whole), 7):
        file.write_bytes(whole[:cut])
        found, _ = salvage(tmp_path / "q")
        assert found[-1] == 4
        assert found[:-1] == list(range(len(found) - 1))


def test_a_reader_without_salvage_stops_at_damage(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(6))
    flip(tmp_path / "q" / "0.seg", 12 + 2 * FRAME_BYTES + 30)
    before = snapshot(tmp_path / "q")
    seen: list[Event] = []

    with forebay.read(tmp_path / "q", kind="beats") as reader, pytest.raises(Damaged):
        seen.extend(reader)

    assert numbers_of(seen) == [0, 1]
    assert snapshot(tmp_path / "q") == before


@pytest.mark.parametrize("version", WRITABLE)
def test_damage_stays_where_it_is_when_the_queue_goes_on(tmp_path: Path, version: str) -> None:
    with open_queue(tmp_path / "q", version) as queue:
        queue.put_many(numbered(4))
    flip(tmp_path / "q" / "0.seg", LAYOUTS[version].body_position + 40)
    damaged = (tmp_path / "q" / "0.seg").read_bytes()

    with open_queue(tmp_path / "q", version) as queue:
        queue.put_many(numbered(2, first=4))
    found, reader = salvage(tmp_path / "q")

    assert (tmp_path / "q" / "0.seg").read_bytes() == damaged
    assert found[-2:] == [4, 5]
    assert reader.damage
