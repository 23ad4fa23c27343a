"""Streams over fifos, without Spark: a tap that takes nothing, and counts what left unread."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from forebay.errors import DataLoss, InvalidOption
from forebay.kernels.entry import METADATA_BYTES
from forebay.queues.fifo.names import TAIL
from forebay.queues.fifo.queue import Fifo
from forebay.spark.fifo_view import FifoView
from forebay.spark.stream import QueueStreamReader
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.tail import Tail, TailFile
from tests.queues.helpers import FakeClock, numbered
from tests.spark.readers import offset_in, offsets_of, rows_of, stream_reader

ALL = ReadAllAvailable()
FILE_BYTES = 10 * (METADATA_BYTES + 100) - 40


@pytest.fixture
def start() -> Iterator[Any]:
    """Opens readers, and stops them in the end."""
    begun: list[QueueStreamReader] = []

    def begin(path: str | Path, **options: str) -> QueueStreamReader:
        begun.append(stream_reader(path, **{"startingOffsets": "earliest", **options}))
        return begun[-1]

    yield begin
    for reader in begun:
        reader.stop()


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    """A fifo whose owner goes on, and syncs nothing unless told to."""
    with opened(tmp_path / "q", sync="os") as queue:
        yield queue


def opened(path: Path, **options: Any) -> Fifo:
    return Fifo(path, **{"file_bytes": FILE_BYTES, "background": False, **options})


def push(fifo: Fifo, count: int, first: int = 0) -> None:
    """Pushes entries that tell their number, durably."""
    fifo.push_many(numbered(count, first=first))
    fifo.sync()


def pop_files(fifo: Fifo, count: int) -> None:
    """Pops so many entries, and lets the files go that they were in."""
    for _ in range(count):
        fifo.pop()
    fifo._reading._release()


class Query:
    """A query, as Spark runs it: offsets as text, a batch after the other."""

    def __init__(self, reader: QueueStreamReader, before: str | None = None) -> None:
        self.reader = reader
        self.before = before or json.dumps(reader.initialOffset())
        self.rows: list[dict[str, Any]] = []

    def step(self, limit: Any = ALL) -> list[int]:
        """Does one batch; gives the numbers of its entries."""
        before = json.loads(self.before)
        # Lets the time pass after which a poll is done anew.
        self.reader._queues()._took = float("-inf")
        after = json.loads(json.dumps(self.reader.latestOffset(before, limit)))
        rows = rows_of(self.reader, self.reader.partitions(before, after))
        self.before = json.dumps(after)
        self.rows += rows
        return offsets_of(rows)

    def place(self, path: str) -> dict[str, Any]:
        place: dict[str, Any] = json.loads(self.before)["queues"][path]
        return place


def test_a_stream_begins_at_the_end_unless_told_otherwise(tmp_path: Path, start: Any) -> None:
    clock = FakeClock()
    with opened(tmp_path / "q", clock=clock) as fifo:
        for value in numbered(40):
            fifo.push(value)
            clock.ms += 1000
        fifo.pop_many(3)

    for options, expected in (
        ({"startingOffsets": "latest"}, 40),
        ({"startingOffsets": "earliest"}, 3),
        ({"startingOffsets": "7"}, 7),
        ({"startingOffsets": "1"}, 3),
    ):
        reader = start(tmp_path / "q", **options)
        assert offset_in(reader.initialOffset(), tmp_path / "q") == expected
    for time_ms, expected in (
        (0, 3),
        (1_800_000_025_000, 25),
        (1_800_000_025_001, 26),
        (2**42, 40),
    ):
        later = stream_reader(tmp_path / "q", startingTimestamp=str(time_ms))
        assert offset_in(later.initialOffset(), tmp_path / "q") == expected
        later.stop()


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(7)])
@pytest.mark.parametrize("sync", ["always", "os"])
def test_entries_come_once_and_in_order_while_a_queue_is_written(
    sync: str, limit: Any, tmp_path: Path, start: Any
) -> None:
    draw = Random(4)
    with opened(tmp_path / "q", sync=sync) as fifo:
        query = Query(start(tmp_path / "q"))
        count = 0
        for _ in range(12):
            more = draw.randrange(0, 20)
            push(fifo, more, first=count)
            count += more
            query.step(limit)
        while query.step(limit):
            pass

    assert offsets_of(query.rows) == list(range(count))
    assert [row["value"] for row in query.rows] == numbered(count)


def test_only_what_is_durable_is_read(fifo: Fifo, start: Any) -> None:
    query = Query(start(fifo.path))
    fifo.push_many(numbered(15))
    fifo.push(b"staged")

    assert query.step() == []
    fifo.sync()
    assert query.step() == list(range(16))


def test_a_tap_reads_what_was_popped_as_long_as_it_is_on_the_tape(fifo: Fifo, start: Any) -> None:
    query = Query(start(fifo.path))
    push(fifo, 25)
    fifo.pop_many(4)

    assert query.step() == list(range(25))
    assert fifo.size == 21


def test_entries_that_left_unread_are_a_gap_that_is_counted_and_told(
    fifo: Fifo, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(start(fifo.path))
    push(fifo, 12)
    query.step()
    push(fifo, 60, first=12)
    pop_files(fifo, 50)

    with caplog.at_level(logging.WARNING):
        batch = query.step()

    assert batch == list(range(batch[0], 72))
    assert 30 < batch[0] <= 50
    popped = batch[0] - 12
    assert query.place(fifo.path)["popped"] == popped
    assert f"{popped} entries from 12 on were popped unread" in caplog.text
    push(fifo, 3, first=72)
    assert query.step() == [72, 73, 74]
    assert query.place(fifo.path)["popped"] == popped


def test_entries_that_leave_between_planning_and_reading_are_told_by_the_task(
    fifo: Fifo, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader = start(fifo.path)
    before = reader.initialOffset()
    push(fifo, 60)
    after = reader.latestOffset(before, ALL)
    partitions = reader.partitions(before, after)
    pop_files(fifo, 50)

    with caplog.at_level(logging.WARNING):
        rows = rows_of(reader, partitions)

    told = re.findall(r": (\d+) of .* popped unread", caplog.text)
    assert 10 <= len(rows) < 25
    assert sum(map(int, told)) == 60 - len(rows)


def test_a_queue_that_was_emptied_meanwhile_gives_nothing_and_goes_on(
    fifo: Fifo, start: Any
) -> None:
    query = Query(start(fifo.path))
    push(fifo, 60)
    pop_files(fifo, 60)

    assert len(query.step()) < 10
    push(fifo, 2, first=60)
    assert query.step() == [60, 61]


def test_a_batch_that_is_replayed_has_the_same_entries(fifo: Fifo, start: Any) -> None:
    push(fifo, 30)
    query = Query(start(fifo.path))
    places, batches = [query.before], []
    for number in range(5):
        batches.append(query.step(ReadMaxRows(9)))
        places.append(query.before)
        push(fifo, 3, first=30 + 3 * number)
        fifo.pop()

    again = start(fifo.path)
    for batch, before, after in zip(batches, places, places[1:], strict=False):
        partitions = again.partitions(json.loads(before), json.loads(after))
        assert offsets_of(rows_of(again, partitions)) == batch


def test_the_first_batch_is_replayed_from_where_the_query_began(fifo: Fifo, start: Any) -> None:
    push(fifo, 5)
    query = Query(start(fifo.path, startingOffsets="latest"))
    push(fifo, 12, first=5)
    batch = query.step()
    push(fifo, 3, first=17)
    again = start(fifo.path, startingOffsets="latest")

    # Spark has not kept where the query began, and asks again.
    replayed = again.partitions(again.initialOffset(), json.loads(query.before))

    assert batch == list(range(5, 17))
    assert offsets_of(rows_of(again, replayed)) == batch


def test_what_is_lent_out_is_where_the_earliest_is(fifo: Fifo, start: Any) -> None:
    push(fifo, 20)
    fifo.pop_many(2)
    with fifo.take():
        fifo.pop_many(5)
        query = Query(start(fifo.path))

        assert query.step()[:2] == [2, 3]
        assert query.rows[0]["value"] == numbered(1, first=2)[0]


def test_a_stream_goes_on_where_its_checkpoint_says_without_the_boundaries(
    fifo: Fifo, start: Any
) -> None:
    query = Query(start(fifo.path))
    push(fifo, 25)
    query.step()
    push(fifo, 10, first=25)
    fifo.pop_many(30)
    (Path(fifo.path) / "fifo-bounds").unlink()

    assert query.step() == list(range(25, 35))


@pytest.mark.parametrize(("boot", "incarnation"), [({}, 1), ({"boot_id": bytes(16)}, 2)])
def test_a_stream_goes_on_behind_a_crash_of_the_owner_or_of_the_machine(
    boot: dict[str, bytes], incarnation: int, tmp_path: Path, start: Any
) -> None:
    path = tmp_path / "crashed"
    with opened(tmp_path / "q", sync="os") as fifo:
        push(fifo, 25)
        shutil.copytree(tmp_path / "q", path)
        query = Query(start(path))
        assert query.step() == list(range(25))
        fifo.push_many(numbered(10, first=25))
        shutil.copytree(tmp_path / "q", path, dirs_exist_ok=True)
    set_tail(path, **boot)

    with opened(path) as after:
        after.push_many(numbered(5, first=35))

    assert query.step() == list(range(25, 40))
    assert query.place(str(path))["incarnation"] == incarnation
    assert [row["value"] for row in query.rows] == numbered(40)


def test_another_queue_at_the_same_path_is_data_loss(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as fifo:
        push(fifo, 25)
    query = Query(start(tmp_path / "q"))
    query.step()
    shutil.rmtree(tmp_path / "q")
    with opened(tmp_path / "q") as fifo:
        push(fifo, 30)
    again = start(tmp_path / "q", failOnDataLoss="false")

    with pytest.raises(DataLoss, match="is another queue than the one"):
        Query(start(tmp_path / "q"), query.before).step()
    assert Query(again, query.before).step() == list(range(30))


def tail_of(path: Path) -> Tail:
    with FifoView(str(path)) as view:
        assert view.tail is not None
        return view.tail


def set_tail(path: Path, **changes: Any) -> None:
    directory = DiskFilesystem().open_directory(str(path))
    file = TailFile.open(directory, write=True, name=TAIL)
    assert file is not None
    file.write(tail_of(path)._replace(**changes))
    file.close()
    directory.close()


def test_numbers_that_a_crash_took_back_are_data_loss(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as fifo:
        push(fifo, 25)
    query = Query(start(tmp_path / "q"))
    query.step()
    set_tail(tmp_path / "q", incarnation=2, starts=(20, *[0] * 7))

    with pytest.raises(DataLoss, match="lost to a crash of the machine"):
        query.step()
    again = Query(start(tmp_path / "q", failOnDataLoss="false"), query.before)
    assert again.step() == list(range(20, 25))


def test_a_replay_of_numbers_that_a_crash_took_back_is_data_loss(
    tmp_path: Path, start: Any
) -> None:
    with opened(tmp_path / "q") as fifo:
        push(fifo, 25)
    reader = start(tmp_path / "q")
    before = reader.initialOffset()
    after = reader.latestOffset(before, ALL)
    set_tail(tmp_path / "q", incarnation=2, starts=(20, *[0] * 7))

    with pytest.raises(DataLoss, match=r"0\.\.25 are not what the checkpoint meant"):
        start(tmp_path / "q").partitions(before, after)


def test_a_mark_that_is_behind_the_reader_is_waited_for(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as fifo:
        push(fifo, 12)
        before = tail_of(tmp_path / "q")
        push(fifo, 13, first=12)
    query = Query(start(tmp_path / "q"))
    first = query.before
    assert query.step() == list(range(25))
    # As a power cut leaves it: the entries are synced, the mark is an old one.
    set_tail(tmp_path / "q", **before._replace(boot_id=bytes(16))._asdict())

    assert query.step() == []
    replayed = query.reader.partitions(json.loads(first), json.loads(query.before))
    assert offsets_of(rows_of(query.reader, replayed)) == list(range(25))


def test_a_fifo_keeps_no_cursor_of_a_stream(fifo: Fifo, start: Any) -> None:
    with pytest.raises(InvalidOption, match="consumerId: all queues are Beats queues or fifos"):
        start(fifo.path, consumerId="spark").initialOffset()


def test_a_fifo_that_lost_its_tail_is_read_as_far_as_it_goes(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as fifo:
        push(fifo, 25)
    (tmp_path / "q" / TAIL).unlink()

    assert Query(start(tmp_path / "q")).step() == list(range(25))


@pytest.mark.parametrize("seed", range(4))
def test_rows_and_gaps_are_all_that_was_pushed(seed: int, tmp_path: Path, start: Any) -> None:
    draw = Random(seed)
    query = Query(start(f"{tmp_path}/?"))
    count = 0
    fifo = opened(tmp_path / "q", sync=draw.choice(["always", "os"]))
    for _ in range(60):
        action = draw.randrange(6)
        if action < 2:
            more = draw.randrange(1, 30)
            fifo.push_many(numbered(more, draw.choice([1, 100, 3000]), first=count))
            count += more
        elif action == 2:
            fifo.pop_many(draw.randrange(1, 30))
        elif action == 3:
            fifo.sync()
        elif action == 4:
            query.reader._queues().look_again()
            query.step(draw.choice([ALL, ReadMaxRows(10)]))
        else:
            fifo.close()
            fifo = opened(tmp_path / "q", sync=draw.choice(["always", "os"]))
    fifo.close()
    query.reader._queues().look_again()
    while query.step():
        pass

    offsets = offsets_of(query.rows)
    assert offsets == sorted(set(offsets))
    assert all(int(row["value"].rstrip(b".")) == row["offset"] for row in query.rows)
    assert query.place(fifo.path)["offset"] == count
    assert query.place(fifo.path).get("popped", 0) <= count - len(offsets)
