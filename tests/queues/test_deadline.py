"""What a deadline queue does for its user, on a real disk."""

from __future__ import annotations

import queue as standard
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay import DeadlineQueue
from forebay.errors import (
    Closed,
    Empty,
    Full,
    InvalidOption,
    LeaseLost,
    Locked,
    NotAQueue,
    RecordTooLarge,
)
from tests.queues.deadline_helpers import counts_of, files_of, must, open_queue, values_of
from tests.queues.fifo_helpers import DAY_MS, TwoClocks


def test_items_come_in_the_order_of_their_deadlines(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        for delay in (3, 1, 2):
            queue.enqueue(b"%d" % delay, delay=delay)

        early = queue.dequeue()
        clock.pass_time(2_500)
        first = queue.dequeue_many(5)
        clock.pass_time(1_000)
        second = queue.dequeue_many(5)

        assert early is None
        assert values_of(first) == [b"1", b"2"]
        assert values_of(second) == [b"3"]


def test_items_of_one_deadline_come_in_the_order_of_enqueueing(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        ids = queue.enqueue_many([b"a", b"b"]) + queue.enqueue_many([b"c"])

        items = queue.dequeue_many(10)

        assert ids == [1, 2, 3]
        assert values_of(items) == [b"a", b"b", b"c"]


def test_a_deadline_may_be_a_moment_or_milliseconds(tmp_path: Path) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    with open_queue(tmp_path / "q") as queue:
        first = queue.enqueue(b"a", deadline=moment)
        second = queue.enqueue(b"b", deadline_ms=5_000_000_000_000)

        assert abs(must(queue.get(first)).deadline - moment) < timedelta(milliseconds=2)
        assert must(queue.get(second)).deadline_ms == 5_000_000_000_000


@pytest.mark.parametrize(
    "given",
    [
        {"delay": 1, "deadline": 5},
        {"delay": -1},
        {"deadline": datetime(2030, 1, 1)},
        {"deadline": 1 << 47},
    ],
)
def test_a_deadline_that_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with open_queue(tmp_path / "q") as queue:
        with pytest.raises(InvalidOption):
            queue.enqueue(b"a", **given)

        assert len(queue) == 0


def test_a_deadline_in_the_past_does_not_overtake_what_was_given_out(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        queue.enqueue(b"a")
        given = must(queue.dequeue())
        clock.pass_time(1_000)

        id = queue.enqueue(b"b", deadline_ms=given.deadline_ms - 500)

        assert must(queue.get(id)).deadline_ms == given.deadline_ms


def test_a_released_item_is_gone_and_a_second_release_is_refused(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue(b"a")
        item = must(queue.dequeue())

        queue.release(item)

        with pytest.raises(LeaseLost):
            queue.release(item)
        assert counts_of(queue) == (0, 0, 0, 0)


def test_an_item_whose_lease_ended_is_pending_again_and_its_token_is_stale(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock, lease_seconds=10) as queue:
        queue.enqueue(b"a")
        first = must(queue.dequeue())
        clock.pass_time(9_000)
        none = queue.dequeue()
        clock.pass_time(1_000)
        second = must(queue.dequeue())

        assert none is None
        assert (first.token, second.token) == ((1, 1), (1, 2))
        assert first.deadline_ms == second.deadline_ms
        for verb in (queue.release, queue.requeue, queue.touch, queue.bury):
            with pytest.raises(LeaseLost):
                verb(first)
        queue.release(second)


def test_touch_extends_a_lease(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        queue.enqueue(b"a")
        item = must(queue.dequeue(lease_seconds=10))
        clock.pass_time(9_000)
        queue.touch(item, lease_seconds=10)
        clock.pass_time(9_000)

        assert queue.dequeue() is None
        assert queue.working == 1


def test_a_requeued_item_keeps_its_id_and_gets_its_new_value(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        id = queue.enqueue(b"a")
        item = must(queue.dequeue())

        queue.requeue(item, delay=5, value=b"b")

        assert queue.dequeue() is None
        clock.pass_time(5_000)
        again = must(queue.dequeue())
        assert (again.id, again.value, again.dequeue_count) == (id, b"b", 2)
        assert again.requeue_ms > 0


def test_a_buried_item_waits_for_a_kick(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        ids = queue.enqueue_many([b"a", b"b", b"c"])
        for item in queue.dequeue_many(3):
            queue.bury(item, f"bad {item.id}")
        buried = must(queue.get(ids[1]))
        counts = counts_of(queue)

        kicked = queue.kick(ids[2]), queue.kick(count=1), queue.kick(ids[2])

        assert counts == (0, 0, 0, 3)
        assert (buried.buried, buried.reason) == (True, "bad 2")
        assert kicked == (1, 1, 0)
        assert (queue.pending, queue.buried) == (2, 1)
        assert must(queue.get(ids[0])).dequeue_count == 0


@pytest.mark.parametrize("way", ["requeue", "lease", "restart"])
def test_an_item_that_came_back_too_often_is_buried(tmp_path: Path, way: str) -> None:
    clock = TwoClocks()
    options: dict[str, Any] = {"clock": clock, "max_attempts": 2, "lease_seconds": 10}
    queue = open_queue(tmp_path / "q", **options)
    queue.enqueue(b"poison")
    queue.enqueue(b"good", delay=60)
    for _ in range(2):
        item = must(queue.dequeue())
        if way == "requeue":
            queue.requeue(item)
            clock.pass_time(1)
        elif way == "lease":
            clock.pass_time(10_000)
        else:
            queue.close()
            queue = open_queue(tmp_path / "q", **options)

    assert queue.dequeue() is None
    assert (queue.pending, queue.buried) == (1, 1)
    assert must(queue.get(1)).reason == "max_attempts"
    queue.close()


def test_take_releases_on_success_and_requeues_with_backoff_on_an_exception(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        queue.enqueue(b"a")
        for seconds in (1, 2, 4):
            with pytest.raises(KeyError), queue.take():
                raise KeyError
            clock.pass_time(seconds * 1000 - 1)
            assert queue.due == 0
            clock.pass_time(1)
        with queue.take() as item:
            assert item.dequeue_count == 4

        assert len(queue) == 0
        with pytest.raises(Empty), queue.take():
            pass


def test_delete_takes_an_item_from_its_holder(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        ids = queue.enqueue_many([b"a", b"b"])
        item = must(queue.dequeue())

        found = queue.delete(ids[0]), queue.delete(ids[1]), queue.delete(ids[1])

        assert found == (True, True, False)
        with pytest.raises(LeaseLost):
            queue.release(item)
        assert counts_of(queue) == (0, 0, 0, 0)


def test_peek_shows_what_is_next_even_before_it_is_due(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue(b"later", delay=60)

        assert must(queue.peek()).value == b"later"
        assert queue.dequeue() is None


def test_a_blocking_dequeue_that_gets_nothing_raises_empty(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue(b"later", delay=60)

        with pytest.raises(standard.Empty):
            queue.dequeue(timeout=0.01)


def test_a_blocking_dequeue_gets_what_becomes_due_meanwhile(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue(b"soon", delay=0.05)

        assert must(queue.dequeue(timeout=30)).value == b"soon"


def test_everything_is_there_after_reopening_and_what_was_out_is_pending(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many([b"a", b"b", b"c", b"d"])
        first, second, third = queue.dequeue_many(3)
        queue.release(first)
        queue.bury(second)

    with open_queue(tmp_path / "q") as queue:
        counts = counts_of(queue)
        next_id = queue.enqueue(b"e")
        again = must(queue.dequeue())

        assert counts == (2, 2, 0, 1)
        assert (again.id, again.dequeue_count) == (third.id, 2)
        assert next_id == 5


@pytest.mark.parametrize("ms", [-DAY_MS, DAY_MS])
def test_a_clock_that_jumps_while_it_is_open_loses_nothing(tmp_path: Path, ms: int) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        queue.enqueue(b"a", delay=1)
        clock.set_wall(ms)
        clock.pass_time(1_000)

        assert must(queue.dequeue()).value == b"a"


def test_what_was_given_out_before_the_clock_fell_back_hides_no_new_item(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        queue.enqueue(b"a")
        queue.release(must(queue.dequeue()))
    clock.set_wall(-DAY_MS)

    with open_queue(tmp_path / "q", clock=clock) as queue:
        queue.enqueue(b"b")

        assert must(queue.dequeue()).value == b"b"


def test_a_full_queue_refuses_and_takes_again_when_items_have_left(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", max_bytes=4_000, when_full="reject") as queue:
        queue.enqueue_many([bytes(1_000)] * 3)
        with pytest.raises(Full):
            queue.enqueue(bytes(1_000))
        before = len(queue)
        queue.release_many(queue.dequeue_many(10))

        queue.enqueue(bytes(1_000))

        assert before == 3
        assert len(queue) == 1
        with pytest.raises(RecordTooLarge):
            queue.enqueue(bytes(5_000))


def test_a_blocking_enqueue_gives_up_when_its_time_is_over(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", max_bytes=4_000) as queue:
        queue.enqueue_many([bytes(1_000)] * 3)

        with pytest.raises(Full):
            queue.enqueue(bytes(1_000), timeout=0.05)


def test_a_closed_queue_refuses_everything(tmp_path: Path) -> None:
    queue = open_queue(tmp_path / "q")
    queue.enqueue(b"a")
    queue.close()
    queue.close()

    for verb in (queue.dequeue, queue.peek, queue.sync, queue.info, lambda: queue.enqueue(b"b")):
        with pytest.raises(Closed):
            verb()


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q"), pytest.raises(Locked):
        open_queue(tmp_path / "q")


def test_a_directory_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    tmp_path.chmod(0o700)

    with pytest.raises(NotAQueue, match=r"letter\.txt"):
        open_queue(tmp_path)


def test_freezing_and_merging_leave_one_file_of_what_is_there(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        for batch in range(3):
            queue.enqueue_many([b"%d" % batch] * 10)
            queue.release_many(queue.dequeue_many(4))
            queue.freeze()
        frozen = len(files_of(tmp_path / "q", ".run"))

        queue.merge()

        assert frozen > 3
        assert [file.suffixes[0] for file in files_of(tmp_path / "q", ".run")] == [".p"]
        assert len(files_of(tmp_path / "q", ".wal")) == 1
        assert counts_of(queue) == (18, 18, 0, 0)


def test_a_merge_of_nothing_but_dead_items_leaves_no_run(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue_many([b"a"] * 10)
        queue.freeze()
        queue.release_many(queue.dequeue_many(10))
        queue.freeze()

        queue.merge()

        assert files_of(tmp_path / "q", ".run") == []
        assert queue.dequeue() is None


def test_counts_are_exact_right_after_opening_a_frozen_queue(tmp_path: Path) -> None:
    clock = TwoClocks()
    with open_queue(tmp_path / "q", clock=clock) as queue:
        queue.enqueue_many([b"a"] * 50)
        queue.enqueue_many([b"later"] * 30, delay=60)
        queue.freeze()
        queue.release_many(queue.dequeue_many(20))
        for item in queue.dequeue_many(3):
            queue.bury(item)
        queue.delete(70)
        queue.freeze()
        queue.kick(count=1)
        clock.pass_time(10)

    with open_queue(tmp_path / "q", clock=clock) as queue:
        assert counts_of(queue) == (57, 28, 0, 2)
        clock.pass_time(60_000)
        assert counts_of(queue) == (57, 57, 0, 2)


def test_how_often_an_item_was_given_out_outlives_freezes_and_merges(tmp_path: Path) -> None:
    options: dict[str, Any] = {"lease_seconds": 0.001}
    for expected in range(1, 5):
        with open_queue(tmp_path / "q", **options) as queue:
            if expected == 1:
                queue.enqueue_many([b"a", b"b"])
            queue.freeze()
            assert must(queue.dequeue()).dequeue_count == expected
            queue.freeze()
            if expected == 3:
                queue.merge()


def test_a_count_below_nothing_is_refused(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue(b"a")

        for call in (lambda: queue.kick(count=-1), lambda: queue.browse(-1)):
            with pytest.raises(InvalidOption, match="count = -1: must be at least 0"):
                call()

        assert counts_of(queue) == (1, 1, 0, 0)


@pytest.mark.parametrize("seconds", [-5, 0, float("nan"), True, "60"])
def test_a_lease_that_is_no_time_is_refused_and_ends_no_lease(tmp_path: Path, seconds: Any) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.enqueue(b"a")
        item = must(queue.dequeue())

        for call in (
            lambda: queue.touch(item, lease_seconds=seconds),
            lambda: queue.reclaim(item.id, item.dequeue_count, lease_seconds=seconds),
        ):
            with pytest.raises(InvalidOption, match="lease_seconds"):
                call()

        assert counts_of(queue) == (0, 0, 1, 0)


@pytest.mark.parametrize("sync", ["always", "os"])
def test_half_a_millisecond_is_rounded_up_under_every_policy(tmp_path: Path, sync: str) -> None:
    with open_queue(tmp_path / "q", sync=sync, clock=TwoClocks()) as queue:
        now_ms = must(queue.get(queue.enqueue(b"now"))).deadline_ms
        delays = [0.0005, 0.0015, 0.0025, 0.0024]

        found = [must(queue.get(queue.enqueue(b"a", delay=delay))) for delay in delays]
        many = queue.enqueue_many([b"b"], delay=0.0025)

        assert [item.deadline_ms - now_ms for item in found] == [1, 2, 3, 2]
        assert must(queue.get(many[0])).deadline_ms - now_ms == 3


def test_a_copied_log_may_begin_with_what_was_deleted_before_a_large_item(tmp_path: Path) -> None:
    with DeadlineQueue(tmp_path / "q") as queue:
        small = queue.enqueue(b"small")
        queue.enqueue(b"x" * 5_000)
        queue.delete(small)

    for _ in range(2):
        with DeadlineQueue(tmp_path / "q") as queue:
            assert [item.value for item in queue.browse(10)] == [b"x" * 5_000]
