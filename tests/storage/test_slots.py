"""Files of two checked slots."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from forebay.storage.slots import SlotFile
from tests.crash.forgetful import ForgetfulFilesystem
from tests.storage.helpers import open_directory

MAGIC = b"TEST"
SIZE = 24
SECOND = 4096


def payload(number: int) -> bytes:
    return bytes([number % 256]) * SIZE


def make(path: Path, writes: int) -> None:
    """Makes a slot file whose payloads are 0, 0 and then 1 to `writes`."""
    directory = open_directory(path)
    slots = SlotFile.create(directory, "slots", MAGIC, payload(0))
    for number in range(1, writes + 1):
        slots.write(payload(number))
    slots.close()
    directory.close()


def read(path: Path, magic: bytes = MAGIC, size: int = SIZE) -> tuple[int, bytes | None]:
    directory = open_directory(path)
    slots = SlotFile.open(directory, "slots", magic, size, write=False)
    assert slots is not None
    slots.close()
    directory.close()
    return slots.sequence, slots.payload


def harm(path: Path, *positions: int) -> None:
    file = path / "d" / "slots"
    data = bytearray(file.read_bytes())
    for position in positions:
        data[position] ^= 0x10
    file.write_bytes(data)


def test_the_newest_payload_is_read(tmp_path: Path) -> None:
    make(tmp_path, 5)

    assert read(tmp_path) == (7, payload(5))


def test_writes_alternate_between_the_slots(tmp_path: Path) -> None:
    contents = []
    for number in range(1, 5):
        make(tmp_path / str(number), number)
        data = (tmp_path / str(number) / "d" / "slots").read_bytes()
        contents.append((data[12], data[SECOND + 12]))

    assert contents == [(0, 1), (2, 1), (2, 3), (4, 3)]


@pytest.mark.parametrize("position", range(12 + SIZE + 4))
@pytest.mark.parametrize("writes", [3, 4])
def test_a_torn_newest_slot_falls_back_to_the_older_one(
    tmp_path: Path, writes: int, position: int
) -> None:
    make(tmp_path, writes)
    newest = SECOND if writes % 2 else 0
    harm(tmp_path, newest + position)

    assert read(tmp_path) == (writes + 1, payload(writes - 1))


def test_a_bad_older_slot_changes_nothing(tmp_path: Path) -> None:
    make(tmp_path, 3)
    harm(tmp_path, 20)

    assert read(tmp_path) == (5, payload(3))


def test_two_bad_slots_give_none(tmp_path: Path) -> None:
    make(tmp_path, 3)
    harm(tmp_path, 20, SECOND + 20)

    assert read(tmp_path) == (0, None)


def test_after_a_fall_back_the_bad_slot_is_the_one_that_is_written(tmp_path: Path) -> None:
    make(tmp_path, 3)
    harm(tmp_path, SECOND + 20)
    directory = open_directory(tmp_path)
    slots = SlotFile.open(directory, "slots", MAGIC, SIZE, write=True)
    assert slots is not None

    slots.write(payload(9))

    slots.close()
    directory.close()
    assert read(tmp_path) == (5, payload(9))
    assert (tmp_path / "d" / "slots").read_bytes()[12] == 2


@pytest.mark.parametrize("size", [0, 10, 39, 41, SECOND, SECOND + 39])
def test_a_file_that_was_cut_gives_what_is_whole_in_it(tmp_path: Path, size: int) -> None:
    make(tmp_path, 4)
    os.truncate(tmp_path / "d" / "slots", size)

    assert read(tmp_path) == ((6, payload(4)) if size >= 40 else (0, None))


def test_another_magic_or_size_is_not_taken(tmp_path: Path) -> None:
    make(tmp_path, 2)

    assert read(tmp_path, magic=b"ELSE") == (0, None)
    assert read(tmp_path, size=SIZE + 1) == (0, None)


def test_a_missing_file_gives_none(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)

    assert SlotFile.open(directory, "slots", MAGIC, SIZE, write=False) is None
    directory.close()


def test_create_takes_over_a_file_that_a_crash_left(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (tmp_path / "d" / "slots").write_bytes(b"rubbish")

    slots = SlotFile.create(directory, "slots", MAGIC, payload(5))

    slots.close()
    directory.close()
    assert read(tmp_path)[1] == payload(5)


def test_a_power_cut_during_a_write_leaves_the_old_payload_or_the_new_one() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    slots = SlotFile.create(directory, "slots", MAGIC, payload(1))
    start = filesystem.operations
    slots.write(payload(2))
    found = set()

    for state in filesystem.crash_states(since=start, torn=True):
        machine = state.restore()
        after = SlotFile.open(machine.open_directory("/d"), "slots", MAGIC, SIZE, write=False)
        assert after is not None
        found.add(after.payload)

    assert found == {payload(1), payload(2)}


@pytest.mark.slow
def test_a_reader_sees_whole_slots_while_another_process_writes(tmp_path: Path) -> None:
    make(tmp_path, 0)
    directory = open_directory(tmp_path)
    writer = SlotFile.open(directory, "slots", MAGIC, SIZE, write=True)
    reader = SlotFile.open(directory, "slots", MAGIC, SIZE, write=False)
    assert writer is not None
    assert reader is not None
    child = os.fork()
    if child == 0:
        while True:
            writer.write(payload(writer.sequence + 1))

    torn, last, backward, reads = 0, 0, 0, 0
    # The other process may begin late.
    deadline = time.monotonic() + 120
    while reads < 100_000 or (last <= 1000 and time.monotonic() < deadline):
        reads += 1
        torn += reader.read() != payload(reader.sequence) and reader.sequence > 2
        backward += reader.sequence < last
        last = reader.sequence
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for slots in (reader, writer):
        slots.close()
    directory.close()

    assert last > 1000
    assert (torn, backward) == (0, 0)
