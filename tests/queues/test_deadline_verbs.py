"""The verbs of a deadline queue: what they wait for, what they give back, and how leases last."""

from __future__ import annotations

import errno
import inspect
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forebay.errors import Empty, InvalidOption, LeaseLost
from forebay.queues.deadline.item import DeadlineItem
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.shared.options import SyncPolicy
from forebay.storage.commit import Ticket
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.deadline_helpers import must, open_queue
from tests.queues.fifo_helpers import TwoClocks
from tests.queues.helpers import wait_until
from tests.support.inside import seconds_to_due

VERBS = (
    *("enqueue", "enqueue_many", "put", "put_many", "dequeue", "dequeue_many", "take", "release"),
    *("release_many", "requeue", "touch", "reclaim", "bury", "kick", "delete", "sync"),
    *("freeze", "merge"),
)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_its_steps_with_the_same_parameters(name: str) -> None:
    method = getattr(DeadlineQueue, name)

    steps = inspect.signature(method.steps)

    assert steps.parameters == inspect.signature(method).parameters


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_deadline_is_a_moment_and_deadline_ms_a_number(tmp_path: Path, sync: SyncPolicy) -> None:
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    ms = int(moment.timestamp() * 1000)
    with open_queue(tmp_path / "q", sync=sync) as queue:
        queue.put(b"a", deadline=moment)
        queue.put_many([b"b", b"c"], deadline=[moment, moment + timedelta(seconds=1)])
        queue.put_many([b"d", b"e"], deadline_ms=[ms, ms + 1])
        times = [(item.value, item.deadline_ms - ms) for item in queue.browse()]
        with pytest.raises(InvalidOption, match=r"must be a datetime.*deadline_ms takes"):
            queue.enqueue(b"x", deadline=ms)  # type: ignore[arg-type]  # that is the mistake
        with pytest.raises(InvalidOption, match="looks like seconds"):
            queue.enqueue(b"x", deadline_ms=ms // 1000)

    assert times == [(b"a", 0), (b"b", 0), (b"d", 0), (b"e", 1), (b"c", 1000)]


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("verb", ["enqueue", "dequeue", "release", "requeue", "bury", "delete"])
def test_a_change_that_cannot_be_written_did_not_happen(verb: str, sync: SyncPolicy) -> None:
    filesystem = ForgetfulFilesystem()
    queue = DeadlineQueue(
        "/q", filesystem=filesystem, background=False, sync=sync, mapped=False, clock=TwoClocks()
    )
    ids = queue.enqueue_many([b"held", b"pending"])
    item = must(queue.dequeue())
    changes: dict[str, Callable[[], object]] = {
        "enqueue": lambda: queue.enqueue(b"new"),
        "dequeue": queue.dequeue,
        "release": lambda: queue.release(item),
        "requeue": lambda: queue.requeue(item, value=b"other"),
        "bury": lambda: queue.bury(item),
        "delete": lambda: queue.delete(ids[1]),
    }
    before = queue.browse(), len(queue), queue.pending, queue.working, queue.buried

    filesystem.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        changes[verb]()
    filesystem.heal()

    assert (queue.browse(), len(queue), queue.pending, queue.working, queue.buried) == before
    # Its taker still holds it, and what was pending can be taken.
    queue.touch(item)
    assert must(queue.dequeue()).id == ids[1]
    queue.release(item)
    assert queue.enqueue(b"next") == ids[1] + 1
    queue.close()
    with DeadlineQueue("/q", filesystem=filesystem, background=False) as again:
        assert [each.value for each in again.browse()] == [b"pending", b"next"]


def test_a_dequeue_whose_wait_fails_gives_its_item_back(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", background=False) as queue:
        queue.enqueue(b"a")
        steps = DeadlineQueue.dequeue.steps(queue)  # type: ignore[attr-defined]  # by `shortcut`
        ticket = next(steps)
        working = queue.working
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())

        assert isinstance(ticket, Ticket)
        assert (working, queue.working, queue.pending) == (1, 0, 1)
        assert must(queue.dequeue()).dequeue_count == 2


def test_who_waits_for_an_item_sleeps_until_one_is_due_or_a_lease_ends(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", clock=TwoClocks(), sync="os") as queue:
        steps = DeadlineQueue.dequeue.steps(queue, 60)  # type: ignore[attr-defined]
        waits = [next(steps)]
        queue.enqueue(b"later", delay=30)
        waits.append(steps.send(None))
        queue.enqueue(b"now")
        with queue.take(lease_seconds=10):
            waits.append(steps.send(None))

    assert [(wait.line, wait.give_up_in, wait.look_in) for wait in waits] == [
        *(("items", 60, math.inf), ("items", 60, 30), ("items", 60, 10))
    ]


def test_the_lease_of_a_take_lasts_as_long_as_its_block(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock, background=False, lease_seconds=10) as queue:
        queue.enqueue(b"a")
        with queue.take() as item:
            for _ in range(5):
                clock.pass_time(4_000)
                queue.maintain()
            held = queue.dequeue(), queue.working
        released = len(queue)
        queue.enqueue(b"b")
        other = must(queue.dequeue())
        clock.pass_time(11_000)
        queue.maintain()

        assert (item.value, held, released) == (b"a", (None, 1), 0)
        # What was dequeued without a block is not extended.
        assert (other.value, queue.working) == (b"b", 0)


def test_the_background_thread_extends_the_lease_of_a_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_queue(tmp_path / "q", background=True) as queue:
        touch, touched = queue._touch, []

        def note(item: DeadlineItem, lease_ms: int) -> None:
            touch(item, lease_ms)
            touched.append((item.value, lease_ms))

        monkeypatch.setattr(queue, "_touch", note)
        queue.enqueue(b"a")
        with queue.take(lease_seconds=0.3):
            assert wait_until(lambda: len(touched) >= 2)

        assert set(touched) == {(b"a", 300)}
        assert len(queue) == 0


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 2), (2, 4), (3, 5), (4, 5)])
def test_a_take_that_fails_is_due_again_later_and_later(
    tmp_path: Path, attempts: int, seconds: int
) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock, retry_seconds=2, retry_seconds_max=5) as queue:
        queue.enqueue(b"a")
        for _ in range(attempts):
            due_in = seconds_to_due(queue)
            clock.pass_time(int(due_in * 1000))
            with pytest.raises(ZeroDivisionError), queue.take():
                raise ZeroDivisionError

        assert seconds_to_due(queue) == seconds


def test_an_item_that_is_buried_by_a_take_tells_the_exception(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", max_attempts=1) as queue:
        id = queue.enqueue(b"a")
        with pytest.raises(ValueError, match="no such customer"), queue.take():
            raise ValueError("no such customer")

        assert must(queue.get(id)).reason == "max_attempts: ValueError: no such customer"


def release_and_fail(queue: DeadlineQueue, item: DeadlineItem) -> None:
    queue.release(item)
    raise ZeroDivisionError


def test_a_block_that_fails_tells_its_own_error_though_the_item_is_gone(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue(b"a")
        with pytest.raises(ZeroDivisionError), queue.take() as item:
            release_and_fail(queue, item)
        with pytest.raises(Empty), queue.take():
            pass
        queue.enqueue(b"b")
        with pytest.raises(LeaseLost), queue.take() as item:
            queue.release(item)
