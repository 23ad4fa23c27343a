"""Hunts for what an archiver must never do; each raises `Broken` if it does.

`cut_everywhere` is the widest: it interrupts a run at every change that it makes at the target, and
at every move of its cursor, and looks after each at the host, which has trimmed meanwhile, and at
the target.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Damaged, ForebayError, Log
from forebay.queues.archive.archiver import Archiver
from forebay.storage import objects
from forebay.storage.cursors import Cursor
from forebay.storage.filesystem import DiskDirectory, DiskFilesystem, write_all
from forebay.storage.tail import TailFile
from tests.archive.helpers import (
    HOST,
    SEGMENT_BYTES,
    append,
    archived_records,
    check_both,
    check_target,
    host_records,
    manifest_of,
    value_of,
)
from tests.support.planting import Broken

# More changes than a run makes.
CUTS_MAX = 200


class Cut(BaseException):
    """A run ends here, as if it had been killed."""


def open_log(path: Path, **options: Any) -> Log:
    return Log(path, segment_bytes=SEGMENT_BYTES, background=False, **options)


def cut_everywhere(place: Path) -> int:
    """Interrupts runs, each one change later than the one before; returns how many."""
    for cut in range(CUTS_MAX):
        here = place / str(cut)
        if not _cut_at(here, cut):
            return cut
    raise Broken("a run never ends")


def _cut_at(place: Path, cut: int) -> bool:
    """Interrupts a run at a change; says whether it came so far."""
    path, address, target = place / "q", place / "archive", place / "archive" / HOST / "q"
    with open_log(path) as log:
        append(log, 60)
        consumer = log.consumer("c")
        consumer.read(1_000)
        consumer.commit()
        with Archiver(path, address, host=HOST, trim=True, keep_bytes=1_500) as archiver:
            archiver.run()
        reached, gone = log.begin, _forgotten(target)
        append(log, 60)
        consumer.read(1_000)
        consumer.commit()
        ended = True
        with Archiver(path, address, host=HOST, trim=True, keep_bytes=1_500) as archiver:
            with pytest.MonkeyPatch.context() as patch:
                _interrupt(patch, cut)
                try:
                    archiver.run()
                except Cut:
                    ended = False
            log.trim()
            _check(path, target, max(reached, gone))
            archiver.run()
        log.trim()
        _check(path, target, max(reached, gone))
    return not ended


def _forgotten(target: Path) -> int:
    manifest = manifest_of(target)
    return 0 if manifest is None else manifest.begin


def _check(path: Path, target: Path, kept: int) -> None:
    """Looks at both; what retention has forgotten may be gone."""
    check_target(target)
    there = [*host_records(path).items(), *read(target)]
    first = max(kept, _forgotten(target))
    lost = set(range(first, max(offset for offset, _ in there))) - {o for o, _ in there}
    if lost:
        raise Broken(f"{len(lost)} records are neither here nor there, the first is {min(lost)}")
    wrong = [offset for offset, value in there if value != value_of(offset)]
    if wrong:
        raise Broken(f"offset {wrong[0]} has another value")


def read(target: Path) -> list[tuple[int, bytes]]:
    """Reads an archive; damage breaks a promise."""
    try:
        return archived_records(target)
    except ForebayError as error:
        raise Broken(str(error)) from None


def _interrupt(patch: pytest.MonkeyPatch, cut: int) -> None:
    """Raises `Cut` at the change of that number, before it, and in the middle of a write."""
    left = [cut]

    def counted(change: Callable[..., Any], *, torn: bool = False) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                if torn:
                    file, data, position = arguments
                    change(file, bytes(data)[: len(data) // 2], position)
                raise Cut
            return change(*arguments, **options)

        return run

    patch.setattr(objects, "write_all", counted(write_all, torn=True))
    patch.setattr(DiskDirectory, "rename", counted(DiskDirectory.rename))
    patch.setattr(DiskDirectory, "unlink", counted(DiskDirectory.unlink))
    patch.setattr(Cursor, "advance", counted(Cursor.advance))


def damage_a_copy(place: Path) -> None:
    """Damages an object at the target before the host may trim."""
    path, address, target = place / "q", place / "archive", place / "archive" / HOST / "q"
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    manifest = manifest_of(target)
    assert manifest is not None
    copy = target / manifest.segments[1].object
    data = bytearray(copy.read_bytes())
    data[500] ^= 1
    copy.write_bytes(data)

    forebay.archive(path, address, host=HOST, trim=True)

    _both_with_damage(path, target)


def swap_a_copy(place: Path) -> None:
    """Puts a sound segment of another log in the place of an object."""
    path, address, target = place / "q", place / "archive", place / "archive" / HOST / "q"
    with open_log(path) as log:
        append(log, 100)
    with open_log(place / "other") as log:
        log.append_many([b"another %07d" % number for number in range(100)])
    forebay.archive(path, address, host=HOST)
    forebay.archive(place / "other", address, host=HOST)
    manifest = manifest_of(target)
    assert manifest is not None
    for row in manifest.segments:
        (target / row.object).write_bytes((target.parent / "other" / row.object).read_bytes())

    forebay.archive(path, address, host=HOST, trim=True)

    _both_with_damage(path, target)


def _both_with_damage(path: Path, target: Path) -> None:
    """Checks that what is bad at the target is still on the host."""
    with forebay.read(target, kind="log", salvage=True) as reader:
        good = [
            (record.offset, record.value)
            for record in reader
            if record.value == value_of(record.offset)
        ]
    check_both(path, good, 100)


def archive_without_trim(place: Path) -> None:
    """Archives a log that nobody else reads, and trims it."""
    path, address = place / "q", place / "archive"
    with open_log(path) as log:
        append(log, 100)
        forebay.archive(path, address, host=HOST)
        log.trim()

        if log.begin:
            raise Broken(f"{log.begin} records have left the host, and nobody asked for that")


def archive_while_open(place: Path) -> None:
    """Archives a log that goes on afterwards."""
    path, address, target = place / "q", place / "archive", place / "archive" / HOST / "q"
    with open_log(path) as log:
        for _ in range(5):
            append(log, 20)
            forebay.archive(path, address, host=HOST)
            check_target(target)
        check_both(path, read(target), log.end)


def lose_and_assign_again(place: Path) -> None:
    """Has a disk lose durable records after they were archived; others get their offsets."""
    path, address, target = place / "q", place / "archive", place / "archive" / HOST / "q"
    with open_log(path) as log:
        log.append_many([b"before %08d" % number for number in range(100)])
    forebay.archive(path, address, host=HOST)
    lose_from(path, sorted(path.glob("00*"))[1])
    with open_log(path) as log:
        first = log.end
        append(log, 100)
        end = log.end
    forebay.archive(path, address, host=HOST, trim=True)

    later = {offset: value for offset, value in read(target) if offset >= first}
    if later != {offset: value_of(offset) for offset in range(first, end)}:
        raise Broken("the archive does not hold what was appended later")


def lose_from(path: Path, segment: Path) -> None:
    """Leaves a log as a power cut does on a disk that had not kept what it had acknowledged."""
    for file in path.glob("00*"):
        if file.name >= segment.name:
            file.unlink()
    directory = DiskFilesystem().open_directory(str(path))
    file_of_tail = TailFile.open(directory, write=True)
    assert file_of_tail is not None
    tail = file_of_tail.read()
    assert tail is not None
    end = int(segment.name, 16)
    old = tail._replace(
        written=end, durable=end, segment=0, position=34, salt=b"", clean=False, boot_id=bytes(16)
    )
    file_of_tail.write(old, sync=True)
    file_of_tail.write(old, sync=True)
    file_of_tail.close()
    directory.close()


def archive_another_queue(place: Path) -> None:
    """Makes a queue again and archives it under the name of the one before."""
    path, address, target = place / "q", place / "archive", place / "archive" / HOST / "q"
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    os.rename(path, place / "old")
    with open_log(path) as log:
        log.append_many([b"another %07d" % number for number in range(150)])
    try:
        forebay.archive(path, address, host=HOST)
    except forebay.NotAQueue:
        pass

    if [value for _, value in read(target)] != [value_of(number) for number in range(100)]:
        raise Broken("the archive of a queue has records of another")


def cut_a_copy(place: Path) -> None:
    """Reads an archive of which an object was cut."""
    path, address, target = place / "q", place / "archive", place / "archive" / HOST / "q"
    with open_log(path) as log:
        append(log, 100)
    forebay.archive(path, address, host=HOST)
    last = sorted(target.glob("00*"))[-1]
    os.truncate(last, 60)

    try:
        found = archived_records(target)
    except Damaged:
        return
    raise Broken(f"{100 - len(found)} records are missing without a word")
