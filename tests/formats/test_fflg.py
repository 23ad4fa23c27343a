"""The fflg codec: headers, names, versions, and the bytes that a log writes."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay
from forebay import Damaged, ForebayError, Log, NotAQueue, UnsupportedVersion
from forebay.formats.fflg import (
    LAYOUTS,
    OFFSET_MAX,
    Frames,
    Header,
    decode_header,
    parse_segment_name,
    repair_header,
    segment_name,
)
from tests.formats.salvage import scan
from tests.support.clocks import SteppingClock
from tests.support.values import flipped

ALL = 2**62
offset_strategy = st.integers(0, OFFSET_MAX)
header_strategy = st.one_of(
    st.builds(Header, st.sampled_from([0, 1]), offset_strategy),
    st.builds(
        Header,
        st.just(2),
        offset_strategy,
        st.binary(min_size=8, max_size=8),
        st.integers(0, 2**64 - 1),
    ),
)
SAMPLES = {
    0: Header(0, 5),
    1: Header(1, 5),
    2: Header(2, 5, b"saltsalt", 1_700_000_000_000),
}


def independent_header(header: Header) -> bytes:
    """Makes a header from the page's tables, without the codec."""
    if header.version == 0:
        return b"FFLG" + bytes(4) + header.base_offset.to_bytes(8, "big")
    start = b"FFLG" + header.version.to_bytes(2, "big") + header.base_offset.to_bytes(8, "big")
    if header.version == 1:
        return start
    start += header.salt + header.epoch_ms.to_bytes(8, "big")
    return start + zlib.crc32(start).to_bytes(4, "big")


def decoded_base(data: bytes) -> int | None:
    try:
        return decode_header(data, "x").base_offset
    except ForebayError:
        return None


def as_the_seed_says(base: int, values: list[bytes]) -> bytes:
    """Makes a version 1 segment from the words of the seed alone."""
    header = b"\x46\x46\x4c\x47" + b"\x00\x01" + struct.pack(">Q", base)
    return header + b"".join(struct.pack(">I", len(value)) + value for value in values)


@given(header_strategy)
def test_a_header_is_what_the_page_says_and_reads_back(header: Header) -> None:
    data = header.encode()

    assert data == independent_header(header)
    assert len(data) == header.layout.header_bytes
    assert decode_header(data + b"frames that follow", "x") == header


@given(st.sampled_from([0, 1, 2]), st.lists(st.binary(min_size=1, max_size=90), max_size=20))
def test_the_frames_of_every_version_read_back(version: int, values: list[bytes]) -> None:
    frames = Frames(SAMPLES[version])
    count, size = frames.fit(values, 0, ALL)
    buffer = bytearray(size)

    assert frames.encode(values, 0, count, buffer, 3, 9) == size
    assert frames.scan(bytes(buffer), 0, 3, ALL, None) == (values, size)


@given(st.sampled_from([0, 2]), st.lists(st.binary(max_size=3), max_size=20))
def test_empty_records_read_back_where_the_version_bears_them(
    version: int, values: list[bytes]
) -> None:
    frames = Frames(SAMPLES[version])
    buffer = bytearray(frames.fit(values, 0, ALL)[1])

    frames.encode(values, 0, len(values), buffer, 0, 1)

    assert frames.scan(bytes(buffer), 0, 0, ALL, None) == (values, len(buffer))


def test_the_rows_of_the_versions_are_those_of_the_page() -> None:
    rows = {number: (row.header_bytes, row.frame_bytes) for number, row in LAYOUTS.items()}

    assert rows == {0: (16, 4), 1: (14, 4), 2: (34, 12)}


@pytest.mark.parametrize("version", [1, 2])
def test_a_header_that_is_cut_is_a_torn_file(version: int) -> None:
    data = SAMPLES[version].encode()

    for cut in range(len(data)):
        with pytest.raises(Damaged) as caught:
            decode_header(data[:cut], "x")
        assert caught.value.damage.torn


def test_a_header_of_version_0_that_is_cut_is_refused() -> None:
    data = SAMPLES[0].encode()

    for cut in range(len(data)):
        with pytest.raises((Damaged, UnsupportedVersion)):
            decode_header(data[:cut], "x")


@pytest.mark.parametrize("magic", [b"FFLH", b"fflg", b"GLFF", b"\0\0\0\0", b"\x7fELF"])
def test_another_magic_is_not_a_segment(magic: bytes) -> None:
    with pytest.raises(NotAQueue, match="not a segment"):
        decode_header(magic + bytes(40), "spool/0000000000")


@pytest.mark.parametrize("version", [3, 4, 0x0102, 0xFFFF])
def test_an_unknown_version_is_named(version: int) -> None:
    data = b"FFLG" + version.to_bytes(2, "big") + bytes(40)

    with pytest.raises(UnsupportedVersion, match=f"spool/x: fflg version {version};"):
        decode_header(data, "spool/x")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_offset_beyond_63_bits_is_damage(version: int) -> None:
    header = Header(version, 2**63, b"saltsalt", 1)

    with pytest.raises(Damaged, match="out of range"):
        decode_header(header.encode(), "x")


def test_every_flipped_bit_of_a_header_is_noticed_and_repaired() -> None:
    header = SAMPLES[2]
    data = header.encode()

    for bit in range(len(data) * 8):
        bad = flipped(data, bit)
        assert repair_header(bad, header.base_offset) == header
        assert decoded_base(bad) != header.base_offset


def test_two_flipped_bits_of_a_header_are_never_repaired_to_something_else() -> None:
    header = SAMPLES[2]
    data = header.encode()

    for bit in range(0, len(data) * 8 - 9, 5):
        bad = flipped(flipped(data, bit), bit + 9)
        assert repair_header(bad, header.base_offset) in (None, header)


def test_a_header_is_repaired_only_for_the_offset_in_its_name() -> None:
    data = bytearray(SAMPLES[2].encode())
    data[20] ^= 4

    assert repair_header(bytes(data), 6) is None
    assert repair_header(bytes(data[:33]), 5) is None


@given(offset_strategy)
def test_a_name_tells_its_base_offset(base: int) -> None:
    assert parse_segment_name(segment_name(base)) == base


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("00000000ff", 255),
        ("0000000000", 0),
        ("00000000000000ff", 255),
        ("10000000000", 2**40),
        ("7fffffffffffffff", OFFSET_MAX),
    ],
)
def test_names_of_ten_digits_and_more_are_read(name: str, base: int) -> None:
    assert parse_segment_name(name) == base


@pytest.mark.parametrize(
    "name",
    [
        *("", "index", "tail", "ff", "00000000f", "00000000FF", "00000000fg", "0x000000ff"),
        *("00000000ff.new", "00000000ff\n", " 00000000ff", "000000000ff", "00000000000000000"),
        *("ffffffffffffffff", "10000000000000000", "+00000000ff", "00000000٠1"),
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment_name(name) is None


def test_a_log_of_version_1_writes_what_the_seed_says(tmp_path: Path) -> None:
    values = [bytes([65 + number % 26]) * (1 + number * 7 % 90) for number in range(60)]

    with Log(tmp_path / "q", version=1, segment_bytes=1000, background=False) as log:
        log.append_many(values)

    files = sorted(path for path in (tmp_path / "q").iterdir() if path.name.startswith("0"))
    bases = [int(path.name, 16) for path in files]
    pairs = zip(bases, [*bases[1:], 60], strict=True)
    assert len(files) > 2
    assert [path.read_bytes() for path in files] == [
        as_the_seed_says(base, values[base:end]) for base, end in pairs
    ]
    assert all(path.stat().st_size <= 1000 for path in files)


def test_a_directory_made_by_the_seeds_words_is_read_and_continued(tmp_path: Path) -> None:
    queue = tmp_path / "q"
    queue.mkdir(mode=0o700)
    (queue / "0000000000").write_bytes(as_the_seed_says(0, [b"a", b"bb"]))
    (queue / "0000000002").write_bytes(as_the_seed_says(2, [b"ccc"]))
    (queue / "index").write_bytes(struct.pack(">IQ", 3, 1) + b"one")

    with Log(queue, background=False) as log:
        offset = log.append(b"dddd")
        records = list(log.consumer("one"))

    assert offset == 3
    assert [(r.offset, r.value) for r in records] == [(1, b"bb"), (2, b"ccc"), (3, b"dddd")]
    assert (queue / "0000000003").read_bytes() == as_the_seed_says(3, [b"dddd"])


def test_a_log_of_version_2_writes_what_the_page_says(tmp_path: Path) -> None:
    values = [b"", b"one", b"\0" * 50]

    with Log(tmp_path / "q", background=False, clock=SteppingClock()) as log:
        log.append_many(values)

    data = (tmp_path / "q" / "0000000000").read_bytes()
    header = Header(2, 0, data[14:22], int.from_bytes(data[22:30], "big"))
    checks = [zlib.crc32(data[14:22] + b"\0\0\0\1" + value) for value in values]
    frames = [
        struct.pack(">III", len(value), check ^ index * 0x9E3779B1 % 2**32, 1) + value
        for index, (value, check) in enumerate(zip(values, checks, strict=True))
    ]
    assert data == independent_header(header) + b"".join(frames)


@pytest.mark.parametrize("version", [0, 1])
def test_a_cut_of_an_unchecked_segment_gives_the_frames_that_are_whole(version: int) -> None:
    header = SAMPLES[version]
    values = [b"one", b"twenty" * 4, b"3"]
    buffer = bytearray(100)
    size = Frames(header).encode(values, 0, 3, buffer, 0, 0)
    data = header.encode() + buffer[:size]
    ends = [len(data) - size + end for end in (7, 35, 40)]

    for cut in range(header.layout.header_bytes, len(data) + 1):
        found = scan(data[:cut], header)
        whole = sum(1 for end in ends if end <= cut)
        assert [value for _, value in found.records.values()] == values[:whole]
        assert all(damage.torn for damage in found.damage)


def test_a_segment_whose_header_names_another_base_is_refused(tmp_path: Path) -> None:
    queue = tmp_path / "q"
    queue.mkdir(mode=0o700)
    (queue / "0000000007").write_bytes(as_the_seed_says(8, [b"a"]))

    with pytest.raises(NotAQueue, match="base offset 8, the name has 7"):
        Log(queue)
    with pytest.raises(NotAQueue, match="base offset 8, the name has 7"):
        forebay.read(queue)


def test_an_empty_file_in_the_place_of_a_segment_is_a_torn_header(tmp_path: Path) -> None:
    queue = tmp_path / "q"
    queue.mkdir(mode=0o700)
    (queue / "0000000000").touch()

    with pytest.raises(Damaged, match="ends within its header"):
        Log(queue)
    with pytest.raises(Damaged, match="ends within its header"):
        forebay.read(queue)


def test_a_segment_of_a_later_version_is_refused_with_its_name(tmp_path: Path) -> None:
    queue = tmp_path / "q"
    queue.mkdir(mode=0o700)
    (queue / "0000000000").write_bytes(b"FFLG\0\x09" + bytes(60))

    with pytest.raises(UnsupportedVersion, match="0000000000: fflg version 9"):
        Log(queue)
    with pytest.raises(UnsupportedVersion, match="0000000000: fflg version 9"):
        forebay.read(queue)


def test_a_directory_with_other_files_only_is_no_queue(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_bytes(b"dear reader")

    with pytest.raises(NotAQueue, match=r"letter\.txt"):
        Log(tmp_path)
    with pytest.raises(NotAQueue, match="neither segments nor a tail"):
        forebay.read(tmp_path)
