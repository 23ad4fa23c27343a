"""The codec of one entry: layout, round trip, cut at every byte, every bit flipped."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import Damaged
from forebay.formats.entry import (
    SIZE_MAX,
    TTL_SECONDS_MAX,
    decode_entry,
    encode_entry,
    file_name,
    parse_file_name,
)
from forebay.kernels.entry import Entry
from tests.formats.entries import VERSION, make_id
from tests.support.values import flipped

ENTRY = Entry(70_000, make_id(1_700_000_000_000, 70_000), 60, b"some data")


def test_the_metadata_is_what_the_seed_says() -> None:
    data = encode_entry(ENTRY, VERSION)

    found, version, size, ttl, entry_id, data_hash = struct.unpack_from("<I8sIIQI", data)
    assert len(data) == 32 + 9
    assert (found, data_hash) == (zlib.crc32(data[4:32]), zlib.crc32(b"some data"))
    assert (version, size, ttl, entry_id) == (VERSION, 9, 60, ENTRY.id)


def test_an_id_tells_the_time_and_the_low_bits_of_the_number() -> None:
    assert ENTRY.id == 1_700_000_000_000 << 16 | 70_000 - 65_536
    assert ENTRY.time_ms == 1_700_000_000_000
    assert ENTRY.time.isoformat() == "2023-11-14T22:13:20+00:00"
    assert ENTRY.expires_ms == 1_700_000_060_000
    assert Entry(0, 1 << 16, 0, b"").expires_ms is None


@given(
    st.integers(0, 2**40),
    st.integers(1, 2**47),
    st.integers(0, TTL_SECONDS_MAX),
    st.binary(max_size=300),
    st.binary(max_size=9),
)
def test_an_entry_comes_back_as_it_was(
    offset: int, time_ms: int, ttl: int, value: bytes, before: bytes
) -> None:
    entry = Entry(offset, make_id(time_ms, offset), ttl, value)

    data = before + encode_entry(entry, VERSION) + b"more"

    assert decode_entry(data, len(before), offset, "t", VERSION) == (entry, len(data) - 4)


def test_an_entry_that_is_cut_at_any_byte_is_damaged() -> None:
    data = encode_entry(ENTRY, VERSION)

    for size in range(len(data)):
        with pytest.raises(Damaged, match=r"cut off|does not match"):
            decode_entry(data[:size], 0, ENTRY.offset, "t", VERSION)


def test_any_flipped_bit_is_seen() -> None:
    data = encode_entry(ENTRY, VERSION)

    for bit in range(8 * len(data)):
        with pytest.raises(Damaged):
            decode_entry(flipped(data, bit), 0, ENTRY.offset, "t", VERSION)


def test_an_entry_of_another_number_or_version_is_refused_by_name() -> None:
    data = encode_entry(ENTRY, VERSION)
    other = b"FBENTRY9" + data[12:32]

    with pytest.raises(Damaged, match="it is not entry 70001"):
        decode_entry(data, 0, ENTRY.offset + 1, "t", VERSION)
    with pytest.raises(Damaged, match="of version b'FBENTRY9', which this program does not read"):
        decode_entry(struct.pack("<I", zlib.crc32(other)) + other, 0, ENTRY.offset, "t", VERSION)


def test_a_size_that_lies_allocates_nothing() -> None:
    checked = struct.pack("<8sIIQI", VERSION, SIZE_MAX, 0, ENTRY.id, 0)

    with pytest.raises(Damaged, match="cut off"):
        decode_entry(
            struct.pack("<I", zlib.crc32(checked)) + checked, 0, ENTRY.offset, "t", VERSION
        )


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("0000000000.tape", 0),
        ("00000000ff.tape", 255),
        ("123456789abc.tape", 0x123456789ABC),
        ("ff.tape", None),
        ("00000000FF.tape", None),
        ("000000000000.tape", None),
        ("0000000000.tape.new", None),
        ("0000000000", None),
    ],
)
def test_only_names_of_the_pattern_are_files_of_a_tape(name: str, number: int | None) -> None:
    assert parse_file_name(name) == number
    assert number is None or file_name(number) == name
