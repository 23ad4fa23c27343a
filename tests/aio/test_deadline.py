"""`forebay.aio.DeadlineQueue`: items are due in time, and come back whoever is cancelled when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forebay import DeadlineItem, Full, LeaseLost
from forebay.aio import DeadlineQueue
from tests.aio.helpers import begin_waiting
from tests.queues.helpers import FakeClock

SMALL: dict[str, Any] = {"max_bytes": 3_000, "when_full": "block", "background": False}


def values_of(items: list[DeadlineItem]) -> list[bytes]:
    return [item.value for item in items]


async def fill(queue: DeadlineQueue) -> int:
    """Enqueues until there is no room, in runs neither; gives how many items there are."""
    refused = 0
    while refused < 2:
        try:
            await queue.enqueue(b"x" * 100, timeout=0)
            refused = 0
        except Full:
            refused += 1
    return len(queue)


def test_every_verb_does_what_the_blocking_one_does(tmp_path: Path) -> None:
    clock = FakeClock()

    async def run() -> list[object]:
        async with DeadlineQueue(tmp_path / "q", clock=clock) as queue:
            first, second, later = await queue.enqueue_many([b"1", b"2", b"3"])
            await queue.delete(later)
            await queue.enqueue(b"4", delay=60)
            seen: list[object] = [len(queue), queue.pending, queue.due]
            item = await queue.dequeue()
            assert item is not None
            await queue.touch(item, lease_seconds=30)
            await queue.requeue(item, delay=10, value=b"again")
            other = await queue.dequeue()
            assert other is not None
            seen += [item.id == first, other.id == second, queue.working]
            await queue.bury(other, "bad")
            buried = await queue.get(second)
            seen += [queue.buried, buried and buried.reason]
            seen += [await queue.kick(second), queue.buried]
            head = await queue.peek()
            seen += [values_of(await queue.browse()), head and head.value]
            clock.ms += 1_000
            (last,) = await queue.dequeue_many(5)
            await queue.release(last)
            seen += [await queue.dequeue_many(5), await queue.freeze(), await queue.merge()]
            await queue.sync()
            return [*seen, (await queue.info()).pending]

    first = [3, 3, 2, True, True, 1, 1, "bad", 1, 0]
    assert asyncio.run(run()) == [*first, [b"2", b"again", b"4"], b"2", [], True, False, 2]


def test_who_waits_is_given_an_item_when_its_deadline_comes(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        async with DeadlineQueue(tmp_path / "q") as queue:
            await queue.enqueue_many([b"1"], delay=0.3)
            async with asyncio.timeout(120):
                return values_of(await queue.dequeue_many(5, timeout=600))

    assert asyncio.run(run()) == [b"1"]


def test_who_waits_for_a_late_item_is_woken_by_one_that_is_due_sooner(tmp_path: Path) -> None:
    async def run() -> bytes:
        async with DeadlineQueue(tmp_path / "q") as queue:
            await queue.enqueue(b"late", delay=3_000)
            waiting = await begin_waiting(queue, queue.dequeue(timeout=600))
            await queue.enqueue(b"soon", delay=0.2)
            async with asyncio.timeout(120):
                item = await waiting
                assert item is not None
                return item.value

    assert asyncio.run(run()) == b"soon"


def test_who_waits_is_given_an_item_whose_lease_ends(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with DeadlineQueue(tmp_path / "q", lease_seconds=0.2) as queue:
            await queue.enqueue(b"1")
            async with asyncio.timeout(120):
                items = [await queue.dequeue(timeout=600) for _ in range(3)]
            return [item.dequeue_count for item in items if item is not None]

    assert asyncio.run(run()) == [1, 2, 3]


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError()])
def test_a_take_whose_body_fails_requeues_the_item(tmp_path: Path, error: BaseException) -> None:
    clock = FakeClock()

    async def fail_with(queue: DeadlineQueue) -> None:
        async with queue.take() as item:
            assert item.value == b"1"
            raise error

    async def run() -> list[object]:
        async with DeadlineQueue(tmp_path / "q", clock=clock) as queue:
            await queue.enqueue(b"1")
            with pytest.raises(type(error)) as caught:
                await fail_with(queue)
            assert caught.value is error
            seen: list[object] = [await queue.dequeue(), len(queue)]
            clock.ms += 1_000
            async with queue.take() as item:
                seen.append(item.dequeue_count)
            return [*seen, len(queue)]

    assert asyncio.run(run()) == [None, 1, 2, 0]


def test_a_take_whose_lease_ended_raises_what_its_body_raised(tmp_path: Path) -> None:
    clock = FakeClock()

    async def fail_late(queue: DeadlineQueue) -> None:
        async with queue.take(lease_seconds=5):
            clock.ms += 6_000
            raise ValueError("bad")

    async def come_late(queue: DeadlineQueue) -> None:
        async with queue.take(lease_seconds=5):
            clock.ms += 6_000

    async def run() -> int:
        async with DeadlineQueue(tmp_path / "q", clock=clock) as queue:
            await queue.enqueue(b"1")
            with pytest.raises(ValueError, match="bad"):
                await fail_late(queue)
            with pytest.raises(LeaseLost):
                await come_late(queue)
            return queue.due

    assert asyncio.run(run()) == 1


def test_a_taker_that_comes_back_reclaims_its_item_by_its_token(tmp_path: Path) -> None:
    async def run() -> int:
        async with DeadlineQueue(tmp_path / "q") as queue:
            await queue.enqueue(b"1")
            (item,) = await queue.dequeue_many(1)
        async with DeadlineQueue(tmp_path / "q") as queue:
            with pytest.raises(LeaseLost):
                await queue.reclaim(item.id, item.dequeue_count + 1)
            await queue.release(await queue.reclaim(*item.token, lease_seconds=30))
            return len(queue)

    assert asyncio.run(run()) == 0


def test_an_item_that_is_taken_when_the_queue_closes_is_there_after_a_reopen(
    tmp_path: Path,
) -> None:
    async def close_and_fail(queue: DeadlineQueue) -> None:
        async with queue.take():
            await queue.close()
            raise ValueError("bad")

    async def run() -> list[bytes]:
        queue = await DeadlineQueue(tmp_path / "q").open()
        await queue.enqueue(b"1")
        with pytest.raises(ValueError, match="bad"):
            await close_and_fail(queue)
        async with DeadlineQueue(tmp_path / "q") as queue:
            return values_of(await queue.dequeue_many(5))

    assert asyncio.run(run()) == [b"1"]


def test_an_enqueue_that_is_cancelled_while_it_waits_for_room_has_written_nothing(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[int, int]:
        async with DeadlineQueue(tmp_path / "q", **SMALL) as queue:
            count = await fill(queue)
            adding = [await begin_waiting(queue, queue.enqueue(b"y" * 100)) for _ in range(3)]
            for task in adding:
                task.cancel()
            await asyncio.gather(*adding, return_exceptions=True)
            await queue.release_many(await queue.dequeue_many(count))
            return len(queue), len(await queue.enqueue_many([b"x"] * 5))

    assert asyncio.run(run()) == (0, 5)


def test_an_enqueue_waits_for_room_and_gets_it_from_a_release(tmp_path: Path) -> None:
    async def run() -> bool:
        async with DeadlineQueue(tmp_path / "q", **SMALL) as queue:
            count = await fill(queue)
            with pytest.raises(Full, match="no room for"):
                await queue.enqueue(b"y" * 100, timeout=0.1)
            adding = await begin_waiting(queue, queue.enqueue(b"y" * 100))
            assert not adding.done()
            await queue.release_many(await queue.dequeue_many(count))
            async with asyncio.timeout(120):
                return await queue.get(await adding) is not None

    assert asyncio.run(run())
