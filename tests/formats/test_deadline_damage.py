"""Damaged version 2 runs: every bit, every cut, lost parts; and checks that could not fail."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue, UnsupportedVersion
from forebay.formats.deadline import blocks as deadline_blocks
from forebay.formats.deadline import run_encoder as deadline_run_encoder
from forebay.formats.deadline import runs as deadline_runs
from forebay.formats.deadline.blocks import FOOTER_BYTES, Place
from forebay.formats.deadline.items import Entry, Item, Key, Stats, Tombstone, scan_run
from forebay.formats.deadline.original import scan_log
from forebay.formats.deadline.run_encoder import RunEncoder
from forebay.formats.deadline.runs import Run, rebuild_run
from forebay.formats.deadline.wal import scan_wal
from forebay.kernels import deadline as kernel
from tests.formats.deadline_entries import NOW_MS, split
from tests.formats.test_deadline_wal import HEADER, RECORDS
from tests.formats.test_deadline_wal import edges as wal_edges
from tests.formats.test_deadline_wal import encoded as encoded_wal
from tests.support.values import flipped

ENTRIES: list[Entry] = [
    Item(Key(NOW_MS, 3), b"first", Stats(NOW_MS - 9)),
    Item(Key(NOW_MS, 4), b"second", Stats(NOW_MS - 8, NOW_MS - 1, 2), True, b"why"),
    Tombstone(Key(NOW_MS + 1, 1)),
    Item(Key(NOW_MS + 2, 2), b"text text text text text text text text", Stats(NOW_MS)),
    Item(Key(NOW_MS + 3, 5), b"", Stats(NOW_MS)),
]


def encoded(compression: str = "none", id_index: bool = True) -> bytes:
    encoder = RunEncoder(b"saltsalt", compression=compression, block_bytes=40, id_index=id_index)
    return encoder.encode(ENTRIES) + encoder.finish()


def opened(data: bytes) -> Run:
    """Opens a run, by its blocks if it must."""
    try:
        return Run.open(lambda position, size: data[position : position + size], len(data), "r")
    except (Damaged, NotAQueue):
        return rebuilt(data)


def rebuilt(data: bytes) -> Run:
    return rebuild_run(lambda position, size: data[position : position + size], len(data), "r")


def read(data: bytes) -> tuple[list[Entry], list[Damage]]:
    run = opened(data)
    entries, damage = split(run.scan())
    if not damage:
        run.find_id(3)
    return entries, run.damage + damage


def block_entries() -> list[list[Entry]]:
    at = 0
    blocks = []
    for place in opened(encoded()).places:
        blocks.append(ENTRIES[at : at + place.count])
        at += place.count
    return blocks


def places() -> list[Place]:
    return list(opened(encoded()).places)


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_every_flipped_bit_is_seen_and_costs_the_entries_of_one_block(compression: str) -> None:
    data = encoded(compression)
    run = opened(data)
    starts = [place.position for place in run.places]
    blocks = block_entries()
    assert len(blocks) > 2

    for bit in range(8 * len(data)):
        entries, damage = read(flipped(data, bit))
        hit = sum(start <= bit // 8 for start in starts) - 1
        in_block = starts[0] <= bit // 8 < run.footer.index_position
        kept = [block for at, block in enumerate(blocks) if not in_block or at != hit]
        assert damage, f"bit {bit} was flipped unseen"
        assert entries == [entry for block in kept for entry in block]
        assert not in_block or damage[0].count == len(blocks[hit])


@pytest.mark.slow
@pytest.mark.parametrize("id_index", [False, True])
def test_every_cut_is_seen_and_leaves_the_whole_blocks(id_index: bool) -> None:
    data = encoded(id_index=id_index)
    run = opened(data)
    ends = [place.position for place in list(run.places)[1:]] + [run.footer.index_position]
    blocks = block_entries()

    for size in range(20, len(data)):
        entries, damage = read(data[:size])
        whole = sum(end <= size for end in ends)
        assert entries == [entry for block in blocks[:whole] for entry in block]
        assert damage[0].torn
    for size in range(20):
        with pytest.raises(Damaged, match="ends within its header"):
            read(data[:size])


def test_a_lost_footer_is_rebuilt_with_all_counts() -> None:
    data = encoded()
    whole = opened(data)

    run = rebuilt(data[:-1] + b"x")

    assert list(run.scan()) == ENTRIES
    (damage,) = run.damage
    assert (damage.position, damage.length) == (len(data) - FOOTER_BYTES[2], FOOTER_BYTES[2])
    for name in ("pending_count", "tombstone_count", "buried_count", "first_key", "last_key"):
        assert getattr(run.footer, name) == getattr(whole.footer, name)
    assert (run.footer.min_id, run.footer.max_id) == (1, 5)
    assert list(run.places) == list(whole.places)
    assert run.find_id(4) == [ENTRIES[1]]


def test_a_lost_footer_and_a_lost_block_leave_the_others() -> None:
    data = bytearray(encoded())
    data[places()[1].position + 30] ^= 1
    data[-1] ^= 1
    blocks = block_entries()

    run = rebuilt(bytes(data))

    assert list(run.scan()) == [e for at, block in enumerate(blocks) if at != 1 for e in block]
    assert [place.number for place in run.places] == [0, *range(2, len(blocks))]
    gap = run.damage[1]
    assert (gap.position, gap.position + gap.length) == (
        places()[1].position,
        places()[2].position,
    )


def test_a_lost_index_tells_how_many_entries_a_gap_had() -> None:
    data = bytearray(encoded())
    data[opened(encoded()).footer.index_position] ^= 1
    data[places()[1].position + 30] ^= 1

    run = rebuilt(bytes(data))

    assert [each.count for each in run.damage] == [0, len(block_entries()[1])]


def test_a_lost_header_and_footer_leave_nothing_and_say_so() -> None:
    data = bytearray(encoded())
    data[-1] ^= 1
    data[9] ^= 1

    with pytest.raises(Damaged, match="header checksum"):
        rebuilt(bytes(data))


def test_blocks_that_changed_places_or_files_are_seen() -> None:
    data = encoded()
    first, second, third = (place.position for place in places()[:3])
    other = RunEncoder(b"SALTSALT", block_bytes=40)
    foreign = other.encode(ENTRIES) + other.finish()

    swapped = data[:first] + data[second:third] + data[first:second] + data[third:]
    mixed = data[:first] + foreign[first:second] + data[second:]

    counts = [len(block) for block in block_entries()]
    assert [damage.count for damage in read(swapped)[1]] == counts[:2]
    assert [damage.count for damage in read(mixed)[1]] == counts[:1]


@pytest.mark.parametrize("data", [b"FFLG" + bytes(200), b"FBDW" + bytes(200), bytes(200), b"x"])
def test_foreign_files_are_refused(data: bytes) -> None:
    with pytest.raises(NotAQueue, match="not a run"):
        read(data)


def test_a_later_version_is_refused_by_name() -> None:
    later = struct.pack("<4sHBB8s", b"FBDR", 4, 0, 0, b"saltsalt")
    data = later + struct.pack("<I", zlib.crc32(later)) + encoded()[20:]

    with pytest.raises(UnsupportedVersion, match="version 4"):
        opened(data)


def test_a_block_that_verifies_and_holds_no_columns_is_damage() -> None:
    header = deadline_blocks.Header(b"saltsalt")
    for body in (
        b"short",
        bytes(72) + b"x",
        b"\0" * 40 + b"\3" + b"\0" * 31,
        b"\0" * 64 + b"A" * 8,
    ):
        block = deadline_blocks.encode_block(body, 0, 1, header)
        head = deadline_blocks.decode_head(block, len(block))
        assert isinstance(head, deadline_blocks.Head)
        assert isinstance(deadline_blocks.decode_block(block, head, b"saltsalt"), str)


@given(st.integers(0, 700), st.binary(min_size=1, max_size=200), st.booleans())
def test_bytes_that_are_written_over_give_no_entry_that_was_not_there(
    position: int, junk: bytes, cut: bool
) -> None:
    run_data, wal_data = (
        data[:position] + junk + (b"" if cut else data[position + len(junk) :])
        for data in (encoded(), encoded_wal(RECORDS))
    )
    written = [record for batch in RECORDS for record in batch]

    with suppress(Damaged, NotAQueue, UnsupportedVersion):
        assert all(entry in ENTRIES for entry in read(run_data)[0])
    with suppress(Damaged, NotAQueue, UnsupportedVersion):
        assert all(record in written for record in split(scan_wal(wal_data, "w"))[0])


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error_of_another_kind(data: bytes) -> None:
    assert_all_told(split(scan_run(data, "r"))[1], data)
    assert_all_told(split(scan_log(data, "l"))[1], data)
    assert_all_told(split(scan_wal(HEADER.encode() + data, "w"))[1], HEADER.encode() + data)


def assert_all_told(damage: list[Damage], data: bytes) -> None:
    assert all(0 <= each.position <= each.position + each.length <= len(data) for each in damage)


def unseen(data: bytes, reader: Callable[[bytes], list[Damage]]) -> Iterator[int]:
    """Yields the bits whose flip a reader does not tell."""
    for bit in range(8 * len(data)):
        try:
            damage = reader(flipped(data, bit))
        except (Damaged, UnsupportedVersion):
            continue
        if not damage:
            yield bit


@pytest.mark.slow
def test_a_run_reader_without_checks_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (deadline_blocks, deadline_run_encoder, deadline_runs):
        monkeypatch.setattr(module, "crc32", lambda data, seed=0: 0)
    data = encoded()

    assert len(list(unseen(data, lambda changed: read(changed)[1]))) > 8 * 50


def test_a_log_reader_without_checks_is_found_out() -> None:
    data = encoded_wal(RECORDS)[28:]
    edges = [edge - 28 for edge in wal_edges(RECORDS)]

    def unchecked(changed: bytes) -> list[Damage]:
        out = bytearray(changed)
        for number, (start, end) in enumerate(pairwise(edges)):
            kernel.seal_batch(memoryview(out)[start:], end - start - 8, number, HEADER.seed)
        return split(scan_wal(HEADER.encode() + out, "w"))[1]

    assert (
        list(unseen(data, lambda changed: split(scan_wal(HEADER.encode() + changed, "w"))[1])) == []
    )
    assert len(list(unseen(data, unchecked))) > 8 * 50
