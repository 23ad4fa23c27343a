"""Version 2 runs: round trips, lookups, and what a second decoder reads."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.formats.deadline.blocks import BLOCK_ENTRIES_MAX, decode_head
from forebay.formats.deadline.items import Entry, Item, Key, Stats, Tombstone
from forebay.formats.deadline.run_encoder import RunEncoder
from forebay.formats.deadline.runs import Run
from tests.formats.deadline_entries import NOW_MS, by_key, items, keys, split, tombstones
from tests.formats.deadline_independent import read_run_2
from tests.formats.deadline_rows import row_of

SALT = b"saltsalt"
entries_lists = st.lists(st.one_of(items, tombstones), max_size=30)


def encoded(
    entries: list[Entry], block_bytes: int = 100, compression: str = "none", id_index: bool = False
) -> bytes:
    encoder = RunEncoder(SALT, compression=compression, block_bytes=block_bytes, id_index=id_index)
    parts = [encoder.encode(entries[at : at + 7]) for at in range(0, len(entries), 7)]
    return b"".join(parts) + encoder.finish()


def opened(data: bytes) -> Run:
    return Run.open(lambda position, size: data[position : position + size], len(data), "r")


@pytest.mark.slow
@given(entries_lists, st.integers(1, 300), st.sampled_from(["none", "lz4"]), st.booleans())
def test_a_run_comes_back_as_it_was(
    entries: list[Entry], block_bytes: int, compression: str, id_index: bool
) -> None:
    entries.sort(key=by_key)

    run = opened(encoded(entries, block_bytes, compression, id_index))

    assert list(run.scan()) == entries
    assert run.footer.count == len(entries)
    assert run.footer.buried_count == sum(isinstance(e, Item) and e.buried for e in entries)
    assert run.footer.tombstone_count == sum(isinstance(e, Tombstone) for e in entries)


@pytest.mark.slow
@given(entries_lists, st.integers(1, 300), st.booleans())
def test_a_second_decoder_reads_it(entries: list[Entry], block_bytes: int, id_index: bool) -> None:
    entries.sort(key=by_key)

    rows = read_run_2(encoded(entries, block_bytes, "none", id_index))

    assert rows == [row_of(entry) for entry in entries]


@pytest.mark.slow
@given(entries_lists, keys, st.booleans())
def test_lookups_find_what_a_walk_finds(entries: list[Entry], other: Key, id_index: bool) -> None:
    entries.sort(key=by_key)

    run = opened(encoded(entries, id_index=id_index))

    for key in [entry.key for entry in entries] + [other]:
        found = run.find(key)
        same = [entry for entry in entries if entry.key == key]
        assert found in same or (found, same) == (None, [])
        assert list(run.scan(key)) == [entry for entry in entries if entry.key >= key]
        assert run.find_id(key.id) == [entry for entry in entries if entry.key.id == key.id]


def test_a_key_that_is_in_two_blocks_is_found_with_all_its_entries() -> None:
    key = Key(NOW_MS, 7)
    entries: list[Entry] = [Item(key, b"v" * 90), Item(key, b"w" * 90), Item(key, b"x" * 90)]

    run = opened(encoded([Item(Key(NOW_MS, 6), b""), *entries], id_index=True))

    assert len(run.places) == 4
    assert list(run.scan(key)) == entries
    assert run.find_id(7) == entries
    assert run.find(key) in entries


def test_widths_from_none_to_all_bits_are_packed() -> None:
    full: list[Entry] = [
        Item(Key(0, 0), b"", Stats(0, 1, 0)),
        Item(Key(2**48 - 1, 2**64 - 1), b"v", Stats(2**48 - 1, 2**48 - 1, 2**32 - 1), True, b"why"),
    ]
    same: list[Entry] = [Item(Key(NOW_MS, 5), b"v", Stats(NOW_MS, NOW_MS, 3))] * 9

    for entries in (full, same):
        data = encoded(entries, 10_000)
        assert list(opened(data).scan()) == entries
        assert read_run_2(data) == [row_of(entry) for entry in entries]
    # Nine bytes of values, and nothing else for each entry; one bit for its requeue time.
    assert len(encoded(same, 10_000)) == 20 + 24 + 72 + 2 + 9 + 26 + 112


def test_tombstones_between_items_cost_no_wide_columns() -> None:
    items = [Item(Key(NOW_MS + at, at), b"", Stats(NOW_MS, NOW_MS, 5)) for at in range(8)]
    entries: list[Entry] = [*items, *(Tombstone(Key(NOW_MS + at, at)) for at in range(8, 16))]

    data = encoded(entries, 10_000)

    # Deadline and id have four bits each, requeue time and attributes one.
    assert len(data) == 20 + 24 + 72 + 8 + 8 + 2 + 2 + 26 + 112
    assert list(opened(data).scan()) == entries


def test_values_larger_than_a_block_have_one_of_their_own() -> None:
    large = [
        Item(Key(1, at), bytes([at]) * size) for at, size in enumerate([5, 5, 900, 5, 901, 902])
    ]

    run = opened(encoded(list[Entry](large), 100))

    assert [place.count for place in run.places] == [2, 1, 1, 1, 1]
    assert list(run.scan()) == large


@pytest.mark.slow
def test_a_block_has_a_largest_number_of_entries() -> None:
    entries: list[Entry] = [Tombstone(Key(1, at)) for at in range(BLOCK_ENTRIES_MAX + 3)]

    run = opened(encoded(entries, 10**9))

    assert [place.count for place in run.places] == [BLOCK_ENTRIES_MAX, 3]
    assert run.find(entries[-1].key) == entries[-1]


def test_compression_pays_on_text_and_costs_nothing_on_noise() -> None:
    text: list[Entry] = [Item(Key(1, at), b"the same words again " * 10) for at in range(50)]
    noise: list[Entry] = [Item(Key(1, at), os.urandom(210)) for at in range(50)]

    assert len(encoded(text, 4096, "lz4")) < 50 * 210 // 4
    assert len(encoded(noise, 4096, "lz4")) <= len(encoded(noise, 4096)) < 50 * 220 + 500
    assert list(opened(encoded(text, 4096, "lz4")).scan()) == text


def test_the_target_of_eight_bytes_an_item_is_kept() -> None:
    # Ids and deadlines as dense as among a million: 20 bits of ids, 14 of deadlines in a block.
    entries: list[Entry] = [
        Item(
            Key(NOW_MS + at * 86, at * 7919 % 2**20), bytes(278), Stats(NOW_MS + at * 7919 % 10_000)
        )
        for at in range(3_000)
    ]

    size = len(encoded(entries, 32 * 1024))

    assert 6 * 3_000 < size - 278 * 3_000 <= 8 * 3_000


def test_an_empty_run_has_a_header_and_a_footer() -> None:
    data = encoded([], id_index=True)

    run = opened(data)

    assert (len(encoded([])), len(data)) == (132, 142)
    assert (list(run.scan()), run.find(Key(0, 0)), run.find_id(0)) == ([], None, [])
    assert read_run_2(data) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ((b"FBDX", 0, 1, 10, 10, 0), "no block begins"),
        ((b"FBDB", 0, 1, 77, 77, 0), "77 bytes, but 76 are left"),
        ((b"FBDB", 0, 0, 10, 10, 0), "0 entries"),
        ((b"FBDB", 0, BLOCK_ENTRIES_MAX + 1, 10, 10, 0), "65537 entries"),
        ((b"FBDB", 0, 1, 10, 9, 0), "claim to hold 9"),
        ((b"FBDB", 0, 1, 10, 2**32 - 1, 0), "claim to hold 4294967295"),
    ],
)
def test_a_head_that_lies_is_refused_before_anything_is_allocated(
    fields: tuple[object, ...], reason: str
) -> None:
    head = decode_head(struct.pack("<4sIIIII", *fields), 100)

    assert isinstance(head, str)
    assert reason in head


def test_unsorted_entries_and_wrong_options_are_refused() -> None:
    encoder = RunEncoder(SALT)
    encoder.encode([Tombstone(Key(5, 5))])

    with pytest.raises(ValueError, match="a run must be sorted"):
        encoder.encode([Tombstone(Key(5, 4))])
    with pytest.raises(ValueError, match="compression 'zip'"):
        RunEncoder(SALT, compression="zip")
    with pytest.raises(ValueError, match="block_bytes 0: must be 1 to 1073741824"):
        RunEncoder(SALT, block_bytes=0)
    with pytest.raises(ValueError, match="salt b'short'"):
        RunEncoder(b"short")


def test_damage_in_a_walk_from_a_key_is_met_only_where_it_is() -> None:
    entries: list[Entry] = [Item(Key(at, at), b"v" * 80) for at in range(5)]
    data = bytearray(encoded(entries))
    data[opened(bytes(data)).places[1].position + 60] ^= 1
    run = opened(bytes(data))

    assert split(run.scan(Key(3, 0))) == (entries[3:], [])
    found, (damage,) = split(run.scan())
    assert found == [entries[0], *entries[2:]]
    assert (damage.offset, damage.count) == (1, 1)
