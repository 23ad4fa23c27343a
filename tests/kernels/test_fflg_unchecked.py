"""The loops over frames without a check: versions 0 and 1."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.fflg import encode_unchecked, scan_unchecked

ALL = 2**62
values_strategy = st.lists(st.binary(max_size=300), max_size=30)
full_values_strategy = st.lists(st.binary(min_size=1, max_size=300), max_size=30)


def frames(values: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(value)) + value for value in values)


@given(values_strategy)
def test_encode_writes_size_and_blob(values: list[bytes]) -> None:
    buffer = bytearray(len(frames(values)) + 5)

    size = encode_unchecked(values, 0, len(values), buffer)

    assert bytes(buffer) == frames(values) + bytes(5)
    assert size == len(frames(values))


def test_encode_takes_only_the_values_it_is_asked_for() -> None:
    buffer = bytearray(10)

    size = encode_unchecked([b"a", b"bb", b"ccc"], 1, 1, buffer)

    assert bytes(buffer[:size]) == frames([b"bb"])


@given(values_strategy)
def test_scan_gives_back_what_encode_wrote(values: list[bytes]) -> None:
    data = frames(values)

    assert scan_unchecked(data, 0, ALL, False) == (values, len(data))


@given(full_values_strategy, st.integers(0, 20))
def test_a_size_of_zero_ends_a_segment_where_the_version_says_so(
    values: list[bytes], zeros: int
) -> None:
    data = frames(values)

    assert scan_unchecked(data + bytes(zeros), 0, ALL, True) == (values, len(data))


@pytest.mark.parametrize("zero_size_ends", [False, True])
def test_scan_of_a_cut_gives_the_frames_that_are_whole(zero_size_ends: bool) -> None:
    values = [b"one", b"twenty" * 4, b"3"]
    data = frames(values)
    ends = [len(frames(values[:count])) for count in range(len(values) + 1)]

    for cut in range(len(data) + 1):
        whole = sum(1 for end in ends[1:] if end <= cut)
        assert scan_unchecked(data[:cut], 0, ALL, zero_size_ends) == (values[:whole], ends[whole])


def test_scan_stops_at_its_limit_and_starts_where_it_is_told() -> None:
    data = frames([b"a", b"b", b"c"])

    assert scan_unchecked(data, 5, 1, False) == ([b"b"], 10)


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x02"])
def test_a_size_beyond_the_buffer_is_never_followed(size: bytes) -> None:
    assert scan_unchecked(size + b"x", 0, ALL, False) == ([], 0)
