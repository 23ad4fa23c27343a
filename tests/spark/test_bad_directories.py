"""One bad directory among many: PERMISSIVE reads the others, and the table of damage names it.

Without Spark: the readers are plain Python.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import ForebayError
from forebay.formats.fflg import segment_name
from forebay.queues.fifo.queue import Fifo
from forebay.storage.filesystem import DiskDirectory, DiskFile, DiskFilesystem
from tests.counting import Count
from tests.queues.beats_helpers import numbered as events
from tests.queues.beats_helpers import open_queue
from tests.queues.helpers import SEGMENT_BYTES
from tests.spark.readers import batch_reader, read, rows_of, stream_reader
from tests.support.inside import look_again
from tests.support.values import numbered

COUNT = 40


def make_log(path: Path) -> None:
    with forebay.Log(path, segment_bytes=SEGMENT_BYTES, background=False) as log:
        log.append_many(numbered(COUNT))


def make_events(path: Path) -> None:
    with open_queue(path, "v2") as queue:
        queue.put_many(events(COUNT))
        queue.read(3).ack()


def make_fifo(path: Path) -> None:
    with Fifo(path, file_bytes=1000, background=False) as fifo:
        fifo.push_many(numbered(COUNT))


def make_deadlines(path: Path) -> None:
    with forebay.DeadlineQueue(path, background=False) as queue:
        queue.enqueue_many(numbered(COUNT), delay=0)


MAKERS = {"log": make_log, "beats": make_events, "fifo": make_fifo, "deadline": make_deadlines}


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def by_a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def by_a_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/nowhere")


def by_nothing(file: Path) -> None:
    file.unlink()


def by_an_empty_file(file: Path) -> None:
    file.write_bytes(b"")


def by_zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def by_other_bytes(file: Path) -> None:
    file.write_bytes(bytes(byte ^ 0xFF for byte in file.read_bytes()))


def with_its_first_bit_flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[0] ^= 1
    file.write_bytes(data)


HARMS: dict[str, Callable[[Path], None]] = {
    harm.__name__.replace("_", " "): harm
    for harm in (
        by_a_directory,
        by_a_link,
        by_nothing,
        by_an_empty_file,
        by_zeros,
        by_other_bytes,
        with_its_first_bit_flipped,
    )
}


def check_all_but(root: Path, bad: str) -> None:
    """Reads everything in every way; what is not of the bad queue must be there."""
    # The key of the events lies beside them.
    good = sorted(str(path) for path in root.iterdir() if path.is_dir() and path.name != bad)
    rows = read(f"{root}/*", mode="PERMISSIVE", columns="queue,offset,value,damage")
    for path in good:
        found = [row for row in rows if row["queue"] == path]
        assert len(found) == COUNT
        assert all(row["damage"] is None for row in found)
    assert len(read(f"{root}/*", mode="DROPMALFORMED")) <= len(rows)
    segments = read(f"{root}/*", mode="PERMISSIVE", table="segments")
    assert {row["queue"] for row in segments} >= set(good)
    read(f"{root}/*", mode="PERMISSIVE", table="consumers")
    told = read(f"{root}/*", table="damage")
    assert {row["queue"] for row in told} <= {str(root / bad)}


def harm_each_file(tmp_path: Path, kind: str, harms: Callable[[int], list[str]]) -> int:
    """Harms every file of a queue in turn, and reads it beside good ones; returns how often."""
    for other, make in MAKERS.items():
        make(tmp_path / "root" / f"good {other}")
    bad = tmp_path / "root" / "bad"
    MAKERS[kind](bad)
    names = [file.relative_to(bad) for file in files_of(bad)]
    shutil.rmtree(bad)
    count = 0
    for number, name in enumerate(names):
        for harm in harms(number):
            MAKERS[kind](bad)
            HARMS[harm](bad / name)
            check_all_but(tmp_path / "root", "bad")
            shutil.rmtree(bad)
            count += 1
    return count


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_no_file_of_one_queue_ends_a_query_over_many(kind: str, tmp_path: Path) -> None:
    def one(number: int) -> list[str]:
        return [[*HARMS][number % len(HARMS)]]

    assert harm_each_file(tmp_path, kind, one)


@pytest.mark.full
@pytest.mark.parametrize("kind", MAKERS)
def test_no_harm_to_any_file_ends_a_query_over_many(
    kind: str, tmp_path: Path, record_property: Count
) -> None:
    count = harm_each_file(tmp_path, kind, lambda _: [*HARMS])

    assert count
    record_property(f"harmed files of a {kind} beside others in Spark", count)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for kind, make in MAKERS.items():
        make(tmp_path / kind)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_directory_that_cannot_be_opened_is_a_row_of_damage(
    kind: str, code: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = DiskFilesystem.open_directory

    def open_directory(self: DiskFilesystem, path: str, **options: Any) -> DiskDirectory:
        if path == str(root / kind):
            raise OSError(code, os.strerror(code), path)
        return opened(self, path, **options)

    monkeypatch.setattr(DiskFilesystem, "open_directory", open_directory)

    check_all_but(root, kind)
    (row,) = read(f"{root}/*", table="damage")
    (among,) = [
        row
        for row in read(f"{root}/*", mode="PERMISSIVE", columns="queue,damage")
        if row["damage"] is not None
    ]
    assert (row["queue"], row["count"]) == (str(root / kind), None)
    assert os.strerror(code) in row["reason"]
    assert (among["queue"], among["damage"]["reason"]) == (row["queue"], row["reason"])
    with pytest.raises(OSError, match=os.strerror(code)):
        read(f"{root}/*")


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_a_sector_that_cannot_be_read_costs_the_others_nothing(
    kind: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DiskFile.pread
    bad = {(file.stat().st_dev, file.stat().st_ino) for file in files_of(root / kind)}

    def pread(self: DiskFile, size: int, position: int) -> bytes:
        status = os.fstat(self._descriptor)
        if (status.st_dev, status.st_ino) in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, size, position)

    monkeypatch.setattr(DiskFile, "pread", pread)

    check_all_but(root, kind)
    assert read(f"{root}/*", table="damage")


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_a_directory_that_vanishes_after_planning_is_a_row_of_damage(kind: str, root: Path) -> None:
    reader = batch_reader(f"{root}/*", mode="PERMISSIVE", columns="queue,offset,damage")
    partitions = reader.partitions()
    small = batch_reader(f"{root}/*", mode="PERMISSIVE", table="segments")
    tasks = small.partitions()

    shutil.rmtree(root / kind)
    rows = rows_of(reader, partitions)
    segments = rows_of(small, tasks)

    good = [row for row in rows if row["damage"] is None]
    assert len(good) == COUNT * (len(MAKERS) - 1)
    assert {row["queue"] for row in rows if row["damage"] is not None} == {str(root / kind)}
    assert {row["queue"] for row in segments} == {str(root / one) for one in MAKERS if one != kind}


def test_a_stream_goes_on_beside_a_queue_that_it_cannot_open_and_reads_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_log(tmp_path / "good")
    options = {"startingOffsets": "earliest", "columns": "queue,offset"}
    strict = stream_reader(f"{tmp_path}/*", **options)
    reader = stream_reader(f"{tmp_path}/*", mode="PERMISSIVE", **options)
    before = reader.initialOffset()
    assert strict.initialOffset() == before
    make_log(tmp_path / "bad")
    opened = DiskFilesystem.open_directory
    locked = True

    def open_directory(self: DiskFilesystem, path: str, **options: Any) -> DiskDirectory:
        if locked and path == str(tmp_path / "bad"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(self, path, **options)

    def step(before: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        look_again(reader)
        after = reader.latestOffset(before, reader.getDefaultReadLimit())
        rows = rows_of(reader, reader.partitions(before, after))
        return after, [Path(row["queue"]).name for row in rows]

    monkeypatch.setattr(DiskFilesystem, "open_directory", open_directory)
    look_again(strict)
    with pytest.raises(PermissionError):
        strict.latestOffset(before, strict.getDefaultReadLimit())
    first, names = step(before)
    locked = False
    second, more = step(first)
    locked = True
    with forebay.Log(tmp_path / "good", background=False) as log:
        log.append(b"more")
    third, rest = step(second)
    locked = False
    _, nothing = step(third)

    assert names == ["good"] * COUNT
    assert more == ["bad"] * COUNT
    assert rest == ["good"]
    assert nothing == []
    for one in (strict, reader):
        one.stop()


def test_a_directory_in_the_place_of_a_segment_costs_that_segment(tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    by_a_directory(tmp_path / "log" / segment_name(8))

    rows = read(tmp_path / "log", mode="PERMISSIVE", columns="offset,damage")
    told = read(tmp_path / "log", table="damage")

    assert [row["offset"] for row in rows if row["damage"] is None] == [*range(8), *range(16, 40)]
    assert [(row["offset"], row["count"]) for row in told] == [(8, 8)]
    with pytest.raises((ForebayError, OSError)):
        read(tmp_path / "log")
