"""Directories that the original program wrote: read exactly, opened and continued."""

from __future__ import annotations

import os
import re
import shutil
import struct
from pathlib import Path

import pytest

import forebay
from forebay import Log, Record
from forebay.queues.shared.options import SyncPolicy
from tests.cli.helpers import run
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import kill

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
    with forebay.read(GOLDEN / name, kind="log") as reader:
        records = list(reader)

    assert records == [Record(number, None, message(number)) for number in range(first, end)]
    assert (reader.begin, reader.end, reader.segments.bases) == (first, end, bases)


@each_case
def test_the_consumers_stand_where_they_stood(
    name: str, first: int, end: int, bases: list[int], consumers: dict[str, int]
) -> None:
    with forebay.read(GOLDEN / name, kind="log") as reader:
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
    with forebay.read(queue, kind="log") as reader:
        assert list(reader.values()) == values
    # In the version of the original program, under a name that it knows.
    assert (queue / f"{end:016x}").read_bytes() == (
        b"FFLG" + bytes(4) + end.to_bytes(8, "big") + b"\0\0\0\3new\0\0\0\2er\0\0\0\3est"
    )
    assert as_the_original_reads(queue) == (first, values)


def as_the_original_reads(queue: Path) -> tuple[int, list[bytes]]:
    """Reads a directory by the tables of the original program: names, header, entries."""
    names = sorted(name for name in os.listdir(queue) if re.fullmatch("[0-9a-f]{16}", name))
    values: list[bytes] = []
    begin = int(names[0], 16)
    for name in names:
        data = (queue / name).read_bytes()
        magic, version, base = struct.unpack_from(">4sIQ", data)
        assert (magic, version, base) == (b"FFLG", 0, int(name, 16))
        assert base == begin + len(values)
        position = 16
        while position < len(data):
            (size,) = struct.unpack_from(">I", data, position)
            values.append(data[position + 4 : position + 4 + size])
            position += 4 + size
        assert position == len(data)
    return begin, values


def go_on_as_the_original(queue: Path, values: list[bytes], places: dict[str, int]) -> None:
    """Appends to the newest segment in place and replaces the index, as the original does."""
    newest = max(name for name in os.listdir(queue) if re.fullmatch("[0-9a-f]{16}", name))
    with (queue / newest).open("ab") as file:
        for value in values:
            file.write(struct.pack(">I", len(value)) + value)
    entries = [(name.encode(), offset) for name, offset in places.items()]
    (queue / "index").write_bytes(
        b"".join(struct.pack(">IQ", len(name), offset) + name for name, offset in entries)
    )


@each_case
def test_a_log_and_the_original_program_take_turns(
    tmp_path: Path, name: str, first: int, end: int, bases: list[int], consumers: dict[str, int]
) -> None:
    queue = copy_of(name, tmp_path)
    values = [message(number) for number in range(first, end)]
    who = next(iter(consumers))

    for turn in range(3):
        with Log(queue, background=False) as log:
            values.append(b"ours %d" % turn)
            assert log.append(values[-1]) == first + len(values) - 1
            consumer = log.consumer(who)
            assert consumer.position == (consumers[who] if turn == 0 else first + len(values) - 1)
            assert [record.value for record in consumer][-1] == values[-1]
            consumer.commit()
            assert log.info().losses == 0
        assert as_the_original_reads(queue) == (first, values)
        go_on_as_the_original(queue, [b"theirs", b""], {who: first + len(values) + 2})
        values += [b"theirs", b""]

    with forebay.read(queue, kind="log") as reader:
        assert list(reader.values()) == values
        assert reader.consumers() == {who: first + len(values)}
    assert run("fsck", queue).exit_code == 0


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_killed_log_of_version_0_keeps_everything_acknowledged(sync: SyncPolicy) -> None:
    filesystem = ForgetfulFilesystem()
    log = Log("/q", filesystem=filesystem, version=0, sync=sync, segment_bytes=1_000)
    values = [b"%d" % number * 30 for number in range(60)]
    for value in values[:30]:
        log.append(value)
    log.append_many([*values[30:], b""])

    machine = kill(log, filesystem)

    with Log("/q", filesystem=machine, background=False) as again:
        assert [record.value for record in again.consumer("c")] == [*values, b""]
        assert again.append(b"next") == 61
    assert {len(name) for name in machine.files() if "/q/0" in name} == {len("/q/") + 16}


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
