"""Streams over Beats queues, without Spark: what comes, what goes, what is lost meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from forebay import BeatsQueue
from forebay.errors import DataLoss, InvalidOption
from forebay.queues.beats.place import offset_of
from forebay.spark.stream import QueueStreamReader
from tests.queues.beats_helpers import (
    PER_SEGMENT,
    copy_golden,
    leave_segment,
    make_key,
    numbered,
    open_queue,
    segment_names,
)
from tests.spark.readers import rows_of, stream_reader
from tests.support.inside import look_again, poll_again

ALL = ReadAllAvailable()


@pytest.fixture
def start() -> Iterator[Any]:
    """Opens readers, and stops them in the end."""
    opened: list[QueueStreamReader] = []

    def begin(path: str | Path, **options: str) -> QueueStreamReader:
        opened.append(stream_reader(path, **{"startingOffsets": "earliest", **options}))
        return opened[-1]

    yield begin
    for reader in opened:
        reader.stop()


def opened(path: Path, version: str = "v2", **options: Any) -> BeatsQueue:
    return open_queue(path, version, **options)


class Query:
    """A query, as Spark runs it: offsets as text, a batch after the other."""

    def __init__(self, reader: QueueStreamReader, before: str | None = None) -> None:
        self.reader = reader
        self.before = before or json.dumps(reader.initialOffset())
        self.rows: list[dict[str, Any]] = []

    def step(self, limit: Any = ALL) -> list[int]:
        """Does one batch; gives the numbers of its events."""
        before = json.loads(self.before)
        self._look_again()
        after = json.loads(json.dumps(self.reader.latestOffset(before, limit)))
        rows = rows_of(self.reader, self.reader.partitions(before, after))
        self.before = json.dumps(after)
        self.rows += rows
        return numbers(rows)

    def run_out(self, limit: Any = ALL) -> list[list[int]]:
        """Does batches until nothing is new."""
        batches = []
        while batch := self.step(limit):
            batches.append(batch)
        return batches

    def _look_again(self) -> None:
        """Lets the time pass after which a poll is done anew."""
        poll_again(self.reader)


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["timestamp_ns"] - 10**9 for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v1", "v2-lz4", "v3-seed"])
@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(7)])
def test_events_come_once_while_a_queue_is_written(
    version: str, limit: Any, tmp_path: Path, start: Any
) -> None:
    draw = Random(4)
    with opened(tmp_path / "q", version=version) as queue:
        query = Query(start(tmp_path / "q", keyFile=str(make_key(tmp_path))))
        count = 0
        for _ in range(12):
            more = draw.randrange(0, 20)
            queue.put_many(numbered(more, first=count))
            count += more
            query.step(limit)
        query.run_out(limit)

    assert numbers(query.rows) == list(range(count))
    offsets = [row["offset"] for row in query.rows]
    assert offsets == sorted(set(offsets))


def test_a_batch_that_is_replayed_has_the_same_events(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(numbered(25))
        query = Query(start(tmp_path / "q"))
        places = [query.before]
        batches = []
        while batch := query.step(ReadMaxRows(10)):
            batches.append(batch)
            places.append(query.before)
            queue.put_many(numbered(3, first=25 + 3 * len(batches)))
            if len(batches) > 3:
                break
        again = start(tmp_path / "q")
        for number, batch in enumerate(batches):
            before, after = json.loads(places[number]), json.loads(places[number + 1])
            assert numbers(rows_of(again, again.partitions(before, after))) == batch


def test_the_first_batch_is_replayed_from_where_the_query_began(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(numbered(5))
        query = Query(start(tmp_path / "q", startingOffsets="latest"))
        queue.put_many(numbered(12, first=5))
        batch = query.step()
        queue.put_many(numbered(3, first=17))
        again = start(tmp_path / "q", startingOffsets="latest")

        # Spark has not kept where the query began, and asks again.
        replayed = again.partitions(again.initialOffset(), json.loads(query.before))

        assert batch == list(range(5, 17))
        assert numbers(rows_of(again, replayed)) == batch


def test_only_what_is_durable_is_read_of_a_queue_that_is_open(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q", sync="os", background=False) as queue:
        queue.put_many(numbered(5))
        query = Query(start(tmp_path / "q"))

        assert query.step() == []
        queue.sync()
        assert query.step() == [0, 1, 2, 3, 4]


def test_a_directory_that_beats_writes_is_followed_frame_by_frame(
    tmp_path: Path, start: Any
) -> None:
    whole = leave_segment(tmp_path / "q", 0, "v1", numbered(10), count=0).read_bytes()
    file = tmp_path / "q" / "0.seg"
    file.write_bytes(whole[:8])
    query = Query(start(tmp_path / "q"))
    for size in range(8, len(whole) + 1, 37):
        # As a process does that appends: a frame may be there in part.
        with open(file, "r+b") as opened:
            opened.write(whole[:size])
        query.step()
    file.write_bytes(whole)
    leave_segment(tmp_path / "q", 1, "v1", numbered(4, first=10), count=0)
    query.run_out()

    assert numbers(query.rows) == list(range(14))


@pytest.mark.slow
def test_a_stream_writes_nothing_into_the_directory(tmp_path: Path, start: Any) -> None:
    path = copy_golden("v1-mid", tmp_path / "q")
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}

    assert sum(map(len, Query(start(path)).run_out(ReadMaxRows(500)))) == 3633

    after = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}
    assert after == before
    with pytest.raises(InvalidOption, match="to which a stream writes nothing"):
        start(path, consumerId="spark").initialOffset()


def test_segments_that_were_read_may_go(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as queue:
        query = Query(start(tmp_path / "q"))
        for first in range(0, 60, 10):
            queue.put_many(numbered(10, first=first))
            assert query.step() == list(range(first, first + 10))
            queue.read(10).ack()

    assert numbers(query.rows) == list(range(60))


def test_a_segment_that_was_read_to_its_end_may_go_while_no_stream_runs(
    tmp_path: Path, start: Any
) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(numbered(2 * PER_SEGMENT + 1))
        query = Query(start(tmp_path / "q"))
        assert query.step(ReadMaxRows(PER_SEGMENT)) == list(range(PER_SEGMENT))
        queue.read(PER_SEGMENT + 1).ack()
        assert segment_names(tmp_path / "q") == ["1.seg", "2.seg"]

        again = Query(start(tmp_path / "q"), query.before)
        assert again.step() == list(range(PER_SEGMENT, 2 * PER_SEGMENT + 1))


@pytest.mark.parametrize("allowed", [False, True])
def test_events_that_go_unread_are_counted_as_lost(
    allowed: bool, tmp_path: Path, start: Any
) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(numbered(5))
        query = Query(start(tmp_path / "q", failOnDataLoss=str(not allowed)))
        assert query.step() == [0, 1, 2, 3, 4]
        queue.put_many(numbered(15, first=5))
        while batch := queue.read(10):
            batch.ack()
        if allowed:
            assert query.step() == [18, 19]
        else:
            with pytest.raises(DataLoss, match="segment 1 is gone and may not have been read"):
                query.step()


def test_a_queue_that_begins_anew_after_a_restart_is_data_loss(tmp_path: Path, start: Any) -> None:
    leave_segment(tmp_path / "q", 3, "v1", numbered(5), count=5)
    query = Query(start(tmp_path / "q"))
    assert query.step() == [0, 1, 2, 3, 4]
    (tmp_path / "q" / "3.seg").unlink()
    leave_segment(tmp_path / "q", 0, "v1", numbered(5), count=5)

    with pytest.raises(DataLoss, match="segment 3 is gone and may not have been read"):
        Query(start(tmp_path / "q"), query.before).step()


def test_a_segment_that_a_crash_cut_below_the_place_is_data_loss(
    tmp_path: Path, start: Any
) -> None:
    file = leave_segment(tmp_path / "q", 0, "v1", numbered(5), count=0)
    query = Query(start(tmp_path / "q"))
    assert query.step() == [0, 1, 2, 3, 4]
    file.write_bytes(file.read_bytes()[:250])

    with pytest.raises(DataLoss, match="events of segment 0 that this stream has read are gone"):
        Query(start(tmp_path / "q"), query.before).step()


def test_damage_in_the_middle_keeps_the_numbers_of_what_follows(tmp_path: Path, start: Any) -> None:
    file = leave_segment(tmp_path / "q", 0, "v1", numbered(9), count=9)
    data = bytearray(file.read_bytes())
    data[230] ^= 1
    file.write_bytes(data)
    query = Query(start(tmp_path / "q", mode="DROPMALFORMED"))

    assert query.run_out(ReadMaxRows(3)) == [[0, 1], [3, 4, 5], [6, 7, 8]]
    assert [row["offset"] for row in query.rows] == [0, 1, *range(3, 9)]


def test_a_segment_that_is_nothing_stands_for_one_lost_event(tmp_path: Path, start: Any) -> None:
    leave_segment(tmp_path / "q", 0, "v1", numbered(2), count=2)
    (tmp_path / "q" / "1.seg").write_bytes(b"not a segment at all")
    leave_segment(tmp_path / "q", 2, "v1", numbered(2, first=2), count=2)
    columns = "timestamp_ns,offset,damage"
    reader = start(tmp_path / "q", mode="PERMISSIVE", columns=columns)
    before = reader.initialOffset()
    after = reader.latestOffset(before, ALL)

    rows = rows_of(reader, reader.partitions(before, after))

    assert [row["offset"] for row in rows] == [0, 1, offset_of(1, 0), offset_of(2, 0), 2**33 + 1]
    assert [row["damage"] is None for row in rows] == [True, True, False, True, True]


def test_queues_come_and_go(tmp_path: Path, start: Any) -> None:
    for name in "ab":
        leave_segment(tmp_path / name, 0, "v1", numbered(3), count=0)
    query = Query(start(f"{tmp_path}/*"))
    assert sorted(query.step()) == [0, 0, 1, 1, 2, 2]
    leave_segment(tmp_path / "c", 0, "v1", numbered(4), count=0)
    for file in (tmp_path / "a").iterdir():
        file.unlink()
    (tmp_path / "a").rmdir()
    look_again(query.reader)

    assert query.step() == [0, 1, 2, 3]
    assert query.step() == []


def test_available_now_ends_at_what_was_there(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(numbered(12))
        query = Query(start(tmp_path / "q"))
        query.reader.prepareForTriggerAvailableNow()
        queue.put_many(numbered(8, first=12))

        assert [*chain(*query.run_out(ReadMaxRows(5)))] == list(range(12))


def test_what_goes_after_available_now_was_planned_is_data_loss(tmp_path: Path, start: Any) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(numbered(12))
        query = Query(start(tmp_path / "q"))
        query.reader.prepareForTriggerAvailableNow()
        while batch := queue.read(12):
            batch.ack()
        query.reader.reportLatestOffset()

        with pytest.raises(DataLoss, match="unread events of segment 0"):
            query.step()


def test_a_queue_whose_first_segments_went_before_it_was_seen_is_data_loss(
    tmp_path: Path, start: Any
) -> None:
    opened(tmp_path / "a").close()
    strict = Query(start(f"{tmp_path}/*"))
    lenient = Query(start(f"{tmp_path}/*", failOnDataLoss="false"))
    with opened(tmp_path / "b") as queue:
        queue.put_many(numbered(3 * PER_SEGMENT))
        queue.read(2 * PER_SEGMENT).ack()
        left = segment_names(tmp_path / "b")
        for query in (strict, lenient):
            look_again(query.reader)

        with pytest.raises(DataLoss, match="earlier ones were acknowledged and removed"):
            strict.step()
        found = lenient.step()

    assert len(left) < 3
    assert found[-1] == 3 * PER_SEGMENT - 1
