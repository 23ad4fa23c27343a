"""A merge without the interpreter's lock leaves what the plain one leaves, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from forebay.formats.deadline.items import (
    BURIED_BIT,
    Entry,
    FileKind,
    Item,
    Key,
    Stats,
    Tombstone,
    file_name,
)
from forebay.formats.deadline.manifest import SetRow
from forebay.formats.deadline.run_encoder import RunEncoder
from forebay.formats.deadline.runs import Run
from forebay.kernels.deadline import END, MORE, RunView, merge
from forebay.queues.deadline.compaction import Feeder
from forebay.queues.deadline.runs import BadBlocks, RunSet, open_set, start_cursor
from forebay.storage.filesystem import DiskFilesystem
from tests.queues.helpers import flip
from tests.support.closing import closed_at_end

KINDS = (FileKind.PENDING_RUN, FileKind.TOMBSTONE_RUN, FileKind.DEQUEUED_RUN)
SALT = b"saltsalt"
BLOCK_BYTES = 2_000


def item(key: Key, draw: Random) -> Item:
    buried = key.deadline_ms >= BURIED_BIT
    value = draw.randbytes(10) * draw.choice((0, 1, 30, 10_000 if draw.random() < 0.01 else 4))
    stats = Stats(draw.getrandbits(40), draw.choice((0, draw.getrandbits(41))), draw.randrange(4))
    return Item(key, value, stats, buried, draw.randbytes(draw.randrange(20)) if buried else b"")


def mark(key: Key, number: int, draw: Random) -> Item:
    # A later one has a higher count.
    return Item(key, b"", Stats(draw.getrandbits(40), 0, 4 * (number + 1) + draw.randrange(4)))


def write_sets(path: Path, draw: Random, compression: str) -> list[RunSet]:
    """Writes sets of a history that may be: items once each, tombstones and marks anywhere."""
    keys = sorted(
        {
            Key(draw.choice((0, BURIED_BIT)) + draw.randrange(10**6), draw.getrandbits(20))
            for _ in range(2_000)
        }
    )
    homes = {key: draw.randrange(5) for key in keys}
    for number in range(4):
        runs: dict[FileKind, list[Entry]] = {
            KINDS[0]: [item(key, draw) for key in keys if homes[key] == number],
            KINDS[1]: [Tombstone(key) for key in keys if draw.random() < 0.1],
            KINDS[2]: [mark(key, number, draw) for key in keys if draw.random() < 0.2],
        }
        for kind, entries in runs.items():
            encoder = RunEncoder(bytes([number] * 8), compression=compression, block_bytes=1_500)
            (path / file_name(number, kind)).write_bytes(encoder.encode(entries) + encoder.finish())
    return open_sets(path)


def open_sets(path: Path) -> list[RunSet]:
    directory = closed_at_end(DiskFilesystem().open_directory(str(path)))
    rows = [SetRow(number, frozenset(KINDS)) for number in range(4)]
    return [closed_at_end(open_set(directory, row)) for row in rows]


class Target:
    """Runs that are written to memory."""

    def __init__(self, compression: str) -> None:
        self.encoders = [
            RunEncoder(SALT, compression=compression, block_bytes=BLOCK_BYTES, id_index=True)
            for _ in KINDS
        ]
        self.builders = [encoder.builder for encoder in self.encoders]
        self._data = [b"" for _ in KINDS]

    def fill(self, run: Callable[[], int]) -> list[bytes]:
        """Takes what a merge leaves; gives the three runs."""
        while (kind := run()) != END:
            if kind != MORE:
                self.encoders[kind - 1].end_block()
                self._data[kind - 1] += self.encoders[kind - 1].take()
        return [
            data + encoder.finish() for data, encoder in zip(self._data, self.encoders, strict=True)
        ]


def merge_both_ways(
    sets: list[RunSet], full: bool, compression: str, held_bytes: int
) -> list[bytes]:
    """Merges with and without the lock, which must be the same; gives the three runs."""
    files = [file for each in sets for file in each.files.values()]
    plain, view, seen = Target(compression), RunView(), BadBlocks()
    for file in files:
        view.add(start_cursor(file, (0, 0), seen))
    runs = plain.fill(lambda: merge(view, full, *plain.builders, limit=100))

    target, damage = Target(compression), BadBlocks()
    streams = [encoder.stream for encoder in target.encoders]
    feeder = Feeder(files, full, target.builders, streams, damage, held_bytes)
    assert target.fill(feeder.run) == runs
    assert feeder.passed == view.passed
    assert sorted(map(str, damage)) == sorted(map(str, seen))
    return runs


def entries_of(data: bytes) -> list[Entry]:
    run = Run.open(lambda at, size: data[at : at + size], len(data), "run")
    entries = list(run.scan())
    assert all(isinstance(entry, Item | Tombstone) for entry in entries)
    return [entry for entry in entries if isinstance(entry, Item | Tombstone)]


@pytest.mark.slow
@pytest.mark.parametrize("held_bytes", [1, 60_000, 32 << 20])
@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("full", [False, True])
def test_both_ways_leave_the_same(
    tmp_path: Path, full: bool, compression: str, held_bytes: int
) -> None:
    sets = write_sets(tmp_path, Random(held_bytes), compression)

    items, tombstones, marks = map(entries_of, merge_both_ways(sets, full, compression, held_bytes))

    assert len(items) > 500
    assert (len(tombstones) > 100) == (len(marks) > 100) == (not full)
    assert not {each.key for each in items} & {each.key for each in tombstones}


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_runs_of_one_compression_are_merged_into_the_other(
    tmp_path: Path, compression: str
) -> None:
    sets = write_sets(tmp_path, Random(5), compression)

    runs = [merge_both_ways(sets, True, other, 60_000) for other in ("none", "lz4")]

    assert entries_of(runs[0][0]) == entries_of(runs[1][0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_damage_costs_both_ways_the_same(tmp_path: Path, compression: str, seed: int) -> None:
    draw = Random(seed)
    whole = merge_both_ways(write_sets(tmp_path, draw, compression), False, "none", 60_000)
    for number in range(4):
        for kind in KINDS:
            file = tmp_path / file_name(number, kind)
            # Header, blocks, index and footer: whatever is hit.
            flip(file, *(draw.randrange(file.stat().st_size) for _ in range(3)))

    hurt = merge_both_ways(open_sets(tmp_path), False, "none", 60_000)

    assert hurt != whole
    assert entries_of(hurt[0])


@pytest.mark.slow
def test_a_value_larger_than_what_is_made_at_once(tmp_path: Path) -> None:
    sizes = [10, 5 << 20, 10, 9 << 20, 3, 100_000]
    entries = [Item(Key(at, at), bytes(size), Stats()) for at, size in enumerate(sizes, 1)]
    for number in range(4):
        for kind in KINDS:
            own = [each for each in entries if each.key.id % 4 == number and kind is KINDS[0]]
            encoder = RunEncoder(SALT, block_bytes=BLOCK_BYTES)
            (tmp_path / file_name(number, kind)).write_bytes(encoder.encode(own) + encoder.finish())

    items, _, _ = map(entries_of, merge_both_ways(open_sets(tmp_path), True, "none", 1_000))

    assert items == entries


@pytest.mark.slow
def test_a_file_that_was_cut_off_meanwhile_is_read_no_further(tmp_path: Path) -> None:
    for number in range(4):
        for kind in KINDS:
            # The one that is cut off is so large that a read past what is left of it would leave
            # the memory of the process.
            value = bytes(64 << 20 if number == 2 else 1)
            own = [Item(Key(number, 1), value, Stats())] if kind is KINDS[0] else []
            encoder = RunEncoder(SALT, block_bytes=BLOCK_BYTES)
            (tmp_path / file_name(number, kind)).write_bytes(encoder.encode(own) + encoder.finish())
    sets = open_sets(tmp_path)
    os.truncate(tmp_path / file_name(2, KINDS[0]), 100)

    items, _, _ = map(entries_of, merge_both_ways(sets, True, "none", 1_000))

    assert [item.key.deadline_ms for item in items] == [0, 1, 3]


def test_nothing_is_left_of_nothing() -> None:
    assert [entries_of(run) for run in merge_both_ways([], True, "none", 1)] == [[], [], []]
