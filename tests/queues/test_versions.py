"""Logs of version 1, and logs of several versions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import InvalidOption, Log, RecordTooLarge
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import SEGMENT_BYTES, SYNCS, kill, numbered, segment_files, values_of
from tests.support.inside import offset_of

each_sync = pytest.mark.parametrize("sync", SYNCS)


def versions_of(path: Path) -> list[int]:
    return [int.from_bytes(file.read_bytes()[4:6], "big") for file in segment_files(path)]


def open_log(path: Path, **options: Any) -> Log:
    return Log(path / "q", **{"segment_bytes": SEGMENT_BYTES, **options})


@each_sync
def test_a_log_of_version_1_keeps_records_and_places(tmp_path: Path, sync: str) -> None:
    values = numbered(40)
    with open_log(tmp_path, version=1, sync=sync) as log:
        log.append_many(values[:25])
        for value in values[25:]:
            log.append(value)
        consumer = log.consumer("c")
        assert values_of(consumer.read(30)) == values[:30]
        consumer.commit()

    with open_log(tmp_path, sync=sync) as log:
        assert values_of(log.consumer("c").read()) == values[30:]
    assert set(versions_of(tmp_path / "q")) == {1}


def test_segments_of_version_1_have_the_bytes_of_the_format(tmp_path: Path) -> None:
    with open_log(tmp_path, version=1) as log:
        log.append_many([b"one", b"three"])

    header = b"FFLG\0\1" + bytes(8)
    expected = header + b"\0\0\0\3one" + b"\0\0\0\5three"
    assert (tmp_path / "q" / "0000000000").read_bytes() == expected


def test_records_of_version_1_have_no_time(tmp_path: Path) -> None:
    with open_log(tmp_path, version=1) as log:
        log.append(b"a")
        record = log.consumer("c").read()[0]

        assert (record.time_ms, record.time) == (None, None)
        with pytest.raises(InvalidOption, match="version 1, which has no times"):
            offset_of(log, datetime.now(UTC))


@each_sync
def test_an_empty_record_is_refused_in_version_1(tmp_path: Path, sync: str) -> None:
    with open_log(tmp_path, version=1, sync=sync) as log:
        with pytest.raises(InvalidOption, match="empty record cannot be stored in version 1"):
            log.append(b"")
        with pytest.raises(InvalidOption, match="use version 2"):
            log.append_many([b"a", b""])

        assert log.end == 0
        assert log.append(b"a") == 0


def test_the_largest_record_of_version_1_is_larger(tmp_path: Path) -> None:
    largest = SEGMENT_BYTES - 14 - 4
    with open_log(tmp_path, version=1) as log:
        log.append(b"x" * largest)
        with pytest.raises(RecordTooLarge, match=f"at most {largest}"):
            log.append(b"x" * (largest + 1))

    assert segment_files(tmp_path / "q")[0].stat().st_size == SEGMENT_BYTES


@pytest.mark.parametrize("version", [1, 2])
def test_without_a_version_the_one_that_is_there_goes_on(tmp_path: Path, version: int) -> None:
    for options in ({"version": version}, {}, {"version": None}):
        with open_log(tmp_path, **options) as log:
            log.append_many(numbered(3))

    assert versions_of(tmp_path / "q") == [version] * 3


def test_a_new_log_is_of_version_2(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"a")

    assert versions_of(tmp_path / "q") == [2]


def test_a_log_may_change_its_version_and_is_read_as_one(tmp_path: Path) -> None:
    for number, version in enumerate([1, 2, 1, 2]):
        with open_log(tmp_path, version=version) as log:
            assert log.append_many(numbered(20, first=20 * number)) == 20 * number

    with open_log(tmp_path) as log:
        records = log.consumer("c").read()
        assert values_of(records) == numbered(80)
        assert [record.time_ms is None for record in records] == (
            [True] * 20 + [False] * 20 + [True] * 20 + [False] * 20
        )
    assert set(versions_of(tmp_path / "q")) == {1, 2}


def test_a_mixed_log_is_trimmed_like_any_other(tmp_path: Path) -> None:
    for number, version in enumerate([1, 2, 1]):
        with open_log(tmp_path, version=version) as log:
            log.append_many(numbered(20, first=20 * number))

    with open_log(tmp_path) as log:
        log.consumer("c", start=40)
        log.trim()

        assert log.begin == 40
        assert values_of(log.consumer("d").read()) == numbered(20, first=40)


@each_sync
def test_a_killed_log_of_version_1_keeps_everything_acknowledged(sync: str) -> None:
    filesystem = ForgetfulFilesystem()
    options: dict[str, Any] = {"sync": sync, "version": 1, "background": False}
    log = Log("/q", filesystem=filesystem, segment_bytes=SEGMENT_BYTES, **options)
    for value in numbered(30):
        log.append(value)
    filesystem = kill(log, filesystem)

    with Log("/q", filesystem=filesystem, segment_bytes=SEGMENT_BYTES, **options) as log:
        assert values_of(log.consumer("c").read()) == numbered(30)
        assert log.append(b"next") == 30


def test_segments_with_names_of_16_digits_are_read_and_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.mkdir(mode=0o700)
    for base in (0, 2):
        header = b"FFLG\0\1" + base.to_bytes(8, "big")
        records = b"".join(b"\0\0\0\1%d" % (base + number) for number in range(2))
        (path / f"{base:016x}").write_bytes(header + records)

    with Log(path) as log:
        assert values_of(log.consumer("c").read()) == [b"0", b"1", b"2", b"3"]
        assert log.append(b"4") == 4
    with forebay.read(path, kind="log") as reader:
        assert list(reader.values()) == [b"0", b"1", b"2", b"3", b"4"]
