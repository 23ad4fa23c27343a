"""Damage to a version 2 segment: what was hit is lost, all else comes, nothing comes altered."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import forebay
from forebay.formats.fflg import repair_header
from forebay.kernels import compiled
from tests.formats.salvage import HEADER_BYTES, Segment, is_subset, scan, write_segment
from tests.support.values import flipped

SECTOR = 512
# Plain Python takes its samples; the compiled kernels are tried on every single bit.
STEP = 1 if compiled else 16
ROUNDS = 4000 if compiled else 400


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    """A segment of 41 records, 0 to 200 bytes long."""
    noise = random.Random(1)
    values = [noise.randbytes(5 * number) for number in range(41)]
    return write_segment(tmp_path_factory.mktemp("segment") / "q", values)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    """A segment with records of the same sizes at the same places, as a reused block holds it."""
    noise = random.Random(2)
    values = [noise.randbytes(5 * number) for number in range(41)]
    return write_segment(tmp_path_factory.mktemp("other") / "q", values)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    """A segment of 400 records, about a hundred sectors."""
    noise = random.Random(3)
    values = [noise.randbytes(noise.randrange(0, 201)) for _ in range(400)]
    return write_segment(tmp_path_factory.mktemp("long") / "q", values)


@pytest.mark.slow
def test_every_flipped_bit_of_the_frames_costs_the_record_it_hits_and_no_other(
    segment: Segment,
) -> None:
    assert len(segment.data) * 8 >= 32_768
    count = len(segment.records)

    for bit in range(HEADER_BYTES * 8, len(segment.data) * 8, STEP):
        position = bit // 8
        found = scan(flipped(segment.data, bit), segment.header, expected=count)
        left = segment.outside(position, position + 1)
        (damage,) = found.damage
        assert found.records == left
        assert len(left) == count - 1
        assert damage.offset not in left
        assert damage.count == 1
        assert not damage.torn
        assert damage.position <= position < damage.position + damage.length


def test_every_flipped_bit_of_the_header_costs_nothing(segment: Segment) -> None:
    for bit in range(HEADER_BYTES * 8):
        data = flipped(segment.data, bit)
        header = repair_header(data, segment.header.base_offset)
        assert header == segment.header
        assert scan(data, header, expected=41).records == dict(enumerate(segment.records))


@pytest.mark.slow
def test_every_flipped_bit_of_the_header_is_read_round_in_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "q"
    written = write_segment(path, [b"one", b"two"], base=1)

    for bit in range(0, HEADER_BYTES * 8, 1 if compiled else 7):
        (path / "0000000001").write_bytes(flipped(written.data, bit))
        with forebay.read(path, salvage=True, kind="log") as reader:
            assert list(reader.values()) == [b"", b"one", b"two"]
            assert len(reader.damage) == 1


@pytest.mark.parametrize("size", [20, HEADER_BYTES, SECTOR])
def test_a_header_that_is_lost_costs_its_segment_and_no_other(tmp_path: Path, size: int) -> None:
    path = tmp_path / "q"
    written = write_segment(path, [b"one", b"two" * 200], base=1)
    with forebay.Log(path, background=False) as log:
        log.append(b"three")
    (path / "0000000001").write_bytes(bytes(size) + written.data[size:])

    with forebay.read(path, salvage=True, kind="log") as reader:
        values = list(reader.values())

    assert values == [b"", b"three"]
    assert [(damage.offset, damage.count) for damage in reader.damage] == [(1, 2)]


def test_a_flipped_bit_of_the_last_record_above_the_durable_mark_is_a_torn_end(
    segment: Segment,
) -> None:
    start = segment.starts[-1]

    for bit in range(start * 8, len(segment.data) * 8, 7):
        found = scan(flipped(segment.data, bit), segment.header, expected=0)
        (damage,) = found.damage
        assert found.records == segment.before(start)
        assert damage.torn


@pytest.mark.slow
def test_bursts_of_2_to_64_bits_cost_the_records_they_hit_and_no_others(segment: Segment) -> None:
    chance = random.Random(64)
    bits = len(segment.data) * 8

    for _ in range(ROUNDS):
        length = chance.randrange(2, 65)
        first = chance.randrange(HEADER_BYTES * 8, bits - length)
        pattern = chance.getrandbits(length) | 1 | 1 << length - 1
        whole = int.from_bytes(segment.data, "big") ^ pattern << bits - first - length
        found = scan(whole.to_bytes(len(segment.data), "big"), segment.header, expected=41)
        left = segment.outside(first // 8, (first + length - 1) // 8 + 1)
        assert found.records == left
        assert sum(damage.count or 0 for damage in found.damage) == 41 - len(left)


def test_a_zeroed_sector_costs_the_records_in_it_and_no_others(long: Segment) -> None:
    for start in range(0, len(long.data), SECTOR):
        first = max(start, HEADER_BYTES)
        end = min(start + SECTOR, len(long.data))
        data = long.data[:first] + bytes(end - first) + long.data[end:]
        found = scan(data, long.header, expected=400)
        assert found.records == long.unharmed(data)
        assert len(found.records) >= len(long.outside(first, end))
        assert sum(damage.count or 0 for damage in found.damage) == 400 - len(found.records)


@pytest.mark.slow
def test_two_zeroed_sectors_cost_the_records_in_them_and_no_others(long: Segment) -> None:
    chance = random.Random(512)
    sectors = range(1, len(long.data) // SECTOR)

    for _ in range(ROUNDS // 4):
        data = bytearray(long.data)
        for start in (SECTOR * chance.choice(sectors) for _ in range(2)):
            data[start : start + SECTOR] = bytes(SECTOR)
        found = scan(bytes(data), long.header, expected=400)
        assert found.records == long.unharmed(bytes(data))


@pytest.mark.slow
def test_swapped_sectors_never_give_altered_data(long: Segment) -> None:
    chance = random.Random(1024)
    sectors = range(1, len(long.data) // SECTOR)

    for _ in range(ROUNDS // 2):
        one, two = sorted(SECTOR * number for number in chance.sample(sectors, 2))
        data = bytearray(long.data)
        data[one : one + SECTOR] = long.data[two : two + SECTOR]
        data[two : two + SECTOR] = long.data[one : one + SECTOR]
        found = scan(bytes(data), long.header, expected=400)
        assert is_subset(found, long)
        assert found.damage
        assert long.before(one).items() <= found.records.items()


def test_sectors_of_another_segment_at_the_same_place_never_verify(
    segment: Segment, other: Segment
) -> None:
    for start in range(SECTOR, len(segment.data), SECTOR):
        end = min(start + SECTOR, len(segment.data))
        data = segment.data[:start] + other.data[start:end] + segment.data[end:]
        found = scan(data, segment.header, expected=41)
        assert found.records == segment.unharmed(data)


@pytest.mark.slow
@pytest.mark.parametrize("behind", ["nothing", "zeros", "garbage", "another segment"])
def test_a_cut_at_every_byte_keeps_every_record_before_it(
    segment: Segment, other: Segment, behind: str
) -> None:
    size = len(segment.data)
    rest = {
        "nothing": b"",
        "zeros": bytes(size + 1000),
        "garbage": random.Random(5).randbytes(size + 1000),
        "another segment": other.data,
    }[behind]

    for cut in range(HEADER_BYTES, size + 1, STEP):
        found = scan(segment.data[:cut] + rest[cut:], segment.header, expected=0)
        assert is_subset(found, segment)
        # A byte of garbage may happen to be the one that was cut off.
        assert segment.before(cut).items() <= found.records.items()
        assert all(damage.torn for damage in found.damage)


def test_a_cut_below_the_durable_mark_is_damage_and_counts_what_is_missing(
    segment: Segment,
) -> None:
    for cut in range(HEADER_BYTES, len(segment.data), 3):
        found = scan(segment.data[:cut], segment.header, expected=41)
        (damage,) = found.damage
        assert found.records == segment.before(cut)
        assert (damage.offset, damage.count) == (len(found.records), 41 - len(found.records))
        assert not damage.torn


def test_a_record_that_holds_frames_of_its_own_segment_does_not_mislead_salvage(
    tmp_path: Path, segment: Segment
) -> None:
    inner = segment.data[segment.starts[3] : segment.ends[5]]
    outer = write_segment(tmp_path / "q", [b"a", inner, b"b", inner + b"tail", b"c"])
    position = outer.starts[1]

    found = scan(flipped(outer.data, position * 8 + 3), outer.header, expected=5)

    assert found.records == outer.outside(position, position + 1)
