"""Damage to Beats segments: what was hit is lost, all else comes, nothing comes altered."""

from __future__ import annotations

import random
import struct

import pytest

from forebay.errors import ForebayError
from forebay.formats.beats.versions import LAYOUTS
from forebay.kernels import compiled
from tests.formats import beats_independent as independent
from tests.formats.beats_independent import KEY
from tests.formats.beats_reading import READABLE, Read, read
from tests.support.values import flipped

COUNT = 7
# Plain Python takes its samples; the compiled kernels are tried on every single bit.
STEP = 1 if compiled else 29
STREAMS = [name for name in READABLE if LAYOUTS[name].compression == "stream"]
LINEAR = [name for name in READABLE if name not in STREAMS]
CLEAR = ["v0", "v1", "v2"]
each_readable = pytest.mark.parametrize("name", READABLE)
each_linear = pytest.mark.parametrize("name", LINEAR)
each_stream = pytest.mark.parametrize("name", STREAMS)


def segment(name: str, count: int = COUNT, *, batch: int = 1, stated: int | None = None) -> bytes:
    noise = random.Random(5)
    documents = [
        {"timestamp": n, "flags": 0, "meta": {}, "fields": {"m": noise.randbytes(9 + 3 * n).hex()}}
        for n in range(count)
    ]
    return independent.write_segment(name, documents, batch=batch, count=stated)


def events_of(name: str, data: bytes) -> list[bytes]:
    return independent.read_segment(name, data)


def frame_bounds(name: str, data: bytes) -> list[tuple[int, int]]:
    """Returns where each frame begins and ends in the file of a version that keeps their places."""
    position = LAYOUTS[name].body_position
    bounds = []
    for event in events_of(name, data):
        end = position + len(independent.payload_of_bytes(event, name)) + 12
        bounds.append((position, end))
        position = end
    return bounds


def missing(found: Read, events: list[bytes]) -> list[int]:
    """Returns the numbers of the events that did not come; the others came unaltered, in order."""
    numbers = [events.index(event) for event in found.events]
    assert numbers == sorted(set(numbers))
    return [number for number in range(len(events)) if number not in numbers]


@pytest.mark.slow
@each_linear
def test_every_flipped_bit_costs_the_event_it_hits_and_no_other(name: str) -> None:
    data = segment(name)
    events, bounds = events_of(name, data), frame_bounds(name, data)

    for bit in range(0, len(data) * 8, STEP):
        found = read(flipped(data, bit))
        hit = [n for n, (start, end) in enumerate(bounds) if start <= bit // 8 < end]
        assert missing(found, events) == hit
        assert len(found.damage) == len(hit)


@pytest.mark.slow
@each_stream
def test_every_flipped_bit_of_a_stream_costs_the_block_it_hits_and_no_other(name: str) -> None:
    data = segment(name, 4, batch=2)
    events = events_of(name, data)

    for bit in range(0, len(data) * 8, STEP):
        found = read(flipped(data, bit))
        lost = missing(found, events)
        assert len({number // 2 for number in lost}) <= 1
        assert bool(found.damage) or not lost


@pytest.mark.slow
@each_linear
def test_every_truncation_gives_the_events_before_it(name: str) -> None:
    data = segment(name)
    events, bounds = events_of(name, data), frame_bounds(name, data)

    for size in range(LAYOUTS[name].body_position, len(data), STEP):
        found = read(data[:size])
        whole = sum(end <= size for _, end in bounds)
        assert found.events == events[:whole]
        assert all(damage.torn for damage in found.damage)
        assert bool(found.damage) == (size not in {bounds[0][0], *(end for _, end in bounds)})


@pytest.mark.slow
@each_stream
def test_every_truncation_of_a_stream_gives_the_blocks_before_it(name: str) -> None:
    data = segment(name)
    events = events_of(name, data)
    seen = 0

    for size in range(LAYOUTS[name].body_position, len(data), STEP):
        found = read(data[:size])
        assert found.events == events[: len(found.events)]
        assert len(found.events) >= seen
        assert all(damage.torn for damage in found.damage)
        seen = len(found.events)
    assert seen >= COUNT - 1


@each_readable
def test_a_crashed_segment_with_count_0_gives_every_whole_event(name: str) -> None:
    data = segment(name, stated=0)
    events = events_of(name, data)

    # A crash leaves no end mark and no checksum either.
    cut = 8 if name in STREAMS else 0
    found = read(data[: len(data) - cut])

    assert (found.events, found.damage) == (events, [])
    assert found.header.count == 0


@pytest.mark.parametrize("name", ["v1", "v2", "v2-lz4", "v2-aes", "v2-aes-lz4"])
@pytest.mark.parametrize("stated", [1, COUNT - 1, COUNT + 1, 99, 2**32 - 1])
def test_a_false_count_costs_no_event(name: str, stated: int) -> None:
    data = segment(name, stated=stated)

    found = read(data, counted=True)

    assert len(found.events) == COUNT
    assert found.lost == max(0, stated - COUNT)


@pytest.mark.parametrize("name", ["v0", "v1", "v2", "v2-lz4"])
@pytest.mark.parametrize("size", [1, 4, 4096, 70_000])
def test_a_tail_of_zeros_costs_nothing_and_is_no_damage(name: str, size: int) -> None:
    data = segment(name)

    found = read(data + bytes(size))

    assert found.events == events_of(name, data)
    assert found.damage == []


@pytest.mark.parametrize("name", ["v2-aes", "v2-seed", "v3-seed", "v2-aes-lz4", "v3-seed-stream"])
def test_a_tail_of_zeros_behind_ciphertext_is_a_torn_end(name: str) -> None:
    data = segment(name)

    found = read(data + bytes(4096))

    assert found.events == events_of(name, data)
    assert [damage.torn for damage in found.damage] == [True]


@each_linear
def test_a_bad_size_costs_one_event_and_the_next_one_is_searched_for(name: str) -> None:
    data = segment(name)
    events, bounds = events_of(name, data), frame_bounds(name, data)

    for number, (start, _) in enumerate(bounds[:-1]):
        broken = data[:start] + b"\xa5\x5a\xff\x7f" + data[start + 4 :]
        found = read(broken)
        assert missing(found, events) == [number]
        assert [(damage.count, damage.torn) for damage in found.damage] == [(1, False)]


@each_linear
def test_two_bad_neighbours_with_whole_sizes_are_counted_as_two(name: str) -> None:
    data = bytearray(segment(name))
    events, bounds = events_of(name, bytes(data)), frame_bounds(name, bytes(data))
    for start, end in bounds[2:4]:
        data[(start + end) // 2] ^= 1

    found = read(bytes(data))

    assert missing(found, events) == [2, 3]
    assert found.lost == 2


@each_linear
def test_a_zeroed_sector_costs_what_it_covers(name: str) -> None:
    data = segment(name, 60)
    events, bounds = events_of(name, data), frame_bounds(name, data)

    found = read(data[:1024] + bytes(512) + data[1536:])

    covered = [n for n, (start, end) in enumerate(bounds) if start < 1536 and end > 1024]
    assert missing(found, events) == covered
    assert all(not damage.torn for damage in found.damage)


@each_stream
def test_a_zeroed_sector_of_a_stream_costs_the_blocks_that_it_covers(name: str) -> None:
    data = segment(name, 60)
    events = events_of(name, data)

    found = read(data[:1024] + bytes(512) + data[1536:])

    lost = missing(found, events)
    assert 0 < len(lost) <= 20
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert found.damage


@pytest.mark.parametrize("name", CLEAR)
def test_rubbish_between_two_frames_costs_no_event(name: str) -> None:
    data = segment(name)
    events, bounds = events_of(name, data), frame_bounds(name, data)
    start = bounds[3][0]

    found = read(data[:start] + random.Random(1).randbytes(777) + data[start:])

    assert missing(found, events) == []
    assert [damage.length for damage in found.damage] == [777]


@pytest.mark.parametrize("name", CLEAR)
def test_a_frame_that_claims_gigabytes_allocates_nothing(name: str) -> None:
    header = segment(name)[: LAYOUTS[name].body_position]

    found = read(header + struct.pack("<I", 2**32 - 1) + bytes(range(1, 200)))

    assert found.events == []
    assert [damage.torn for damage in found.damage] == [True]


@pytest.mark.slow
@each_readable
def test_random_damage_never_gives_an_altered_event(name: str) -> None:
    data = segment(name, 30, batch=3)
    events = events_of(name, data)
    noise = random.Random(name)

    for _ in range(400 if compiled else 20):
        broken = bytearray(data)
        for _ in range(noise.randrange(1, 4)):
            start = noise.randrange(len(broken))
            size = noise.randrange(1, 60)
            broken[start : start + size] = noise.randbytes(noise.randrange(0, 60))
        try:
            found = read(bytes(broken), KEY)
        except ForebayError:
            # The header itself was hit: an error, and no event.
            continue
        assert [event for event in found.events if event not in events] == []
