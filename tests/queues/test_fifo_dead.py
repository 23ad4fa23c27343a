"""Entries that come back again and again are put aside, and stay readable."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Fifo, FifoReader
from forebay.errors import Damaged
from forebay.kernels.entry import Entry
from forebay.queues.fifo import dead
from forebay.queues.fifo.head import Head, Lent, read_head
from forebay.queues.shared.options import SyncPolicy
from forebay.storage.filesystem import DiskDirectory, DiskFilesystem
from tests.crash.forgetful import ForgetfulFilesystem
from tests.formats.entries import VERSION, make_id
from tests.queues.fifo_helpers import open_fifo
from tests.queues.helpers import numbered
from tests.support.inside import drop

SYNCS: list[SyncPolicy] = ["always", "interval", "os"]


class Poison(Exception):
    """What an entry does to whoever takes it."""


def fail(fifo: Fifo) -> bytes:
    """Takes the next entry and fails; returns its value."""
    taken = fifo.take()
    value = taken.__enter__().value
    error = Poison()
    assert not taken.__exit__(Poison, error, None)
    return value


@pytest.mark.parametrize("sync", SYNCS)
def test_an_entry_that_came_back_too_often_is_put_aside(
    tmp_path: Path, sync: SyncPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    with open_fifo(tmp_path / "q", sync=sync, max_attempts=3) as fifo:
        fifo.push(b"poison", ttl_seconds=60)
        fifo.push(b"good")
        tries = [fail(fifo) for _ in range(4)]
        (aside,) = fifo.dead()

        assert tries == [b"poison"] * 3 + [b"good"]
        assert (aside.value, aside.ttl_seconds, aside.offset) == (b"poison", 60, 0)
        assert (len(fifo), fifo.info().dead, fifo.info().taken) == (1, 1, 0)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert fifo.pop() == b"good"
    with FifoReader(tmp_path / "q") as reader:
        assert (list(reader.dead()), list(reader)) == ([aside], [])


def test_without_a_bound_an_entry_comes_back_for_ever(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", sync="os") as fifo:
        fifo.push(b"poison")

        assert [fail(fifo) for _ in range(20)] == [b"poison"] * 20
        assert fifo.dead() == []


@pytest.mark.parametrize("sync", SYNCS)
def test_the_end_of_a_process_counts_as_well(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem()
    options: dict[str, Any] = {"sync": sync, "background": False, "file_bytes": 1_000}
    taken: list[bytes] = []
    for _ in range(3):
        fifo = Fifo("/q", filesystem=machine, max_attempts=2, **options)
        if not taken:
            fifo.push_many([b"poison", b"good"])
        taken.append(fifo.take().__enter__().value)
        drop(fifo)
        machine = machine.kill()

    with Fifo("/q", filesystem=machine, max_attempts=2, **options) as fifo:
        assert taken == [b"poison", b"poison", b"good"]
        assert ([entry.value for entry in fifo.dead()], fifo.pop()) == ([b"poison"], b"good")


@pytest.mark.parametrize("sync", SYNCS)
def test_what_is_put_aside_stays_aside_when_the_process_is_killed(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem()
    options: dict[str, Any] = {"sync": sync, "background": False, "file_bytes": 1_000}
    fifo = Fifo("/q", filesystem=machine, max_attempts=1, **options)
    fifo.push_many([b"poison", b"good"])
    fail(fifo)
    drop(fifo)
    machine = machine.kill()

    with Fifo("/q", filesystem=machine, **options) as fifo:
        assert [entry.value for entry in fifo.dead()] == [b"poison"]
        assert fifo.pop_many(9) == [b"good"]


@pytest.mark.parametrize("sync", SYNCS)
def test_what_an_open_puts_aside_stays_aside_when_the_process_is_killed(sync: SyncPolicy) -> None:
    machine = ForgetfulFilesystem()
    options: dict[str, Any] = {"sync": sync, "background": False, "file_bytes": 1_000}
    fifo = Fifo("/q", filesystem=machine, **options)
    fifo.push_many([b"poison", b"good"])
    fifo.take().__enter__()
    drop(fifo)
    machine = machine.kill()
    drop(Fifo("/q", filesystem=machine, max_attempts=1, **options))
    machine = machine.kill()

    with Fifo("/q", filesystem=machine, **options) as fifo:
        assert [entry.value for entry in fifo.dead()] == [b"poison"]
        assert fifo.pop_many(9) == [b"good"]


@pytest.mark.slow
def test_no_power_cut_loses_an_entry_that_is_put_aside() -> None:
    machine = ForgetfulFilesystem()
    fifo = Fifo("/q", filesystem=machine, max_attempts=1, background=False, file_bytes=1_000)
    fifo.push_many(numbered(2))
    machine.acknowledge("pushed")
    fail(fifo)
    machine.acknowledge("aside")
    drop(fifo)

    seen = set()
    for state in machine.crash_states(0):
        if not state.acknowledged:
            continue
        after = state.restore()
        with Fifo("/q", filesystem=after, max_attempts=1, background=False) as again:
            aside = [entry.value for entry in again.dead()]
            left = again.pop_many(9)
        seen.add(len(aside))
        assert sorted({*aside, *left}) == numbered(2), state.description
        assert len(aside) < 2
        if state.acknowledged == 2:
            assert aside == numbered(1)

    assert seen == {0, 1}


def test_an_entry_that_cannot_be_put_aside_is_back_at_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = DiskDirectory.directory

    def full(directory: DiskDirectory, name: str, *, create: bool = False) -> DiskDirectory:
        if create and name == dead.DIRECTORY:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(directory, name, create=create)

    monkeypatch.setattr(DiskDirectory, "directory", full)
    fifo = open_fifo(tmp_path / "q", max_attempts=1)
    fifo.push(b"poison")
    with pytest.raises(OSError, match="No space left"), fifo.take():
        raise Poison
    assert len(fifo) == 1
    fifo.close()

    # Nor does it keep the queue from being opened and drained.
    with open_fifo(tmp_path / "q", max_attempts=1) as again:
        assert (len(again), again.dead(), again.pop()) == (1, [], b"poison")


def test_what_is_put_aside_is_checked_and_damage_is_told(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q", max_attempts=1) as fifo:
        fifo.push_many(numbered(2))
        fail(fifo)
        fail(fifo)
        first = min((tmp_path / "q" / dead.DIRECTORY).iterdir())
        first.write_bytes(first.read_bytes()[:-1])
        with pytest.raises(Damaged, match="the data is cut off"):
            fifo.dead()
    with FifoReader(tmp_path / "q", salvage=True) as reader:
        left = [entry.value for entry in reader.dead()]
    report = forebay.check(tmp_path / "q")

    assert left == numbered(1, first=1)
    assert [damage.reason for damage in reader.damage] == ["the data is cut off"]
    assert (len(report.damage), report.foreign) == (1, ())
    assert "2 entries put aside in dead/" in report.notes


def test_an_entry_is_put_aside_once_under_one_name(tmp_path: Path) -> None:
    directory = DiskFilesystem().open_directory(str(tmp_path / "q"), create=True)
    entry = Entry(70_000, make_id(5, 70_000), 0, b"x")
    for _ in range(2):
        dead.keep(directory, entry, VERSION)
    found, count = list(dead.read(directory)), dead.count(directory)
    directory.close()

    assert (found, count) == ([entry], 1)


def test_the_head_tells_how_often_an_entry_was_lent(tmp_path: Path) -> None:
    with open_fifo(tmp_path / "q") as fifo:
        fifo.push_many(numbered(3))
        fail(fifo)
        fail(fifo)
        with fifo.take():
            head = read_head(fifo._directory)
    empty = Head(1_000, VERSION, sequence=1)
    lent = Lent(0, 65_537, make_id(7, 65_537), attempts=2)
    lending = empty._replace(position=99, number=70_000, lent=(lent,))

    assert head is not None
    assert [row.attempts for row in head.lent] == [3]
    assert (empty.encode()[:4], lending.encode()[:4]) == (b"FBH2", b"FBH3")
    assert Head.decode(lending.encode()) == lending
