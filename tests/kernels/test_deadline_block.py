"""The columns of a block: packing, unpacking, searching, and bodies that lie."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.deadline import Block, BlockBuilder, pack, search_packed, unpack

Row = tuple[int, int, int, int, int, int, bytes, bytes]
times = st.integers(0, 2**48 - 1)
# Deadline, id, attributes, the two times, count, reason, value.
item_rows = st.tuples(
    *(times, st.integers(0, 2**64 - 1), st.sampled_from([0, 2]), times),
    *(st.one_of(st.just(0), times), st.integers(0, 2**32 - 1)),
    *(st.binary(max_size=5), st.binary(max_size=20)),
)
tombstone_rows = st.tuples(
    *(times, st.integers(0, 2**64 - 1), st.just(1), st.just(0), st.just(0), st.just(0)),
    *(st.just(b""), st.just(b"")),
)
blocks = st.lists(st.one_of(item_rows, tombstone_rows), min_size=1, max_size=30)


def body_of(rows: list[Row]) -> bytes:
    builder = BlockBuilder(1)
    for deadline, id, attributes, enqueue, requeue, count, reason, value in rows:
        builder.add(deadline, id, enqueue, requeue, count, attributes, reason, value)
    assert builder.count == len(rows)
    return builder.take()


@pytest.mark.slow
@given(blocks)
def test_every_row_comes_back_on_its_own(rows: list[Row]) -> None:
    block = Block(body_of(rows), len(rows))

    assert [block.row(at) for at in reversed(range(len(rows)))] == rows[::-1]
    assert [block.id(at) for at in range(len(rows))] == [row[1] for row in rows]
    assert [block.attributes(at) for at in range(len(rows))] == [row[2] for row in rows]
    assert [block.deadline(at) for at in range(len(rows))] == [row[0] for row in rows]


@pytest.mark.slow
@given(blocks, times, st.integers(0, 2**64 - 1))
def test_a_search_gives_the_first_key_that_is_not_below(
    rows: list[Row], deadline: int, id: int
) -> None:
    rows.sort(key=lambda row: row[:2])
    block = Block(body_of(rows), len(rows))

    for wanted in [(deadline, id), *(row[:2] for row in rows)]:
        assert block.search(*wanted) == sum(row[:2] < wanted for row in rows)


@pytest.mark.slow
@given(blocks)
def test_all_entries_of_an_id_are_found(rows: list[Row]) -> None:
    block = Block(body_of(rows + rows[:1]), len(rows) + 1)

    first = [row[1] for row in rows].index(rows[0][1])
    assert block.find_id(rows[0][1], 0) == first
    assert block.find_id(rows[0][1], len(rows)) == len(rows)
    assert block.find_id(rows[0][1], len(rows) + 1) == -1


def test_a_builder_makes_one_block_after_the_other() -> None:
    rows: list[Row] = [(at, at + 5, at % 3, 0, 0, 0, b"", b"") for at in range(5)]
    builder = BlockBuilder(40)
    for deadline, id, attributes, enqueue, requeue, count, reason, value in rows[:3]:
        assert builder.fits(16)
        builder.add(deadline, id, enqueue, requeue, count, attributes, reason, value)

    assert not builder.fits(16)
    assert (builder.id_bounds(), builder.counts()) == ((5, 7), (1, 1, 1))
    assert memoryview(builder.ids()).cast("Q").tolist() == [5, 6, 7]
    assert (builder.first_key(), builder.last_key()) == ((0, 5), (2, 7))
    first = Block(builder.take(), 3)
    assert builder.fits(10**9)
    for deadline, id, attributes, enqueue, requeue, count, reason, value in rows[3:]:
        builder.add(deadline, id, enqueue, requeue, count, attributes, reason, value)
    second = Block(builder.take(), 2)

    assert [*map(first.row, range(3)), *map(second.row, range(2))] == rows


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.integers(0, 64))
def test_packed_numbers_are_found_one_by_one_and_by_search(numbers: list[int], width: int) -> None:
    numbers = sorted(number & (1 << width) - 1 for number in numbers)

    data = b"xy" + pack([number + 5 for number in numbers if number + 5 < 2**64], 5, width)

    kept = [number + 5 for number in numbers if number + 5 < 2**64]
    assert len(data) == 2 + (len(kept) * width + 7) // 8
    assert [unpack(data, 2, at, 5, width) for at in range(len(kept))] == kept
    for wanted in kept:
        assert search_packed(data, 2, len(kept), 5, width, wanted) == kept.index(wanted)


def test_bits_begin_with_the_lowest() -> None:
    assert pack([1, 2, 3, 4], 0, 3) == bytes([0b11_010_001, 0b1000])
    assert pack([2**64 - 1], 0, 64) == b"\xff" * 8
    assert pack([7, 7], 7, 0) == b""


def head(widths: list[int], bases: list[int] | None = None) -> bytes:
    return struct.pack("<8Q8B", *(bases or [0] * 8), *widths)


@pytest.mark.parametrize(
    ("body", "count", "reason"),
    [
        (b"", 1, "1 entries in 0 bytes"),
        (head([0] * 8), 0, "0 entries"),
        (head([65] + [0] * 7) + bytes(9), 1, "65 bits"),
        (head([8] + [0] * 7), 1, "columns end at 73"),
        (head([0] * 8) + b"x", 1, "values end at 72"),
        (head([0] * 8, [0] * 7 + [2]) + b"x", 1, "goes on past"),
        (head([0] * 8, [0] * 7 + [2**64 - 1]) + b"x", 1, "goes on past"),
        (head([0] * 8, [0] * 5 + [3, 0, 0]), 1, "unknown attributes"),
    ],
)
def test_a_body_that_lies_is_refused(body: bytes, count: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Block(body, count)
