"""The three sync policies: what is durable when, and who sees what."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Log
from forebay.queues.shared.options import SyncPolicy
from forebay.storage.segments import SegmentWriter
from tests.queues.helpers import (
    FRAME_BYTES,
    HEADER_BYTES,
    PER_SEGMENT,
    SEGMENT_BYTES,
    SYNCS,
    FakeClock,
    numbered,
    values_of,
    wait_until,
)

each_sync = pytest.mark.parametrize("sync", SYNCS)
weak = pytest.mark.parametrize("sync", ["interval", "os"])


def open_log(path: Path, sync: SyncPolicy, **options: Any) -> Log:
    return Log(path / "q", sync=sync, **{"background": False, **options})


def contains(file: Path, value: bytes) -> bool:
    return value in file.read_bytes()


def test_always_syncs_once_for_each_append_of_a_lone_writer(tmp_path: Path) -> None:
    with open_log(tmp_path, "always") as log:
        marks = []
        for value in numbered(5):
            log.append(value)
            marks.append((log.info().syncs, log.durable))

        assert marks == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]


def test_always_syncs_once_for_a_batch(tmp_path: Path) -> None:
    with open_log(tmp_path, "always", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(numbered(5 * PER_SEGMENT))

        assert (log.info().syncs, log.durable) == (1, 40)


@weak
def test_weak_policies_do_not_sync_for_an_append(tmp_path: Path, sync: SyncPolicy) -> None:
    with open_log(tmp_path, sync) as log:
        log.append(b"a")
        log.append_many(numbered(5))

        assert (log.info().syncs, log.durable, log.end) == (0, 0, 6)


@each_sync
def test_sync_makes_everything_durable(tmp_path: Path, sync: SyncPolicy) -> None:
    with open_log(tmp_path, sync, segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(numbered(20))
        log.append(b"staged")

        log.sync()

        assert log.durable == log.end == 21


@each_sync
def test_sync_with_nothing_new_syncs_nothing(tmp_path: Path, sync: SyncPolicy) -> None:
    with open_log(tmp_path, sync) as log:
        log.append(b"a")
        log.sync()
        syncs = log.info().syncs

        log.sync()

        assert log.info().syncs == syncs


@each_sync
def test_close_makes_everything_durable_and_marks_the_log_as_clean(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    with open_log(tmp_path, sync) as log:
        for value in numbered(5):
            log.append(value)

    with forebay.read(tmp_path / "q", kind="log") as reader:
        assert reader.tail is not None
        assert reader.tail.clean
        assert (reader.durable, reader.written) == (5, 5)


def test_interval_syncs_when_maintained_after_the_interval(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_log(tmp_path, "interval", sync_interval_seconds=0.2, clock=clock) as log:
        log.append_many(numbered(5))
        marks = []
        for seconds in (0.0, 0.199, 0.2):
            clock.seconds = seconds
            log.maintain()
            marks.append(log.durable)

        assert marks == [0, 0, 5]


def test_interval_drains_then_syncs_a_staged_record(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_log(tmp_path, "interval", sync_interval_seconds=0.2, clock=clock) as log:
        log.append(b"staged")
        for seconds in (0.05, 0.25):
            clock.seconds = seconds
            log.maintain()

        assert log.durable == 1


def test_interval_syncs_in_the_background(tmp_path: Path) -> None:
    with open_log(tmp_path, "interval", sync_interval_seconds=0.02, background=True) as log:
        log.append_many(numbered(5))
        batch = wait_until(lambda: log.durable == 5)
        log.append(b"staged")
        single = wait_until(lambda: log.durable == 6)

        assert (batch, single) == (True, True)


def test_os_syncs_full_segments_when_maintained(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_log(tmp_path, "os", segment_bytes=SEGMENT_BYTES, clock=clock) as log:
        log.append_many(numbered(2 * PER_SEGMENT + 3))
        before = log.durable
        log.maintain()

        assert before == 0
        assert log.durable >= 2 * PER_SEGMENT


def test_os_syncs_full_segments_in_the_background(tmp_path: Path) -> None:
    with open_log(tmp_path, "os", segment_bytes=SEGMENT_BYTES, background=True) as log:
        log.append_many(numbered(2 * PER_SEGMENT + 3))

        assert wait_until(lambda: log.durable >= 2 * PER_SEGMENT)


@weak
def test_a_writer_that_outruns_the_disk_waits_for_it(tmp_path: Path, sync: SyncPolicy) -> None:
    with open_log(tmp_path, sync, segment_bytes=SEGMENT_BYTES) as log:
        for value in numbered(30 * PER_SEGMENT):
            log.append(value)

        assert log.end - log.durable <= 6 * PER_SEGMENT
        assert (log.info().syncs or 0) >= 5


@weak
def test_a_staged_record_reaches_its_segment_by_itself(tmp_path: Path, sync: SyncPolicy) -> None:
    with open_log(tmp_path, sync, background=True) as log:
        log.append(b"into the file")
        segment = tmp_path / "q" / "0000000000"

        assert wait_until(lambda: b"into the file" in segment.read_bytes())


@pytest.mark.slow
@weak
def test_every_staged_record_reaches_its_segment_by_itself(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    segment = tmp_path / "q" / "0000000000"
    drained = []
    with open_log(tmp_path, sync, background=True) as log:
        for value in numbered(5):
            log.append(value)
            arrived = partial(contains, segment, value)
            drained.append(wait_until(arrived))

    assert drained == [True] * 5


@weak
def test_a_staged_record_is_seen_at_once_by_consumers_and_readers(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    with open_log(tmp_path, sync) as log:
        log.append(b"staged")

        with forebay.read(tmp_path / "q", kind="log") as reader:
            assert list(reader.values()) == [b"staged"]
        assert values_of(log.consumer("c").read()) == [b"staged"]


class SyncedRecords:
    """Counts the records of one size that were in a segment when a sync of it began, and ended."""

    def __init__(self, patch: pytest.MonkeyPatch, size: int) -> None:
        self._frame_bytes = FRAME_BYTES + size
        self._ends: dict[str, int] = {}
        sync = SegmentWriter.sync

        def sync_and_note(segment: SegmentWriter) -> None:
            end = segment.end
            sync(segment)
            self._ends[segment.name] = max(end, self._ends.get(segment.name, 0))

        patch.setattr(SegmentWriter, "sync", sync_and_note)

    def __len__(self) -> int:
        return sum((end - HEADER_BYTES) // self._frame_bytes for end in list(self._ends.values()))


@pytest.mark.slow
def test_under_always_nobody_sees_what_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    seen: list[tuple[int, int]] = []
    synced = SyncedRecords(monkeypatch, 50)
    with open_log(tmp_path, "always", segment_bytes=20_000) as log:

        def write() -> None:
            while not stop.is_set():
                log.append(b"x" * 50)

        writers = [threading.Thread(target=write, daemon=True) for _ in range(4)]
        for writer in writers:
            writer.start()
        consumer = log.consumer("c")
        # Else all looks may be over before the first record is there.
        assert wait_until(lambda: log.durable > 0)
        with forebay.read(tmp_path / "q", kind="log") as reader:
            while len(seen) < 300:
                reader.refresh()
                consumer.read(10_000)
                # Counted last: the count only rises, so what was seen must lie below it.
                seen.append((max(reader.end, consumer.position), len(synced)))
        stop.set()
        for writer in writers:
            writer.join()

    assert max(position for position, _ in seen) > 0
    assert [pair for pair in seen if pair[0] > pair[1]] == []
