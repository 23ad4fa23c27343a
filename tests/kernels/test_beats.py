"""The loops over Beats frames, against frames that are made from the page alone."""

from __future__ import annotations

import struct
import zlib
from array import array

from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.beats import FRAME_BYTES, GAVE_UP, encode, find, find_block, gather, hop, scan

ALL = 2**62
values_strategy = st.lists(st.binary(min_size=1, max_size=300), max_size=30)


def frame(value: bytes) -> bytes:
    """Makes a frame by the words of the page, with the standard library only."""
    size = struct.pack("<I", len(value) + 12)
    return size + value + struct.pack("<I", zlib.crc32(size + value)) + size


def frames(values: list[bytes]) -> bytes:
    return b"".join(map(frame, values))


@given(values_strategy)
def test_encode_writes_what_the_page_says(values: list[bytes]) -> None:
    buffer = bytearray(sum(map(len, values)) + FRAME_BYTES * len(values) + 5)

    size = encode(values, 0, len(values), buffer)

    assert bytes(buffer) == frames(values) + bytes(5)
    assert size == len(buffer) - 5


@given(values_strategy, st.data())
def test_encode_takes_only_the_values_it_is_asked_for(
    values: list[bytes], draw: st.DataObject
) -> None:
    first = draw.draw(st.integers(0, len(values)))
    count = draw.draw(st.integers(0, len(values) - first))
    buffer = bytearray(10_000)

    size = encode(values, first, count, buffer)

    assert bytes(buffer[:size]) == frames(values[first : first + count])


@given(values_strategy, st.binary(max_size=20))
def test_scan_gives_every_frame_and_stops_behind_the_last(
    values: list[bytes], before: bytes
) -> None:
    data = before + frames(values)

    assert scan(data, len(before), ALL) == (values, len(data))
    assert scan(memoryview(data), len(before), ALL) == (values, len(data))


@given(values_strategy, st.integers(0, 40))
def test_scan_takes_no_more_than_its_limit(values: list[bytes], limit: int) -> None:
    found, position = scan(frames(values), 0, limit)

    assert found == values[:limit]
    assert position == len(frames(values[:limit]))


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=3), st.data())
def test_scan_stops_before_a_frame_with_a_flipped_bit(
    values: list[bytes], draw: st.DataObject
) -> None:
    data = bytearray(frames(values))
    bit = draw.draw(st.integers(0, len(data) * 8 - 1))
    data[bit // 8] ^= 1 << bit % 8

    found, position = scan(bytes(data), 0, ALL)

    assert found == values[: len(found)]
    assert position <= bit // 8


@given(values_strategy, st.integers(0, 10_000))
def test_scan_stops_before_a_frame_that_is_cut(values: list[bytes], cut: int) -> None:
    data = frames(values)[:cut]

    found, position = scan(data, 0, ALL)

    assert frames(found) == data[:position]
    assert found == values[: len(found)]


def test_zeros_and_frames_without_payload_are_no_frames() -> None:
    empty = struct.pack("<I", 12)

    assert scan(bytes(100), 0, ALL) == ([], 0)
    assert scan(empty + struct.pack("<I", zlib.crc32(empty)) + empty, 0, ALL) == ([], 0)
    assert find(bytes(1000), 0) == -1


@given(values_strategy, st.binary(max_size=60))
def test_find_goes_to_the_next_frame(values: list[bytes], rubbish: bytes) -> None:
    data = rubbish + frames(values)

    found = find(data, 0)

    assert found == (len(rubbish) if values else -1)


def test_find_begins_where_it_is_told() -> None:
    data = frames([b"one", b"two"])

    assert [find(data, start) for start in (0, 1, 15, 16)] == [0, 15, 15, -1]


@given(values_strategy)
def test_hop_counts_frames_by_their_sizes(values: list[bytes]) -> None:
    data = frames(values)
    broken = bytes(byte ^ 1 if n % 15 == 5 else byte for n, byte in enumerate(frames([b"abc"] * 9)))

    assert hop(data, 0, len(data)) == len(values)
    assert hop(broken, 0, 15 * 4) == 4
    assert hop(broken, 0, 15 * 4 + 1) == -1
    assert hop(bytes(100), 0, 50) == -1


@given(values_strategy, st.integers(0, 40), st.integers(0, 2000))
def test_gather_lays_out_what_scan_gives(values: list[bytes], limit: int, room: int) -> None:
    data = b"head" + frames(values)
    payload, ends, positions = bytearray(room), array("i", [0] * 41), array("q", [0] * 40)

    count, position = gather(data, 4, limit, payload, memoryview(ends), memoryview(positions))

    taken = values[:count]
    assert count <= limit
    assert bytes(payload[: ends[count]]) == b"".join(taken)
    assert list(ends[: count + 1]) == [sum(map(len, taken[:n])) for n in range(count + 1)]
    assert list(positions[:count]) == [4 + len(frames(taken[:n])) for n in range(count)]
    assert position == 4 + len(frames(taken))
    if count < min(limit, len(values)):
        assert ends[count] + len(values[count]) > room


def test_a_block_may_begin_where_its_size_is_whole_in_the_buffer() -> None:
    data = b"\xff" * 7 + struct.pack("<I", 3) + b"abc" + b"\xff" * 5

    assert find_block(data, 0, 4) == 7
    assert find_block(data, 0, 2) == -1
    assert find_block(data, 8, 4) == -1
    assert find_block(data[:13], 0, 4) == -1
    assert find_block(b"\xff" * 4 + struct.pack("<I", 3 | 1 << 31) + b"abc", 0, 4) == 4
    assert find_block(bytes(99), 0, 4) == -1


def test_a_search_through_bytes_that_are_made_to_hold_it_up_ends() -> None:
    trap = struct.pack("<I", 1 << 20) * (1 << 20)

    assert find(trap, 0) == GAVE_UP
