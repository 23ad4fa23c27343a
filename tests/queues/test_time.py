"""Records by time, with a clock that tests set."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

import forebay
from forebay import Log
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import (
    SEGMENT_BYTES,
    SYNCS,
    FakeClock,
    flip,
    kill,
    numbered,
    segment_files,
)
from tests.support.inside import offset_of

START_MS = 1_800_000_000_000
DAY_MS = 86_400_000
each_sync = pytest.mark.parametrize("sync", SYNCS)


def at(ms: int) -> datetime:
    return datetime.fromtimestamp((START_MS + ms) / 1000, UTC)


def open_log(path: Path, clock: FakeClock, **options: Any) -> Log:
    defaults = {"segment_bytes": SEGMENT_BYTES, "background": False}
    return Log(path / "q", clock=clock, **{**defaults, **options})


def append_at(log: Log, clock: FakeClock, times: list[int]) -> None:
    """Appends a record at each time, in ms after the start; some alone, some as a batch."""
    for number, ms in enumerate(times):
        clock.ms = START_MS + ms
        value = numbered(1, first=number)[0]
        if number % 3:
            log.append(value)
        else:
            log.append_many([value])


def times_of(log: Log) -> list[int]:
    consumer = log.consumer("times")
    consumer.seek("earliest")
    return [(record.time_ms or 0) - START_MS for record in consumer]


@each_sync
def test_a_record_has_the_time_of_its_append(tmp_path: Path, sync: str) -> None:
    times = [0, 0, 5, 5, 1000, 3_600_000, 3_600_001]
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock, sync=sync) as log:
        append_at(log, clock, times)

        assert times_of(log) == times


@each_sync
def test_a_time_finds_the_first_record_that_is_not_older(tmp_path: Path, sync: str) -> None:
    draw = Random(3)
    times = sorted(draw.randrange(0, 60) for _ in range(70))
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock, sync=sync) as log:
        append_at(log, clock, times)

        found = [offset_of(log, at(ms)) for ms in range(-2, 63)]

        assert log.info().segments > 5
        assert found == [bisect_left(times, ms) for ms in range(-2, 63)]


def test_equal_times_over_several_segments_are_found_from_the_first(tmp_path: Path) -> None:
    times = [10] * 5 + [20] * 30 + [30] * 5
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock) as log:
        append_at(log, clock, times)

        assert [offset_of(log, at(ms)) for ms in (10, 11, 20, 21, 30, 31)] == [0, 5, 5, 35, 35, 40]


def test_a_time_before_the_first_or_behind_the_last_record_gives_the_ends(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock) as log:
        append_at(log, clock, [100] * 20)

        assert offset_of(log, at(-DAY_MS)) == 0
        assert offset_of(log, at(DAY_MS)) == 20


def test_any_time_in_an_empty_log_is_its_end(tmp_path: Path) -> None:
    with open_log(tmp_path, FakeClock(START_MS)) as log:
        assert offset_of(log, at(0)) == 0


def test_a_consumer_may_start_at_a_time_and_seek_to_one(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock) as log:
        append_at(log, clock, [number * 10 for number in range(40)])
        consumer = log.consumer("c", start=at(195))

        assert consumer.read(1)[0].offset == 20
        consumer.seek(at(30))
        assert consumer.read(1)[0].offset == 3
        assert log.info().positions == {"c": 20}


def test_trimmed_records_are_not_found_by_time(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock) as log:
        append_at(log, clock, [number * 10 for number in range(40)])
        log.consumer("c", start=20)
        log.trim()

        assert log.begin == 16
        assert offset_of(log, at(0)) == 16


@each_sync
def test_after_the_clock_was_set_back_times_stand_still_and_nothing_is_lost(
    tmp_path: Path, sync: str
) -> None:
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock, sync=sync) as log:
        append_at(log, clock, [0, DAY_MS, 5, 6, 7, DAY_MS - 1, DAY_MS + 1, 0] * 5)

        times = times_of(log)

        assert len(times) == 40
        assert times == sorted(times)
        assert times[:8] == [0] + [DAY_MS] * 5 + [DAY_MS + 1] * 2


@each_sync
def test_times_never_fall_over_a_reopen_with_the_clock_set_back(tmp_path: Path, sync: str) -> None:
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock, sync=sync) as log:
        append_at(log, clock, [DAY_MS, DAY_MS + 5])

    with open_log(tmp_path, clock, sync=sync) as log:
        append_at(log, clock, [0, 1, DAY_MS + 7])

        assert times_of(log) == [DAY_MS, DAY_MS + 5, DAY_MS + 5, DAY_MS + 5, DAY_MS + 7]


@each_sync
def test_time_still_finds_records_after_the_clock_went_back_and_forth(
    tmp_path: Path, sync: str
) -> None:
    draw = Random(9)
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock, sync=sync) as log:
        append_at(log, clock, [draw.randrange(3) * DAY_MS + draw.randrange(50) for _ in range(60)])
        times = times_of(log)

        wanted = [ms + step for ms in sorted(set(times)) for step in (-1, 0, 1)]

        assert times == sorted(times)
        assert [offset_of(log, at(ms)) for ms in wanted] == [
            bisect_left(times, ms) for ms in wanted
        ]


@each_sync
def test_a_leap_of_the_clock_beyond_what_a_segment_can_tell_begins_a_new_one(
    tmp_path: Path, sync: str
) -> None:
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock, sync=sync) as log:
        append_at(log, clock, [0, 1, 100 * DAY_MS, 100 * DAY_MS + 1])

        assert times_of(log) == [0, 1, 100 * DAY_MS, 100 * DAY_MS + 1]
        assert log.info().segments == 2


def test_a_reader_finds_times_in_segments_and_in_the_staging_buffer(tmp_path: Path) -> None:
    times = [number * 10 for number in range(30)]
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock, sync="os", segment_bytes=100_000) as log:
        append_at(log, clock, times[:20])
        log.sync()
        append_at_end = [(ms, value) for ms, value in zip(times[20:], numbered(10), strict=True)]
        for ms, value in append_at_end:
            clock.ms = START_MS + ms
            log.append(value)

        with forebay.read(tmp_path / "q", kind="log") as reader:
            assert (reader.written, reader.end) == (20, 30)
            wanted = range(-1, 300, 7)
            found = [reader.resolve(at(ms)) for ms in wanted]

    assert found == [bisect_left(times, ms) for ms in wanted]


def test_time_finds_records_in_the_segment_before_a_recovered_one() -> None:
    filesystem, clock = ForgetfulFilesystem(), FakeClock(START_MS)
    log = Log("/q", filesystem=filesystem, clock=clock, background=False, sync="os")
    append_at(log, clock, [0, 1000])
    log.sync()
    append_at(log, clock, [2000])
    filesystem = kill(log, filesystem)

    with Log("/q", filesystem=filesystem, clock=clock, background=False, sync="os") as log:
        assert log.end == 3
        assert offset_of(log, at(500)) == 1


def test_time_finds_records_before_a_segment_whose_header_is_lost(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    with open_log(tmp_path, clock) as log:
        append_at(log, clock, [number * 10 for number in range(100)])
    files = segment_files(tmp_path / "q")
    flip(files[len(files) // 2], 16, 18)

    with forebay.read(tmp_path / "q", salvage=True, kind="log") as reader:
        assert reader.resolve(at(55)) == 6
