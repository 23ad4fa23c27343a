"""Group commit, with a sync that the test holds in its hand."""

from __future__ import annotations

import threading
import time

import pytest

from forebay.storage.commit import Alarm, GroupCommit, NotWritten
from tests.queues.helpers import run_threads
from tests.support.inside import sync_together, waiting_for
from tests.support.waiting import wait_until


class Disk:
    """Counts what is written; a sync takes a while and covers what was there when it began."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.written = 0
        self.synced = 0
        self.syncs = 0
        self.running = 0
        self.overlapping = 0
        self.lock = threading.Lock()

    def write(self) -> int:
        with self.lock:
            self.written += 1
            return self.written

    def sync(self) -> int:
        self.running += 1
        self.overlapping += self.running > 1
        end = self.written
        time.sleep(self.seconds)
        self.synced = max(self.synced, end)
        self.syncs += 1
        self.running -= 1
        return end


def write_often(commit: GroupCommit, disk: Disk, count: int) -> None:
    for _ in range(count):
        commit.wait(disk.write(), commit.epoch)


class StuckDisk:
    """A sync that waits until it is let go, and then fails."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.calls = 0

    def sync(self) -> int:
        self.calls += 1
        self.began.set()
        assert self.let_go.wait(240)
        raise OSError(5, "the disk is gone")


class Company(Alarm):
    """Counts how often somebody waits for it."""

    waits = 0

    def wait(self, seconds: float | None = None) -> bool:
        self.waits += 1
        return super().wait(seconds)


def test_what_is_durable_already_needs_no_sync() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync, 10)

    commit.wait(10, commit.epoch)

    assert (disk.syncs, commit.syncs, commit.durable) == (0, 0, 10)


def test_a_lone_waiter_syncs_once() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync, 0)

    for _ in range(5):
        commit.wait(disk.write(), commit.epoch)

    assert (disk.syncs, commit.syncs, commit.durable) == (5, 5, 5)


def test_advance_only_goes_forward() -> None:
    commit = GroupCommit(Disk().sync, 5)
    commit.advance(9)
    commit.advance(3)

    assert commit.durable == 9


def test_nobody_returns_before_a_sync_covers_its_record() -> None:
    disk = Disk(0.001)
    commit = GroupCommit(disk.sync, 0)
    early: list[tuple[int, int]] = []

    def work(_: int) -> None:
        for _ in range(50):
            offset = disk.write()
            commit.wait(offset, commit.epoch)
            if disk.synced < offset:
                early.append((offset, disk.synced))

    run_threads(8, work)

    assert early == []
    assert commit.durable == disk.written == 400


def test_syncs_never_overlap() -> None:
    disk = Disk(0.0005)
    commit = GroupCommit(disk.sync, 0)

    run_threads(8, lambda _: write_often(commit, disk, 50))

    assert disk.overlapping == 0


def test_many_waiters_share_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    # However late one of them comes back, the others are still there.
    monkeypatch.setattr("forebay.storage.commit._ARRIVAL_SECONDS", 120.0)
    disk = Disk()

    def sync() -> int:
        # The first has had no company yet that it could wait for.
        assert disk.syncs or wait_until(lambda: waiting_for(commit) == 15)
        return disk.sync()

    commit = GroupCommit(sync, 0)
    run_threads(16, lambda _: write_often(commit, disk, 30))

    assert (disk.written, commit.syncs) == (16 * 30, 30)


def test_a_failed_sync_reaches_everybody_who_waits() -> None:
    disk = StuckDisk()
    commit = GroupCommit(disk.sync, 0)
    caught: list[str] = []

    def work(number: int) -> None:
        if number == 0:
            assert disk.began.wait(120)
            wait_until(lambda: waiting_for(commit) == 6)
            disk.let_go.set()
            return
        try:
            commit.wait(number, commit.epoch)
        except OSError as error:
            caught.append(str(error))

    run_threads(8, work)

    assert caught == ["[Errno 5] the disk is gone"] * 7
    assert (disk.calls, commit.durable) == (1, 0)


def test_a_failed_sync_is_final() -> None:
    disk = StuckDisk()
    disk.let_go.set()
    commit = GroupCommit(disk.sync, 3)

    for _ in range(3):
        with pytest.raises(OSError, match="the disk is gone"):
            commit.wait(4, commit.epoch)

    assert disk.calls == 1


def test_a_lone_writer_does_not_wait_for_company_that_left() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync, 0)
    sync_together(commit, 8)
    run_threads(8, lambda _: write_often(commit, disk, 10))
    commit._sync = disk.sync
    commit._company = company = Company()

    write_often(commit, disk, 200)

    # The first of them cannot know yet that it is alone.
    assert company.waits == 1


def test_waiters_of_different_speed_all_come_to_their_end() -> None:
    disk = Disk(0.0002)
    commit = GroupCommit(disk.sync, 0)

    def work(number: int) -> None:
        for _ in range(40):
            commit.wait(disk.write(), commit.epoch)
            time.sleep(0.0003 * number)

    run_threads(6, work)

    assert commit.durable == 240


def test_an_abandoned_offset_raises_for_who_had_it_and_is_free_for_the_next() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync, 0)
    epoch = commit.epoch
    commit.abandon(OSError(28, "the disk is full"), 0)
    disk.write()

    with pytest.raises(OSError, match="the disk is full"):
        commit.wait(1, epoch)

    commit.wait(1, commit.epoch)
    assert (commit.durable, disk.syncs) == (1, 1)


def test_an_abandoned_offset_raises_however_many_were_abandoned_since() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync, 0)
    epoch = commit.epoch
    commit.abandon(OSError(28, "the disk is full"), 0)
    commit.wait(disk.write(), commit.epoch)

    for _ in range(1_000):
        commit.abandon(OSError(28, "the disk is full again"), 1)

    with pytest.raises(OSError, match=r"the disk is full$"):
        commit.wait(1, epoch)


def test_an_abandon_during_a_sync_is_not_final() -> None:
    commit: GroupCommit
    calls = []

    def sync() -> int:
        calls.append(1)
        if len(calls) == 1:
            error = OSError(28, "the disk is full")
            commit.abandon(error, 0)
            raise error
        return 1

    commit = GroupCommit(sync, 0)

    with pytest.raises(OSError, match="the disk is full"):
        commit.wait(1, commit.epoch)

    commit.wait(1, commit.epoch)
    assert commit.durable == 1


def test_a_write_that_failed_before_the_sync_is_told_and_tried_again() -> None:
    errors = [OSError(28, "the disk is full")]

    def sync() -> int:
        if errors:
            raise NotWritten(errors.pop())
        return 1

    commit = GroupCommit(sync, 0)

    with pytest.raises(OSError, match="the disk is full"):
        commit.wait(1)

    commit.wait(1)
    assert commit.durable == 1


def test_an_abandon_does_not_reach_who_was_durable_before_it() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync, 0)
    epoch = commit.epoch
    commit.wait(disk.write(), epoch)
    commit.abandon(OSError(28, "the disk is full"), 1)

    commit.wait(1, epoch)

    assert commit.durable == 1
