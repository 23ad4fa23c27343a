"""Which version a segment is: told by frames that verify, with an error for every other case."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import Damaged, InvalidOption, UnsupportedVersion, WrongKey
from forebay.formats.beats.crypto import Key, decode_key
from forebay.formats.beats.recognition import recognise
from forebay.formats.beats.versions import LAYOUTS, Dialect
from tests.formats import beats_independent as independent
from tests.formats.beats_independent import IV, KEY
from tests.formats.beats_reading import READABLE, read
from tests.formats.salvage import MemoryFile
from tests.support.values import flipped

OTHER_KEY = b"another key 1234"
ENCRYPTED = [name for name in READABLE if LAYOUTS[name].encrypted]
each_readable = pytest.mark.parametrize("name", READABLE)
each_encrypted = pytest.mark.parametrize("name", ENCRYPTED)


def documents(count: int) -> list[dict[str, Any]]:
    return [
        {"timestamp": n, "flags": 0, "meta": {}, "fields": {"message": f"event {n} " * (n % 5 + 3)}}
        for n in range(count)
    ]


def segment(name: str, count: int = 6) -> bytes:
    return independent.write_segment(name, documents(count))


def name_of(data: bytes, key: bytes | None = KEY, dialect: Dialect | None = None) -> str:
    the_key = Key(key) if key is not None else None
    return recognise(MemoryFile(data), "0.seg", key=the_key, dialect=dialect).layout.name


@each_readable
def test_every_version_is_recognised_by_its_frames(name: str) -> None:
    assert name_of(segment(name)) == name
    assert name_of(segment(name, 1)) == name


@pytest.mark.parametrize("name", [name for name in READABLE if name not in ENCRYPTED])
def test_versions_in_clear_need_no_key(name: str) -> None:
    assert name_of(segment(name), key=None) == name


@given(st.binary(min_size=16, max_size=16), st.integers(1, 4))
def test_the_two_versions_2_are_told_apart_for_any_vector(iv: bytes, count: int) -> None:
    frames = b"".join(independent.frame(independent.payload_of(d, "v2")) for d in documents(count))

    seed = struct.pack("<I", 2) + iv + independent.crypt(frames, KEY, iv)

    assert name_of(seed) == "v2-seed"


@pytest.mark.parametrize("options", [0, 1, 2, 3, 7])
def test_a_vector_that_looks_like_an_options_word_is_seen_through(options: int) -> None:
    iv = struct.pack("<IIQ", 5, options, 77)
    frames = independent.frame(independent.payload_of(documents(1)[0], "v2"))

    seed = struct.pack("<I", 2) + iv + independent.crypt(frames, KEY, iv)

    assert name_of(seed) == "v2-seed"


def test_a_dialect_forces_one_of_the_two() -> None:
    assert name_of(segment("v2-seed"), dialect="seed") == "v2-seed"
    assert name_of(segment("v2"), dialect="released") == "v2"
    with pytest.raises(WrongKey):
        name_of(segment("v2"), dialect="seed")


def test_a_dialect_does_not_touch_the_versions_that_leave_no_doubt() -> None:
    assert [name_of(segment(name), dialect="released") for name in ("v0", "v1")] == ["v0", "v1"]


def test_options_that_are_not_known_are_ignored_as_beats_does() -> None:
    data = bytearray(segment("v2"))
    data[8:12] = struct.pack("<I", 0x100)

    assert name_of(bytes(data)) == "v2"
    assert name_of(bytes(data[:40]), dialect="released") == "v2"


def test_protobuf_events_get_a_clear_error() -> None:
    frames = independent.frame(b"\x0a\x06\x08\x80\x92\xb8\xc3\x98" + b"x" * 30) * 3

    for options in (4, 5, 6, 7):
        with pytest.raises(UnsupportedVersion, match="Protobuf events"):
            name_of(struct.pack("<III", 2, 3, options) + frames)


def test_a_protobuf_bit_over_cbor_events_is_taken_for_damage() -> None:
    data = bytearray(segment("v2"))
    data[8] |= 4

    assert len(read(bytes(data)).events) == 6


def test_a_version_from_the_future_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="Beats version 4; this program reads 0 to 3"):
        name_of(struct.pack("<III", 4, 0, 0) + bytes(range(200)))


def test_an_empty_file_is_torn() -> None:
    with pytest.raises(Damaged, match="the file is empty") as caught:
        name_of(b"")
    assert caught.value.damage.torn


@each_readable
def test_a_file_that_ends_within_its_header_is_torn(name: str) -> None:
    data = segment(name)

    for size in (1, 3, LAYOUTS[name].header_bytes - 1):
        with pytest.raises(Damaged, match="ends within its header") as caught:
            name_of(data[:size])
        assert caught.value.damage.torn


@each_readable
def test_a_segment_without_frames_has_no_events_and_no_damage(name: str) -> None:
    header = segment(name)[: LAYOUTS[name].body_position]

    found = read(header)

    assert (found.events, found.damage) == ([], [])


@pytest.mark.parametrize("name", ["v1", "v2", "v2-lz4"])
def test_a_header_with_a_tail_of_zeros_has_no_events_and_no_damage(name: str) -> None:
    header = segment(name)[: LAYOUTS[name].body_position]

    found = read(header + bytes(5000))

    assert (found.events, found.damage) == ([], [])


@pytest.mark.parametrize("size", [5, 28, 4096])
def test_a_file_of_zeros_is_damage(size: int) -> None:
    with pytest.raises(Damaged, match="nothing but zeros") as caught:
        read(bytes(size))

    assert (caught.value.damage.length, caught.value.damage.torn) == (size, False)


def test_a_version_0_segment_that_was_just_made_has_no_events() -> None:
    assert read(bytes(4)).events == []


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_frames_are_read_whose_header_and_neighbours_are_gone(name: str) -> None:
    data = independent.write_segment(
        name, [{"timestamp": n, "fields": {"m": "x" * 9}} for n in range(60)]
    )

    for filler in (bytes(512), b"\xff" * 512):
        found = read(filler + data[512:])
        assert len(found.events) > 20


def test_a_large_first_event_that_is_damaged_does_not_pass_for_a_wrong_key() -> None:
    random = Random(1)
    large = {"timestamp": 1, "flags": 0, "meta": {}, "fields": {"a": random.randbytes(1_200_000)}}
    rest = [{"timestamp": n, "flags": 0, "meta": {}, "fields": {}} for n in range(5)]
    data = bytearray(independent.write_segment("v3-seed", [large, *rest]))
    data[600_000] ^= 1

    assert len(read(bytes(data)).events) == 5
    assert name_of(bytes(data[:1_150_000])) == "v3-seed"


@each_encrypted
def test_a_wrong_key_is_its_own_error(name: str) -> None:
    with pytest.raises(WrongKey, match="not the key of this segment"):
        name_of(segment(name), key=OTHER_KEY)


@each_encrypted
def test_a_missing_key_is_its_own_error(name: str) -> None:
    with pytest.raises(WrongKey, match="give the key"):
        name_of(segment(name), key=None)


@each_encrypted
def test_the_right_key_over_a_damaged_first_frame_is_no_wrong_key(name: str) -> None:
    data = flipped(segment(name), (LAYOUTS[name].body_position + 30) * 8)

    assert name_of(data) == name


@pytest.mark.slow
@each_encrypted
def test_the_right_key_over_a_torn_first_frame_is_no_wrong_key(name: str) -> None:
    data = segment(name, 1)

    for size in range(LAYOUTS[name].body_position, len(data)):
        assert read(data[:size]).events == [] or size > len(data) - 12


@each_encrypted
def test_a_wrong_key_over_a_damaged_segment_is_still_a_wrong_key(name: str) -> None:
    with pytest.raises(WrongKey):
        name_of(segment(name)[:-20], key=OTHER_KEY)


@pytest.mark.slow
@each_encrypted
def test_a_flipped_bit_of_the_vector_is_mended(name: str) -> None:
    data = segment(name)
    first = LAYOUTS[name].header_bytes * 8

    for bit in range(first, first + 128, 5):
        found = read(flipped(data, bit))
        assert len(found.events) == 6
        assert found.header.iv == IV
        assert found.header.repaired


@each_readable
def test_a_flipped_bit_of_the_version_is_seen_through(name: str) -> None:
    data = segment(name)

    for bit in range(32):
        found = read(flipped(data, bit))
        assert len(found.events) == 6
        assert found.header.layout.name == name
        assert found.header.repaired


@each_encrypted
def test_the_key_shows_in_no_message(name: str) -> None:
    with pytest.raises(WrongKey) as caught:
        name_of(segment(name), key=OTHER_KEY)

    text = repr(caught.value) + str(caught.value)
    assert not any(part in text for part in ("another", OTHER_KEY.hex(), str(list(OTHER_KEY))))


def test_the_key_shows_in_no_repr() -> None:
    key = Key(KEY)

    shown = f"{key!r} {key} {key.keystream(IV)!r} {[key]} {vars} {Key.__slots__}"

    assert "keykey" not in shown
    assert KEY.hex() not in shown


def test_a_key_cannot_be_sent_to_another_process() -> None:
    with pytest.raises(TypeError, match="pass the key file instead"):
        Key(KEY).__reduce__()


def test_keys_are_equal_by_their_bytes() -> None:
    assert Key(KEY) == Key(KEY)
    assert Key(KEY) != Key(OTHER_KEY)
    assert len({Key(KEY), Key(KEY), Key(OTHER_KEY)}) == 2


@pytest.mark.parametrize(
    "content", [KEY, KEY + b"\n", KEY.hex().encode(), KEY.hex().upper().encode() + b"\n"]
)
def test_a_key_file_holds_16_raw_bytes_or_32_hex_digits(content: bytes) -> None:
    assert decode_key(content) == Key(KEY)


@pytest.mark.parametrize("content", [b"", KEY[:15], KEY + b"x", KEY + b"\n\n", b"zz" * 16, KEY * 2])
def test_another_key_file_is_refused_without_showing_it(content: bytes) -> None:
    with pytest.raises(InvalidOption, match=f"has {len(content)} bytes") as caught:
        decode_key(content)
    assert "keykey" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 15, 17, 32])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(InvalidOption, match=f"the key has {size} bytes"):
        Key(bytes(size))


@given(st.binary(max_size=100), st.integers(0, 1000), st.binary(min_size=16, max_size=16))
def test_the_keystream_is_the_same_from_any_position(data: bytes, start: int, iv: bytes) -> None:
    keystream = Key(KEY).keystream(iv)

    whole = keystream.apply(bytes(start) + data, 0)

    assert keystream.apply(data, start) == whole[start:]
    assert whole == independent.crypt(bytes(start) + data, KEY, iv)


def test_the_counter_runs_over_from_all_ones() -> None:
    keystream = Key(KEY).keystream(b"\xff" * 16)

    assert keystream.apply(bytes(64), 0) == independent.crypt(bytes(64), KEY, b"\xff" * 16)
    assert keystream.apply(bytes(20), 40) == keystream.apply(bytes(64), 0)[40:60]
