"""Directories that the original program wrote: read exactly, opened and continued."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import forebay
from forebay import Log, Record

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "fflg"
# Directory, first offset, next offset, segments, consumers.
CASES = [
    ("small", 0, 12, [0], {"consumer-a": 4, "consumer-ß": 7}),
    ("trimmed", 398, 1100, [398, 537, 669, 797, 935, 1067], {"alpha": 500, "beta": 730}),
]
each_case = pytest.mark.parametrize(("name", "first", "end", "bases", "consumers"), CASES)


def message(number: int) -> bytes:
    """Makes message i by the rule in the README of the golden files."""
    if number == 3:
        return b""
    if number == 5:
        return bytes(range(256))
    tail = "".join(f"x{count}" for count in range(number % 40))
    return f"message-{number} żółć {tail}".encode()


def copy_of(name: str, path: Path) -> Path:
    queue = path / name
    shutil.copytree(GOLDEN / name, queue)
    # A checkout may be writable for the group; a queue must not be.
    queue.chmod(0o700)
    return queue


@each_case
def test_every_message_is_read_exactly(
    name: str, first: int, end: int, bases: list[int], consumers: dict[str, int]
) -> None:
    with forebay.read(GOLDEN / name) as reader:
        records = list(reader)

    assert records == [Record(number, None, message(number)) for number in range(first, end)]
    assert (reader.begin, reader.end, reader.segments.bases) == (first, end, bases)


@each_case
def test_the_consumers_stand_where_they_stood(
    name: str, first: int, end: int, bases: list[int], consumers: dict[str, int]
) -> None:
    with forebay.read(GOLDEN / name) as reader:
        assert reader.consumers() == consumers


@each_case
def test_reading_changes_nothing(
    name: str, first: int, end: int, bases: list[int], consumers: dict[str, int]
) -> None:
    before = {path.name: path.read_bytes() for path in (GOLDEN / name).iterdir()}

    with forebay.read(GOLDEN / name) as reader:
        list(reader)

    assert {path.name: path.read_bytes() for path in (GOLDEN / name).iterdir()} == before


@each_case
def test_a_log_opens_a_copy_and_goes_on(
    tmp_path: Path, name: str, first: int, end: int, bases: list[int], consumers: dict[str, int]
) -> None:
    queue = copy_of(name, tmp_path)

    with Log(queue, background=False) as log:
        offsets = [log.append(b"new"), log.append_many([b"er", b"est"])]
        found = {who: list(log.consumer(who)) for who in consumers}

    values = [message(number) for number in range(first, end)] + [b"new", b"er", b"est"]
    assert offsets == [end, end + 1]
    assert {who: [r.value for r in records] for who, records in found.items()} == {
        who: values[offset - first :] for who, offset in consumers.items()
    }
    assert (queue / f"{end:010x}").read_bytes()[:6] == b"FFLG\0\2"
    with forebay.read(queue) as reader:
        assert list(reader.values()) == values


@each_case
def test_the_files_of_the_original_program_stay_as_they_are(
    tmp_path: Path, name: str, first: int, end: int, bases: list[int], consumers: dict[str, int]
) -> None:
    queue = copy_of(name, tmp_path)

    with Log(queue, background=False) as log:
        log.append(b"new")

    for path in (GOLDEN / name).iterdir():
        assert (queue / path.name).read_bytes() == path.read_bytes()


def test_trimming_removes_the_segments_that_every_consumer_is_past(tmp_path: Path) -> None:
    queue = copy_of("trimmed", tmp_path)

    with Log(queue, background=False) as log:
        kept = log.trim()
        for who in ("alpha", "beta"):
            consumer = log.consumer(who)
            consumer.seek(797)
            consumer.commit()
        removed = log.trim()

    assert (kept, removed) == (0, 797 - 398)
    assert sorted(name for name in os.listdir(queue) if len(name) == 16)[0] == "000000000000031d"
