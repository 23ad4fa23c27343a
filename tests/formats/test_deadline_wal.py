"""The write-ahead log: round trips, cuts, flipped bits, batches at the wrong place."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import Damaged, NotAQueue, RecordTooLarge, UnsupportedVersion
from forebay.formats.deadline.items import Item, Key, Stats, Tombstone
from forebay.formats.deadline.wal import (
    After,
    Batches,
    Dequeued,
    Durable,
    Header,
    Record,
    decode_header,
    repair_header,
    scan_all,
    scan_rows,
    scan_wal,
)
from forebay.kernels import deadline as kernel
from tests.formats.deadline_entries import NOW_MS, items, keys, split, times, tombstones
from tests.formats.deadline_independent import Row, read_wal
from tests.formats.deadline_rows import row_of
from tests.support.values import flipped

HEADER = Header(7, b"saltsalt")
HEADER_BYTES = HEADER.size
BATCHES = Batches(HEADER)
RECORDS: list[list[Record]] = [
    [Item(Key(NOW_MS, 1), b"one", Stats(NOW_MS - 1)), Tombstone(Key(NOW_MS, 1))],
    [Dequeued(Key(NOW_MS + 5, 2), 3, NOW_MS + 6)],
    [Item(Key(NOW_MS + 9, 2**64 - 1), b"v" * 9, Stats(1, 2, 3), buried=True, reason=b"why")],
]
dequeued = st.builds(Dequeued, keys, st.integers(0, 2**32 - 1), times)
batches = st.lists(
    st.lists(st.one_of(items, tombstones, dequeued), min_size=1, max_size=5), max_size=4
)


def encoded(records: list[list[Record]], header: Header = HEADER) -> bytes:
    codec = Batches(header)
    return header.encode() + b"".join(codec.encode(each, at) for at, each in enumerate(records))


def edges(records: list[list[Record]]) -> list[int]:
    return [len(encoded(records[:count])) for count in range(len(records) + 1)]


def wal_row(record: Record) -> Row:
    if isinstance(record, Dequeued):
        key = (record.key.deadline_ms, record.key.id)
        return (*key, "dequeued", record.dequeue_count, record.time_ms)
    return row_of(record)


@pytest.mark.slow
@given(batches, st.integers(0, 100))
def test_a_log_comes_back_as_it_was_and_a_second_decoder_reads_it(
    records: list[list[Record]], zeros: int
) -> None:
    data = encoded(records) + bytes(zeros)

    flat = [record for batch in records for record in batch]
    assert list(scan_wal(data, "w")) == flat
    assert read_wal(data) == [wal_row(record) for record in flat]


@given(
    st.lists(st.tuples(st.binary(max_size=30), times), min_size=1, max_size=20),
    st.integers(0, 2**64 - 21),
    times,
)
def test_new_items_are_written_by_one_call(
    rows: list[tuple[bytes, int]], first_id: int, enqueue_ms: int
) -> None:
    values, deadlines = [row[0] for row in rows], [row[1] for row in rows]
    buffer = bytearray(BATCHES.fresh_size(values))

    size = BATCHES.encode_fresh(values, deadlines, buffer, first_id, enqueue_ms, 0)

    stats = Stats(enqueue_ms)
    expected = [
        Item(Key(deadline, first_id + at), value, stats)
        for at, (value, deadline) in enumerate(rows)
    ]
    assert size == len(buffer)
    assert list(scan_wal(HEADER.encode() + buffer, "w")) == expected
    assert read_wal(HEADER.encode() + buffer) == [row_of(item) for item in expected]


def test_a_log_of_many_batches_is_read_in_parts() -> None:
    records: list[list[Record]] = [[Tombstone(Key(at, at))] for at in range(200)]

    assert list(scan_wal(encoded(records), "w")) == [batch[0] for batch in records]


def test_tombstones_and_dequeues_are_written_by_columns_as_by_records() -> None:
    found = [Key(NOW_MS, 5), Key(NOW_MS + 1, 2**63)]
    deadlines, ids = [key.deadline_ms for key in found], [key.id for key in found]

    gone = BATCHES.encode_tombstones(deadlines, ids, 4)
    taken = BATCHES.encode_dequeued(deadlines, ids, [1, 9], NOW_MS, 5)

    assert gone == BATCHES.encode([Tombstone(key) for key in found], 4)
    expected = [Dequeued(found[0], 1, NOW_MS), Dequeued(found[1], 9, NOW_MS)]
    assert taken == BATCHES.encode(expected, 5)


def test_a_log_that_is_cut_anywhere_keeps_its_whole_batches_and_is_torn() -> None:
    data = encoded(RECORDS)
    ends = edges(RECORDS)

    for size in range(HEADER_BYTES, len(data)):
        records, damage = split(scan_wal(data[:size], "w"))
        whole = sum(end <= size for end in ends[1:])
        assert records == [record for batch in RECORDS[:whole] for record in batch]
        assert [(each.position, each.torn) for each in damage] == (
            [] if size in ends else [(ends[whole], True)]
        )


@pytest.mark.parametrize("zeros", [0, 64])
def test_every_flipped_bit_is_seen_and_costs_its_batch_alone(zeros: int) -> None:
    data = encoded(RECORDS)
    ends = edges(RECORDS)

    for bit in range(8 * HEADER_BYTES, 8 * len(data)):
        records, (damage,) = split(scan_wal(flipped(data, bit) + bytes(zeros), "w"))
        hit = sum(end <= bit // 8 for end in ends[1:])
        assert records == [r for at, batch in enumerate(RECORDS) if at != hit for r in batch]
        assert (damage.position, damage.torn) == (ends[hit], hit == 2)
        assert hit == 2 or damage.length == ends[hit + 1] - ends[hit]


def test_a_flipped_bit_in_the_zeros_is_told_and_costs_nothing() -> None:
    data = encoded(RECORDS) + bytes(40)

    for bit in range(8 * (len(data) - 40), 8 * len(data)):
        records, (damage,) = split(scan_wal(flipped(data, bit), "w"))
        assert len(records) == 4
        assert (damage.position, damage.torn) == (len(data) - 40, True)


def test_a_batch_of_another_place_or_file_or_of_an_older_salt_does_not_verify() -> None:
    first, second = (BATCHES.encode(RECORDS[at], at) for at in (0, 1))
    foreign = Batches(Header(7, b"saltsalT")).encode(RECORDS[0], 0)

    assert split(scan_wal(HEADER.encode() + second, "w"))[0] == []
    assert split(scan_wal(HEADER.encode() + foreign, "w"))[0] == []
    assert split(scan_wal(HEADER.encode() + first + first, "w"))[0] == RECORDS[0]
    assert split(scan_wal(HEADER.encode() + first + second, "w"))[0] == RECORDS[0] + RECORDS[1]


def test_missing_batches_are_passed_and_a_number_without_room_is_not_believed() -> None:
    later = BATCHES.encode(RECORDS[2], 2)
    far = BATCHES.encode(RECORDS[2], 500)

    records, (damage,) = split(scan_wal(HEADER.encode() + b"\xff" * 60 + later, "w"))
    assert (records, damage.length, damage.torn) == (RECORDS[2], 60, False)
    assert split(scan_wal(HEADER.encode() + b"\xff" * 60 + far, "w"))[0] == []


def test_a_record_of_a_later_kind_is_passed_over_and_of_an_unknown_one_is_damage() -> None:
    later = b"\x80\x03\0\0\0abc"
    unknown = b"\x05"
    odd = bytearray(BATCHES.encode([Item(Key(1, 1), b"")], 0)[8:])
    odd[31] = 4
    tail = BATCHES.encode(RECORDS[1], 1)

    assert list(scan_wal(HEADER.encode() + sealed(later) + tail, "w")) == RECORDS[1]
    for body in (unknown, bytes(odd)):
        records, (damage,) = split(scan_wal(HEADER.encode() + sealed(body) + tail, "w"))
        assert records == RECORDS[1]
        assert "does not know" in damage.reason
        assert (damage.length, damage.torn) == (8 + len(body), False)


def sealed(body: bytes) -> bytes:
    buffer = bytearray(8) + body
    kernel.seal_batch(buffer, len(body), 0, HEADER.seed)
    return bytes(buffer)


def test_a_size_that_lies_allocates_nothing_and_is_torn() -> None:
    data = HEADER.encode() + struct.pack("<II", 2**32 - 1, 0) + b"x" * 20

    records, (damage,) = split(scan_wal(data, "w"))

    assert records == []
    assert ("4294967295 bytes, but 20 are left" in damage.reason, damage.torn) == (True, True)


def test_a_header_is_checked_and_a_single_bit_of_it_mended() -> None:
    data = HEADER.encode()

    assert (len(data), decode_header(data + b"more", "w")) == (28, HEADER)
    assert repair_header(data[:20], 7) is None
    assert repair_header(bytes(28), 7) is None
    for bit in range(8 * len(data)):
        with pytest.raises((Damaged, NotAQueue)):
            decode_header(flipped(data, bit), "w")
        assert repair_header(flipped(data, bit), 7) == HEADER


def test_a_log_with_a_mended_header_is_read() -> None:
    data = flipped(encoded(RECORDS), 8 * 17)

    with pytest.raises(Damaged, match="header checksum"):
        list(scan_wal(data, "w"))
    assert len(list(scan_wal(data, "w", repair_header(data, 7)))) == 4


@pytest.mark.parametrize("data", [b"FFLG" + bytes(30), b"FBDR" + bytes(30), bytes(40), b"x"])
def test_foreign_files_are_refused(data: bytes) -> None:
    with pytest.raises(NotAQueue, match="not a log"):
        list(scan_wal(data, "w"))


def test_a_later_version_is_refused_by_name_and_a_short_header_is_torn() -> None:
    later = struct.pack("<4sHHQ8s", b"FBDW", 9, 0, 1, b"saltsalt")

    with pytest.raises(UnsupportedVersion, match=r"log version 9\.0"):
        decode_header(later + struct.pack("<I", zlib.crc32(later)), "w")
    with pytest.raises(Damaged, match="ends within its header") as caught:
        decode_header(HEADER.encode()[:27], "w")
    assert caught.value.damage.torn


@pytest.mark.parametrize(
    ("deadlines", "id", "enqueue_ms"),
    [([2**48], 0, 0), ([-1], 0, 0), ([0], 2**64, 0), ([0], 0, 2**48), ([0, 0], 0, 0)],
)
def test_numbers_that_do_not_fit_are_refused(
    deadlines: list[int], id: int, enqueue_ms: int
) -> None:
    with pytest.raises(ValueError, match=r"bits|deadlines"):
        BATCHES.encode_fresh([b"v"], deadlines, bytearray(100), id, enqueue_ms, 0)


def test_an_empty_batch_unequal_columns_and_a_long_reason_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        BATCHES.encode([], 0)
    with pytest.raises(ValueError, match="columns of 1"):
        BATCHES.encode_tombstones([1], [], 0)
    with pytest.raises(ValueError, match="columns of 1"):
        BATCHES.encode_dequeued([1], [1], [], 0, 0)
    with pytest.raises(ValueError, match="32 bits"):
        BATCHES.encode_dequeued([1], [1], [2**32], 0, 0)
    with pytest.raises(RecordTooLarge, match="reason"):
        BATCHES.encode([Item(Key(1, 1), b"", reason=bytes(2**16))], 0)


def old_batch(codec: Batches, kind: int, *numbers: int) -> bytes:
    """Returns the first batch of a log that version 0.1 wrote, with one record of numbers."""
    record = struct.pack(f"<BI{len(numbers)}Q", kind, 8 * len(numbers), *numbers)
    buffer = bytearray(kernel.BATCH_BYTES) + record
    kernel.seal_batch(buffer, len(record), 0, codec.seed)
    return bytes(buffer)


def test_what_is_durable_is_told_to_who_asks_and_passed_over_otherwise() -> None:
    header = Header(1, b"saltsalt")
    batches = Batches(header)
    tombstone = Tombstone(Key(5, 6))
    data = (
        header.encode()
        + old_batch(batches, kernel.PASSED_OVER, 28)
        + batches.encode([tombstone], 1)
    )

    assert list(scan_all(data, "log")) == [Durable(28), tombstone]
    assert list(scan_wal(data, "log")) == [tombstone]


def test_a_log_says_which_one_it_goes_on_from() -> None:
    tombstone = Tombstone(Key(5, 6))
    after = old_batch(BATCHES, kernel.PASSED_OVER + 1, 7, 2**40)
    data = HEADER.encode() + after + BATCHES.encode([tombstone], 1)

    assert list(scan_all(data, "log")) == [After(7, 2**40), tombstone]
    assert list(scan_wal(data, "log")) == [tombstone]
    assert [stop for _, stop in scan_rows(data, "log")] == [len(data)] * 2
    cut = data[:-1]
    assert [stop for _, stop in scan_rows(cut, "log")] == [28 + len(after), len(cut)]
