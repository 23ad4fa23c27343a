"""What Forebay 0.1.0 wrote is read exactly, opened, and gone on with.

The killed ones are opened on the machine that they were killed on, and, as that machine has been
started again since, on another: then a weak policy may have cost the newest, and nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.queues.kinds import kind_of
from forebay.storage.filesystem import DiskFilesystem

GOLDEN = Path(__file__).parent / "forebay-0.1.0"
DIRECTORIES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())

all_directories = pytest.mark.parametrize("name", DIRECTORIES)


class SameMachine(DiskFilesystem):
    """This machine's disk, in the start of the machine in which all of them were written."""

    def boot_id(self) -> bytes:
        # Of the mark: magic 4, sequence 8, queue id 16, boot id 16.
        return (GOLDEN / "log-os-killed" / "tail").read_bytes()[28:44]


def value(number: int) -> bytes:
    return b"value %04d " % number + b"x" * (number % 40)


def values(*ranges: range) -> list[bytes]:
    return [value(number) for numbers in ranges for number in numbers]


# What is there, in order: a log from the first segment that was not trimmed; of the deadline queue
# 0 to 49 are released, 50 to 59 requeued to the end, and 60 is buried.
DEADLINE_ITEMS = values(range(61, 200), range(50, 60))


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        return Path(shutil.copytree(GOLDEN / name, tmp_path / name))

    return make


@pytest.fixture
def options(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    def make(name: str) -> dict[str, Any]:
        if not name.startswith("beatskey"):
            return {"filesystem": SameMachine()}
        key = Path(shutil.copy(GOLDEN / "key", tmp_path / "key"))
        key.chmod(0o600)
        return {"filesystem": SameMachine(), "key_file": key}

    return make


def look(path: Path, name: str, options: dict[str, Any]) -> list[bytes]:
    with kind_of(path).open_reader(path, **options) as reader:
        if name.startswith("beats"):
            return [event.fields["message"].encode() for event in reader]
        return list(reader.values())


@all_directories
def test_everything_is_read_without_owning_it(
    name: str, copy: Callable[[str], Path], options: Callable[[str], dict[str, Any]]
) -> None:
    path = copy(name)

    found = look(path, name, options(name))

    if name.startswith("log"):
        assert found == values(range(200))[-len(found) :]
        assert len(found) >= 140
    elif name.startswith("fifo"):
        assert found == values(range(50, 200))
    elif name.startswith("deadline"):
        assert found == [*DEADLINE_ITEMS, value(60)]
    else:
        # A reader begins at the oldest segment that is left.
        assert found[-140:] == values(range(60, 200))


def take_all(queue: Any, name: str) -> list[bytes]:
    if name.startswith("log"):
        assert queue.info().positions == {"first": 60, "second": 90}
        first = queue.consumer("first")
        return [record.value for record in first.read(1_000)]
    if name.startswith("fifo"):
        return list(queue.pop_many(1_000))
    if name.startswith("deadline"):
        items = queue.dequeue_many(1_000)
        queue.release_many(items)
        return [item.value for item in items]
    batch = queue.read(1_000)
    batch.ack()
    return [event.fields["message"].encode() for event in batch]


def put(queue: Any, name: str, number: int) -> None:
    if name.startswith("beats"):
        queue.put({"fields": {"number": number, "message": value(number).decode()}})
    elif name.startswith("deadline"):
        queue.enqueue(value(number))
    else:
        queue.put(value(number))


EXPECTED = {
    "log": values(range(60, 200)),
    "log1": values(range(60, 200)),
    "fifo": values(range(50, 200)),
    "deadline": DEADLINE_ITEMS,
    "beats": values(range(60, 200)),
    "beatskey": values(range(60, 200)),
}


@all_directories
def test_the_owner_takes_everything_that_is_left(
    name: str, copy: Callable[[str], Path], options: Callable[[str], dict[str, Any]]
) -> None:
    path = copy(name)

    with kind_of(path).open_queue(path, **options(name)) as queue:
        found = take_all(queue, name)
        losses = queue.info().losses

    assert found == EXPECTED[name.partition("-")[0]]
    assert losses == 0


@pytest.mark.parametrize("name", [name for name in DIRECTORIES if name.endswith("killed")])
def test_after_a_restart_of_the_machine_only_the_newest_may_be_missing(
    name: str, copy: Callable[[str], Path], options: Callable[[str], dict[str, Any]]
) -> None:
    path, more = copy(name), options(name)
    del more["filesystem"]
    expected = EXPECTED[name.partition("-")[0]]

    with kind_of(path).open_queue(path, **more) as queue:
        found = take_all(queue, name)
        losses = queue.info().losses

    assert found == expected[: len(found)]
    assert len(found) == len(expected) if "always" in name else len(found) >= 100
    assert losses == 0


@all_directories
def test_the_queue_goes_on(
    name: str, copy: Callable[[str], Path], options: Callable[[str], dict[str, Any]]
) -> None:
    path, more = copy(name), options(name)

    for number in (200, 201):
        with kind_of(path).open_queue(path, **more) as queue:
            put(queue, name, number)
    with kind_of(path).open_queue(path, **more) as queue:
        found = take_all(queue, name)

    # In the deadline queue too: they are due now, long after the others.
    assert found == [*EXPECTED[name.partition("-")[0]], value(200), value(201)]


def test_every_kind_policy_and_end_is_there() -> None:
    assert len(DIRECTORIES) == 6 * 3 * 2
