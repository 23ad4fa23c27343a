"""Entries as columns: across files, staged, damaged, by number and by time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay.damage import Damage
from forebay.errors import RecordTooLarge
from forebay.kernels.entry import METADATA_BYTES
from forebay.queues.fifo import columns as fifo_columns
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.columns import COLUMNS, ColumnBatch, ColumnScanner
from forebay.queues.fifo.queue import Fifo
from forebay.queues.fifo.reader import FifoReader
from forebay.queues.fifo.scanner import EntryBatch, Place
from tests.queues.helpers import FakeClock, numbered

FILE_BYTES = 1000
BEGIN = Place(0, 0, 0)
ALL = Place(1 << 60, 100, 0)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A hundred entries of 132 bytes, a second apart, every third with a time to live."""
    clock = FakeClock()
    path = tmp_path / "fifo"
    with Fifo(path, file_bytes=FILE_BYTES, background=False, clock=clock) as fifo:
        for number, value in enumerate(numbered(100)):
            fifo.push(value, ttl_seconds=60 if number % 3 == 0 else 0)
            clock.ms += 1000
    return path


def scan(path: Path, place: Place = BEGIN, **options: Any) -> list[Any]:
    """Returns the rows of each batch, as they are when it comes, and damage."""
    with FifoReader(path) as reader:
        version = reader.head.version
        bounds = Bounds(reader.directory, version)
        scanner = ColumnScanner(reader.directory, FILE_BYTES, version, bounds, **options)
        items = [
            item if isinstance(item, Damage) else rows_of(item) for item in scanner.scan(place, ALL)
        ]
        scanner.close()
    return items


def rows_of(batch: ColumnBatch) -> list[dict[str, Any]]:
    names = [*COLUMNS, "segment"]
    columns = [batch.column(name).to_pylist() for name in COLUMNS]
    return [
        dict(zip(names, row, strict=True))
        for row in zip(*columns, [batch.segment] * len(batch), strict=True)
    ]


def test_columns_say_the_same_as_the_entries(queue: Path) -> None:
    rows = [row for batch in scan(queue) for row in batch]

    with FifoReader(queue) as reader:
        entries = list(reader)
    assert [(row["offset"], row["id"], row["ttl_seconds"], row["value"]) for row in rows] == [
        (entry.offset, entry.id, entry.ttl_seconds, entry.value) for entry in entries
    ]
    assert [row["timestamp"] for row in rows] == [entry.time for entry in entries]
    assert rows[0]["expires"] == rows[0]["timestamp"] + timedelta(seconds=60)
    assert rows[1]["expires"] is None


def test_a_batch_is_of_entries_that_begin_in_one_file(queue: Path) -> None:
    batches = scan(queue)

    for rows in batches:
        tape = (queue / rows[0]["segment"]).read_bytes()
        assert {row["segment"] for row in rows} == {rows[0]["segment"]}
        for row in rows[:-1]:
            assert tape[row["position"] + METADATA_BYTES :].startswith(row["value"])


def test_numbers_and_times_choose_rows(queue: Path) -> None:
    with FifoReader(queue) as reader:
        version = reader.head.version
        bounds = Bounds(reader.directory, version)
        scanner = ColumnScanner(reader.directory, FILE_BYTES, version, bounds)
        batch = next(scanner.scan(BEGIN, ALL))
        assert isinstance(batch, ColumnBatch)
        first_ms = 1_800_000_000_000

        assert [row["offset"] for row in rows_of(batch.between(2, 5))] == [2, 3, 4]
        assert len(batch.between(50, 60)) == 0
        later = batch.within(first_ms + 2001, first_ms + 5000)
        assert [row["offset"] for row in rows_of(later)] == [3, 4]
        assert rows_of(later)[0]["timestamp"] == datetime.fromtimestamp(1_800_000_003, UTC)
        assert len(later.between(0, 4)) == 1
        scanner.close()


def test_damage_costs_its_entry_and_comes_in_its_place(queue: Path) -> None:
    tape = sorted(queue.glob("*.tape"))[1]
    data = bytearray(tape.read_bytes())
    data[400] ^= 1
    tape.write_bytes(data)

    items = scan(queue)

    (damage,) = [item for item in items if isinstance(item, Damage)]
    offsets = [row["offset"] for item in items if isinstance(item, list) for row in item]
    assert (damage.path, damage.count) == (str(tape), 1)
    assert offsets == [number for number in range(100) if number != damage.offset]


def test_payloads_that_nobody_wants_are_verified_all_the_same(queue: Path) -> None:
    tape = sorted(queue.glob("*.tape"))[0]
    data = bytearray(tape.read_bytes())
    data[100] ^= 1
    tape.write_bytes(data)

    with FifoReader(queue) as reader:
        version = reader.head.version
        bounds = Bounds(reader.directory, version)
        scanner = ColumnScanner(reader.directory, FILE_BYTES, version, bounds, values=False)
        found = [isinstance(item, Damage) for item in scanner.scan(BEGIN, ALL)]
        scanner.close()

    assert found.count(True) == 1


def test_entries_that_are_staged_make_columns_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fifo_columns, "_ROWS_MAX", 3)
    batch = EntryBatch(
        Place(700, 5, 0),
        Place(700, 10, 0),
        numbered(5),
        [(7 << 16) + 5 + n for n in range(5)],
        [0] * 5,
    )
    Fifo(tmp_path / "fifo", file_bytes=FILE_BYTES).close()

    with FifoReader(tmp_path / "fifo") as reader:
        version = reader.head.version
        bounds = Bounds(reader.directory, version)
        scanner = ColumnScanner(reader.directory, FILE_BYTES, version, bounds)
        rows = [row for some in scanner.scan_staged(batch) for row in rows_of(some)]
        scanner.close()

    assert [row["value"] for row in rows] == batch.values
    assert [row["offset"] for row in rows] == [5, 6, 7, 8, 9]
    assert [row["position"] for row in rows] == [132 * n for n in range(5)]
    assert {row["segment"] for row in rows} == {"staging"}


def test_an_entry_that_no_column_takes_is_refused_by_its_number(
    queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fifo_columns, "_VALUE_BYTES_MAX", 99)

    with pytest.raises(RecordTooLarge, match=r"entry 0 in 0000000001\.tape is too large"):
        scan(queue)
