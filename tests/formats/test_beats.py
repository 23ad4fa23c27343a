"""The Beats codec: headers, names, frames, and segments of every version that is written."""

from __future__ import annotations

import struct
import zlib

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidOption, RecordTooLarge
from forebay.formats.beats.bytes import EVENT_BYTES_MAX
from forebay.formats.beats.crypto import Key
from forebay.formats.beats.frames import FRAME_BYTES, Frames, SegmentEncoder
from forebay.formats.beats.versions import (
    HEADER_BYTES_MAX,
    LAYOUTS,
    Header,
    decode_header_as,
    new_header,
    parse_segment_name,
    segment_name,
)
from tests.formats import beats_independent as independent
from tests.formats.beats_independent import IV, KEY
from tests.formats.beats_reading import READABLE, WRITABLE, read, write

ALL = 2**62
COUNTED = [name for name in WRITABLE if LAYOUTS[name].counted]
payloads_strategy = st.lists(st.binary(min_size=1, max_size=300), max_size=12)
each_writable = pytest.mark.parametrize("name", WRITABLE)
each_readable = pytest.mark.parametrize("name", READABLE)


def encoder_of(name: str) -> SegmentEncoder:
    encrypted = LAYOUTS[name].encrypted
    return SegmentEncoder(new_header(name, IV if encrypted else b""), Key(KEY))


def test_the_rows_of_the_versions_are_those_of_the_page() -> None:
    rows = {
        name: (row.version, row.header_bytes, row.body_position) for name, row in LAYOUTS.items()
    }

    assert rows == {
        "v0": (0, 4, 4),
        "v1": (1, 8, 8),
        "v2": (2, 12, 12),
        "v2-lz4": (2, 12, 12),
        "v2-aes": (2, 12, 28),
        "v2-aes-lz4": (2, 12, 28),
        "v2-seed": (2, 4, 20),
        "v3-seed": (3, 4, 20),
        "v3-seed-stream": (3, 4, 20),
    }
    assert HEADER_BYTES_MAX == 28


def test_these_versions_are_written() -> None:
    assert set(WRITABLE) == set(LAYOUTS) - {"v0"}


@pytest.mark.parametrize("name", [name for name in READABLE if name not in WRITABLE] + ["v4"])
def test_a_version_that_is_only_read_or_unknown_cannot_be_written(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"'{name}' cannot be written"):
        new_header(name, IV)


@given(st.sampled_from(READABLE), st.integers(0, 2**32 - 1), st.binary(min_size=16, max_size=16))
def test_a_header_is_what_the_page_says_and_reads_back(name: str, count: int, iv: bytes) -> None:
    layout = LAYOUTS[name]
    header = Header(
        layout, count if layout.counted else 0, layout.options, iv if layout.encrypted else b""
    )

    data = header.encode()

    words = [word if word is not None else count for word in independent.TABLE[name][0]]
    assert data == struct.pack(f"<{len(words)}I", *words) + header.iv
    assert decode_header_as(layout, data + b"frames that follow") == header


@each_readable
def test_a_header_that_is_cut_is_none(name: str) -> None:
    layout = LAYOUTS[name]

    for size in range(layout.body_position):
        assert decode_header_as(layout, bytes(size)) is None


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_vector_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(InvalidOption, match=f"{size} bytes, not 16"):
        new_header("v3-seed", bytes(size))


def test_an_encrypted_version_needs_a_key_to_be_written() -> None:
    with pytest.raises(TypeError, match="written with a key"):
        SegmentEncoder(new_header("v2-seed", IV))


@given(st.sampled_from(WRITABLE), payloads_strategy, st.integers(1, 4))
def test_every_writable_version_reads_back(name: str, events: list[bytes], batches: int) -> None:
    found = read(write(name, events, batches))

    assert found.events == events
    assert found.damage == []
    assert found.header.layout.name == name


@given(st.sampled_from(WRITABLE), payloads_strategy, st.integers(1, 4))
def test_an_independent_decoder_reads_what_is_written(
    name: str, events: list[bytes], batches: int
) -> None:
    assert independent.read_segment(name, write(name, events, batches)) == events


@given(st.sampled_from(["v1", "v2", "v2-seed"]), payloads_strategy)
def test_an_independent_encoder_writes_the_same_bytes(name: str, events: list[bytes]) -> None:
    frames = b"".join(independent.frame(event) for event in events)
    words, encrypted, *_ = independent.TABLE[name]
    header = struct.pack(f"<{len(words)}I", *(len(events) if w is None else w for w in words))

    expected = header + (IV + independent.crypt(frames, KEY, IV) if encrypted else frames)

    assert write(name, events) == expected


@pytest.mark.slow
@given(
    st.sampled_from(READABLE), st.lists(st.dictionaries(st.text(min_size=1), st.text()), max_size=6)
)
def test_every_readable_version_is_read_from_an_independent_encoder(
    name: str, maps: list[dict[str, str]]
) -> None:
    documents = [{"timestamp": n, "flags": 0, "meta": {}, "fields": m} for n, m in enumerate(maps)]

    found = read(independent.write_segment(name, documents))

    assert found.events == independent.read_segment(
        name, independent.write_segment(name, documents)
    )
    assert len(found.events) == len(maps)
    assert found.damage == []


@pytest.mark.parametrize("name", COUNTED)
def test_an_open_segment_has_the_count_0(name: str) -> None:
    assert encoder_of(name).header.encode()[4:8] == bytes(4)


@given(st.sampled_from(WRITABLE), payloads_strategy)
def test_the_position_of_an_encoder_is_where_the_next_frame_lies(
    name: str, events: list[bytes]
) -> None:
    encoder = encoder_of(name)

    encoder.encode(events, 0, len(events))

    stored = [independent.payload_of_bytes(event, name) for event in events]
    sizes = sum(len(payload) + FRAME_BYTES for payload in stored)
    assert encoder.position == LAYOUTS[name].header_bytes + sizes


@given(st.sampled_from(WRITABLE), payloads_strategy, st.integers(0, 2000))
def test_what_fits_takes_no_more_than_was_said(name: str, events: list[bytes], room: int) -> None:
    encoder = encoder_of(name)
    start = encoder.position

    count, size = encoder.fit(events, 0, room)
    encoder.encode(events, 0, count)

    assert encoder.position - start <= size <= room
    assert count <= len(events)


def test_what_is_said_to_take_is_exact_where_nothing_is_compressed() -> None:
    assert encoder_of("v1").fit([b"ab", b"c", b"d"], 1, 26) == (2, 26)
    assert encoder_of("v2-seed").fit([b"ab", b"c", b"d"], 1, 25) == (1, 13)


@each_writable
def test_an_empty_event_is_refused_and_nothing_is_counted(name: str) -> None:
    encoder = encoder_of(name)

    with pytest.raises(RecordTooLarge, match="1 to"):
        encoder.encode([b"a", b""], 0, 2)
    assert encoder.count == 0


@pytest.mark.slow
def test_an_event_beyond_the_cap_is_refused() -> None:
    with pytest.raises(RecordTooLarge, match=str(EVENT_BYTES_MAX)):
        encoder_of("v1").encode([bytes(EVENT_BYTES_MAX + 1)], 0, 1)


@pytest.mark.parametrize("name", ["v3-seed", "v2-lz4"])
def test_an_event_that_shrinks_a_hundred_times_reads_back(name: str) -> None:
    event = cbor2.dumps({"fields": {"big": "lorem ipsum dolor sit " * 50_000}})

    data = write(name, [event])

    assert len(data) * 100 < len(event)
    assert read(data).events == [event]


@pytest.mark.slow
def test_large_batches_make_blocks_of_at_most_4_mib() -> None:
    events = [bytes([n]) * 1_500_000 for n in range(1, 10)]

    data = write("v2-lz4", events)

    assert read(data).events == events
    assert independent.read_segment("v2-lz4", data) == events


@pytest.mark.parametrize("name", ["v2-seed", "v3-seed"])
def test_two_segments_with_other_vectors_have_nothing_in_common(name: str) -> None:
    encoders = [SegmentEncoder(new_header(name, bytes([n]) * 16), Key(KEY)) for n in (1, 2)]

    one, other = (encoder.encode([b"the same event" * 20], 0, 1) for encoder in encoders)

    assert sum(a == b for a, b in zip(one, other, strict=True)) < len(one) // 8


def test_a_frame_is_what_the_page_says() -> None:
    data = encoder_of("v1").encode([b"payload"], 0, 1)

    size = b"\x13\0\0\0"
    assert data == size + b"payload" + struct.pack("<I", zlib.crc32(size + b"payload")) + size


@pytest.mark.parametrize("size", [0, 1, 11, 12])
def test_a_size_of_12_or_less_is_no_frame(size: int) -> None:
    frames = Frames(Header(LAYOUTS["v1"]))

    assert frames.frame_size(struct.pack("<I", size), 0) is None
    assert frames.frame_size(struct.pack("<I", 13), 0) == 13
    assert frames.frame_size(b"\x0d\0\0", 0) is None


def test_the_search_counts_the_frames_that_their_sizes_lead_over() -> None:
    frames = Frames(Header(LAYOUTS["v1"]))
    parts = [independent.frame(bytes([65 + n]) * (20 + n)) for n in range(5)]
    bad = b"".join(part[:10] + b"?" + part[11:] for part in parts[:3]) + b"".join(parts[3:])

    assert frames.find(bad, 0, 7, ALL) == (sum(map(len, parts[:3])), 10)
    assert frames.find(b"?" + bad, 0, 7, ALL) == (sum(map(len, parts[:3])) + 1, 8)
    assert frames.find(bad, 0, 7, 7) is None
    assert frames.find(bad[: len(parts[0])], 0, 7, ALL) is None


def test_a_block_that_verifies_and_does_not_decompress_is_no_frame() -> None:
    frames = Frames(Header(LAYOUTS["v3-seed"], iv=IV))
    good = independent.frame(independent.payload_of_bytes(b"event" * 9, "v3-seed"))
    data = good + independent.frame(b"\xf0") + good

    assert frames.scan(data, 0, 0, ALL, None) == ([b"event" * 9], len(good))
    assert frames.find(data, len(good), 1, ALL) == (len(good) + 13, 2)


@pytest.mark.parametrize("segment_id", [0, 1, 42, 2**64 - 1])
def test_a_name_tells_its_id(segment_id: int) -> None:
    assert parse_segment_name(segment_name(segment_id)) == segment_id


@pytest.mark.parametrize(
    "name",
    ["", ".seg", "1", "1.segs", "01.seg", "-1.seg", "1.seg.bak", f"{2**64}.seg", "x.seg", "¹.seg"],
)
def test_another_name_is_no_segment(name: str) -> None:
    assert parse_segment_name(name) is None


def test_the_suffix_may_be_in_capitals() -> None:
    assert parse_segment_name("7.SEG") == 7
