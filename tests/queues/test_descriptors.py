"""What is closed, forgotten or failed to open leaves nothing open."""

from __future__ import annotations

import errno
import gc
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import Damaged, ForebayError
from forebay.storage.filesystem import DiskFilesystem
from tests.crash.forgetful import ForgetfulFilesystem
from tests.kinds import KINDS
from tests.queues.helpers import SYNCS, flip, numbered, open_files

CALLS_MAX = 400
MARKS = {"log": "tail", "beats": "mark", "fifo": "fifo-tail", "deadline": "deadline-mark"}


def descriptors() -> list[str]:
    gc.collect()
    folder = "/proc/self/fd"
    return sorted(os.readlink(f"{folder}/{name}") for name in os.listdir(folder) if _is_open(name))


def _is_open(name: str) -> bool:
    try:
        # The descriptor of the listing itself is closed by now.
        os.fstat(int(name))
    except OSError:
        return False
    return True


def make_machine(kind: str, sync: str) -> ForgetfulFilesystem:
    """Makes a queue whose owner was killed, with something in every file that it has."""
    filesystem = ForgetfulFilesystem(seed=1)
    case = KINDS[kind]
    queue = case.queue("/q", filesystem=filesystem, sync=sync, **case.small)
    case.put_many(queue, numbered(40))
    for value in numbered(5):
        case.put(queue, value)
    killed = filesystem.kill()
    queue.close()
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_open_that_fails_at_any_call_leaves_nothing_open(kind: str, sync: str) -> None:
    assert_nothing_left(kind, sync, make_machine(kind, sync))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_open_without_a_mark_that_fails_at_any_call_leaves_nothing_open(kind: str) -> None:
    machine = make_machine(kind, "interval")
    directory = machine.open_directory("/q")
    directory.unlink(MARKS[kind])
    directory.sync()
    directory.close()

    assert_nothing_left(kind, "interval", machine)


def assert_nothing_left(kind: str, sync: str, machine: ForgetfulFilesystem) -> None:
    """Opens a queue with every call failing in turn."""
    case = KINDS[kind]
    left: dict[int, list[str]] = {}
    for call in range(1, CALLS_MAX):
        filesystem = machine.kill()
        filesystem.fail_at(call, errno.EIO)
        try:
            queue = case.queue("/q", filesystem=filesystem, sync=sync, **case.small)
        except (OSError, ForebayError):
            if filesystem.open_handles:
                left[call] = filesystem.open_handles
            continue
        filesystem.heal()
        queue.close()
        if not filesystem.faults:
            break

    assert left == {}
    assert 5 < call < CALLS_MAX - 1


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_that_is_closed_leaves_nothing_open(kind: str, sync: str) -> None:
    filesystem = make_machine(kind, sync)
    case = KINDS[kind]

    with case.queue("/q", filesystem=filesystem, sync=sync, **case.small) as queue:
        case.put_many(queue, numbered(40))
        case.drain(queue)

    assert filesystem.open_handles == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_ledger_leaves_nothing_open(kind: str) -> None:
    filesystem = make_machine(kind, "os")
    filesystem.write_file("/q/ledger", b"rubbish")
    case = KINDS[kind]

    try:
        case.queue("/q", filesystem=filesystem, sync="os", **case.small).close()
    except ForebayError:
        pass

    assert filesystem.open_handles == []


@pytest.mark.slow
def test_a_consumer_that_is_forgotten_leaves_no_descriptor(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "q") as log:
        log.append_many(numbered(10))
        log.consumer("c").read(1)
        before = descriptors()
        for _ in range(5):
            log.consumer("c").read(1)

        assert descriptors() == before


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_that_is_forgotten_ends_its_thread_and_leaves_nothing_open(
    tmp_path: Path, kind: str, sync: str
) -> None:
    case = KINDS[kind]
    before = descriptors()
    queue = case.queue(tmp_path / "q", sync=sync, **case.small)
    case.put_many(queue, numbered(10))
    (thread,) = (each for each in threading.enumerate() if each.name == "forebay maintenance")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del queue
        gc.collect()
        thread.join(60)
        after = descriptors()

    assert not thread.is_alive()
    assert after == before
    assert f"{tmp_path}/q was not closed" in {str(warning.message) for warning in told}
    case.queue(tmp_path / "q", sync=sync, **case.small).close()


READERS: dict[str, Callable[[Any], object]] = {
    "log": lambda reader: next(reader.values()),
    "beats": lambda reader: next(iter(reader)),
    "fifo": lambda reader: next(reader.values()),
    "deadline": lambda reader: next(reader.values()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_is_forgotten_leaves_no_descriptor_and_says_so(
    tmp_path: Path, kind: str
) -> None:
    case = KINDS[kind]
    with case.queue(tmp_path / "q", **case.small) as queue:
        case.put_many(queue, numbered(10))
    before = descriptors()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        READERS[kind](forebay.read(tmp_path / "q"))
        after = descriptors()

    assert after == before
    assert {warning.category for warning in told} == {ResourceWarning}


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_met_damage_leaves_nothing_open_while_the_error_is_kept(
    tmp_path: Path, kind: str
) -> None:
    case = KINDS[kind]
    values = numbered(10)
    with case.queue(tmp_path / "q", **case.small) as queue:
        case.put_many(queue, values)
    flip_value(tmp_path / "q", values[5])

    with pytest.raises(Damaged) as kept, forebay.read(tmp_path / "q") as reader:
        list(reader)

    assert kept.value.damage.count
    assert open_files(tmp_path) == []


def flip_value(path: Path, value: bytes) -> None:
    """Flips a byte of a value in the one file that has it."""
    (file,) = (file for file in path.iterdir() if file.is_file() and value in file.read_bytes())
    flip(file, file.read_bytes().index(value))


@pytest.mark.slow
def test_a_file_and_a_directory_that_are_forgotten_close_themselves(tmp_path: Path) -> None:
    before = descriptors()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        DiskFilesystem().open_directory(str(tmp_path / "q"), create=True).create("file")

    assert descriptors() == before
    paths = {f"{tmp_path}/q was not closed", f"{tmp_path}/q/file was not closed"}
    assert {str(warning.message) for warning in told} == paths


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_that_goes_on_for_long_has_few_files_open(
    kind: str, sync: str, tmp_path: Path
) -> None:
    case = KINDS[kind]
    with case.queue(tmp_path / "q", sync=sync, background=False, **case.small) as queue:
        for first in range(0, 600, 5):
            case.put_many(queue, numbered(5, first=first))
        count = len(open_files(tmp_path))

    assert count < 20
