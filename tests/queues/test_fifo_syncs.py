"""What a sync of a fifo covers while others write, pop, fail and close beside it."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay import Fifo, FifoReader
from forebay.formats.entry import file_name
from forebay.queues.fifo.head import Head
from forebay.queues.shared.options import SyncPolicy
from forebay.storage.commit import Alarm
from forebay.storage.filesystem import Buffer, DiskFile
from forebay.storage.tail import Tail
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulFile
from tests.queues.fifo_helpers import open_fifo
from tests.queues.helpers import numbered, open_files, run_threads, wait_until
from tests.support.clocks import SteppingClock
from tests.support.inside import descriptor_of, drop, path_of, writer_of


class Gate:
    """Holds the next sync of a file of the tape, when it has covered what was there."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: Any, name: Callable[..., str]
    ) -> None:
        self.held = threading.Event()
        self.go = threading.Event()
        self.armed = False
        self._thread: threading.Thread | None = None
        original = kind.sync

        def sync(file: Any) -> None:
            original(file)
            if self.armed and name(file).endswith(".tape"):
                self.armed = False
                self.held.set()
                assert self.go.wait(60)

        monkeypatch.setattr(kind, "sync", sync)


def test_a_file_that_is_filled_while_it_is_synced_is_synced_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = ForgetfulFilesystem()
    gate = Gate(monkeypatch, ForgetfulFile, path_of)
    fifo = Fifo("/q", filesystem=machine, clock=SteppingClock(), background=False, file_bytes=1_000)
    gate.armed = True
    first = threading.Thread(target=lambda: fifo.push_many(numbered(2)))
    first.start()
    assert gate.held.wait(60)
    # It fills the file that is being synced, and goes on in the next ones.
    second = threading.Thread(target=lambda: fifo.push_many(numbered(18, first=2)))
    second.start()
    assert wait_until(lambda: writer_of(fifo).stored.number == 20)
    gate.go.set()
    first.join(60)
    second.join(60)
    machine.acknowledge("all")

    # Only what was synced is left.
    state = next(
        state
        for state in machine.crash_states(0)
        if state.acknowledged and "nothing" in state.description
    )
    with FifoReader("/q", filesystem=state.restore(), salvage=True) as reader:
        found = list(reader.values())
    drop(fifo)

    assert (found, reader.damage) == (numbered(20), [])


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_pop_that_syncs_leaves_files_open_that_another_thread_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: SyncPolicy
) -> None:
    gate = Gate(monkeypatch, DiskFile, path_of)
    errors: list[BaseException] = []
    with open_fifo(tmp_path / "q", sync=sync) as fifo:
        fifo.push_many(numbered(20))
        gate.armed = True

        def sync_all() -> None:
            try:
                fifo.sync()
            except BaseException as error:
                errors.append(error)

        syncing = threading.Thread(target=sync_all)
        syncing.start()
        assert gate.held.wait(60)
        # Files go, and before they do everything is synced with the lock held.
        popped = [*fifo.pop_many(16), fifo.pop()]
        gate.go.set()
        syncing.join(60)

        assert errors == []
        assert popped == numbered(17)
        assert fifo.info().durable == 20
        assert len(open_files(tmp_path)) < 10


@pytest.mark.slow
def test_the_head_that_is_made_durable_is_that_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, size = 4_000, 68
    heads: list[Head] = []
    original = DiskFile.pwrite

    def pwrite(file: DiskFile, data: Buffer, position: int) -> int:
        head = Head.decode(bytes(data)) if position in (8_192, 12_288) else None
        if head is not None:
            heads.append(head)
        return original(file, data, position)

    monkeypatch.setattr(DiskFile, "pwrite", pwrite)
    interval = sys.getswitchinterval()
    with Fifo(tmp_path / "q", file_bytes=10_000_000, background=False) as fifo:
        fifo.push_many(numbered(count, size))
        sys.setswitchinterval(1e-6)
        try:
            run_threads(4, lambda _: [fifo.pop() for _ in range(count // 4)])
        finally:
            sys.setswitchinterval(interval)

    assert len(heads) > 10
    torn = [head for head in heads if head.position % 10_000_000 != head.number * (size + 32)]
    assert torn == []


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_write_that_fails_keeps_the_space_and_the_queue_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: SyncPolicy
) -> None:
    original = DiskFile.allocate
    failing: list[int] = []

    def pwrite(file: DiskFile, data: Buffer, position: int) -> int:
        if failing and path_of(file).endswith(".tape") and bytes(data).strip(b"\0"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor_of(file), data, position)

    def allocate(file: DiskFile, position: int, size: int) -> None:
        if failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(file, position, size)

    with open_fifo(tmp_path / "q", sync=sync, file_bytes=100_000) as fifo:
        fifo.push_many(numbered(10))
        monkeypatch.setattr(DiskFile, "pwrite", pwrite)
        monkeypatch.setattr(DiskFile, "allocate", allocate)
        failing.append(1)
        # Other writers take all that is free: what was given back is gone.
        with pytest.raises(OSError, match="No space left"):
            fifo.push_many(numbered(5, first=10))
        with pytest.raises(OSError, match="No space left"):
            fifo.push_many(numbered(5, first=10))
        failing.clear()
        fifo.push_many(numbered(5, first=10))

        assert fifo.pop_many(100) == numbered(15)


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_close_that_fails_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: SyncPolicy
) -> None:
    fifo = open_fifo(tmp_path / "q", sync=sync)
    fifo.push(b"one")
    fifo.push_many(numbered(30))
    fifo.pop()

    def fail(file: DiskFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(DiskFile, "sync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        fifo.close()

    assert open_files(tmp_path) == []


def test_an_interrupt_in_the_wait_for_a_sync_leaves_the_queue_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push(b"one")
        wait = writer_of(fifo).commit.wait

        def interrupt(*_: object) -> None:
            monkeypatch.setattr(writer_of(fifo).commit, "wait", wait)
            raise KeyboardInterrupt

        monkeypatch.setattr(writer_of(fifo).commit, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fifo.push(b"two")
        fifo.push(b"three")

        assert fifo.pop_many(9) == [b"one", b"two", b"three"]


def test_an_interrupt_in_the_wait_for_room_leaves_the_queue_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_fifo(tmp_path / "q", max_bytes=2_000) as fifo:
        fifo.push(b"x" * 1_900)

        def interrupt(alarm: Alarm, seconds: float) -> bool:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(Alarm, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fifo.push(b"y" * 1_000)

        assert fifo.pop() == b"x" * 1_900
        fifo.push(b"z")


def test_pops_beside_pushes_read_each_part_of_the_tape_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    original = DiskFile.pread

    def pread(file: DiskFile, size: int, position: int) -> bytes:
        nonlocal read
        data = original(file, size, position)
        read += len(data)
        return data

    with Fifo(tmp_path / "q", file_bytes=4_000_000, background=False) as fifo:
        fifo.push_many(numbered(5_000, 300))
        monkeypatch.setattr(DiskFile, "pread", pread)
        for number in range(100):
            fifo.pop()
            fifo.push(b"%d" % number)

    # A window of 256 KiB, and not one for each pop.
    assert read < 1_000_000


def test_an_empty_fifo_takes_little_disk_and_its_files_have_their_full_size(tmp_path: Path) -> None:
    with Fifo(tmp_path / "q") as fifo:
        fifo.push(b"one")
        names = list((tmp_path / "q").iterdir())
        taken = sum(path.stat().st_blocks * 512 for path in names)
        (tape,) = (path for path in names if path.suffix == ".tape")

        assert tape.stat().st_size == 32 << 20
        assert taken < 300_000


def marks_after_a_power_cut(machine: ForgetfulFilesystem) -> list[Tail]:
    """Returns the marks that a power cut may leave now; first, the one that is durable."""
    end = machine.operations
    marks = []
    for state in machine.crash_states(points=lambda point: point == end, garbage=False):
        with FifoReader("/q", filesystem=state.restore(), salvage=True) as reader:
            assert reader.tail is not None
            marks.append(reader.tail)
    return marks


def open_in_memory(machine: ForgetfulFilesystem, sync: SyncPolicy) -> Fifo:
    return Fifo("/q", filesystem=machine, sync=sync, background=False, file_bytes=1_000)


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_no_power_cut_after_a_push_brings_back_a_clean_mark(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem()
    open_in_memory(machine, sync).close()
    clean = marks_after_a_power_cut(machine)
    fifo = open_in_memory(machine, sync)

    fifo.push(b"one")

    marks = marks_after_a_power_cut(machine)
    fifo.close()
    assert {mark.clean for mark in clean} == {True}
    assert {mark.clean for mark in marks} == {False}


@pytest.mark.slow
def test_the_mark_on_the_disk_is_less_than_a_file_behind() -> None:
    machine = ForgetfulFilesystem()
    fifo = open_in_memory(machine, "always")
    behind = []

    for count, value in enumerate(numbered(30), start=1):
        fifo.push(value)
        behind.append(count - marks_after_a_power_cut(machine)[0].durable)

    fifo.close()
    # A file takes 7 of these entries, and the begin of another.
    assert 0 < max(behind) <= 8


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_writer_that_outruns_the_disk_waits_for_it(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem()
    fifo = open_in_memory(machine, sync)
    behind = []

    for count in range(10, 300, 10):
        fifo.push_many(numbered(10))
        behind.append(count - fifo.info().durable)

    fifo.close()
    assert max(behind) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["interval", "os"])
def test_after_a_file_was_released_a_power_cut_costs_no_more_than_the_newest_entries(
    sync: SyncPolicy,
) -> None:
    machine = ForgetfulFilesystem()
    fifo = open_in_memory(machine, sync)
    values = numbered(28)
    fifo.push_many(values[:25])
    start = machine.operations
    fifo.pop_many(10)
    fifo.push_many(values[25:])
    left = []

    for state in machine.crash_states(since=start, garbage=False):
        with open_in_memory(state.restore(), sync) as again:
            left.append(again.pop_many(99))

    fifo.close()
    assert {tuple(each) for each in left} <= {
        tuple(values[first:end]) for first in range(29) for end in range(first, 29)
    }


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_the_file_that_the_mark_is_in_is_not_released(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem()
    fifo = open_in_memory(machine, sync)
    fifo.push_many(numbered(25))

    fifo.pop_many(10)

    killed = machine.kill()
    with FifoReader("/q", filesystem=killed) as reader:
        tail = reader.tail
    with open_in_memory(killed, sync) as again:
        left = again.pop_many(99)
    fifo.close()
    assert tail is not None
    assert f"/q/{file_name(tail.segment)}" in machine.files()
    assert left == numbered(15, first=10)
