"""Columns of entries say the same as the entries."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.formats.entry import encode_entry
from forebay.kernels.entry import METADATA_BYTES, Entry, EntryColumns
from tests.formats.entries import VERSION, make_id

ALL = 1 << 40
TIME_MS = 1_800_000_000_000

rows_strategy = st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**32 - 1)), max_size=30)
number_strategy = st.integers(0, 2**40)


def entries_of(rows: list[tuple[bytes, int]], number: int = 0) -> list[Entry]:
    """Entries a millisecond apart."""
    return [
        Entry(number + n, make_id(TIME_MS + n, number + n), ttl, value)
        for n, (value, ttl) in enumerate(rows)
    ]


def encoded(values: list[bytes], number: int = 0) -> bytes:
    entries = entries_of([(value, 0) for value in values], number)
    return b"".join(encode_entry(entry, VERSION) for entry in entries)


def values_of(columns: EntryColumns) -> list[bytes]:
    ends = memoryview(columns.ends).cast("i")
    return [bytes(columns.payload[ends[n] : ends[n + 1]]) for n in range(columns.rows)]


def numbers(buffer: bytearray, count: int) -> list[int]:
    return list(memoryview(buffer).cast("q")[:count])


@given(rows_strategy, number_strategy)
def test_columns_hold_what_the_entries_say(rows: list[tuple[bytes, int]], number: int) -> None:
    entries = entries_of(rows, number)
    data = b"".join(encode_entry(entry, VERSION) for entry in entries)
    columns = EntryColumns(len(data) + 1, 31, True)

    count, position, last_id = columns.take(data, number, 0, ALL, ALL, VERSION)

    sizes = (METADATA_BYTES + len(entry.value) for entry in entries)
    starts = list(accumulate(sizes, initial=0))
    assert (count, position) == (len(entries), len(data))
    assert last_id == (entries[-1].id if entries else 0)
    assert values_of(columns) == [entry.value for entry in entries]
    assert numbers(columns.numbers, count) == [entry.offset for entry in entries]
    assert numbers(columns.ids, count) == [entry.id for entry in entries]
    assert numbers(columns.micros, count) == [entry.time_ms * 1000 for entry in entries]
    assert numbers(columns.ttls, count) == [entry.ttl_seconds for entry in entries]
    assert numbers(columns.positions(90), count) == [90 + start for start in starts[:-1]]


def test_a_second_buffer_goes_behind_the_first_until_the_columns_are_cleared() -> None:
    columns = EntryColumns(100, 10, True)

    columns.take(encoded([b"one", b""]), 0, 0, ALL, ALL, VERSION)
    columns.take(encoded([b"two"], 2), 2, 0, ALL, ALL, VERSION)
    both = values_of(columns)
    columns.clear()
    columns.take(encoded([b"three"], 3), 3, 0, ALL, ALL, VERSION)

    assert both == [b"one", b"", b"two"]
    assert values_of(columns) == [b"three"]
    assert numbers(columns.numbers, 1) == [3]


@pytest.mark.parametrize(
    ("payload_bytes", "rows_max", "limit", "stop", "expected"),
    [
        (11, 9, ALL, ALL, 2),
        (12, 1, ALL, ALL, 1),
        (12, 9, 2, ALL, 2),
        (12, 9, ALL, 72, 2),
        (12, 9, ALL, 73, 3),
        (12, 9, ALL, 0, 0),
        (12, 9, ALL, ALL, 3),
    ],
)
def test_columns_end_where_the_room_the_limit_or_the_place_to_stop_is(
    payload_bytes: int, rows_max: int, limit: int, stop: int, expected: int
) -> None:
    data = encoded([b"aaaa", b"bbbb", b"cccc"])
    columns = EntryColumns(payload_bytes, rows_max, True)

    assert columns.take(data, 0, 0, limit, stop, VERSION)[:2] == (expected, expected * 36)
    assert columns.rows == expected


def test_columns_end_at_the_first_entry_that_is_bad_or_cut_off() -> None:
    data = bytearray(encoded([b"aaaa", b"bbbb", b"cccc"]))
    cut = bytes(data[:-1])
    data[-1] ^= 1

    assert EntryColumns(12, 9, True).take(bytes(data), 0, 0, ALL, ALL, VERSION)[:2] == (2, 72)
    assert EntryColumns(12, 9, True).take(cut, 0, 0, ALL, ALL, VERSION)[:2] == (2, 72)


@pytest.mark.parametrize(("number", "last_id"), [(1, 0), (0, make_id(TIME_MS, 0))])
def test_an_entry_of_another_number_or_an_older_id_is_not_taken(number: int, last_id: int) -> None:
    columns = EntryColumns(12, 9, True)

    assert columns.take(encoded([b"aaaa"]), number, last_id, ALL, ALL, VERSION) == (0, 0, last_id)


def test_columns_without_values_verify_them_all_the_same() -> None:
    data = bytearray(encoded([b"aaaa", b"bbbb", b"cccc"]))
    data[-1] ^= 1
    columns = EntryColumns(100, 9, False)

    assert columns.take(bytes(data), 0, 0, ALL, ALL, VERSION)[:2] == (2, 72)
    assert numbers(columns.numbers, 2) == [0, 1]
    assert not any(columns.payload)
