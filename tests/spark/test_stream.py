"""The stream reader: offsets, limits, loss, cursors and queues that come and go, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import forebay
from forebay.errors import DataLoss, InvalidOption, Locked, NotAQueue
from forebay.spark import paths, stream, watch
from forebay.spark.kinds.log import LogLive
from forebay.spark.stream import QueueStreamReader
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.tail import TailFile
from tests.queues.helpers import PER_SEGMENT, SEGMENT_BYTES
from tests.spark.readers import offset_in, offsets_of, rows_of, stream_reader
from tests.support.clocks import FakeClock
from tests.support.inside import look_again
from tests.support.values import numbered


@pytest.fixture
def readers() -> Iterator[list[QueueStreamReader]]:
    """Readers that are put into it are stopped in the end."""
    opened: list[QueueStreamReader] = []
    yield opened
    for reader in opened:
        reader.stop()


@pytest.fixture
def start(readers: list[QueueStreamReader]) -> Any:
    def opened(path: str | Path, **options: str) -> QueueStreamReader:
        readers.append(stream_reader(path, **options))
        return readers[-1]

    return opened


def fill(path: Path, count: int, first: int = 0, **options: Any) -> None:
    with forebay.Log(path, segment_bytes=SEGMENT_BYTES, background=False, **options) as log:
        log.append_many(numbered(count, first=first))


def step(reader: QueueStreamReader, before: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Does one batch, as Spark would."""
    after = reader.latestOffset(before, reader.getDefaultReadLimit())
    return after, offsets_of(rows_of(reader, reader.partitions(before, after)))


def run_out(reader: QueueStreamReader, before: dict[str, Any]) -> list[list[int]]:
    """Does batches until nothing is new; gives the offsets of each."""
    batches: list[list[int]] = []
    while True:
        after, offsets = step(reader, before)
        if after == before:
            return batches
        batches.append(offsets)
        reader.commit(after)
        before = after


def discover(reader: QueueStreamReader) -> None:
    """Lets ten seconds pass."""
    look_again(reader)


def test_a_stream_begins_at_the_end_unless_told_otherwise(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20)

    assert offset_in(start(tmp_path / "log").initialOffset(), tmp_path / "log") == 20
    for options, expected in (
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "7"}, 7),
        ({"startingTimestamp": "0"}, 0),
        ({"startingTimestamp": "9999999999999"}, 20),
    ):
        reader = start(tmp_path / "log", **options)
        assert offset_in(reader.initialOffset(), tmp_path / "log") == expected
        assert reader.initialOffset() == reader.initialOffset()


def test_every_record_comes_once_and_in_order(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 30)
    reader = start(tmp_path / "log", startingOffsets="earliest")
    first = reader.initialOffset()

    after, offsets = step(reader, first)
    fill(tmp_path / "log", 12, first=30)
    discover(reader)
    _, more = step(reader, after)

    assert offsets == list(range(30))
    assert more == list(range(30, 42))
    assert offsets_of(rows_of(reader, reader.partitions(first, after))) == offsets


def test_the_first_batch_is_replayed_from_where_the_query_began(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log")
    before = reader.initialOffset()
    fill(tmp_path / "log", 12, first=20)
    discover(reader)
    after, offsets = step(reader, before)
    fill(tmp_path / "log", 5, first=32)
    again = start(tmp_path / "log")

    # Spark has not kept where the query began, and asks again.
    replayed = again.partitions(again.initialOffset(), after)

    assert offsets == list(range(20, 32))
    assert offsets_of(rows_of(again, replayed)) == offsets


def test_a_stream_stops_at_the_durable_end(tmp_path: Path, start: Any) -> None:
    with forebay.Log(tmp_path / "log", sync="os", background=False) as log:
        log.append_many(numbered(10))
        log.sync()
        log.append_many(numbered(5))
        reader = start(tmp_path / "log", startingOffsets="earliest")
        after, offsets = step(reader, reader.initialOffset())
        log.sync()
        discover(reader)
        _, more = step(reader, after)

    assert offsets == list(range(10))
    assert more == list(range(10, 15))


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"maxOffsetsPerTrigger": "7"}, [7, 7, 6]),
        ({"maxBytesPerTrigger": str(112 * 9)}, [8, 8, 4]),
        ({"maxBytesPerTrigger": "1"}, [1] * 20),
    ],
)
def test_a_limit_holds_for_every_batch(
    tmp_path: Path, start: Any, options: dict[str, str], sizes: list[int]
) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest", **options)

    batches = run_out(reader, reader.initialOffset())

    assert [len(batch) for batch in batches] == sizes
    assert list(chain(*batches)) == list(range(20))


def test_limits_are_dealt_out_by_what_is_waiting(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "a", 10)
    fill(tmp_path / "b", 30)
    reader = start(f"{tmp_path}/*", startingOffsets="earliest", maxOffsetsPerTrigger="20")

    after = reader.latestOffset(reader.initialOffset(), ReadMaxRows(20))

    assert (offset_in(after, tmp_path / "a"), offset_in(after, tmp_path / "b")) == (5, 15)
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    assert isinstance(start(tmp_path / "a").getDefaultReadLimit(), ReadAllAvailable)
    limited = start(tmp_path / "a", maxBytesPerTrigger="1k").getDefaultReadLimit()
    assert isinstance(limited, ReadMaxBytes)
    assert limited.max_bytes == 1024


def test_reading_all_that_is_available_ignores_the_limit(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest", maxOffsetsPerTrigger="7")

    after = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    assert offset_in(after, tmp_path / "log") == 20


def test_available_now_ends_at_what_was_there(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest", maxOffsetsPerTrigger="15")
    before = reader.initialOffset()

    reader.prepareForTriggerAvailableNow()
    fill(tmp_path / "log", 9, first=20)

    assert run_out(reader, before) == [list(range(15)), list(range(15, 20))]


def test_progress_shows_the_end_beside_what_was_read(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest", maxOffsetsPerTrigger="5")

    step(reader, reader.initialOffset())

    place = reader.reportLatestOffset()["queues"][str(tmp_path / "log")]
    assert (place["offset"], place["read"], place["lag"]) == (20, 5, 15)


def test_a_cursor_keeps_what_the_stream_has_not_read(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 5 * PER_SEGMENT)
    reader = start(tmp_path / "log", startingOffsets="earliest", consumerId="spark")
    after, _ = step(reader, reader.initialOffset())
    with forebay.Log(tmp_path / "log", background=False) as log:
        log.consumer("other", start="latest").commit()
        kept = log.trim()
        with pytest.raises(Locked, match="cursors/spark is in use"):
            start(tmp_path / "log", consumerId="spark").initialOffset()
        reader.commit(after)
        trimmed = log.trim()

    assert (kept, trimmed) == (0, 4 * PER_SEGMENT)


def test_a_new_stream_of_a_name_goes_on_where_the_last_one_was(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="12", consumerId="spark")
    reader.initialOffset()
    reader.stop()

    following = start(tmp_path / "log", consumerId="spark")

    assert offset_in(following.initialOffset(), tmp_path / "log") == 12


def test_a_queue_that_comes_later_is_read_from_its_beginning(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "a", 5)
    reader = start(f"{tmp_path}/*")
    before = reader.initialOffset()
    fill(tmp_path / "b", 20)

    unseen, nothing = step(reader, before)
    discover(reader)
    after = reader.latestOffset(before, ReadAllAvailable())
    rows = rows_of(reader, reader.partitions(before, after))
    later, _ = step(reader, after)

    assert (list(unseen["queues"]), nothing) == ([str(tmp_path / "a")], [])
    assert [(Path(row["queue"]).name, row["offset"]) for row in rows] == [
        ("b", offset) for offset in range(20)
    ]
    assert after["queues"][str(tmp_path / "b")]["from"] == 0
    assert later == after


def test_a_queue_that_was_trimmed_before_it_was_seen_is_data_loss(
    tmp_path: Path, start: Any
) -> None:
    fill(tmp_path / "a", 5)
    strict = start(f"{tmp_path}/*")
    lenient = start(f"{tmp_path}/*", failOnDataLoss="false")
    before = strict.initialOffset(), lenient.initialOffset()
    with forebay.Log(tmp_path / "b", segment_bytes=SEGMENT_BYTES, background=False) as log:
        log.append_many(numbered(20))
        log.consumer("quicker", start=20)
        trimmed = log.trim()
    for reader in (strict, lenient):
        discover(reader)

    with pytest.raises(DataLoss, match=f"/b begins at offset {trimmed}: 0..{trimmed} were trimmed"):
        step(strict, before[0])
    _, offsets = step(lenient, before[1])

    assert trimmed > 0
    assert offsets == list(range(trimmed, 20))


def test_a_queue_that_is_trimmed_when_the_stream_begins_is_no_loss(
    tmp_path: Path, start: Any
) -> None:
    with forebay.Log(tmp_path / "log", segment_bytes=SEGMENT_BYTES, background=False) as log:
        log.append_many(numbered(20))
        log.consumer("quicker", start=20)
        trimmed = log.trim()

    reader = start(tmp_path / "log", startingOffsets="earliest")

    assert step(reader, reader.initialOffset())[1] == list(range(trimmed, 20))


def test_a_queue_that_vanished_fully_read_is_dropped(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "a", 5)
    fill(tmp_path / "b", 5)
    reader = start(f"{tmp_path}/*", startingOffsets="earliest", consumerId="spark")
    after, _ = step(reader, reader.initialOffset())

    shutil.rmtree(tmp_path / "a")
    discover(reader)
    later, offsets = step(reader, after)

    assert offsets == []
    assert step(reader, later) == (later, [])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_queue_that_vanished_and_came_back_goes_on_where_it_was(
    tmp_path: Path, start: Any, restarted: bool
) -> None:
    fill(tmp_path / "a", 5)
    fill(tmp_path / "b", 5)
    reader = start(f"{tmp_path}/*", startingOffsets="earliest")
    after, _ = step(reader, reader.initialOffset())
    (tmp_path / "a").rename(tmp_path.parent / "unmounted")
    discover(reader)
    after, _ = step(reader, after)

    (tmp_path.parent / "unmounted").rename(tmp_path / "a")
    fill(tmp_path / "a", 3, first=5)
    if restarted:
        reader = start(f"{tmp_path}/*", startingOffsets="earliest")
    else:
        discover(reader)

    assert step(reader, after)[1] == [5, 6, 7]


def test_a_queue_that_vanished_and_was_made_again_is_read_from_its_beginning(
    tmp_path: Path, start: Any
) -> None:
    fill(tmp_path / "a", 5)
    fill(tmp_path / "b", 5)
    reader = start(f"{tmp_path}/*", startingOffsets="earliest", consumerId="spark")
    after, _ = step(reader, reader.initialOffset())
    shutil.rmtree(tmp_path / "a")
    discover(reader)
    after, _ = step(reader, after)

    fill(tmp_path / "a", 9)
    discover(reader)

    assert step(reader, after)[1] == list(range(9))


@pytest.mark.parametrize("again", [False, True])
def test_a_queue_that_vanished_unread_is_data_loss(tmp_path: Path, start: Any, again: bool) -> None:
    fill(tmp_path / "a", 50)
    fill(tmp_path / "b", 5)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    reader = start(f"{tmp_path}/*", **options)
    after, _ = step(reader, reader.initialOffset())

    shutil.rmtree(tmp_path / "a")
    if again:
        reader = start(f"{tmp_path}/*", **options)
    else:
        discover(reader)

    with pytest.raises(DataLoss, match=r"a is gone, with at least 4\d unread records"):
        step(reader, after)
    lenient = start(f"{tmp_path}/*", failOnDataLoss="false")
    later, _ = step(lenient, after)
    assert later["queues"][str(tmp_path / "a")]["gone"]
    assert run_out(lenient, later) == []


def test_a_trimmed_place_is_data_loss(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 5 * PER_SEGMENT)
    reader = start(tmp_path / "log", startingOffsets="3")
    before = reader.initialOffset()
    with forebay.Log(tmp_path / "log", background=False) as log:
        log.consumer("other", start=20).commit()
        log.trim()

    with pytest.raises(DataLoss, match=r"begins at offset 16: 3\.\.16 were trimmed"):
        step(reader, before)
    _, offsets = step(start(tmp_path / "log", failOnDataLoss="false"), before)
    assert offsets == list(range(16, 40))


def test_a_queue_made_anew_is_data_loss_and_not_a_new_start(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest")
    after, _ = step(reader, reader.initialOffset())
    shutil.rmtree(tmp_path / "log")
    fill(tmp_path / "log", 30)
    discover(reader)

    with pytest.raises(DataLoss, match="is not the queue that the checkpoint"):
        step(reader, after)
    _, offsets = step(start(tmp_path / "log", failOnDataLoss="false"), after)
    assert offsets == list(range(30))


def forget(path: Path, durable: int) -> None:
    """Leaves `tail` as a machine does that lost all above a mark, and began a new incarnation."""
    directory = DiskFilesystem().open_directory(str(path))
    file = TailFile.open(directory, write=True)
    assert file is not None
    tail = file.read()
    assert tail is not None
    starts = (durable, *tail.starts[:-1])
    for _ in range(2):
        file.write(tail._replace(incarnation=tail.incarnation + 1, starts=starts), sync=True)
    file.close()
    directory.close()


def test_offsets_given_out_again_are_data_loss_and_never_skipped(
    tmp_path: Path, start: Any
) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest")
    after, _ = step(reader, reader.initialOffset())
    forget(tmp_path / "log", 13)
    discover(reader)

    with pytest.raises(DataLoss, match="lost in a crash of the machine, and their offsets were"):
        step(reader, after)
    lenient = start(tmp_path / "log", failOnDataLoss="false")
    later, offsets = step(lenient, after)
    assert offsets == list(range(13, 20))
    assert later["queues"][str(tmp_path / "log")]["incarnation"] == 2


def test_a_planned_batch_whose_offsets_were_lost_is_not_replayed(
    tmp_path: Path, start: Any
) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest")
    before = reader.initialOffset()
    after = reader.latestOffset(before, ReadAllAvailable())
    forget(tmp_path / "log", 13)

    with pytest.raises(DataLoss, match=r"offsets 0\.\.20 are not those of the checkpoint"):
        reader.partitions(before, after)


def test_an_incarnation_that_took_nothing_from_the_stream_is_passed(
    tmp_path: Path, start: Any
) -> None:
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest")
    after, _ = step(reader, reader.initialOffset())
    forget(tmp_path / "log", 20)
    fill(tmp_path / "log", 5, first=20)
    discover(reader)

    _, offsets = step(reader, after)

    assert offsets == list(range(20, 25))


def test_a_checkpoint_of_other_queues_is_refused(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "a", 5)
    fill(tmp_path / "b", 5)
    other = start(tmp_path / "a").initialOffset()

    with pytest.raises(DataLoss, match=r"the checkpoint is for other queues: .*a is not among"):
        start(tmp_path / "b").latestOffset(other, ReadAllAvailable())
    with pytest.raises(DataLoss, match="offsets of version 9, but this program reads 1"):
        start(tmp_path / "b").latestOffset({"v": 9}, ReadAllAvailable())


def test_a_path_may_be_taken_out_of_a_stream_that_allows_for_losses(
    tmp_path: Path, start: Any
) -> None:
    fill(tmp_path / "a", 5)
    fill(tmp_path / "b", 5)
    before = start(f"{tmp_path}/*", startingOffsets="earliest").initialOffset()

    _, offsets = step(start(tmp_path / "b", failOnDataLoss="false"), before)

    assert offsets == list(range(5))


def test_a_queue_that_only_two_stars_match_may_vanish_after_it_was_read(
    tmp_path: Path, start: Any
) -> None:
    fill(tmp_path / "log", 5)
    reader = start(f"{tmp_path}/**/log", startingOffsets="earliest")
    after, _ = step(reader, reader.initialOffset())
    shutil.rmtree(tmp_path / "log")
    discover(reader)

    assert step(reader, after)[1] == []


def test_a_batch_waits_for_enough_records_or_long_enough(
    tmp_path: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(stream, "time", clock)
    fill(tmp_path / "log", 20)
    reader = start(tmp_path / "log", startingOffsets="earliest", minOffsetsPerTrigger="10")
    first, offsets = step(reader, reader.initialOffset())
    fill(tmp_path / "log", 9, first=20)
    discover(reader)
    waiting, _ = step(reader, first)
    clock.seconds += 900
    second, late = step(reader, waiting)
    fill(tmp_path / "log", 10, first=29)
    discover(reader)

    assert (len(offsets), waiting == first, late) == (20, True, list(range(20, 29)))
    assert len(step(reader, second)[1]) == 10


def test_a_start_of_a_queue_that_is_not_there_is_refused(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20)
    misspelt = f'{{"{tmp_path}/lgo": 5}}'

    for path in (tmp_path / "log", f"{tmp_path}/*"):
        with pytest.raises(InvalidOption, match=r"startingOffsets: .*/lgo is not"):
            start(path, startingOffsets=misspelt).initialOffset()


@pytest.mark.parametrize(
    ("option", "value"),
    [("endingOffsets", "10"), ("endingOffsets", "latest"), ("endingTimestamp", "1800000000000")],
)
def test_a_stream_has_no_end_and_refuses_to_be_given_one(
    tmp_path: Path, start: Any, option: str, value: str
) -> None:
    fill(tmp_path / "log", 20)

    with pytest.raises(InvalidOption, match=f"{option}: a stream has no end"):
        start(tmp_path / "log", **{option: value})


def test_a_path_must_be_a_queue_but_a_pattern_may_wait(tmp_path: Path, start: Any) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(NotAQueue, match="none' does not exist"):
        start(tmp_path / "none").initialOffset()
    with pytest.raises(NotAQueue, match="empty' is not a queue"):
        start(tmp_path / "empty").initialOffset()
    assert start(f"{tmp_path}/host-*").initialOffset() == {"v": 1, "queues": {}}


def test_a_directory_without_a_tail_is_read_to_its_end(tmp_path: Path, start: Any) -> None:
    fill(tmp_path / "log", 20, version=1)
    for name in ("tail", "reserve"):
        (tmp_path / "log" / name).unlink()
    reader = start(tmp_path / "log", startingOffsets="earliest")

    after, offsets = step(reader, reader.initialOffset())

    assert offsets == list(range(20))
    assert after["queues"][str(tmp_path / "log")]["id"] == ""


@pytest.mark.slow
def test_polls_are_single_reads_and_patterns_are_looked_up_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        fill(tmp_path / f"host-{number}", 1)
    looked: list[float] = []
    monkeypatch.setattr(paths, "expand", _noting(paths.expand, looked))
    watched = watch.Watch([f"{tmp_path}/*"], LogLive)

    polls = [watched.marks() for _ in range(200)]
    watched.close()

    assert len(looked) == 1
    assert {len(marks) for marks in polls} == {20}


def _noting(function: Any, calls: list[Any]) -> Any:
    def noted(*arguments: Any) -> Any:
        calls.append(arguments)
        return function(*arguments)

    return noted


def test_a_planned_batch_of_a_queue_that_was_made_again_lands_nothing_of_the_new_one(
    tmp_path: Path, start: Any
) -> None:
    fill(tmp_path / "log", 10)
    reader = start(tmp_path / "log", startingOffsets="earliest")
    before, _ = step(reader, reader.initialOffset())
    fill(tmp_path / "log", 5, first=10)
    planned = reader.latestOffset(before, ReadAllAvailable())
    reader.stop()
    shutil.rmtree(tmp_path / "log")
    fill(tmp_path / "log", 20)

    lenient = start(tmp_path / "log", failOnDataLoss="false")
    replayed = offsets_of(rows_of(lenient, lenient.partitions(before, planned)))
    _, offsets = step(lenient, planned)

    assert replayed + offsets == list(range(20))
