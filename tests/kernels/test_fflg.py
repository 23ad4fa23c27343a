"""The loops over version 2 frames, against an encoder written from the page alone."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.fflg import FRAME_BYTES, encode, find, scan, verify
from tests.support.values import flipped

SEED = zlib.crc32(b"\x01\x02\x03\x04\x05\x06\x07\x08")
ALL = 2**62

values_strategy = st.lists(st.binary(max_size=300), max_size=30)
index_strategy = st.integers(0, 2**33)
seed_strategy = st.integers(0, 2**32 - 1)
ms_strategy = st.integers(1, 2**32 - 1)


def frame(value: bytes, index: int, seed: int, ms: int) -> bytes:
    """Makes a frame by the formula of the page, with the standard library only."""
    checked = struct.pack(">I", ms) + value
    check = zlib.crc32(checked, seed) ^ (index * 0x9E3779B1) % 2**32
    return struct.pack(">II", len(value), check) + checked


def frames(values: list[bytes], index: int, seed: int, ms: int) -> bytes:
    return b"".join(frame(value, index + n, seed, ms) for n, value in enumerate(values))


def encoded(values: list[bytes], index: int = 0, seed: int = SEED, ms: int = 7) -> bytes:
    buffer = bytearray(sum(map(len, values)) + FRAME_BYTES * len(values))
    size = encode(values, 0, len(values), buffer, index, seed, ms)
    assert size == len(buffer)
    return bytes(buffer)


@given(values_strategy, index_strategy, seed_strategy, ms_strategy)
def test_encode_writes_what_the_page_says(
    values: list[bytes], index: int, seed: int, ms: int
) -> None:
    assert encoded(values, index, seed, ms) == frames(values, index, seed, ms)


@given(values_strategy, index_strategy, seed_strategy, ms_strategy)
def test_scan_gives_back_what_encode_wrote(
    values: list[bytes], index: int, seed: int, ms: int
) -> None:
    data = encoded(values, index, seed, ms)
    times: list[int] = []

    found, position = scan(data, 0, index, seed, ALL, times)

    assert found == values
    assert times == [ms] * len(values)
    assert position == len(data)


@given(st.lists(st.tuples(st.binary(max_size=50), ms_strategy), max_size=20))
def test_encode_gives_each_frame_its_own_time(pairs: list[tuple[bytes, int]]) -> None:
    values, given_times = [value for value, _ in pairs], [ms for _, ms in pairs]
    buffer = bytearray(20 * (50 + FRAME_BYTES))
    times: list[int] = []

    size = encode(values, 0, len(values), buffer, 0, SEED, 0, given_times)
    found, _ = scan(bytes(buffer[:size]), 0, 0, SEED, ALL, times)

    assert found == values
    assert times == given_times


@given(values_strategy, st.data())
def test_encode_takes_only_the_values_it_is_asked_for(
    values: list[bytes], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(values)))
    count = data.draw(st.integers(0, len(values) - first))
    buffer = bytearray(30 * (300 + FRAME_BYTES))

    size = encode(values, first, count, buffer, 3, SEED, 9)

    assert bytes(buffer[:size]) == frames(values[first : first + count], 3, SEED, 9)
    assert not any(buffer[size:])


def test_scan_of_a_cut_gives_the_frames_that_are_whole() -> None:
    values = [b"", b"one", b"", b"three" * 5]
    data = encoded(values)
    ends = [len(encoded(values[:count])) for count in range(len(values) + 1)]

    for cut in range(len(data) + 1):
        found, position = scan(data[:cut], 0, 0, SEED, ALL, None)
        whole = sum(1 for end in ends[1:] if end <= cut)
        assert found == values[:whole]
        assert position == ends[whole]


def test_scan_refuses_a_frame_with_any_one_bit_flipped() -> None:
    data = encoded([b"seventeen bytes .", b"next"], ms=0x01020304)
    first = FRAME_BYTES + 17

    for bit in range(first * 8):
        assert scan(flipped(data, bit), 0, 0, SEED, ALL, None) == ([], 0)


def test_scan_stops_at_its_limit() -> None:
    data = encoded([b"a", b"b", b"c"])

    found, position = scan(data, 0, 0, SEED, 2, None)

    assert found == [b"a", b"b"]
    assert position == 2 * (FRAME_BYTES + 1)


@pytest.mark.parametrize(("index", "seed"), [(1, SEED), (2**32 - 1, SEED), (0, SEED ^ 1)])
def test_a_frame_of_another_index_or_segment_does_not_verify(index: int, seed: int) -> None:
    data = encoded([b"value"])

    assert scan(data, 0, index, seed, ALL, None) == ([], 0)


@given(st.binary(max_size=4), st.integers(0, 2**32 - 1), seed_strategy)
def test_a_frame_of_time_zero_never_verifies(value: bytes, index: int, seed: int) -> None:
    data = frame(value, index, seed, 0)

    assert scan(data, 0, index, seed, ALL, None) == ([], 0)
    assert find(data, 0, index, seed, 2**32 - 1) == (-1, 0)


@pytest.mark.parametrize("size", [0, 1, 11, 12, 4096])
def test_zeros_never_verify_whatever_seed_and_index(size: int) -> None:
    data = bytes(size)
    # The index for which a frame of zeros would verify, were it not for its time.
    mixed = zlib.crc32(bytes(4), SEED)
    index = mixed * 0x0E8B2F51 % 2**32

    assert scan(data, 0, index, SEED, ALL, None) == ([], 0)
    assert scan(data, 0, 0, SEED, ALL, None) == ([], 0)


def test_a_size_beyond_the_buffer_is_never_followed() -> None:
    data = struct.pack(">III", 2**32 - 1, 0, 1) + b"short"

    assert scan(data, 0, 0, SEED, ALL, None) == ([], 0)
    assert find(data, 0, 0, SEED, 2**32 - 1) == (-1, 0)


@given(st.binary(max_size=100), st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_find_gives_the_next_good_frame_and_its_index(junk: bytes, values: list[bytes]) -> None:
    skipped = len(junk) // FRAME_BYTES
    data = junk + encoded(values, 10 + skipped)

    assert find(data, 0, 10, SEED, 2**32 - 1) == (len(junk), 10 + skipped)


@given(st.binary(max_size=100))
def test_find_refuses_an_index_that_the_bytes_passed_over_have_no_room_for(junk: bytes) -> None:
    far = len(junk) // FRAME_BYTES + 1
    data = junk + encoded([b"far ahead"], 10 + far)

    assert find(data, 0, 10, SEED, 2**32 - 1) == (-1, 0)


def test_find_refuses_a_frame_that_was_passed_already() -> None:
    data = bytes(500) + encoded([b"old"], 9)

    assert find(data, 0, 10, SEED, 2**32 - 1) == (-1, 0)


@given(values_strategy, index_strategy, st.integers(0, 200))
def test_find_takes_the_bytes_before_the_buffer_into_account(
    values: list[bytes], index: int, cut: int
) -> None:
    data = encoded(values, index)
    position = 0
    for number, value in enumerate(values):
        if position >= cut:
            found = find(data, cut, index, SEED, 2**32 - 1, cut)
            assert found == (position, index + number)
            break
        position += FRAME_BYTES + len(value)


def test_verify_counts_good_frames_and_tells_the_last_time() -> None:
    data = frames([b"one", b"two"], 5, SEED, 7) + frames([b"three"], 7, SEED, 9)

    assert verify(data, 0, 5, SEED, ALL, 0) == (3, len(data), 9)
    assert verify(data, 0, 5, SEED, 2, 0) == (2, 30, 7)
    assert verify(data[:-1], 0, 5, SEED, ALL, 0) == (2, 30, 7)
    assert verify(data, 0, 6, SEED, ALL, 0) == (0, 0, 0)


def test_verify_stops_where_the_time_falls() -> None:
    data = frames([b"one"], 0, SEED, 7) + frames([b"two"], 1, SEED, 6)

    assert verify(data, 0, 0, SEED, ALL, 0) == (1, 15, 7)
    assert verify(data, 0, 0, SEED, ALL, 8) == (0, 0, 8)
