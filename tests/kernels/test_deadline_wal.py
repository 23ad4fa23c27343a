"""The loops over batches: bounds, limits and numbers that wrap."""

from __future__ import annotations

import zlib

from forebay.kernels.deadline import (
    BATCH_BYTES,
    FRESH_BYTES,
    batch_verifies,
    encode_fresh,
    encode_tombstones,
    find_batch,
    scan_batches,
    seal_batch,
)

Record = tuple[int, int, int, int, int, int, int, bytes, bytes]
SEED = zlib.crc32(b"saltsalt")
VALUES = [b"", b"one", b"two" * 40]
DEADLINES = [5, 4, 2**48 - 1]


def batch(number: int, first: int = 0, count: int = 3) -> bytes:
    buffer = bytearray(1000)
    size = encode_fresh(VALUES, DEADLINES, first, count, buffer, 7, 9, number, SEED)
    assert size == BATCH_BYTES + count * FRESH_BYTES + sum(map(len, VALUES[first : first + count]))
    return bytes(buffer[:size])


def test_a_batch_takes_the_values_that_were_named() -> None:
    records: list[Record] = []

    position, number = scan_batches(batch(3, first=1, count=2), 0, 3, SEED, 9, records)

    assert (position, number) == (len(batch(3, 1, 2)), 4)
    assert records == [
        (1, 4, 7, 9, 0, 0, 0, b"", b"one"),
        (1, 2**48 - 1, 8, 9, 0, 0, 0, b"", b"two" * 40),
    ]


def test_a_scan_stops_at_its_limit_and_at_another_number() -> None:
    data = batch(0) + batch(1) + batch(1)
    records: list[Record] = []

    assert scan_batches(data, 0, 0, SEED, 1, records) == (len(batch(0)), 1)
    assert scan_batches(data, 0, 0, SEED, 9, records) == (2 * len(batch(0)), 2)
    assert len(records) == 9


def test_numbers_above_32_bits_are_told_apart_by_their_lower_half() -> None:
    data = batch(2**32 + 5)

    assert batch_verifies(data, 0, 2**32 + 5, SEED)
    assert not batch_verifies(data, 0, 6, SEED)
    assert not batch_verifies(data, 0, 2**32 + 5, SEED ^ 1)
    assert not batch_verifies(data[:-1], 0, 2**32 + 5, SEED)
    assert not batch_verifies(b"", 0, 0, SEED)


def test_find_gives_the_next_good_batch_with_its_number() -> None:
    data = b"\0" * 30 + batch(2) + batch(3)

    assert find_batch(data, 1, 0, SEED, 1) == (30, 2)
    assert find_batch(data, 31, 2, SEED, 1) == (30 + len(batch(2)), 3)
    assert find_batch(data[: 30 + len(batch(2))], 31, 2, SEED, 1) == (-1, 0)


def test_what_looks_like_records_and_has_no_check_is_not_found() -> None:
    buffer = bytearray(200)
    size = encode_tombstones([1, 2], [3, 4], buffer, 1, SEED)
    good = bytes(buffer[:size])
    bad = good[:4] + b"\0\0\0\0" + good[8:]

    assert find_batch(bytes(20) + bad + good, 1, 0, SEED, 1) == (20 + size, 1)


def test_a_seal_covers_size_and_records() -> None:
    buffer = bytearray(8) + b"\3" + bytes(14)

    assert seal_batch(buffer, 15, 0, SEED) == 23
    expected = zlib.crc32(bytes(buffer[:4]) + bytes(buffer[8:]), SEED)
    assert int.from_bytes(buffer[4:8], "little") == expected
