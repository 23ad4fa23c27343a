"""Batch reads: planning, packing, bounds, damage and the small tables, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan

import forebay
from forebay.errors import Damaged, DataLoss, InvalidOption, NotAQueue, Overtaken
from forebay.spark import batch
from forebay.spark.batch import PushdownReader
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, pack
from forebay.spark.schemas import arrow_schema
from tests.queues.helpers import HEADER_BYTES, PER_SEGMENT, SEGMENT_BYTES, segment_files
from tests.spark.readers import batch_reader, offsets_of, read, rows_of, sent
from tests.support.clocks import FakeClock
from tests.support.values import numbered


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A log of five segments of eight records, a second apart."""
    clock = FakeClock()
    path = tmp_path / "log"
    with forebay.Log(path, segment_bytes=SEGMENT_BYTES, background=False, clock=clock) as log:
        for value in numbered(5 * PER_SEGMENT):
            log.append(value)
            clock.ms += 1000
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A log of one segment of about 3 MB."""
    with forebay.Log(tmp_path / "large", sync="os", background=False) as log:
        log.append_many(numbered(10_000, size=300))
    return tmp_path / "large"


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_row_says_where_its_record_is(queue: Path) -> None:
    rows = read(queue)

    with forebay.read(queue, kind="log") as reader:
        records = list(reader)
    assert [(row["offset"], row["timestamp"], row["value"]) for row in rows] == [
        (record.offset, record.time, record.value) for record in records
    ]
    assert {(row["queue"], row["kind"]) for row in rows} == {(str(queue), "log")}
    for row in rows[:: PER_SEGMENT - 1]:
        data = (queue / row["segment"]).read_bytes()
        assert data[row["position"] + 12 :].startswith(row["value"])


def test_chosen_columns_come_in_the_order_in_which_they_were_named(queue: Path) -> None:
    rows = read(queue, columns="position,offset")

    assert [list(row) for row in rows[:1]] == [["position", "offset"]]
    assert offsets_of(rows) == list(range(40))
    assert rows[1]["position"] == HEADER_BYTES + 112


def test_a_column_that_is_not_there_is_named_with_those_that_are(queue: Path) -> None:
    fields = "'key' is not a column of the table records, which has: queue, kind"
    with pytest.raises(InvalidOption, match=fields):
        batch_reader(queue, columns="key")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(40)),
        ({"startingOffsets": "10", "endingOffsets": "21"}, range(10, 21)),
        ({"startingOffsets": "40"}, range(0)),
        ({"startingTimestamp": "1800000012000"}, range(12, 40)),
        ({"endingTimestamp": "1800000012000"}, range(12)),
        ({"startingTimestamp": "1800000008001", "endingTimestamp": "1800000030001"}, range(9, 31)),
        ({"startingTimestamp": "1900000000000"}, range(0)),
        ({"endingTimestamp": "1700000000000"}, range(0)),
    ],
)
def test_bounds_of_offset_and_time(queue: Path, options: dict[str, str], expected: range) -> None:
    assert offsets_of(read(queue, **options)) == list(expected)


def test_bounds_skip_whole_segments_in_planning(queue: Path) -> None:
    by_offset = batch_reader(queue, startingOffsets="16", endingOffsets="24")
    by_time = batch_reader(
        queue, startingTimestamp="1800000016001", endingTimestamp="1800000024000"
    )

    for reader in (by_offset, by_time):
        segments = [part.base for task in reader.partitions() for part in task.value]
        assert segments == [16]


def pushed(path: Path, *filters: Any, **options: str) -> tuple[list[int], list[int]]:
    """Returns the segments that a read with filters plans, and the offsets that it sends."""
    plain = SourceOptions.parse({"path": str(path), **options})
    reader = PushdownReader(plain, arrow_schema("records", None))
    assert list(reader.pushFilters(list(filters))) == list(filters)
    planned = [part.base for task in reader.partitions() for part in task.value]
    return planned, offsets_of(rows_of(reader))


def time_of(offset: int) -> datetime:
    return datetime.fromtimestamp(1_800_000_000 + offset, UTC)


@pytest.mark.parametrize(
    ("filters", "segments", "expected"),
    [
        ([In(("offset",), (3, 20, 21, 99))], [0, 16], [3, 20, 21]),
        ([In(("offset",), (3, 20)), GreaterThan(("offset",), 3)], [16], [20]),
        ([EqualTo(("offset",), 39), EqualTo(("offset",), 38)], [], []),
        ([EqualTo(("timestamp",), time_of(20))], [16], [20]),
        ([In(("timestamp",), (time_of(9), time_of(11), None))], [8], [9, 10, 11]),
        ([LessThan(("timestamp",), datetime(1960, 1, 1, tzinfo=UTC))], [], []),
    ],
)
def test_filters_narrow_what_is_planned(
    queue: Path,
    monkeypatch: pytest.MonkeyPatch,
    filters: list[Any],
    segments: list[int],
    expected: list[int],
) -> None:
    monkeypatch.setattr(batch, "_SPAN_ROWS", 1)

    assert pushed(queue, *filters) == (segments, expected)


def test_near_and_many_offsets_are_one_range(queue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = In(("offset",), (1, 3, 5))
    near = pushed(queue, wanted)
    monkeypatch.setattr(batch, "_SPAN_ROWS", 1)
    apart = pushed(queue, wanted)
    monkeypatch.setattr(batch, "_SPANS_MAX", 2)

    assert near == ([0], [1, 2, 3, 4, 5])
    assert apart == ([0, 0, 0], [1, 3, 5])
    assert pushed(queue, wanted) == ([0], [1, 2, 3, 4, 5])


def test_a_filter_on_the_time_of_a_log_without_times_finds_nothing(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "old", version=1) as log:
        log.append_many(numbered(5))

    assert pushed(tmp_path / "old", GreaterThan(("timestamp",), time_of(0))) == ([], [])
    with pytest.raises(InvalidOption, match="is of version 1, which has no times"):
        pushed(tmp_path / "old", startingTimestamp="1")


def test_what_filters_skip_is_logged(queue: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        pushed(queue, EqualTo(("offset",), 7))

    assert "filters leave 1 of 40 offsets, in 1 tasks" in caplog.messages


def test_bounds_may_differ_by_queue(queue: Path, large: Path) -> None:
    rows = rows_of(
        batch_reader(
            f"{queue.parent}/*",
            startingOffsets=f'{{"{queue}": 38, "{large}": 9999}}',
        )
    )

    assert [(Path(row["queue"]).name, row["offset"]) for row in rows] == [
        ("large", 9999),
        ("log", 38),
        ("log", 39),
    ]


def test_a_read_begins_where_a_consumer_stands(queue: Path) -> None:
    with forebay.Log(queue) as log:
        log.consumer("billing", start=31).commit()

    assert offsets_of(read(queue, startingOffsets="consumer:billing")) == list(range(31, 40))
    with pytest.raises(InvalidOption, match="has no consumer 'nobody'; has: billing"):
        read(queue, startingOffsets="consumer:nobody")


def test_a_trimmed_start_is_data_loss_unless_that_is_allowed(queue: Path) -> None:
    with forebay.Log(queue) as log:
        log.consumer("billing", start=20).commit()
        log.trim()

    with pytest.raises(DataLoss, match=r"begins at offset 16: 3 was trimmed; .*failOnDataLoss"):
        read(queue, startingOffsets="3")
    rows = read(queue, startingOffsets="3", failOnDataLoss="false")
    assert offsets_of(rows) == list(range(16, 40))


@pytest.mark.parametrize("options", [{"startingOffsets": "41"}, {"endingOffsets": "41"}])
def test_a_bound_beyond_the_end_is_data_loss(queue: Path, options: dict[str, str]) -> None:
    with pytest.raises(DataLoss, match="ends at offset 40, before 41"):
        read(queue, **options)


@pytest.mark.slow
def test_a_large_segment_is_cut_and_small_ones_are_packed(queue: Path, large: Path) -> None:
    cut = batch_reader(large, maxPartitionBytes="300k").partitions()
    packed = batch_reader(queue).partitions()
    asked = batch_reader(large, minPartitions="6").partitions()

    assert len(cut) >= 8
    assert len(asked) >= 6
    assert offsets_of(read(large, maxPartitionBytes="300k")) == list(range(10_000))
    assert [len(task.value) for task in packed] == [5]


def test_packing_keeps_the_order_and_the_size() -> None:
    sizes = [50, 700, 3, 90, 2000, 10]
    ranges = [
        Range("log", f"/q{number}", 0, 1, "0000000000", 0, 0, size << 20, can_be_cut=True)
        for number, size in enumerate(sizes)
    ]

    tasks = pack(ranges, 128 << 20)

    parts = [part for task in tasks for part in task.value]
    assert [part.queue for part in parts] == sorted(part.queue for part in parts)
    assert sum(part.size for part in parts) == sum(sizes) << 20
    assert max(sum(part.size for part in task.value) for task in tasks) <= 150 << 20


def test_a_version_without_checks_is_never_cut(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log", version=1, sync="os", background=False) as log:
        log.append_many(numbered(3000, size=300))

    reader = batch_reader(tmp_path / "log", maxPartitionBytes="100k")

    assert len(reader.partitions()) == 1
    assert [(row["offset"], row["timestamp"]) for row in rows_of(reader)][-1] == (2999, None)
    with pytest.raises(InvalidOption, match="is of version 1, which has no times"):
        read(tmp_path / "log", startingTimestamp="5")


def test_records_that_are_still_staged_are_read_too(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log", sync="os", background=False) as log:
        log.append_many(numbered(10))
        log.append(b"staged")
        reader = batch_reader(tmp_path / "log")
        tasks = reader.partitions()
        while_staged = rows_of(reader, tasks)
        log.sync()
        when_drained = rows_of(reader, tasks)

    assert [row["value"] for row in while_staged] == [*numbered(10), b"staged"]
    assert offsets_of(when_drained) == list(range(11))


def test_failfast_names_file_and_byte(queue: Path) -> None:
    second = segment_files(queue)[1]
    damage(second, HEADER_BYTES + 12)

    with pytest.raises(Damaged, match=f"{second.name}, byte {HEADER_BYTES}: .*PERMISSIVE"):
        read(queue)


def test_other_modes_read_round_damage(queue: Path) -> None:
    damage(segment_files(queue)[1], HEADER_BYTES + 12)
    columns = "offset,value,damage"

    dropped = read(queue, mode="DROPMALFORMED", columns=columns)
    permissive = read(queue, mode="PERMISSIVE", columns=columns)
    plain = read(queue, mode="PERMISSIVE")

    good = [offset for offset in range(40) if offset != PER_SEGMENT]
    assert offsets_of(dropped) == offsets_of(plain) == good
    assert {row["damage"] for row in dropped} == {None}
    (lost,) = [row for row in permissive if row["damage"]]
    assert (lost["offset"], lost["value"]) == (PER_SEGMENT, None)
    assert lost["damage"] == {
        "path": str(segment_files(queue)[1]),
        "position": HEADER_BYTES,
        "length": 112,
        "reason": "checksum does not match",
        "torn": False,
        "count": 1,
    }
    assert offsets_of(permissive) == list(range(40))


@pytest.mark.slow
def test_the_damage_table_lists_exactly_what_is_missing(large: Path) -> None:
    (segment,) = segment_files(large)
    for number in (0, 777, 5000, 9999):
        damage(segment, HEADER_BYTES + number * 312 + 20)

    rows = read(large, table="damage", maxPartitionBytes="200k")

    assert [(row["offset"], row["count"], row["torn"]) for row in rows] == [
        (number, 1, False) for number in (0, 777, 5000, 9999)
    ]
    assert {row["segment"] for row in rows} == {segment.name}
    good = offsets_of(read(large, mode="DROPMALFORMED", maxPartitionBytes="200k"))
    assert good == [number for number in range(10_000) if number not in (0, 777, 5000, 9999)]


def test_a_segment_that_is_trimmed_after_planning_is_data_loss(queue: Path) -> None:
    reader = batch_reader(queue)
    lenient = batch_reader(queue, failOnDataLoss="false")
    tasks = reader.partitions()
    with forebay.Log(queue) as log:
        log.consumer("billing", start=20).commit()
        log.trim()

    with pytest.raises(Overtaken, match="trimmed"):
        rows_of(reader, tasks)
    assert offsets_of(rows_of(lenient, tasks)) == list(range(16, 40))


def test_a_segment_that_is_missing_in_the_middle_is_damage(queue: Path) -> None:
    reader = batch_reader(queue)
    tasks = reader.partitions()
    segment_files(queue)[2].unlink()

    with pytest.raises(Damaged, match="the segment is missing"):
        rows_of(reader, tasks)


def test_the_segments_table_counts_without_a_scan(queue: Path) -> None:
    rows = read(queue, table="segments")

    assert [(row["first_offset"], row["count"]) for row in rows] == [
        (number * PER_SEGMENT, PER_SEGMENT) for number in range(5)
    ]
    assert {(row["version"], row["sealed"]) for row in rows} == {(2, True)}
    assert rows[1]["first_timestamp"] == datetime.fromtimestamp(1_800_000_008, UTC)
    assert [row["bytes"] for row in rows] == [file.stat().st_size for file in segment_files(queue)]


def test_the_segments_table_counts_what_is_staged(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log", sync="os", background=False) as log:
        log.append_many(numbered(10))
        log.append(b"staged")
        rows = read(tmp_path / "log", table="segments", columns="segment,count,sealed")

    assert [tuple(row.values()) for row in rows] == [
        ("0000000000", 10, False),
        ("staging", 1, False),
    ]


def test_the_consumers_table_tells_lags(queue: Path) -> None:
    with forebay.Log(queue) as log:
        log.consumer("billing", start=25).commit()

    rows = read(queue, table="consumers")

    assert rows == [
        {
            "queue": str(queue),
            "kind": "log",
            "name": "billing",
            "type": "consumer",
            "offset": 25,
            "lag": 15,
        }
    ]


def test_a_directory_that_is_no_queue_is_an_error_or_passed_over(queue: Path) -> None:
    other = queue.parent / "other"
    other.mkdir()
    (other / "notes.txt").write_text("hello")

    assert len(read(f"{queue.parent}/*")) == 40
    with pytest.raises(NotAQueue, match="other holds no queue"):
        read(other)
    with pytest.raises(NotAQueue, match="no queue matches"):
        read(f"{queue.parent}/host-*")


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_an_empty_log_has_no_rows_and_ends_no_read(queue: Path, mode: str) -> None:
    forebay.Log(queue.parent / "empty", background=False).close()

    assert read(queue.parent / "empty", mode=mode) == []
    assert offsets_of(read(f"{queue.parent}/*", mode=mode)) == list(range(40))
    for table, count in (("segments", 5), ("damage", 0), ("consumers", 0)):
        assert read(queue.parent / "empty", table=table, mode=mode) == []
        assert len(read(f"{queue.parent}/*", table=table, mode=mode)) == count


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_bound_of_a_queue_that_is_not_read_is_refused(queue: Path, option: str) -> None:
    misspelt = f'{{"{queue}": 5, "{queue}g": 30}}'

    for path in (queue, f"{queue.parent}/*"):
        with pytest.raises(InvalidOption, match=f"{option}: {queue}g is not one of the queues"):
            read(path, **{option: misspelt})


def test_a_task_is_small_when_it_is_sent(large: Path) -> None:
    for task in batch_reader(large, maxPartitionBytes="100k").partitions():
        assert len(repr(sent(task).value)) < 1000


@pytest.fixture(autouse=True)
def _no_open_files_are_left() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
