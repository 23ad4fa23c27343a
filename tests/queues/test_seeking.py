"""Frames are found in the middle of a segment, by readers that know nothing but its bytes."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from forebay import Damage, Log
from forebay.queues.log.scanner import (
    NEAR,
    OpenSegment,
    Scanner,
    frame_from,
    frame_near,
    list_segments,
)
from forebay.storage.filesystem import Directory, DiskFilesystem
from tests.queues.helpers import FRAME_BYTES, HEADER_BYTES
from tests.support.closing import closed_at_end

COUNT = 9000


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    random_sizes = random.Random(3)
    with Log(tmp_path / "log", sync="os", background=False) as log:
        log.append_many([b"%08d" % n + b"." * random_sizes.randrange(90) for n in range(COUNT)])
    return closed_at_end(DiskFilesystem().open_directory(str(tmp_path / "log")))


def open_first(directory: Directory) -> OpenSegment:
    segment = OpenSegment(directory, "0000000000", 0)
    closed_at_end(segment.file)
    return segment


def starts_of(segment: OpenSegment) -> list[int]:
    """Walks over the sizes, as the page tells, and gives where each frame begins."""
    data = segment.file.pread(segment.file.size(), 0)
    starts, position = [], HEADER_BYTES
    while position < len(data) and data[position : position + FRAME_BYTES].strip(b"\0"):
        starts.append(position)
        position += FRAME_BYTES + int.from_bytes(data[position : position + 4], "big")
    return starts


def test_the_frame_at_or_behind_any_position_is_found(directory: Directory) -> None:
    segment = open_first(directory)
    starts = starts_of(segment)

    found = [
        frame_from(segment.file, segment.frames, starts[n] - back)
        for n in range(0, COUNT, 97)
        for back in (0, 1, 5)
        if n
    ]

    assert found == [(starts[n], n) for n in range(0, COUNT, 97) for _ in range(3) if n]
    assert frame_from(segment.file, segment.frames, 0) == (HEADER_BYTES, 0)
    assert frame_from(segment.file, segment.frames, starts[-1]) == (starts[-1], COUNT - 1)
    assert frame_from(segment.file, segment.frames, starts[-1] + 1) is None


def test_a_frame_is_found_near_any_index(directory: Directory) -> None:
    segment = open_first(directory)
    starts = starts_of(segment)

    for index in range(0, COUNT, 113):
        position, found = frame_near(segment.file, segment.frames, index, COUNT)
        assert index - NEAR * 2 <= found <= index
        assert position == starts[found]


def test_a_large_record_does_not_hide_the_next_one(tmp_path: Path) -> None:
    with Log(tmp_path / "log", sync="os", background=False) as log:
        log.append_many([b"small", b"L" * 3_000_000, b"behind"])
    segment = open_first(closed_at_end(DiskFilesystem().open_directory(str(tmp_path / "log"))))

    first = HEADER_BYTES + FRAME_BYTES + 5
    second = first + FRAME_BYTES + 3_000_000
    assert frame_from(segment.file, segment.frames, HEADER_BYTES + 1) == (first, 1)
    assert frame_from(segment.file, segment.frames, first + 1) == (second, 2)


def test_readers_that_part_a_segment_anywhere_read_every_record_once(directory: Directory) -> None:
    segments = list_segments(directory)
    size = open_first(directory).file.size()
    cuts = sorted(random.Random(5).sample(range(size), 40))
    scanner = closed_at_end(Scanner(directory, segments))

    offsets = [scanner.cut(0, cut, COUNT) for cut in cuts]
    bounds = [0, *offsets, COUNT]
    read = [
        record.offset
        for start, end in pairwise(bounds)
        for batch in scanner.scan(start, end, COUNT)
        if not isinstance(batch, Damage)
        for record in batch.until(end).records()
    ]

    assert offsets == sorted(offsets)
    assert read == list(range(COUNT))


def test_damage_at_a_cut_belongs_to_one_reader(directory: Directory) -> None:
    segment = open_first(directory)
    starts = starts_of(segment)
    path = Path(directory.path) / "0000000000"
    data = bytearray(path.read_bytes())
    data[starts[4000] + 14] ^= 1
    path.write_bytes(data)
    segments = list_segments(directory)

    seen: list[int | None] = []
    good = 0
    for cut in (starts[3999], starts[4000], starts[4000] + 1, starts[4001]):
        middle = closed_at_end(Scanner(directory, segments)).cut(0, cut, COUNT)
        for start, end in ((0, middle), (middle, COUNT)):
            for item in closed_at_end(Scanner(directory, segments)).scan(start, end, end):
                if isinstance(item, Damage):
                    seen.append(item.offset)
                else:
                    good += len(item.until(end).values)

    assert seen == [4000] * 4
    assert good == 4 * (COUNT - 1)
