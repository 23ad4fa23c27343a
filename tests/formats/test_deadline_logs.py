"""The original program's write-ahead logs: read to the bit, torn ends told from damage."""

from __future__ import annotations

import pytest

from forebay.damage import Damage
from forebay.formats.deadline.items import Item, Key, Stats, Tombstone
from forebay.formats.deadline.original import scan_log
from tests.formats.deadline_entries import golden_bytes, golden_entries, split
from tests.support.values import flipped

LOG = "0000000003.closed-log"


def ends(data: bytes) -> list[int]:
    """Returns where each entry of a log with sizes below 128 begins, and the end."""
    found = [0]
    while found[-1] < len(data):
        found.append(found[-1] + 1 + data[found[-1]])
    return found


@pytest.mark.parametrize("name", [LOG, "0000000004.log"])
def test_a_log_of_the_original_is_read_exactly(name: str) -> None:
    assert list(scan_log(golden_bytes(name), name)) == golden_entries(name)


def test_the_fields_are_where_the_page_says() -> None:
    deadline, start = b"\x12\x02\x08\x09", b"\x12\x05\x10\x80\x80\x89\x7a"
    item = b"\x08\x07" + deadline + b"\x1a\x01v" + b"\x22\x09\x08\x03" + start
    data = bytes([len(item) + 2, 0x0A, len(item)]) + item + b"\x06\x12\x04" + deadline

    entries = list(scan_log(data, "l"))

    assert entries == [Item(Key(9000, 7), b"v", Stats(256, 0, 3)), Tombstone(Key(9000, 0))]


def test_a_log_that_is_cut_anywhere_keeps_its_whole_entries_and_is_torn() -> None:
    data, expected = golden_bytes(LOG), golden_entries(LOG)
    edges = ends(data)

    for size in range(len(data)):
        entries, damage = split(scan_log(data[:size], "l"))
        assert entries == expected[: sum(end <= size for end in edges[1:])]
        assert [each.torn for each in damage] == ([] if size in edges else [True])


def test_zeros_behind_the_last_entry_are_torn() -> None:
    data = golden_bytes(LOG)

    entries, (damage,) = split(scan_log(data + bytes(100), "l"))

    assert entries == golden_entries(LOG)
    assert (damage.position, damage.length, damage.torn) == (len(data), 100, True)


@pytest.mark.slow
def test_a_flipped_bit_is_damage_or_changes_one_entry_and_the_others_are_read() -> None:
    data, expected = golden_bytes(LOG), golden_entries(LOG)
    edges = ends(data)

    for bit in range(0, 8 * len(data), 3):
        hit = sum(end <= bit // 8 for end in edges[1:])
        entries, damage = split(scan_log(flipped(data, bit), "l"))
        assert entries[:hit] == expected[:hit]
        spared = [at for at in range(hit + 1, 13) if not is_inside(damage, edges[at])]
        assert entries[len(entries) - len(spared) :] == [expected[at] for at in spared]
        assert all(each.torn == (each.position + each.length == len(data)) for each in damage)


def is_inside(damage: list[Damage], position: int) -> bool:
    return any(each.position <= position < each.position + each.length for each in damage)


def test_an_entry_with_a_bad_field_is_damage_and_the_next_is_read() -> None:
    data = golden_bytes(LOG)
    edges = ends(data)
    changed = bytearray(data)
    changed[edges[2] + 3] = 0x78

    entries, (damage,) = split(scan_log(bytes(changed), "l"))

    assert entries == golden_entries(LOG)[:2] + golden_entries(LOG)[3:]
    assert (damage.position, damage.length) == (edges[2], edges[3] - edges[2])
    assert "field 15" in damage.reason
    assert not damage.torn


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x00", "one field, but this one has 0"),
        (b"\x04\x12\x02\x08\x01", "no deadline"),
        (b"\x06\x12\x04\x08\x00\x12\x00", "explicit zero"),
        (b"\x07\x12\x05\x08\x81\x00\x12\x00", "never written"),
        (b"\x06\x12\x04\x12\x00\x08\x01", "does not belong"),
        (b"\x06\x12\x09\x08\x01\x12\x00", "of 9 bytes, but 4 are left"),
        (b"\x04\x12\x02\x12\x80", "past its message"),
        (b"\x0b\x12\x09\x12\x07\x08\xff\xff\xff\xff\xff\x7f", "at most 281474976710"),
        (b"\x0a\x12\x08\x12\x06\x10\x80\x94\xeb\xdc\x03", "at most 999999999"),
        (b"\xff" * 11, "more than ten bytes"),
    ],
)
def test_what_the_original_does_not_write_is_refused(message: bytes, reason: str) -> None:
    good = b"\x06\x12\x04\x08\x05\x12\x00"

    entries, (damage,) = split(scan_log(message + good + good, "l"))

    assert entries == [Tombstone(Key(0, 5))] * 2
    assert (damage.position, damage.length, damage.torn) == (0, len(message), False)
    assert reason in damage.reason
