"""The loops over entries do what the codec of one entry says."""

from __future__ import annotations

import pytest

from forebay.formats.entry import decode_entry, encode_entry
from forebay.kernels.entry import METADATA_BYTES, Entry, boundary, claimed_size, encode, find, scan
from tests.formats.entries import VERSION, make_id
from tests.support.values import flipped

VALUES = [b"", b"one", b"two" * 50, bytes(300), b"last"]
TIME_MS = 1_700_000_000_000


def encoded(values: list[bytes], first: int = 0, ttl: int = 7) -> bytes:
    buffer = bytearray(sum(map(len, values)) + len(values) * METADATA_BYTES)
    size, _ = encode(values, 0, len(values), buffer, first, TIME_MS, 0, ttl, VERSION)
    assert size == len(buffer)
    return bytes(buffer)


def starts(values: list[bytes]) -> list[int]:
    return [
        sum(METADATA_BYTES + len(value) for value in values[:index])
        for index in range(len(values) + 1)
    ]


def test_entries_are_those_of_the_codec() -> None:
    data = encoded(VALUES, first=65_534)

    position, ids = 0, []
    for number, value in enumerate(VALUES, 65_534):
        entry, position = decode_entry(data, position, number, "t", VERSION)
        assert (entry.value, entry.ttl_seconds) == (value, 7)
        ids.append(entry.id)

    assert position == len(data)
    assert ids == sorted(set(ids))
    assert [entry_id >> 16 for entry_id in ids] == [TIME_MS, TIME_MS, *[TIME_MS + 1] * 3]


def test_scan_takes_whole_good_entries_and_stops_behind_them() -> None:
    data = encoded(VALUES)
    ids: list[int] = []
    ttls: list[int] = []

    values, stop, last_id = scan(data + b"torn", 0, 0, 0, 2**62, VERSION, ids, ttls)

    assert (values, stop, last_id) == (VALUES, len(data), make_id(TIME_MS, 4))
    assert ids == [make_id(TIME_MS, number) for number in range(5)]
    assert ttls == [7] * 5
    assert scan(data, 0, 0, 0, 2, VERSION)[:2] == (VALUES[:2], starts(VALUES)[2])


@pytest.mark.parametrize(
    ("number", "last_id"), [(1, 0), (65_535, 0), (0, make_id(TIME_MS, 0)), (0, 2**63)]
)
def test_scan_takes_only_the_entry_that_is_due(number: int, last_id: int) -> None:
    assert scan(encoded(VALUES), 0, number, last_id, 1, VERSION) == ([], 0, last_id)


def test_any_flipped_bit_ends_a_scan_at_its_entry() -> None:
    data = encoded(VALUES[:3])
    edges = starts(VALUES[:3])

    for bit in range(0, 8 * len(data), 3):
        hit = max(index for index, start in enumerate(edges) if start <= bit // 8)
        assert scan(flipped(data, bit), 0, 0, 0, 9, VERSION)[0] == VALUES[:hit]


def test_find_finds_the_next_good_entry_and_its_number() -> None:
    data = encoded(VALUES)
    edges = starts(VALUES)

    for index in range(1, 5):
        position = edges[index - 1] + 1
        assert find(data, position, index - 1, 0, 9, VERSION, 1) == (edges[index], index)
    assert find(data, edges[4] + 1, 4, 0, 9, VERSION, 1) == (-1, 0)
    assert find(data, edges[2] + 1, 2, make_id(TIME_MS, 3), 9, VERSION, 1) == (edges[4], 4)
    assert find(data, edges[2] + 1, 2, 0, 0, VERSION, 1) == (-1, 0)


def test_find_refuses_a_number_that_the_bytes_have_no_room_for() -> None:
    data = b"\0" * 10 + encode_entry(Entry(500, make_id(TIME_MS, 500), 0, b"x"), VERSION)

    assert find(data, 0, 0, 0, 2**40, VERSION) == (-1, 0)
    assert find(data, 0, 0, 0, 2**40, VERSION, 500 * METADATA_BYTES) == (10, 500)


def test_the_first_boundary_at_or_behind_a_position_is_told_with_the_entries_before() -> None:
    data = encoded(VALUES)
    edges = starts(VALUES)

    assert boundary(data, 0) == (0, 0)
    assert boundary(data, 1) == (edges[1], 1)
    assert boundary(data, edges[2]) == (edges[2], 2)
    assert boundary(data, len(data)) == (len(data), 5)


def test_what_an_entry_claims_to_take_is_told_only_where_its_metadata_verifies() -> None:
    data = encoded([b"x" * 100])

    assert claimed_size(data[:40], 0, VERSION) == 132
    assert claimed_size(data[:31], 0, VERSION) == -1
    assert claimed_size(data, 1, VERSION) == -1


def test_an_entry_of_another_queue_is_neither_taken_nor_found() -> None:
    other = b"FBE2\x01\x02\x03\x05"
    data = b"\0" * 100 + encoded(VALUES)

    assert scan(data, 100, 0, 0, 9, other) == ([], 100, 0)
    assert claimed_size(data, 100, other) == -1
    assert find(data, 0, 0, 0, 9, other) == (-1, 0)
    assert find(data, 0, 0, 0, 9, VERSION) == (100, 0)
