"""Named consumers of a log: places, commits, seeking, waiting."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forebay import Closed, Empty, InvalidOption, Locked, Log, Record
from forebay.queues.log.consumer import Consumer
from tests.queues.helpers import PER_SEGMENT, SEGMENT_BYTES, SYNCS, numbered, run_threads, values_of
from tests.support.killing import Tell, kill_a_writer

each_sync = pytest.mark.parametrize("sync", SYNCS)


def open_log(path: Path, **options: Any) -> Log:
    defaults = {"segment_bytes": SEGMENT_BYTES, "trim_interval_seconds": None}
    return Log(path / "q", **{**defaults, **options})


def test_a_new_consumer_starts_at_the_earliest_record(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(5))

        assert values_of(log.consumer("c").read()) == numbered(5)


def test_a_consumer_that_starts_latest_gets_only_what_comes(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(5))
        consumer = log.consumer("c", start="latest")

        assert consumer.read() == []
        log.append(b"new")
        assert values_of(consumer.read()) == [b"new"]


@pytest.mark.parametrize("start", [0, 3, 7, 8, 9, 20, 30])
def test_a_consumer_may_start_at_an_offset(tmp_path: Path, start: int) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(30))

        records = log.consumer("c", start=start).read()

        assert [record.offset for record in records] == list(range(start, 30))
        assert values_of(records) == numbered(30)[start:]


@pytest.mark.parametrize("start", ["soonest", -1, 6, True, None, 1.0, b"earliest"])
def test_a_bad_start_is_named_in_the_error_and_saves_nothing(tmp_path: Path, start: Any) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(5))

        with pytest.raises(InvalidOption) as caught:
            log.consumer("c", start=start)

        assert f"start = {start!r}" in str(caught.value)
        assert "an offset up to 5" in str(caught.value)
        assert log.info().positions == {}


def test_a_time_without_a_zone_is_no_place(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(InvalidOption, match=r"start = .*: must have a time zone"):
            log.consumer("c", start=datetime(2026, 11, 1))
        consumer = log.consumer("c", start=datetime(2026, 11, 1, tzinfo=UTC))
        with pytest.raises(InvalidOption, match="time zone"):
            consumer.seek(datetime(2026, 11, 1))


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "x" * 256, "é" * 128])
def test_a_bad_name_is_named_in_the_error(tmp_path: Path, name: str) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(InvalidOption) as caught:
            log.consumer(name)

        assert repr(name) in str(caught.value)
        assert "1 to 255 bytes" in str(caught.value)


@pytest.mark.parametrize("name", [5, b"name", "\ud800"])
def test_a_name_that_is_no_text_is_named_in_the_error(tmp_path: Path, name: Any) -> None:
    with open_log(tmp_path) as log, pytest.raises(InvalidOption, match="consumer name"):
        log.consumer(name)


@pytest.mark.parametrize("name", ["a", "x" * 255, "é" * 127, "with space", "../up", "Ω"])
def test_a_name_may_be_any_printable_text(tmp_path: Path, name: str) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(3))
        consumer = log.consumer(name)
        consumer.read(2)
        consumer.commit()

    with open_log(tmp_path) as log:
        assert log.consumer(name).position == 2


@pytest.mark.parametrize("count", [0, -1])
def test_a_bad_count_is_named_in_the_error(tmp_path: Path, count: int) -> None:
    with open_log(tmp_path) as log:
        consumer = log.consumer("c")

        with pytest.raises(InvalidOption, match=f"count = {count}: must be at least 1"):
            consumer.read(count)


@each_sync
@pytest.mark.parametrize("count", [1, 3, 7, 8, 9, 100])
def test_reads_go_on_across_the_borders_of_segments(tmp_path: Path, sync: str, count: int) -> None:
    with open_log(tmp_path, sync=sync) as log:
        log.append_many(numbered(30))
        consumer = log.consumer("c")

        parts = []
        while part := consumer.read(count):
            parts.append(part)

        assert all(len(part) == count for part in parts[:-1])
        assert values_of([record for part in parts for record in part]) == numbered(30)


def test_a_consumer_can_be_iterated(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(30))
        consumer = log.consumer("c")

        assert [record.value for record in consumer] == numbered(30)
        assert consumer.position == 30


def test_a_commit_between_two_records_covers_only_what_was_given(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(30))
        consumer = log.consumer("c")

        for record in consumer:
            consumer.commit()
            assert consumer.committed == record.offset + 1
            if record.offset == 17:
                break
        rest = consumer.read(100)

    assert values_of(rest) == numbered(30)[18:]
    with open_log(tmp_path) as log:
        assert values_of(log.consumer("c").read(100)) == numbered(30)[18:]


def test_a_consumer_sees_what_comes_after_it_was_at_the_end(tmp_path: Path) -> None:
    values = numbered(40)
    seen = []
    with open_log(tmp_path, sync="os") as log:
        consumer = log.consumer("c")
        for value in values:
            log.append(value)
            seen += values_of(consumer.read())

    assert seen == values


@each_sync
def test_a_commit_survives_a_reopen(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, sync=sync) as log:
        log.append_many(numbered(20))
        consumer = log.consumer("c")
        consumer.read(11)
        consumer.commit()

    with open_log(tmp_path, sync=sync) as log:
        consumer = log.consumer("c", start="latest")
        assert (consumer.position, consumer.committed) == (11, 11)
        assert values_of(consumer.read()) == numbered(20)[11:]


def test_reads_that_were_not_committed_come_again(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(20))
        consumer = log.consumer("c")
        consumer.read(5)
        consumer.commit()
        consumer.read(10)

    with open_log(tmp_path) as log:
        assert values_of(log.consumer("c").read()) == numbered(20)[5:]


def test_a_commit_makes_the_records_below_it_durable(tmp_path: Path) -> None:
    with open_log(tmp_path, sync="os", background=False) as log:
        log.append_many(numbered(5))
        consumer = log.consumer("c")
        consumer.read(3)

        assert log.durable == 0
        consumer.commit()
        assert log.durable >= 3


def test_a_new_consumers_place_is_saved_at_once(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(20))
        log.consumer("late", start="latest")

    with open_log(tmp_path) as log:
        assert log.info().positions == {"late": 20}


def test_seeking_goes_back_and_forth(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(30))
        consumer = log.consumer("c")
        seen = []
        for start in (20, 0, "latest", 9, "earliest", 30, 7):
            consumer.seek(start)
            seen.append([record.offset for record in consumer.read(2)])

    assert seen == [[20, 21], [0, 1], [], [9, 10], [0, 1], [], [7, 8]]


def test_a_seek_is_saved_only_by_a_commit(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(30))
        consumer = log.consumer("c")
        consumer.seek(25)
        before = log.info().positions["c"]
        consumer.commit()
        after = log.info().positions["c"]
        consumer.seek(4)
        consumer.commit()

        assert (before, after, log.info().positions["c"]) == (0, 25, 4)


def test_a_bad_seek_leaves_the_place_as_it_was(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(10))
        consumer = log.consumer("c")
        consumer.read(4)

        with pytest.raises(InvalidOption, match="start = 11"):
            consumer.seek(11)

        assert values_of(consumer.read()) == numbered(10)[4:]


@each_sync
def test_lag_counts_what_is_not_committed(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, sync=sync) as log:
        log.append_many(numbered(10))
        consumer = log.consumer("c")
        lags = [consumer.lag]
        consumer.read(4)
        lags.append(consumer.lag)
        consumer.commit()
        lags.append(consumer.lag)
        log.append(b"more")
        lags.append(consumer.lag)

    assert lags == [10, 10, 6, 7]


def test_two_consumers_do_not_move_each_other(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(20))
        first, second = log.consumer("first"), log.consumer("second", start=10)
        first.read(3)
        second.read(5)
        first.commit()
        second.commit()

        assert log.info().positions == {"first": 3, "second": 15}
        assert first.read(1)[0].offset == 3
        assert second.read(1)[0].offset == 15


def test_a_forgotten_consumer_starts_anew(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(5))
        consumer = log.consumer("c")
        consumer.read()
        consumer.commit()
        log.forget_consumer("c")

        assert log.info().positions == {}
        assert log.consumer("c").position == 0
        with pytest.raises(InvalidOption, match="no consumer 'nobody'"):
            log.forget_consumer("nobody")


def test_a_name_has_one_consumer_at_a_time(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(5))
        first = log.consumer("c")

        with pytest.raises(Locked, match="consumer 'c' of "):
            log.consumer("c")
        first.read(2)
        first.commit()
        first.close()
        second = log.consumer("c")

        assert second.position == 2
        with pytest.raises(Closed, match="consumer 'c'"):
            first.read()
        del second
        assert log.consumer("c").position == 2


def test_a_record_that_is_taken_is_committed_when_the_block_ends(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(2))
        consumer = log.consumer("c")

        with consumer.take() as record:
            assert record.value == numbered(1)[0]
            assert log.info().positions == {"c": 0}

        assert log.info().positions == {"c": 1}
        assert (consumer.position, consumer.committed) == (1, 1)
        with consumer.take(timeout=0) as record:
            assert record.offset == 1
        with pytest.raises(Empty, match="nothing new for 'c'"), consumer.take():
            pass


def test_a_record_that_is_taken_comes_again_after_an_error(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(3))
        consumer = log.consumer("c")

        with pytest.raises(ZeroDivisionError), consumer.take() as record:
            _ = 1 // record.offset

        assert (consumer.position, consumer.committed) == (0, 0)
        assert [record.offset for record in consumer.read()] == [0, 1, 2]


def fail_in(loan: AbstractContextManager[Record]) -> None:
    """Ends a block as an exception in it does."""
    error = KeyError()
    assert not loan.__exit__(KeyError, error, None)


def test_a_block_that_ends_first_does_not_save_the_place_of_one_that_is_open(
    tmp_path: Path,
) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(4))
        consumer = log.consumer("c")
        places = []

        with consumer.take():
            with consumer.take() as record:
                assert record.offset == 1
            places.append(consumer.committed)
            consumer.read(1)
            consumer.commit()
            places.append(consumer.committed)
        places.append(consumer.committed)
        consumer.commit()

        assert [*places, consumer.committed] == [0, 0, 2, 3]


def test_of_overlapping_blocks_only_one_that_fails_comes_again(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(5))
        consumer = log.consumer("c")

        loans = [consumer.take() for _ in range(3)]
        offsets = [loan.__enter__().offset for loan in loans]
        fail_in(loans[2])
        fail_in(loans[0])
        loans[1].__exit__(None, None, None)

        assert (offsets, consumer.position, consumer.committed) == ([0, 1, 2], 0, 0)
        with consumer.take() as record:
            assert record.offset == 0
        assert (consumer.position, consumer.committed) == (2, 2)
        assert [record.offset for record in consumer.read()] == [2, 3, 4]
        consumer.commit()
        assert consumer.committed == 5


@pytest.mark.parametrize("give", [iter, lambda consumer: iter(consumer.read(9))])
def test_a_record_that_comes_again_is_given_before_others(
    tmp_path: Path, give: Callable[[Consumer], Iterator[Record]]
) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(4))
        consumer = log.consumer("c")
        loan = consumer.take()
        loan.__enter__()
        consumer.read(1)
        fail_in(loan)

        assert [record.offset for record in give(consumer)] == [0, 2, 3]


def test_a_seek_forgets_the_blocks_that_are_open(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(4))
        consumer = log.consumer("c", start=1)

        with consumer.take():
            consumer.seek(3)
        failing = consumer.take()
        failing.__enter__()
        consumer.seek(0)
        fail_in(failing)

        assert (consumer.position, consumer.committed) == (0, 1)
        with consumer.take():
            pass
        assert consumer.committed == 1


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_kill_within_overlapping_blocks_brings_the_open_one_again(
    tmp_path: Path, sync: str
) -> None:
    def take(tell: Tell) -> None:
        log = open_log(tmp_path, sync=sync)
        log.append_many(numbered(4))
        consumer = log.consumer("c")
        first = consumer.take()
        first.__enter__()
        with consumer.take():
            pass
        tell(consumer.committed)

    assert kill_a_writer(take) == 0

    with open_log(tmp_path) as log:
        assert [record.offset for record in log.consumer("c").read()] == [0, 1, 2, 3]


def test_a_cancelled_read_leaves_all_to_the_next_one(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(3))
        consumer = log.consumer("c")
        steps = Consumer.read.steps(consumer, 2)  # type: ignore[attr-defined]

        work = next(steps)
        with pytest.raises(KeyError):
            steps.throw(KeyError())
        work.call()

        assert consumer.position == 0
        assert [record.offset for record in consumer.read()] == [0, 1, 2]


def test_an_iterator_reads_on_over_appends_and_commits_what_it_gave(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(3 * PER_SEGMENT))
        consumer = log.consumer("c")
        given = []

        for record in consumer:
            given.append(record.offset)
            if record.offset == PER_SEGMENT:
                consumer.commit()
                log.append(b"more")

        assert given == list(range(3 * PER_SEGMENT + 1))
        assert consumer.committed == PER_SEGMENT + 1
        assert consumer.position == 3 * PER_SEGMENT + 1


@pytest.mark.slow
@each_sync
def test_threads_with_consumers_of_their_own_each_get_everything(tmp_path: Path, sync: str) -> None:
    total = 200
    with open_log(tmp_path, sync=sync) as log:
        found: dict[int, list[bytes]] = {}

        def work(number: int) -> None:
            if number == 0:
                for value in numbered(total):
                    log.append(value)
                return
            consumer = log.consumer(f"c{number}")
            taken: list[bytes] = []
            while len(taken) < total:
                taken += values_of(consumer.read(37, timeout=120))
                consumer.commit()
            found[number] = taken

        run_threads(4, work)

        assert found == {number: numbered(total) for number in (1, 2, 3)}
        assert set(log.info().positions.values()) == {total}


def test_a_read_with_a_timeout_raises_empty_when_nothing_comes(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        consumer = log.consumer("c")
        start = time.monotonic()

        with pytest.raises(Empty, match=r"nothing new for 'c' in 0\.1 s"):
            consumer.read(timeout=0.1)

        assert 0.1 <= time.monotonic() - start < 60


def test_empty_is_the_empty_of_the_standard_library(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        consumer = log.consumer("c")

        with pytest.raises(queue.Empty):
            consumer.read(timeout=0)
        assert consumer.read() == []


@each_sync
def test_a_waiting_read_returns_when_a_record_comes(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, sync=sync) as log:
        consumer = log.consumer("c")
        timer = threading.Timer(0.1, log.append, [b"late"])
        timer.start()

        records = consumer.read(timeout=120)

        timer.join()
        assert values_of(records) == [b"late"]


def test_records_carry_offset_time_and_value(tmp_path: Path) -> None:
    before = time.time_ns() // 1_000_000
    with open_log(tmp_path) as log:
        log.append(b"a")
        record = log.consumer("c").read()[0]

    assert (record.offset, record.value) == (0, b"a")
    assert record.time_ms is not None
    assert before <= record.time_ms <= time.time_ns() // 1_000_000
    assert record.time is not None
    assert round(record.time.timestamp() * 1000) == record.time_ms


def test_a_consumer_tells_its_name_and_place(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_many(numbered(PER_SEGMENT))
        consumer = log.consumer("c")
        consumer.read(3)

        assert repr(consumer) == f"<Consumer 'c' at 3 of {tmp_path}/q>"
