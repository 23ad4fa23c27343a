"""Trimming: what all have read goes, by whole segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Log
from forebay.storage.cursors import Cursor
from forebay.storage.filesystem import DiskFilesystem
from tests.queues.helpers import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    SYNCS,
    FakeClock,
    numbered,
    segment_files,
    values_of,
    wait_until,
)
from tests.support.inside import offset_of

each_sync = pytest.mark.parametrize("sync", SYNCS)


def open_log(path: Path, segments: int = 5, **options: Any) -> Log:
    """Opens a log and fills whole segments."""
    defaults = {"segment_bytes": SEGMENT_BYTES, "background": False, "trim_interval_seconds": None}
    log = Log(path / "q", **{**defaults, **options})
    log.append_many(numbered(segments * PER_SEGMENT))
    return log


def bases_of(path: Path) -> list[int]:
    return [int(file.name, 16) for file in segment_files(path / "q")]


@each_sync
def test_segments_below_the_position_are_unlinked(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, sync=sync) as log:
        log.consumer("c", start=2 * PER_SEGMENT + 3)

        removed = log.trim()

        assert removed == 2 * PER_SEGMENT
        assert bases_of(tmp_path) == [16, 24, 32]
        assert (log.begin, log.end, len(log)) == (16, 40, 24)


@pytest.mark.parametrize(
    ("position", "begin"), [(7, 0), (8, 8), (9, 8), (15, 8), (16, 16), (31, 24), (32, 32)]
)
def test_a_segment_that_ends_at_the_position_goes_and_a_partial_one_stays(
    tmp_path: Path, position: int, begin: int
) -> None:
    with open_log(tmp_path) as log:
        log.consumer("c", start=position)

        assert log.trim() == begin
        assert log.begin == begin
        assert bases_of(tmp_path)[0] == begin


def test_without_a_consumer_nothing_is_trimmed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        assert log.trim() == 0
        assert log.begin == 0


def test_the_newest_segment_stays_even_when_all_is_read(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.consumer("c", start="latest")

        assert log.trim() == 4 * PER_SEGMENT
        assert bases_of(tmp_path) == [32]
        assert log.append(b"next") == 40


def test_the_slowest_consumer_decides(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.consumer("fast", start="latest")
        log.consumer("slow", start=PER_SEGMENT)

        assert log.trim() == PER_SEGMENT
        log.forget_consumer("slow")
        assert log.trim() == 3 * PER_SEGMENT


def test_reads_that_are_not_committed_hold_nothing_free(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        consumer = log.consumer("c")
        consumer.read()

        assert log.trim() == 0
        consumer.commit()
        assert log.trim() == 4 * PER_SEGMENT


def test_a_cursor_of_another_process_holds_its_segments(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.consumer("c", start="latest")
        directory = DiskFilesystem().open_directory(str(tmp_path / "q"))
        cursor = Cursor.open(directory, "spark", start=PER_SEGMENT, incarnation=1)

        first = log.trim()
        cursor.advance(3 * PER_SEGMENT, 1)
        second = log.trim()

        cursor.close()
        directory.close()
        assert (first, second) == (PER_SEGMENT, 2 * PER_SEGMENT)
        assert log.info().cursors["spark"]["offset"] == 24


def test_a_cursor_alone_is_a_reader_too(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        directory = DiskFilesystem().open_directory(str(tmp_path / "q"))
        Cursor.open(directory, "spark", start=20, incarnation=1).close()
        directory.close()

        assert log.trim() == 2 * PER_SEGMENT


@each_sync
def test_what_a_cursor_has_passed_but_a_power_cut_could_take_stays(
    tmp_path: Path, sync: str
) -> None:
    with open_log(tmp_path, sync=sync) as log:
        directory = DiskFilesystem().open_directory(str(tmp_path / "q"))
        Cursor.open(directory, "ahead", start=40, incarnation=1).close()
        directory.close()

        log.trim()

        assert log.begin <= log.durable
        log.sync()
        log.trim()
        assert log.begin == 32


@each_sync
def test_a_trimmed_log_reopens_where_it_was(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, sync=sync) as log:
        log.consumer("c", start=20)
        log.trim()

    with Log(tmp_path / "q", background=False) as log:
        assert (log.begin, log.end) == (16, 40)
        assert values_of(log.consumer("all").read()) == numbered(24, first=16)
        assert values_of(log.consumer("c").read()) == numbered(20, first=20)


def test_an_offset_below_the_begin_means_the_begin(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.consumer("c", start=20)
        log.trim()

        assert offset_of(log, 3) == 16
        with forebay.read(tmp_path / "q", kind="log") as reader:
            assert next(reader.records(3)).offset == 16


def test_a_consumer_that_sought_back_below_the_trim_is_told_once(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        consumer = log.consumer("c", start=20)
        consumer.seek(5)
        log.trim()

        with pytest.raises(forebay.Overtaken) as caught:
            consumer.read()

        assert caught.value.lost == 11
        assert consumer.read(1)[0].offset == 16


def test_maintain_trims_when_the_interval_has_passed(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_log(tmp_path, clock=clock, trim_interval_seconds=60.0) as log:
        log.consumer("c", start=20)
        begins = []
        for seconds in (0.0, 59.9, 60.0):
            clock.seconds = seconds
            log.maintain()
            begins.append(log.begin)

        assert begins == [0, 0, 16]


def test_maintain_trims_again_after_the_next_interval(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_log(tmp_path, clock=clock, trim_interval_seconds=10.0) as log:
        consumer = log.consumer("c")
        begins = []
        for turn in range(1, 5):
            consumer.read(PER_SEGMENT)
            consumer.commit()
            clock.seconds = 10.0 * turn
            log.maintain()
            begins.append(log.begin)

        assert begins == [8, 16, 24, 32]


def test_the_background_thread_trims_by_itself(tmp_path: Path) -> None:
    with open_log(tmp_path, background=True, trim_interval_seconds=0.05) as log:
        consumer = log.consumer("c")
        consumer.read()
        consumer.commit()

        assert wait_until(lambda: log.begin == 32)
        assert log.end == 40


def test_without_an_interval_only_a_call_trims(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_log(tmp_path, clock=clock) as log:
        log.consumer("c", start="latest")
        clock.seconds = 1e6
        log.maintain()

        assert log.begin == 0
        assert log.trim() == 32


def test_a_reader_that_meets_trimmed_segments_is_told_how_many_records_went(
    tmp_path: Path,
) -> None:
    with open_log(tmp_path) as log, forebay.read(tmp_path / "q", kind="log") as reader:
        log.consumer("c", start=20)
        log.trim()

        with pytest.raises(forebay.Overtaken) as caught:
            list(reader.values())

        assert caught.value.lost == 16
        reader.refresh()
        assert list(reader.values()) == numbered(24, first=16)
