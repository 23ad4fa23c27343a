"""Reading a log without owning it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import InvalidOption, Log, LogReader
from forebay.queues.shared.options import SyncPolicy
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    SYNCS,
    kill,
    numbered,
    run_python,
    snapshot,
)
from tests.sources import ROOT

each_sync = pytest.mark.parametrize("sync", SYNCS)
READ_ALL = """
import sys, forebay
with forebay.read(sys.argv[1]) as reader:
    for record in reader:
        print(record.offset, record.value.decode())
"""


@pytest.mark.slow
@each_sync
def test_another_process_sees_everything_acknowledged(tmp_path: Path, sync: SyncPolicy) -> None:
    values = numbered(20)
    options: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "background": False}
    with Log(tmp_path / "q", sync=sync, **options) as log:
        log.append_many(values[:10])
        for value in values[10:]:
            log.append(value)

        result = run_python(READ_ALL, tmp_path / "q")

    assert result.stderr == ""
    expected = [f"{offset} {value.decode()}" for offset, value in enumerate(values)]
    assert result.stdout.splitlines() == expected


@each_sync
def test_reading_writes_nothing(tmp_path: Path, sync: SyncPolicy) -> None:
    with Log(tmp_path / "q", sync=sync, segment_bytes=SEGMENT_BYTES, background=False) as log:
        for value in numbered(20):
            log.append(value)
        before = snapshot(tmp_path / "q")

        with forebay.read(tmp_path / "q") as reader:
            list(reader)

        assert snapshot(tmp_path / "q") == before


@each_sync
def test_refresh_shows_what_came_since(tmp_path: Path, sync: SyncPolicy) -> None:
    with Log(tmp_path / "q", sync=sync, segment_bytes=SEGMENT_BYTES, background=False) as log:
        log.append(numbered(1)[0])
        with forebay.read(tmp_path / "q", kind="log") as reader:
            ends = [reader.end]
            for value in numbered(19, first=1):
                log.append(value)
            ends.append(reader.end)
            reader.refresh()
            ends.append(reader.end)

            assert ends == [1, 1, 20]
            assert list(reader.values()) == numbered(20)


def test_a_reader_follows_records_from_staging_into_segments(tmp_path: Path) -> None:
    with Log(tmp_path / "q", sync="os", background=False) as log:
        log.append_many(numbered(3))
        for value in numbered(2, first=3):
            log.append(value)
        with forebay.read(tmp_path / "q", kind="log") as reader:
            before = (reader.written, reader.end, list(reader.values()))
            log.sync()
            reader.refresh()

            assert before == (3, 5, numbered(5))
            assert (reader.written, reader.end) == (5, 5)
            assert list(reader.values()) == numbered(5)


@pytest.mark.parametrize(("start", "end"), [(0, None), (3, 12), (8, 9), (15, 40), (19, 22), (0, 1)])
def test_a_range_of_offsets_is_read_from_segments_and_staging(
    tmp_path: Path, start: int, end: int | None
) -> None:
    with Log(tmp_path / "q", sync="os", segment_bytes=SEGMENT_BYTES, background=False) as log:
        log.append_many(numbered(18))
        for value in numbered(4, first=18):
            log.append(value)

        with forebay.read(tmp_path / "q", kind="log") as reader:
            records = list(reader.records(start, end))

    assert [record.offset for record in records] == list(range(22))[start:end]
    assert [record.value for record in records] == numbered(22)[start:end]


@pytest.mark.parametrize("start", ["newest", -1, True, None, 1.5])
def test_a_bad_start_is_named(tmp_path: Path, start: Any) -> None:
    Log(tmp_path / "q").close()
    with forebay.read(tmp_path / "q", kind="log") as reader, pytest.raises(InvalidOption) as caught:
        reader.resolve(start)

    assert f"start = {start!r}" in str(caught.value)


def test_a_reader_tells_the_places_of_consumers(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        log.append_many(numbered(9))
        log.consumer("a", start=4)
        log.consumer("b", start="latest")

        with forebay.read(tmp_path / "q", kind="log") as reader:
            assert reader.consumers() == {"a": 4, "b": 9}
            assert reader.cursors() == {}
            assert len(reader) == 9
            assert repr(reader) == f"<LogReader {tmp_path}/q 0..9>"


@each_sync
def test_a_reader_of_a_killed_log_sees_everything_acknowledged(sync: SyncPolicy) -> None:
    filesystem = ForgetfulFilesystem()
    options: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "staging_bytes": 4096}
    log = Log("/q", filesystem=filesystem, sync=sync, background=False, **options)
    log.append_many(numbered(PER_SEGMENT + 2))
    for value in numbered(5, first=PER_SEGMENT + 2):
        log.append(value)
    filesystem = kill(log, filesystem)
    before = filesystem.files()

    with LogReader("/q", filesystem=filesystem) as reader:
        assert list(reader.values()) == numbered(PER_SEGMENT + 7)

    assert filesystem.files() == before


def test_an_empty_log_reads_as_nothing(tmp_path: Path) -> None:
    Log(tmp_path / "q").close()

    with forebay.read(tmp_path / "q", kind="log") as reader:
        assert (reader.begin, reader.end, list(reader)) == (0, 0, [])


@pytest.mark.slow
@each_sync
def test_a_reader_beside_a_busy_writer_always_sees_a_whole_prefix(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    program = """
import sys
from forebay import Log
with Log(sys.argv[1], sync=sys.argv[2], segment_bytes=20_000, staging_bytes=4_096) as log:
    print("open", flush=True)
    for number in range(int(sys.argv[3])):
        log.append(b"%08d" % number + b"." * (number % 50))
"""
    count = 3_000 if sync == "always" else 60_000
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "q"), sync, str(count)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    last = 0
    with writer, forebay.read(tmp_path / "q", kind="log") as reader:
        while last < count:
            alive = writer.poll() is None
            reader.refresh()
            assert reader.end >= last
            numbers = [int(value[:8]) for value in reader.values(max(0, last - 50))]
            assert numbers == list(range(max(0, last - 50), reader.end))
            last = reader.end
            assert alive or last == count
