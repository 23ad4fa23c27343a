"""The logical bytes of a segment: any part of them, block by block, round damage, within caps."""

from __future__ import annotations

import random
import struct

import lz4.block
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import UnsupportedVersion, WrongKey
from forebay.formats.beats.bytes import (
    BLOCK_BYTES_MAX,
    DESCRIPTOR,
    EVENT_BYTES_MAX,
    LogicalBytes,
    PlainBytes,
    StreamBytes,
    compress_block,
    compressed_size_max,
    decompress_block,
    open_bytes,
)
from forebay.formats.beats.crypto import Key
from forebay.formats.beats.versions import LAYOUTS, Header
from forebay.kernels import compiled
from tests.formats import beats_independent as independent
from tests.formats.beats_independent import IV, KEY
from tests.formats.salvage import MemoryFile

HEADER = b"header bytes"
# Enough to see that it ends and takes no memory; the plain search is a hundred times slower.
BOMBS = 300 if compiled else 4
LONG_BYTES = 30_000_000 if compiled else 600_000


class CountingFile(MemoryFile):
    """Counts the bytes that are read."""

    read_bytes = 0

    def pread(self, size: int, position: int) -> bytes:
        data = super().pread(size, position)
        self.read_bytes += len(data)
        return data


def stream_of(parts: list[bytes]) -> bytes:
    return HEADER + independent.stream(parts)


def open_stream(data: bytes) -> StreamBytes:
    return StreamBytes(PlainBytes(MemoryFile(data)), len(HEADER), "0.seg")


def block(content: bytes, *, compressed: bool = True) -> bytes:
    stored = lz4.block.compress(content, store_size=False) if compressed else content
    return struct.pack("<I", len(stored) | (0 if compressed else 1 << 31)) + stored


def frames(*payloads: bytes) -> bytes:
    return b"".join(independent.frame(payload) for payload in payloads)


def whole(content: LogicalBytes) -> bytes:
    return content.pread(content.size(), 0)


@given(st.lists(st.binary(min_size=1, max_size=400), max_size=8), st.data())
def test_any_part_of_a_stream_can_be_read(parts: list[bytes], draw: st.DataObject) -> None:
    logical = HEADER + b"".join(parts)
    content = open_stream(stream_of(parts))

    for _ in range(4):
        start = draw.draw(st.integers(0, len(logical)))
        size = draw.draw(st.integers(0, len(logical)))
        assert content.pread(size, start) == logical[start : start + size]
    assert content.size() == len(logical)


@given(st.binary(max_size=300), st.integers(0, 340), st.integers(0, 340))
def test_any_part_of_an_encrypted_body_can_be_read(body: bytes, start: int, size: int) -> None:
    header = Header(LAYOUTS["v2-seed"], iv=IV)
    raw = MemoryFile(header.encode() + independent.crypt(body, KEY, IV))

    content = open_bytes(raw, header, Key(KEY), "0.seg")

    logical = struct.pack("<I", 2) + body
    assert content.pread(size, start) == logical[start : start + size]
    assert content.size() == len(logical)


def test_an_encrypted_segment_without_a_key_is_refused() -> None:
    header = Header(LAYOUTS["v2-seed"], iv=IV)

    with pytest.raises(WrongKey, match="no key was given"):
        open_bytes(MemoryFile(header.encode()), header, None, "0.seg")


def test_positions_in_the_file_can_be_told() -> None:
    header = Header(LAYOUTS["v2-aes"], iv=IV)
    clear = open_bytes(MemoryFile(bytes(99)), Header(LAYOUTS["v1"]), None, "")
    encrypted = open_bytes(MemoryFile(header.encode() + bytes(99)), header, Key(KEY), "")
    stream = open_stream(stream_of([b"a" * 50, b"b" * 50]))

    assert clear.file_position(20) == 20
    assert [encrypted.file_position(position) for position in (4, 12, 20)] == [4, 28, 36]
    assert stream.size() == len(HEADER) + 100
    first = len(HEADER) + len(DESCRIPTOR)
    assert stream.file_position(len(HEADER)) == first
    assert stream.file_position(len(HEADER) + 49) == first
    assert stream.file_position(len(HEADER) + 50) == first + len(block(b"a" * 50))


def test_one_part_of_a_long_stream_reads_no_more_than_it_needs() -> None:
    noise = random.Random(3)
    raw = CountingFile(stream_of([noise.randbytes(100_000) for _ in range(50)]))
    content = StreamBytes(PlainBytes(raw), len(HEADER), "0.seg")

    content.pread(1000, len(HEADER))

    assert raw.read_bytes < 600_000


@pytest.mark.parametrize("compressed", [True, False])
def test_a_block_that_is_not_compressed_is_read(compressed: bool) -> None:
    content = open_stream(HEADER + DESCRIPTOR + block(b"content" * 9, compressed=compressed))

    assert whole(content) == HEADER + b"content" * 9


def test_a_bad_block_stands_as_filler_and_the_next_ones_are_whole() -> None:
    good = [frames(b"one" * 20), frames(b"two" * 20), frames(b"three" * 20)]
    bad = b"\x28\0\0\0" + b"\xff" * 40

    content = open_stream(HEADER + DESCRIPTOR + block(good[0]) + bad + block(good[2]) + bytes(4))

    assert whole(content) == HEADER + good[0] + b"\xff" * 44 + good[2]


@pytest.mark.parametrize("word", [0, 1, 7, 0x7FFFFFFF, 0x80000001, 0xFFFFFFFF])
def test_behind_a_bad_size_the_next_block_is_searched_for(word: int) -> None:
    good = [frames(b"one" * 20), frames(b"two" * 20), frames(b"three" * 20)]
    bad = struct.pack("<I", word) + block(good[1])[4:]

    content = open_stream(HEADER + DESCRIPTOR + block(good[0]) + bad + block(good[2]))

    found = whole(content)
    assert found.startswith(HEADER + good[0])
    assert found.endswith(good[2])


@pytest.mark.slow
def test_a_search_finds_a_block_far_behind_and_at_the_edge_of_what_it_reads() -> None:
    noise = random.Random(4)
    rubbish = noise.randbytes(2 * BLOCK_BYTES_MAX - 30)
    good = frames(b"found" * 30)

    content = open_stream(HEADER + DESCRIPTOR + b"\xff\xff\xff\x7f" + rubbish + block(good))

    assert whole(content).endswith(good)


@pytest.mark.parametrize("bit", range(56))
def test_a_flipped_bit_of_the_descriptor_costs_nothing(bit: int) -> None:
    descriptor = bytearray(DESCRIPTOR)
    descriptor[bit // 8] ^= 1 << bit % 8
    good = frames(b"one" * 20)

    content = open_stream(HEADER + bytes(descriptor) + block(good) + bytes(8))

    assert whole(content) == HEADER + good


@pytest.mark.parametrize("option", [{"block_linked": True}, {"block_checksum": True}])
def test_a_stream_that_beats_does_not_write_is_refused(option: dict[str, bool]) -> None:
    settings = {"block_linked": False, **option}
    data = lz4.frame.compress(b"content" * 99_999, store_size=False, **settings)

    with pytest.raises(UnsupportedVersion, match="features that Beats does not write"):
        open_stream(HEADER + data)


def test_a_stream_that_is_cut_ends_there() -> None:
    data = stream_of([b"a" * 50, b"b" * 50])

    for size in range(len(HEADER), len(data)):
        content = whole(open_stream(data[:size]))
        assert content.rstrip(b"\xff") in (
            HEADER,
            HEADER + b"a" * 50,
            HEADER + b"a" * 50 + b"b" * 50,
        )


def test_a_block_that_grows_beyond_4_mib_is_damage() -> None:
    bomb = block(bytes(BLOCK_BYTES_MAX + 1))

    content = open_stream(HEADER + DESCRIPTOR + bomb)

    assert whole(content) == HEADER + b"\xff" * len(bomb)


@pytest.mark.slow
def test_a_stream_of_bombs_is_held_one_block_at_a_time() -> None:
    bomb = block(bytes(BLOCK_BYTES_MAX))
    content = open_stream(HEADER + DESCRIPTOR + bomb * 500)

    assert content.size() == len(HEADER) + 500 * BLOCK_BYTES_MAX
    assert content.pread(10, 100 * BLOCK_BYTES_MAX) == bytes(10)


@pytest.mark.slow
def test_a_block_of_an_event_grows_only_to_its_cap() -> None:
    bomb = compress_block(bytes(EVENT_BYTES_MAX + 1))

    assert decompress_block(bomb) is None
    assert decompress_block(compress_block(bytes(EVENT_BYTES_MAX))) == bytes(EVENT_BYTES_MAX)
    assert decompress_block(compress_block(b"abc" * 100), 299) is None


@given(st.binary(min_size=1, max_size=2000))
def test_a_block_of_an_event_reads_back(data: bytes) -> None:
    assert decompress_block(compress_block(data)) == data
    assert len(compress_block(data)) <= compressed_size_max(len(data))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_block_or_are_refused(data: bytes) -> None:
    content = decompress_block(data)

    assert content is None or len(content) <= 255 * len(data) + 64


@given(st.binary(max_size=300))
def test_any_bytes_behind_a_header_are_read_as_some_stream(data: bytes) -> None:
    content = whole(open_stream(HEADER + DESCRIPTOR + data))

    assert content.startswith(HEADER)


@pytest.mark.slow
def test_a_search_through_bombs_that_hold_no_frame_ends() -> None:
    bomb = block(bytes(BLOCK_BYTES_MAX))

    content = open_stream(HEADER + DESCRIPTOR + b"\xff\xff\xff\x7f" + bomb * BOMBS)

    assert content.size() == len(HEADER) + 4 + BOMBS * len(bomb)


@pytest.mark.slow
def test_damage_over_the_rest_of_a_long_file_takes_no_memory() -> None:
    content = open_stream(HEADER + DESCRIPTOR + b"\xff\xff\xff\x7f" + bytes(LONG_BYTES) + b"x")

    assert content.size() == len(HEADER) + LONG_BYTES + 5
    assert content.pread(10, LONG_BYTES // 2) == b"\xff" * 10
    assert content.pread(10, content.size() - 3) == b"\xff" * 3
