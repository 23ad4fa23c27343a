"""A deadline queue in many threads, in a fork, and in a process that is killed."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from forebay.errors import Closed, Empty
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.shared.options import SyncPolicy
from tests.queues.deadline_helpers import files_of, must, open_queue
from tests.queues.fifo_helpers import TwoClocks
from tests.queues.helpers import run_threads, wait_until
from tests.support.disk import SlowDisk
from tests.support.inside import journal_of, seconds_to_due, upkeep_of
from tests.support.killing import Tell, kill_a_writer


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
def test_threads_get_every_item_once_while_runs_are_frozen_and_merged(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    each, taken, done = 600, Counter[bytes](), threading.Event()
    lock = threading.Lock()
    with DeadlineQueue(tmp_path / "q", sync=sync, segment_items=20) as queue:

        def work(number: int) -> None:
            if number % 2 == 0:
                for at in range(each // 30):
                    queue.enqueue_many([b"%d %d %d" % (number, at, n) for n in range(30)])
                return
            while not done.is_set():
                with contextlib.suppress(Empty):
                    items = queue.dequeue_many(5, timeout=0.1)
                    queue.release_many(items)
                    with lock:
                        taken.update(item.value for item in items)
                        if taken.total() >= 2 * each:
                            done.set()

        run_threads(4, work)

        assert len(taken) == 2 * each
        assert max(taken.values()) == 1
        assert len(queue) == 0
        assert queue.info().freezes


def test_nobody_is_given_an_item_that_is_not_durable(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        file, reached, go_on = journal_of(queue).wal.file, threading.Event(), threading.Event()
        sync = file.sync

        def slow() -> None:
            reached.set()
            assert go_on.wait(60)
            sync()

        file.sync = slow  # the disk takes its time
        writer = threading.Thread(target=queue.enqueue, args=(b"a",))
        writer.start()
        assert reached.wait(60)

        early = queue.peek()
        go_on.set()
        writer.join()

        assert early is None
        assert must(queue.dequeue()).value == b"a"


def test_what_leaves_during_a_merge_makes_room_for_those_who_wait() -> None:
    disk, reached, go_on = SlowDisk(), threading.Event(), threading.Event()
    with open_queue(Path("/q"), max_bytes=4_000, filesystem=disk) as queue:
        queue.enqueue_many([bytes(1_000)] * 3)
        queue.freeze()
        items = queue.dequeue_many(3)

        def hold_the_merge(call: str, path: str, over: bool) -> None:
            if upkeep_of(queue).is_merging and not reached.is_set():
                reached.set()
                assert go_on.wait(60)

        disk.on_visit = hold_the_merge
        writer = threading.Thread(target=queue.enqueue, args=(b"a" * 1_000,))
        writer.start()
        assert reached.wait(60)

        queue.release_many(items)
        go_on.set()
        writer.join(60)
        is_stuck = writer.is_alive()
        queue.close()
        writer.join()

        assert not is_stuck


def test_the_background_thread_freezes_and_merges(tmp_path: Path) -> None:
    with DeadlineQueue(tmp_path / "q", sync="os", segment_items=50) as queue:
        for _ in range(30):
            queue.enqueue_many([b"a"] * 50)
            wait_until(lambda: (queue.info().in_memory or 0) < 50)

        assert wait_until(lambda: bool(queue.info().merges))
        assert queue.info().runs <= 16
        assert queue.pending == 1_500


def test_interval_syncs_by_itself(tmp_path: Path) -> None:
    with DeadlineQueue(tmp_path / "q", sync="interval", sync_interval_seconds=0.01) as queue:
        queue.enqueue(b"a")

        assert wait_until(lambda: bool(queue.info().syncs))


def test_a_child_of_a_fork_cannot_use_the_handle_and_the_parent_can(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                queue.enqueue(b"child")
            except Closed:
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        queue.enqueue(b"parent")

        assert status == 0
        assert must(queue.dequeue()).value == b"parent"


def use_and_hold(tell: Tell, path: Path, sync: SyncPolicy) -> None:
    """Enqueues, releases and dequeues, and holds the queue until the process is killed."""
    queue = DeadlineQueue(path, sync=sync, segment_items=40, background=False)
    for number in range(100):
        queue.enqueue(b"%d" % number)
        queue.maintain()
    queue.release_many(queue.dequeue_many(10))
    queue.dequeue_many(5)
    tell(len(queue))
    signal.pause()


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_killed_process_loses_nothing(tmp_path: Path, sync: SyncPolicy) -> None:
    told = kill_a_writer(lambda tell: use_and_hold(tell, tmp_path / "q", sync))

    with open_queue(tmp_path / "q") as queue:
        counts = queue.pending, queue.working
        items = queue.dequeue_many(200)

        assert (told, counts) == (90, (90, 0))
        assert [item.value for item in items] == [b"%d" % number for number in range(10, 100)]
        assert [item.dequeue_count for item in items[:6]] == [2, 2, 2, 2, 2, 1]


def test_a_merge_does_not_keep_a_close_waiting(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", sync="os") as queue:
        for _ in range(3):
            queue.enqueue_many([bytes(1000)] * 100)
            queue.freeze()
        upkeep_of(queue).stopping = True

        with pytest.raises(Closed):
            queue.merge()

        assert len(files_of(tmp_path / "q", ".run")) == 3
        assert queue.pending == 300


def test_a_wait_ends_when_the_next_item_or_the_next_lease_may_be_due(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        told = [seconds_to_due(queue)]
        queue.enqueue(b"later", delay=60)
        told.append(seconds_to_due(queue))
        queue.enqueue(b"now")
        told.append(seconds_to_due(queue))
        queue.dequeue(lease_seconds=10)
        told.append(seconds_to_due(queue))
        clock.pass_time(10_000)
        told.append(seconds_to_due(queue))

        assert told == [math.inf, 60, 0, 10, 0]


def test_a_merge_lets_a_freeze_and_a_sync_in_between(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", sync="os", background=False, segment_items=100) as queue:
        for _ in range(3):
            queue.enqueue_many([bytes(1000)] * 100)
            queue.freeze()
        calls = 0

        def between() -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                queue.enqueue_many([b"meanwhile"] * 100)
                queue.release_many(queue.dequeue_many(10))

        assert upkeep_of(queue).merge(everything=True, between=between)

        assert (queue.info().freezes, queue.info().merges, len(queue)) == (4, 1, 390)
        assert len(queue.dequeue_many(1000)) == 390
    with open_queue(tmp_path / "q") as queue:
        assert len(queue) == 390
        assert queue.merge()
        assert len(queue.dequeue_many(1000)) == 390


def test_a_freeze_lets_a_sync_in_between(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", sync="os", background=False) as queue:
        queue.enqueue_many([bytes(1 << 20)] * 8)
        durable = []

        def between() -> None:
            queue.enqueue(b"meanwhile")
            queue.sync()
            durable.append(queue.info().syncs or 0)

        assert upkeep_of(queue).freeze(between=between)

        assert len(durable) > 1
        assert durable == sorted(set(durable))
        assert len(queue) == 8 + len(durable)


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_child_of_a_fork_does_not_wait_for_a_lock_that_nobody_gives_back(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    with open_queue(tmp_path / "q", sync=sync, background=False) as queue:
        queue.enqueue(b"a")
        with journal_of(queue).lock:
            child = os.fork()
            if child == 0:
                # Ends a child that waits for ever; a status of a signal fails the test.
                signal.alarm(60)
                try:
                    queue.enqueue(b"b")
                except Closed:
                    os._exit(7)
                os._exit(8)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 7
        assert queue.dequeue() is not None
