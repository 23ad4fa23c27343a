"""`max_bytes`: waiting, refusing, dropping the oldest."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Closed, Full, Log, Overtaken
from forebay.storage.cursors import Cursor
from forebay.storage.filesystem import DiskFilesystem
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    SYNCS,
    kill,
    numbered,
    run_threads,
    segment_files,
    values_of,
    wait_until,
)
from tests.support.clocks import SteppingClock
from tests.support.inside import drop

MAX_BYTES = 4 * SEGMENT_BYTES
each_sync = pytest.mark.parametrize("sync", SYNCS)
each_policy = pytest.mark.parametrize("when_full", ["block", "reject", "drop_oldest"])


def open_log(path: Path, when_full: str, **options: Any) -> Log:
    defaults = {
        "segment_bytes": SEGMENT_BYTES,
        "max_bytes": MAX_BYTES,
        "when_full": when_full,
        "trim_interval_seconds": None,
    }
    return Log(path / "q", **{**defaults, **options})


def fill(log: Log) -> int:
    """Appends until the log refuses; gives how many records it took."""
    count = 0
    while True:
        try:
            log.append(numbered(1, first=count)[0])
        except Full:
            return count
        count += 1


def bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in segment_files(path / "q"))


@each_sync
def test_reject_raises_full_and_writes_nothing(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, "reject", sync=sync) as log:
        count = fill(log)

        with pytest.raises(queue.Full):
            log.append_many(numbered(1))
        with pytest.raises(Full, match=f"max_bytes = {MAX_BYTES}"):
            log.append(numbered(1)[0])

        assert log.end == count
        assert log.info().bytes <= MAX_BYTES

    assert count > 3 * PER_SEGMENT
    with forebay.read(tmp_path / "q", kind="log") as reader:
        assert list(reader.values()) == numbered(count)


@each_sync
def test_a_rejecting_log_goes_on_after_a_trim(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, "reject", sync=sync) as log:
        consumer = log.consumer("c")
        count = fill(log)
        consumer.read(2 * PER_SEGMENT)
        consumer.commit()
        log.trim()

        assert log.append(numbered(1, first=count)[0]) == count
        consumer.seek("earliest")
        assert values_of(consumer.read()) == numbered(count + 1)[2 * PER_SEGMENT :]


def test_a_full_log_trims_by_itself_before_it_refuses(tmp_path: Path) -> None:
    with open_log(tmp_path, "reject", background=False) as log:
        consumer = log.consumer("c")
        count = fill(log)
        consumer.read(PER_SEGMENT)
        consumer.commit()

        assert log.append(numbered(1, first=count)[0]) == count
        assert log.begin == PER_SEGMENT


@each_policy
def test_a_batch_larger_than_the_bound_is_refused_whatever_the_policy(
    tmp_path: Path, when_full: str
) -> None:
    with open_log(tmp_path, when_full) as log:
        with pytest.raises(Full, match="nothing was written"):
            log.append_many(numbered(100))

        assert log.end == 0


@each_sync
def test_a_blocked_append_goes_on_when_another_thread_commits_and_trims(
    tmp_path: Path, sync: str
) -> None:
    total = 100
    taken: list[bytes] = []
    with open_log(tmp_path, "block", sync=sync) as log:
        consumer = log.consumer("c")
        writer = threading.Thread(
            target=lambda: [log.append(value) for value in numbered(total)], daemon=True
        )
        writer.start()
        while len(taken) < total:
            taken += values_of(consumer.read(20, timeout=120))
            consumer.commit()
            log.trim()
        writer.join(120)

        assert not writer.is_alive()
        assert taken == numbered(total)
        assert log.info().bytes <= MAX_BYTES


def test_a_blocked_append_waits_as_long_as_nobody_commits(tmp_path: Path) -> None:
    with open_log(tmp_path, "block") as log:
        consumer = log.consumer("c")
        log.append_many(numbered(4 * PER_SEGMENT - 2))
        blocked = threading.Thread(target=log.append_many, args=(numbered(6),), daemon=True)
        blocked.start()
        blocked.join(0.3)
        waited = blocked.is_alive()

        consumer.read(3 * PER_SEGMENT)
        consumer.commit()
        blocked.join(120)

        assert waited
        assert not blocked.is_alive()
        assert log.end == 4 * PER_SEGMENT + 4


@pytest.fixture
def full_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """A log without room, in which nobody looks at cursors without having been told."""
    monkeypatch.setattr("forebay.queues.log.queue._CURSORS_SECONDS", 3_600.0)
    with open_log(tmp_path, "reject") as log:
        fill(log)
    with open_log(tmp_path, "block") as log:
        yield log


@contextlib.contextmanager
def cursor_of(log: Log) -> Iterator[Cursor]:
    directory = DiskFilesystem().open_directory(log.path)
    with (
        contextlib.closing(directory),
        contextlib.closing(Cursor.open(directory, "spark", start=0, incarnation=1)) as cursor,
    ):
        yield cursor


def start_blocked(log: Log) -> threading.Thread:
    thread = threading.Thread(target=lambda: log.append(b"x" * 100, timeout=60))
    thread.start()
    wait_until(lambda: log.changes.is_watched)
    time.sleep(0.05)
    return thread


def test_a_blocked_append_goes_on_when_a_cursor_of_another_process_moves(full_log: Log) -> None:
    with cursor_of(full_log) as cursor:
        thread = start_blocked(full_log)

        cursor.advance(3 * PER_SEGMENT, 1)

        thread.join(30)
        assert not thread.is_alive()


def test_a_blocked_append_is_told_of_a_cursor_that_is_new(full_log: Log) -> None:
    thread = start_blocked(full_log)

    with cursor_of(full_log) as cursor:
        cursor.advance(3 * PER_SEGMENT, 1)

        thread.join(30)
        assert not thread.is_alive()


@each_sync
def test_an_append_waits_for_room_no_longer_than_its_timeout(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, "block", sync=sync) as log:
        log.append_many(numbered(4 * PER_SEGMENT - 2))
        end = log.end

        with pytest.raises(Full, match="no room for"):
            log.append_many(numbered(8), timeout=0.01)
        with pytest.raises(Full, match="no room for"):
            log.append(bytes(SEGMENT_BYTES // 2), timeout=timedelta(seconds=0))

        assert log.end == end


@pytest.mark.slow
def test_closing_ends_a_blocked_append(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    log = open_log(tmp_path, "block")
    log.append_many(numbered(4 * PER_SEGMENT - 2))

    def work() -> None:
        try:
            log.append_many(numbered(8))
        except Closed as error:
            errors.append(error)

    blocked = threading.Thread(target=work, daemon=True)
    blocked.start()
    assert wait_until(lambda: log.changes.is_watched)
    log.close()
    blocked.join(120)

    assert not blocked.is_alive()
    assert len(errors) == 1


@each_sync
def test_drop_oldest_drops_whole_segments_and_counts_the_records(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, "drop_oldest", sync=sync, background=False) as log:
        for value in numbered(100):
            log.append(value)
        info = log.info()

        assert info.end == 100
        assert info.begin % PER_SEGMENT == 0
        assert info.dropped == info.begin > 0
        assert info.bytes <= MAX_BYTES
        begin = info.begin
        assert values_of(log.consumer("c").read()) == numbered(100)[begin:]


def test_drop_oldest_takes_read_segments_without_counting_them(tmp_path: Path) -> None:
    with open_log(tmp_path, "drop_oldest", background=False) as log:
        consumer = log.consumer("c")
        for value in numbered(100):
            log.append(value)
            consumer.read()
            consumer.commit()

        assert log.begin > 0
        assert log.info().dropped == 0


@each_sync
def test_a_consumer_is_told_once_how_many_records_it_lost_and_goes_on(
    tmp_path: Path, sync: str
) -> None:
    with open_log(tmp_path, "drop_oldest", sync=sync, background=False) as log:
        consumer = log.consumer("c")
        log.append_many(numbered(5))
        consumer.read(5)
        for value in numbered(95, first=5):
            log.append(value)
        begin = log.begin

        with pytest.raises(Overtaken) as caught:
            consumer.read()

        assert caught.value.lost == begin - 5
        assert "consumer 'c'" in str(caught.value)
        assert values_of(consumer.read()) == numbered(100)[begin:]
        consumer.commit()
        assert log.info().positions == {"c": 100}


def test_a_consumer_that_kept_up_is_not_told(tmp_path: Path) -> None:
    with open_log(tmp_path, "drop_oldest", background=False) as log:
        log.consumer("slow")
        fast = log.consumer("fast")
        seen = []
        for value in numbered(100):
            log.append(value)
            seen += values_of(fast.read())

        assert seen == numbered(100)
        with pytest.raises(Overtaken):
            log.consumer("slow").read()


@each_policy
def test_the_bound_holds_after_a_reopen(tmp_path: Path, when_full: str) -> None:
    with open_log(tmp_path, "reject") as log:
        count = fill(log)

    with open_log(tmp_path, when_full) as log:
        log.consumer("c", start="latest")
        assert log.append(b"more") == count
        assert log.info().bytes <= MAX_BYTES


def test_a_batch_behind_staged_records_keeps_the_bound(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": 10_000, "max_bytes": 20_000, "background": False}
    with open_log(tmp_path, "reject", sync="os", **options) as log:
        for value in numbered(80):
            log.append(value)
        with pytest.raises(Full):
            log.append_many(numbered(100))

        assert log.info().bytes <= 20_000


def test_a_batch_of_records_that_fill_segments_badly_keeps_the_bound(tmp_path: Path) -> None:
    with open_log(tmp_path, "reject", max_bytes=20_000, background=False) as log:
        with pytest.raises(Full):
            log.append_many(numbered(35, size=530))

        assert log.info().bytes <= 20_000


@pytest.mark.parametrize("when_full", ["block", "reject"])
@each_sync
def test_a_batch_below_the_bound_fits_once_all_is_read(
    tmp_path: Path, sync: str, when_full: str
) -> None:
    options: dict[str, Any] = {"sync": sync, "max_bytes": 2 * SEGMENT_BYTES, "background": False}
    with open_log(tmp_path, when_full, **options) as log:
        log.append_many(numbered(PER_SEGMENT))
        log.consumer("c", start="latest")
        log.trim()

        assert log.append_many(numbered(10)) == PER_SEGMENT
        assert log.info().bytes <= 2 * SEGMENT_BYTES
        assert values_of(log.consumer("c").read()) == numbered(10)

    with open_log(tmp_path, when_full, **options) as log:
        assert (log.begin, log.end) == (PER_SEGMENT, PER_SEGMENT + 10)


@pytest.mark.slow
@each_sync
def test_a_log_that_gave_up_its_last_segment_survives_a_power_cut(sync: str) -> None:
    options: dict[str, Any] = {
        "segment_bytes": SEGMENT_BYTES,
        "max_bytes": 2 * SEGMENT_BYTES,
        "when_full": "reject",
        "sync": sync,
        "background": False,
        "clock": SteppingClock(),
    }
    filesystem = ForgetfulFilesystem()
    log = Log("/q", filesystem=filesystem, **options)
    log.append_many(numbered(PER_SEGMENT))
    log.consumer("c", start="latest")
    start = filesystem.operations
    log.append_many(numbered(10))
    begin = log.begin
    drop(log)

    assert begin == PER_SEGMENT
    for state in filesystem.crash_states(3, 1, points=lambda point: point > start, limit=200):
        with Log("/q", filesystem=state.restore(), **options) as log:
            assert log.begin in (0, begin)
            assert sync != "always" or log.end >= begin
            assert log.info().losses == 0


def test_records_left_by_dropping_survive_a_kill() -> None:
    options: dict[str, Any] = {
        "segment_bytes": SEGMENT_BYTES,
        "max_bytes": 2 * SEGMENT_BYTES,
        "when_full": "drop_oldest",
        "sync": "os",
        "background": False,
    }
    filesystem = ForgetfulFilesystem()
    log = Log("/q", filesystem=filesystem, clock=SteppingClock(), **options)
    for value in numbered(30):
        log.append(value)
    begin = log.begin
    filesystem = kill(log, filesystem)

    with Log("/q", filesystem=filesystem, clock=SteppingClock(), **options) as log:
        assert (log.begin, log.end) == (begin, 30)


@pytest.mark.slow
def test_every_record_is_read_or_counted_as_lost_while_a_writer_drops(tmp_path: Path) -> None:
    unseen: list[int] = []
    stop = threading.Event()
    with open_log(tmp_path, "drop_oldest", sync="os", max_bytes=3 * SEGMENT_BYTES) as log:

        def consume(number: int) -> None:
            consumer = log.consumer(f"c{number}")
            # The writer may have dropped records before this thread's consumer was there.
            known = consumer.position
            while not stop.is_set():
                try:
                    known += len(consumer.read(5))
                except Overtaken as error:
                    known += error.lost
            unseen.append(consumer.position - known)

        def work(number: int) -> None:
            if number:
                consume(number)
                return
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                log.append(numbered(1)[0])
            stop.set()

        run_threads(5, work)

    assert unseen == [0] * 4
