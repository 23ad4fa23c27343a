"""Columns say the same as records, and frames made of columns are the frames of their rows."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.fflg import FRAME_BYTES, Columns, encode_columns
from tests.kernels.test_fflg import ALL, SEED, encoded, frames, index_strategy, values_strategy


def values_of(columns: Columns) -> list[bytes]:
    ends = memoryview(columns.ends).cast("i")
    return [bytes(columns.payload[ends[n] : ends[n + 1]]) for n in range(columns.rows)]


def numbers(buffer: bytearray, count: int) -> list[int]:
    return list(memoryview(buffer).cast("q")[:count])


@given(values_strategy, index_strategy)
def test_columns_hold_what_the_frames_say(values: list[bytes], index: int) -> None:
    data = encoded(values, index)
    columns = Columns(sum(map(len, values)) + 1, 31, True)

    count, position = columns.take(data, 0, index, SEED, ALL, 1000, 5_000)

    starts = list(accumulate((FRAME_BYTES + len(value) for value in values), initial=0))
    assert (count, position) == (len(values), len(data))
    assert values_of(columns) == values
    assert numbers(columns.offsets, count) == [1000 + index + n for n in range(count)]
    assert numbers(columns.micros, count) == [5_007_000] * count
    assert numbers(columns.positions(90), count) == [90 + start for start in starts[:-1]]


def test_a_second_buffer_goes_behind_the_first_until_the_columns_are_cleared() -> None:
    columns = Columns(100, 10, True)

    columns.take(encoded([b"one", b""], 0), 0, 0, SEED, ALL, 0, 0)
    columns.take(encoded([b"two"], 2), 0, 2, SEED, ALL, 0, 0)
    both = values_of(columns)
    columns.clear()
    columns.take(encoded([b"three"], 3), 0, 3, SEED, ALL, 0, 0)

    assert both == [b"one", b"", b"two"]
    assert values_of(columns) == [b"three"]
    assert numbers(columns.offsets, 1) == [3]


@pytest.mark.parametrize(
    ("payload_bytes", "rows_max", "limit", "expected"),
    [(11, 9, ALL, 2), (12, 1, ALL, 1), (12, 9, 2, 2), (12, 9, ALL, 3)],
)
def test_columns_stop_where_the_room_or_the_limit_ends(
    payload_bytes: int, rows_max: int, limit: int, expected: int
) -> None:
    data = encoded([b"aaaa", b"bbbb", b"cccc"])
    columns = Columns(payload_bytes, rows_max, True)

    assert columns.take(data, 0, 0, SEED, limit, 0, 0) == (expected, expected * 16)
    assert columns.rows == expected


def test_columns_stop_at_the_first_bad_frame() -> None:
    data = bytearray(encoded([b"aaaa", b"bbbb", b"cccc"]))
    data[-1] ^= 1

    assert Columns(12, 9, True).take(bytes(data), 0, 0, SEED, ALL, 0, 0) == (2, 32)


def test_columns_without_values_verify_them_all_the_same() -> None:
    data = bytearray(encoded([b"aaaa", b"bbbb", b"cccc"]))
    data[-1] ^= 1
    columns = Columns(100, 9, False)

    assert columns.take(bytes(data), 0, 0, SEED, ALL, 0, 0) == (2, 32)
    assert numbers(columns.offsets, 2) == [0, 1]
    assert not any(columns.payload)


@given(values_strategy, index_strategy, st.integers(0, 5), st.integers(0, 5))
def test_encoded_columns_are_the_frames_of_their_rows(
    values: list[bytes], index: int, before: int, room: int
) -> None:
    column = [b"x" * before, *values]
    ends = array("i", accumulate(map(len, column), initial=0))
    buffer = bytearray(sum(map(len, values)) + FRAME_BYTES * len(values) + room)

    count, size = encode_columns(ends, b"".join(column), 1, len(values), buffer, index, SEED, 7)

    assert count == len(values)
    assert bytes(buffer[:size]) == frames(values, index, SEED, 7)


def test_encoding_columns_stops_where_the_next_frame_does_not_fit() -> None:
    ends = array("i", [0, 4, 8])
    buffer = bytearray(31)

    assert encode_columns(ends, b"aaaabbbb", 0, 2, buffer, 0, SEED, 7) == (1, 16)
    assert bytes(buffer[16:]) == bytes(15)


@pytest.mark.parametrize(("first", "count"), [(0, 3), (2, 1), (-1, 1)])
def test_rows_beyond_the_buffers_are_refused(first: int, count: int) -> None:
    with pytest.raises(ValueError, match="beyond the column's buffers"):
        encode_columns(array("i", [0, 4, 8]), b"aaaabbbb", first, count, bytearray(99), 0, SEED, 7)


def test_a_column_whose_ends_reach_beyond_its_data_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the column's buffers"):
        encode_columns(array("i", [0, 4, 9]), b"aaaabbbb", 0, 2, bytearray(99), 0, SEED, 7)
