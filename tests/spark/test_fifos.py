"""Fifos as tables, without Spark: columns, what is lent out, damage, ranges, mixed kinds."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import Damaged, DataLoss, InvalidOption
from forebay.kernels.entry import METADATA_BYTES
from forebay.queues.fifo.queue import Fifo
from forebay.queues.fifo.reader import FifoReader
from tests.queues.beats_helpers import numbered as events
from tests.queues.beats_helpers import open_queue
from tests.queues.helpers import open_files
from tests.spark.readers import batch_reader, offsets_of, read, rows_of, sent, stream_reader
from tests.support.clocks import FakeClock
from tests.support.values import numbered

COMMON = ["queue", "kind", "offset", "timestamp", "value", "segment", "position"]
ADDED = ["id", "ttl_seconds", "expires"]
ENTRY_BYTES = METADATA_BYTES + 100
FILE_BYTES = 10 * ENTRY_BYTES - 40


def opened(path: Path, **options: Any) -> Fifo:
    return Fifo(path, **{"file_bytes": FILE_BYTES, "background": False, **options})


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A fifo of a hundred entries, a second apart, over eleven files."""
    clock = FakeClock()
    with opened(tmp_path / "fifo", clock=clock) as fifo:
        for value in numbered(100):
            fifo.push(value)
            clock.ms += 1000
    return tmp_path / "fifo"


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Fifo]:
    """A fifo whose owner goes on, and syncs nothing unless told to."""
    with opened(tmp_path / "busy", sync="os") as fifo:
        yield fifo


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*.tape"))


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def tasks_of(path: Path, **options: str) -> Any:
    """Plans a read of tasks as small as they get."""
    reader = batch_reader(path, maxPartitionBytes="1", **options)
    return reader, reader.partitions()


def test_a_row_is_an_entry_and_says_where_it_is(tmp_path: Path) -> None:
    with opened(tmp_path / "q", clock=FakeClock(), ttl_seconds=60) as fifo:
        first_id = fifo.push(b"expires")
        fifo.push(b"", ttl_seconds=0)

    first, second = read(tmp_path / "q")

    time = datetime.fromtimestamp((first_id >> 16) / 1000, UTC)
    assert list(first) == COMMON + ADDED
    assert first == {
        "queue": str(tmp_path / "q"),
        "kind": "fifo",
        "offset": 0,
        "timestamp": time,
        "value": b"expires",
        "segment": files(tmp_path / "q")[0].name,
        "position": 0,
        "id": first_id,
        "ttl_seconds": 60,
        "expires": time + timedelta(seconds=60),
    }
    assert (second["value"], second["ttl_seconds"], second["expires"]) == (b"", 0, None)
    assert second["position"] == METADATA_BYTES + 7


def test_rows_say_the_same_as_the_reader(queue: Path) -> None:
    rows = read(queue)

    with forebay.read(queue, kind="fifo") as reader:
        entries = list(reader)
    assert [(row["offset"], row["id"], row["timestamp"], row["value"]) for row in rows] == [
        (entry.offset, entry.id, entry.time, entry.value) for entry in entries
    ]
    assert len({row["segment"] for row in rows}) == len(files(queue))
    for row in rows[::9]:
        tape = b"".join(file.read_bytes() for file in files(queue) if file.name >= row["segment"])
        assert tape[row["position"] + METADATA_BYTES :].startswith(row["value"])


def test_chosen_columns_come_in_the_order_in_which_they_were_named(queue: Path) -> None:
    rows = read(queue, columns="id,offset,flags")

    assert list(rows[0]) == ["id", "offset", "flags"]
    assert offsets_of(rows) == list(range(100))
    assert rows[0]["flags"] is None


def test_mixed_kinds_have_the_common_columns(queue: Path) -> None:
    with forebay.Log(queue.parent / "log", background=False) as log:
        log.append(b"record")
    with open_queue(queue.parent / "events", "v2") as event_queue:
        event_queue.put_many(events(2))

    rows = read(queue.parent / "*")
    named = read(queue.parent / "*", columns="kind,id,expires")

    assert list(rows[0]) == COMMON
    kinds = [row["kind"] for row in rows]
    assert (kinds.count("beats"), kinds.count("fifo"), kinds.count("log")) == (2, 100, 1)
    assert {row["kind"] for row in named if row["id"] is not None} == {"fifo"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "10", "endingOffsets": "21"}, range(10, 21)),
        ({"startingOffsets": "100"}, range(0)),
        ({"startingTimestamp": "1800000012000"}, range(12, 100)),
        ({"endingTimestamp": "1800000012000"}, range(12)),
        ({"startingTimestamp": "1800000008001", "endingTimestamp": "1800000030001"}, range(9, 31)),
        ({"startingTimestamp": "1900000000000"}, range(0)),
    ],
)
def test_bounds_of_number_and_time(queue: Path, options: dict[str, str], expected: range) -> None:
    assert offsets_of(read(queue, **options)) == list(expected)


def test_a_bound_beyond_the_end_is_data_loss(queue: Path) -> None:
    with pytest.raises(DataLoss, match="ends at offset 100, before 101"):
        read(queue, startingOffsets="101")


def test_files_are_read_by_tasks_of_their_own_and_together_give_every_entry_once(
    queue: Path,
) -> None:
    reader, partitions = tasks_of(queue)

    assert len(partitions) == len(files(queue))
    assert offsets_of(rows_of(reader, partitions)) == list(range(100))
    parts = [part for task in partitions for part in task.value]
    assert sum(part.size for part in parts) == 100 * ENTRY_BYTES


def test_files_whose_first_entry_is_not_known_go_with_the_one_before(queue: Path) -> None:
    (queue / "fifo-bounds").unlink()

    reader, partitions = tasks_of(queue)

    assert len(partitions) == 1
    rows = rows_of(reader, partitions)
    assert offsets_of(rows) == list(range(100))
    assert [row["segment"] for row in rows][:: len(rows) - 1] == [
        files(queue)[0].name,
        files(queue)[-1].name,
    ]


def test_entries_larger_than_three_files_are_whole(tmp_path: Path) -> None:
    large = bytes(range(256)) * 20
    with opened(tmp_path / "q") as fifo:
        fifo.push_many([b"a", large, b"b", large, b"c"])

    reader, partitions = tasks_of(tmp_path / "q")

    rows = rows_of(reader, partitions)
    assert [row["value"] for row in rows] == [b"a", large, b"b", large, b"c"]
    assert len(partitions) > 1


def test_what_was_popped_is_not_there_and_what_is_lent_out_is(busy: Fifo) -> None:
    busy.push_many(numbered(50))
    busy.sync()
    busy.pop_many(7)
    with busy.take() as first, busy.take() as second:
        busy.pop_many(20)

        rows = read(busy.path)

        assert (first.offset, second.offset) == (7, 8)
        assert offsets_of(rows) == [7, 8, *range(29, 50)]
        assert rows[0]["value"] == first.value
        assert offsets_of(read(busy.path, startingOffsets="8")) == [8, *range(29, 50)]
        assert offsets_of(read(busy.path, endingOffsets="30")) == [7, 8, 29]


def test_what_is_not_durable_and_what_is_staged_is_there_too(busy: Fifo) -> None:
    busy.push_many(numbered(30))
    for value in numbered(5, first=30):
        busy.push(value)

    rows = read(busy.path)

    assert [row["value"] for row in rows] == numbered(35)
    assert [row["segment"] for row in rows][-5:] == ["staging"] * 5
    assert rows[31]["position"] == ENTRY_BYTES


def test_what_is_lent_out_of_the_staging_buffer_is_there_too(busy: Fifo) -> None:
    busy.push(b"one")
    busy.push(b"two")
    with busy.take() as taken:
        assert [row["value"] for row in read(busy.path)] == [taken.value, b"two"]


def test_entries_that_move_between_planning_and_reading_are_found(busy: Fifo) -> None:
    busy.push_many(numbered(30))
    busy.push(b"staged")
    reader = batch_reader(busy.path)
    partitions = reader.partitions()

    busy.push_many(numbered(30, first=31))
    busy.sync()

    assert offsets_of(rows_of(reader, partitions)) == list(range(31))


def test_entries_that_the_next_owner_moved_are_found(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    with opened(tmp_path / "q", sync="os") as fifo:
        fifo.push_many(numbered(30))
        with fifo.take():
            shutil.copytree(fifo.path, crashed)
    reader = batch_reader(crashed)
    partitions = reader.partitions()
    before = files(crashed)

    opened(crashed).close()

    assert not set(files(crashed)) & set(before[1:])
    assert [row["value"] for row in rows_of(reader, partitions)] == numbered(30)


def test_entries_that_are_popped_between_planning_and_reading_are_left_out_and_told(
    busy: Fifo, caplog: pytest.LogCaptureFixture
) -> None:
    busy.push_many(numbered(50))
    busy.sync()
    reader, partitions = tasks_of(Path(busy.path))

    busy.pop_many(50)
    busy.push_many(numbered(20))
    busy.pop_many(15)

    with caplog.at_level(logging.WARNING):
        rows = rows_of(reader, partitions)
    told = re.findall(r": (\d+) of .* popped unread", caplog.text)
    assert len(rows) < 20
    assert sum(map(int, told)) == 50 - len(rows)


def test_a_missing_file_in_the_middle_is_damage(queue: Path) -> None:
    files(queue)[4].unlink()

    with pytest.raises(Damaged, match="is missing"):
        read(queue)
    rows = read(queue, mode="DROPMALFORMED")
    (row,) = read(queue, table="damage")
    assert len(rows) == 100 - row["count"]
    # The entry before the gap reaches into it.
    assert row["segment"] == files(queue)[3].name


@pytest.mark.parametrize("size", ["1", "128m"])
def test_each_mode_does_its_own_about_damage(queue: Path, size: str) -> None:
    damage(files(queue)[2], 500)
    options = {"maxPartitionBytes": size}

    with pytest.raises(Damaged, match="table=damage lists it"):
        read(queue, **options)
    dropped = read(queue, mode="DROPMALFORMED", **options)
    kept = read(queue, mode="PERMISSIVE", columns="offset,segment,damage,id", **options)

    (bad,) = [row for row in kept if row["damage"] is not None]
    assert set(range(100)) - set(offsets_of(dropped)) == {bad["offset"]}
    assert (bad["damage"]["count"], bad["id"]) == (1, None)
    assert bad["segment"] == files(queue)[2].name
    assert offsets_of(kept) == list(range(100))


def test_the_table_of_damage_says_where_it_is(queue: Path) -> None:
    damage(files(queue)[2], 500)
    damage(files(queue)[7], 900)

    first, second = read(queue, table="damage")

    assert (first["kind"], first["segment"], first["count"]) == ("fifo", files(queue)[2].name, 1)
    assert second["segment"] == files(queue)[7].name
    assert not first["torn"]


def test_a_damaged_entry_that_is_lent_out_costs_itself(busy: Fifo) -> None:
    busy.push_many(numbered(20))
    busy.sync()
    with busy.take():
        damage(files(Path(busy.path))[0], 50)

        rows = read(busy.path, mode="DROPMALFORMED")
        (row,) = read(busy.path, table="damage")

    assert offsets_of(rows) == list(range(1, 20))
    assert (row["offset"], row["count"]) == (0, 1)


def test_a_plan_that_is_not_finished_leaves_no_file_open(busy: Fifo) -> None:
    busy.push_many(numbered(20))
    busy.sync()
    with busy.take(), busy.take():
        before = open_files(Path(busy.path))
        reader = FifoReader(busy.path)
        pieces = reader.lent_pieces(0, 20)
        next(pieces)
        del pieces
        reader.close()

        assert open_files(Path(busy.path)) == before


def test_segments_count_what_has_not_left(busy: Fifo) -> None:
    busy.push_many(numbered(60))
    busy.sync()
    with busy.take():
        busy.pop_many(15)
        busy.push(b"staged")

        rows = read(busy.path, table="segments")

        assert sum(row["count"] for row in rows) == len(read(busy.path)) == 46
        names = [file.name for file in files(Path(busy.path))]
    assert [row["segment"] for row in rows[:-1]] == names
    assert [row["count"] for row in rows[:2]] == [1, 4]
    assert (rows[-1]["segment"], rows[-1]["count"]) == ("staging", 1)
    assert (rows[0]["bytes"], rows[0]["version"], rows[0]["sealed"]) == (FILE_BYTES, 1, True)


def test_segments_in_which_no_entry_begins_have_no_count(tmp_path: Path) -> None:
    with opened(tmp_path / "q") as fifo:
        fifo.push_many([b"a", bytes(5 * FILE_BYTES), b"b"])

    rows = read(tmp_path / "q", table="segments")

    counts = [row["count"] for row in rows]
    assert (counts[0], counts[-1]) == (2, 1)
    assert set(counts[1:-1]) == {None}


def test_a_fifo_has_no_consumers_and_says_so(queue: Path) -> None:
    with pytest.raises(InvalidOption, match="is a fifo, which has no consumers"):
        read(queue, table="consumers")
    with pytest.raises(InvalidOption, match="has no consumer 'x'; has: none"):
        read(queue, startingOffsets="consumer:x")


def test_an_empty_fifo_has_no_rows(tmp_path: Path) -> None:
    opened(tmp_path / "q").close()

    assert read(tmp_path / "q") == []
    assert read(tmp_path / "q", table="segments") == []
    assert list(batch_reader(tmp_path / "q")._wanted.schema.names) == COMMON + ADDED


@pytest.mark.parametrize("name", ["fifo-tail", "fifo-head"])
def test_a_fifo_that_lost_a_small_file_is_read_all_the_same(queue: Path, name: str) -> None:
    (queue / name).unlink()

    assert offsets_of(read(queue)) == list(range(100))


def test_a_task_that_travels_reads_the_same(queue: Path) -> None:
    reader, partitions = tasks_of(queue, columns="value")

    assert [row["value"] for row in rows_of(reader, sent(partitions))] == numbered(100)


def test_a_stream_is_refused_with_what_to_do_instead(queue: Path, tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "log") as log:
        log.append_many(numbered(3))

    for path in (queue, f"{queue.parent}/*"):
        with pytest.raises(InvalidOption, match=r"no stream reads it\. Read it with spark.read,"):
            stream_reader(path).initialOffset()
