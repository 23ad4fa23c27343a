"""The words of the deadline queue, and version 1 of its runs."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import Damaged, RecordTooLarge
from forebay.formats.deadline.items import (
    FOOTER_BYTES,
    ID_MAX,
    TIME_MS_MAX,
    Entry,
    FileKind,
    Footer,
    Item,
    Key,
    RunEncoder,
    Stats,
    Tombstone,
    decode_footer,
    encode_entry,
    file_name,
    parse_file_name,
    scan_run,
)
from tests.formats.deadline_entries import (
    NOW_MS,
    by_key,
    plain_items,
    split,
    tombstones,
)
from tests.formats.deadline_independent import read_run_1
from tests.formats.deadline_rows import row_of
from tests.support.values import flipped

ENTRIES: list[Entry] = [
    Item(Key(NOW_MS, 1), b"first", Stats(NOW_MS - 9, 0, 0)),
    Item(Key(NOW_MS, 2**63), b"", Stats(NOW_MS - 8, NOW_MS - 5, 3)),
    Tombstone(Key(NOW_MS + 1, 3)),
    Item(Key(NOW_MS + 2, 2), b"last", Stats(NOW_MS - 7)),
]
STARTS = [0, 41, 77, 93, 133]


def encoded(entries: list[Entry]) -> bytes:
    encoder = RunEncoder()
    return encoder.encode(entries) + encoder.finish()


def test_an_item_is_a_key_of_128_bits_stats_of_128_bits_a_size_and_the_value() -> None:
    key, stats = (
        Key(0x123456789ABC, 0xC000_0000_0000_0001),
        Stats(0x111213141516, 0x212223242526, 7),
    )

    data = encode_entry(Item(key, b"abc", stats))

    assert struct.unpack_from("<QQ", data) == (0x123456789ABC << 2 | 3, 4)
    assert struct.unpack_from("<QQ", data, 16) == (0x1112131415162122, 0x2324252600000007)
    assert data[32:] == b"\3\0\0\0abc"
    assert encode_entry(Tombstone(key)) == struct.pack("<QQ", 0x123456789ABC << 2 | 3, 7)


def test_the_footer_counts_and_names_the_last_key_and_the_largest_id() -> None:
    data = encoded(ENTRIES)

    assert len(data) == STARTS[-1] + FOOTER_BYTES
    assert decode_footer(data, "r") == Footer(3, 1, Key(NOW_MS + 2, 2), False, 2**63)
    assert encoded([]) == bytes(40)
    assert list(scan_run(bytes(40), "r")) == []


@given(st.lists(st.one_of(plain_items, tombstones), max_size=20))
def test_a_run_comes_back_as_it_was_and_a_second_decoder_reads_it(entries: list[Entry]) -> None:
    entries.sort(key=by_key)

    data = encoded(entries)

    assert list(scan_run(data, "r")) == entries
    assert list(scan_run(memoryview(data), "r")) == entries
    assert read_run_1(data) == [row_of(entry) for entry in entries]


def test_keys_compare_unsigned_by_deadline_and_id() -> None:
    keys = [Key(2, 0), Key(1, ID_MAX), Key(1, 2**63), Key(1, 2**63 - 1), Key(1, 5)]

    assert sorted(keys) == keys[::-1]


def test_ids_in_signed_order_are_read_and_in_no_order_refused() -> None:
    high, low, middle = (encode_entry(Tombstone(Key(1, id))) for id in (2**63, 5, 7))
    signed = high + low + Footer(0, 2, Key(1, 5), True, 5).encode()
    mixed = low + high + middle + Footer(0, 3, Key(1, 7), True, 2**63).encode()

    assert [entry.key.id for entry in split(scan_run(signed, "r"))[0]] == [2**63, 5]
    assert split(scan_run(signed, "r"))[1] == []
    (damage,) = split(scan_run(mixed, "r"))[1]
    assert (damage.position, damage.length, damage.count) == (32, 16, 1)
    assert "below the one before" in damage.reason


@pytest.mark.parametrize(
    ("footer", "reason"),
    [
        (Footer(2, 1, Key(NOW_MS + 2, 2), False, 2**63), "counts 2 and 1"),
        (Footer(3, 0, Key(NOW_MS + 2, 2), False, 2**63), "counts 3 and 0"),
        (Footer(3, 1, Key(NOW_MS + 3, 2), False, 2**63), "last key"),
        (Footer(3, 1, Key(NOW_MS + 2, 2), True, 2**63), "last key"),
        (Footer(3, 1, Key(NOW_MS + 2, 2), False, 4), "largest id"),
        (Footer(2**60, 1, Key(NOW_MS + 2, 2), False, 2**63), "entries in 133 bytes"),
    ],
)
def test_a_footer_that_does_not_fit_is_damage_and_the_entries_are_read(
    footer: Footer, reason: str
) -> None:
    data = encoded(ENTRIES)[:-FOOTER_BYTES] + footer.encode()

    entries, (damage,) = split(scan_run(data, "r"))

    assert entries == ENTRIES
    assert (damage.position, damage.length, damage.torn) == (133, FOOTER_BYTES, False)
    assert reason in damage.reason


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (8 * 41 + 50, "reserved bit"),
        (8 * 41 + 64, "reserved type 1"),
        (8 * 41 + 65, "reserved type 2"),
        (8 * (41 + 32) + 30, "cut off"),
    ],
)
def test_what_cannot_be_is_told_with_its_place_and_how_much_is_missing(
    bit: int, reason: str
) -> None:
    entries, (damage,) = split(scan_run(flipped(encoded(ENTRIES), bit), "r"))

    assert entries == ENTRIES[:1]
    assert (damage.position, damage.length, damage.count) == (41, 133 - 41, 3)
    assert (reason in damage.reason, damage.torn) == (True, False)


def test_a_flipped_bit_is_seen_or_changes_one_entry_and_no_other() -> None:
    data = encoded(ENTRIES)
    unseen = set()
    bytes_unseen = set()

    for bit in range(8 * len(data)):
        entries, damage = split(scan_run(flipped(data, bit), "r"))
        if damage:
            hit = sum(start <= bit // 8 for start in STARTS[1:])
            assert entries[: max(hit - 1, 0)] == ENTRIES[: max(hit - 1, 0)]
        else:
            changed = [at for at in range(4) if entries[at] != ENTRIES[at]]
            assert len(changed) == 1
            unseen.add(bit // 8 - STARTS[changed[0]])
            bytes_unseen.add(bit // 8)

    # Keys that stay in order, stats and values cannot be checked; sizes, types and the footer can.
    assert unseen <= set(range(16)) | set(range(16, 32)) | set(range(36, 41))
    assert {16, 31, 36} <= unseen
    # The last key, and the largest id, are in the footer.
    assert not bytes_unseen & {*range(93, 109), *range(41 + 8, 41 + 16)}


def test_the_entries_before_a_cut_are_read_and_the_cut_is_told() -> None:
    data = encoded(ENTRIES)

    for size in range(len(data)):
        entries, (damage,) = split(scan_run(data[:size], "r"))
        whole = sum(end <= size for end in STARTS[1:])
        assert entries == ENTRIES[: len(entries)]
        # A cut that leaves 40 bytes behind the end of an entry shows them as a bad footer.
        assert len(entries) == whole or damage.position == size - FOOTER_BYTES


def test_a_file_that_just_ends_is_torn() -> None:
    (damage,) = split(scan_run(encoded(ENTRIES)[:60], "r"))[1]

    assert (damage.position, damage.length, damage.torn) == (41, 19, True)
    with pytest.raises(Damaged, match="too short"):
        decode_footer(b"x" * 39, "r")


@pytest.mark.parametrize(
    "entry",
    [
        Tombstone(Key(TIME_MS_MAX + 1, 0)),
        Tombstone(Key(0, ID_MAX + 1)),
        Tombstone(Key(-1, 0)),
        Item(Key(0, 0), b"", Stats(TIME_MS_MAX + 1)),
        Item(Key(0, 0), b"", Stats(0, -1)),
        Item(Key(0, 0), b"", Stats(0, 0, 2**32)),
        Item(Key(0, 0), b"", buried=True),
        Item(Key(0, 0), b"", reason=b"why"),
    ],
)
def test_what_version_1_cannot_hold_is_refused(entry: Entry) -> None:
    with pytest.raises(ValueError, match=r"bits|cannot hold"):
        RunEncoder().encode([entry])


def test_an_unsorted_run_or_a_too_long_reason_is_refused() -> None:
    encoder = RunEncoder()
    encoder.encode(ENTRIES[1:2])

    with pytest.raises(ValueError, match="a run must be sorted"):
        encoder.encode(ENTRIES[:1])
    with pytest.raises(RecordTooLarge, match="65536 bytes"):
        RunEncoder().encode([Item(Key(0, 0), b"", reason=bytes(2**16))])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0000000001.wal", (1, FileKind.WAL)),
        ("00000000ff.p.run", (255, FileKind.PENDING_RUN)),
        ("123456789abc.t.run", (0x123456789ABC, FileKind.TOMBSTONE_RUN)),
        ("0000000010.c.run", (16, FileKind.COMBINED_RUN)),
        ("0000000010.log", (10, FileKind.LOG)),
        ("0000000003.closed-log", (3, FileKind.CLOSED_LOG)),
        ("0000000001.log_ro", (1, FileKind.CLOSED_LOG_OF_SEED)),
        ("0000000010.p-idx", (10, FileKind.PENDING_RUN_1)),
        ("0000000010.t-idx", (10, FileKind.TOMBSTONE_RUN_1)),
        ("12345678901.c-idx", (12345678901, FileKind.COMBINED_RUN_1)),
        ("0000000001.idx", (1, FileKind.COMBINED_RUN_OF_SEED)),
        ("00000000FF.wal", None),
        ("00000000ff.log", None),
        ("000000000001.wal", None),
        ("1.wal", None),
        ("0000000001.run", None),
        ("0000000001.wal.new", None),
    ],
)
def test_only_names_of_the_patterns_are_files(
    name: str, expected: tuple[int, FileKind] | None
) -> None:
    assert parse_file_name(name) == expected
    assert expected is None or file_name(*expected) == name


@pytest.mark.parametrize("bit", range(32))
def test_a_damaged_size_of_the_last_value_gives_out_no_other_value(bit: int) -> None:
    last = Item(Key(NOW_MS + 3, 9), b"money=100;", Stats(NOW_MS))
    data = encoded([*ENTRIES, last])
    size_at = len(data) - FOOTER_BYTES - len(last.value) - 4

    entries, (damage,) = split(scan_run(flipped(data, size_at * 8 + bit), "r"))

    assert entries == ENTRIES
    assert (damage.torn, damage.count) == (False, 1)


@pytest.mark.parametrize("size", [36, 39, 76, 4_096])
def test_zeros_are_damage_and_no_items(size: int) -> None:
    entries, (damage,) = split(scan_run(bytes(size), "r"))

    assert entries == []
    assert (damage.torn, damage.count) == (False, None)


def test_an_item_of_zeros_that_the_footer_counts_is_one() -> None:
    zero = Item(Key(0, 0), b"")

    assert list(scan_run(encoded([zero, *ENTRIES]), "r")) == [zero, *ENTRIES]


def test_a_count_that_is_too_low_costs_no_entry() -> None:
    data = bytearray(encoded(ENTRIES))
    data[-FOOTER_BYTES] -= 1

    entries, (damage,) = split(scan_run(bytes(data), "r"))

    assert entries == ENTRIES
    assert "counts" in damage.reason


def test_the_empty_run_of_the_original_program_is_whole() -> None:
    assert list(scan_run(Footer(max_id=2**63).encode(), "r")) == []
