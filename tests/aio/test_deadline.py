"""`forebay.aio.DeadlineQueue`: items are due in time, and come back whoever is cancelled when."""

from __future__ import annotations

import asyncio
import inspect
import random
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import DeadlineItem, Full, LeaseLost
from forebay.aio import DeadlineQueue, waiting
from tests.aio.helpers import begin_waiting, cancel_amid
from tests.queues.helpers import FakeClock

SMALL = {"max_bytes": 3_000, "when_full": "block", "background": False}
NOT_AWAITED = {"damage", "options", "changes", "disown", "due_in"}


@pytest.fixture
def only_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets nobody look by himself: what wakes a task is news, or that something is due."""
    monkeypatch.setattr(waiting, "_LOOK_SECONDS", 3_600.0)


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


def test_it_has_the_methods_of_the_blocking_queue_with_the_same_parameters() -> None:
    names = {name for name in dir(forebay.DeadlineQueue) if not name.startswith("_")}
    missing = {name for name in names - NOT_AWAITED if not hasattr(DeadlineQueue, name)}
    other = [
        name
        for name in names - NOT_AWAITED - missing
        if callable(getattr(forebay.DeadlineQueue, name))
        and list(inspect.signature(getattr(forebay.DeadlineQueue, name)).parameters)
        != list(inspect.signature(getattr(DeadlineQueue, name)).parameters)
    ]

    assert (missing, other) == (set(), [])


def test_every_verb_does_what_the_blocking_one_does(tmp_path: Path) -> None:
    clock = FakeClock()

    async def run() -> list[object]:
        async with DeadlineQueue(tmp_path / "q", clock=clock) as queue:
            first, second, later = await queue.enqueue_many([b"1", b"2", b"3"])
            await queue.delete(later)
            await queue.enqueue(b"4", delay=60)
            seen: list[object] = [len(queue), await queue.pending(), await queue.due()]
            item = await queue.dequeue()
            assert item is not None
            await queue.touch(item, lease_seconds=30)
            await queue.requeue(item, delay=10, value=b"again")
            other = await queue.dequeue()
            assert other is not None
            seen += [item.id == first, other.id == second, await queue.working()]
            await queue.bury(other, "bad")
            buried = await queue.get(second)
            seen += [await queue.buried(), buried and buried.reason]
            seen += [await queue.kick(second), await queue.buried()]
            head = await queue.peek()
            seen += [values_of(await queue.browse()), head and head.value]
            clock.ms += 1_000
            (last,) = await queue.dequeue_many(5)
            await queue.release(last)
            seen += [await queue.dequeue_many(5), await queue.freeze(), await queue.merge()]
            await queue.sync()
            return [*seen, (await queue.info())["pending"]]

    first = [3, 3, 2, True, True, 1, 1, "bad", 1, 0]
    assert asyncio.run(run()) == [*first, [b"2", b"again", b"4"], b"2", [], True, False, 2]


@pytest.mark.usefixtures("only_news")
def test_who_waits_is_given_an_item_when_its_deadline_comes(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        async with DeadlineQueue(tmp_path / "q") as queue:
            await queue.enqueue_many([b"1"], delay=0.3)
            async with asyncio.timeout(120):
                return values_of(await queue.dequeue_many(5, timeout=600))

    assert asyncio.run(run()) == [b"1"]


@pytest.mark.usefixtures("only_news")
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


@pytest.mark.usefixtures("only_news")
def test_who_waits_is_given_an_item_whose_lease_ends(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with DeadlineQueue(tmp_path / "q", lease_seconds=0.2) as queue:
            await queue.enqueue(b"1")
            async with asyncio.timeout(120):
                items = [await queue.dequeue(timeout=600) for _ in range(3)]
            return [item.dequeue_count for item in items if item is not None]

    assert asyncio.run(run()) == [1, 2, 3]


def test_a_dequeue_that_is_cancelled_while_it_takes_gives_its_items_back(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        async with DeadlineQueue(tmp_path / "q") as queue:
            await queue.enqueue_many([b"1", b"2", b"3"])
            lock = queue.queue._journal.lock
            await cancel_amid(queue, queue.dequeue_many(2, timeout=60), lock)
            async with asyncio.timeout(120):
                items = [await queue.dequeue(timeout=60) for _ in range(3)]
            return sorted(values_of([item for item in items if item is not None]))

    assert asyncio.run(run()) == [b"1", b"2", b"3"]


@pytest.mark.usefixtures("only_news")
def test_who_waits_gets_what_a_cancelled_dequeue_gives_back(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        async with DeadlineQueue(tmp_path / "q") as queue:
            await queue.enqueue(b"1")
            cancelled = cancel_amid(queue, queue.dequeue(), queue.queue._journal.lock)
            async with asyncio.timeout(120):
                items, _ = await asyncio.gather(queue.dequeue_many(5, timeout=600), cancelled)
            return values_of(items)

    assert asyncio.run(run()) == [b"1"]


def test_a_take_that_is_cancelled_while_it_takes_gives_the_item_back(tmp_path: Path) -> None:
    async def take(queue: DeadlineQueue) -> None:
        async with queue.take(timeout=60):
            raise AssertionError("the body must not run")

    async def run() -> bytes:
        async with DeadlineQueue(tmp_path / "q") as queue:
            await queue.enqueue(b"1")
            await cancel_amid(queue, take(queue), queue.queue._journal.lock)
            async with asyncio.timeout(120), queue.take(timeout=600) as item:
                return item.value

    assert asyncio.run(run()) == b"1"


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
            return await queue.due()

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


def test_a_release_that_is_cancelled_is_done(tmp_path: Path) -> None:
    async def run() -> int:
        async with DeadlineQueue(tmp_path / "q") as queue:
            await queue.enqueue_many([b"1", b"2"])
            items = await queue.dequeue_many(1)
            await cancel_amid(queue, queue.release_many(items), queue.queue._journal.lock)
            return len(queue)

    assert asyncio.run(run()) == 1


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
            with pytest.raises(Full, match=r"in 0\.1 s; nothing was written"):
                await queue.enqueue(b"y" * 100, timeout=0.1)
            adding = await begin_waiting(queue, queue.enqueue(b"y" * 100))
            assert not adding.done()
            await queue.release_many(await queue.dequeue_many(count))
            async with asyncio.timeout(120):
                return await queue.get(await adding) is not None

    assert asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
def test_random_cancellations_neither_lose_nor_double_an_item(tmp_path: Path, sync: str) -> None:
    chance = random.Random(sync)
    got: list[bytes] = []

    async def take(queue: DeadlineQueue) -> None:
        async with queue.take(timeout=60) as item:
            got.append(item.value)

    async def dequeue(queue: DeadlineQueue) -> None:
        items = await queue.dequeue_many(chance.randint(1, 3), timeout=60)
        try:
            await queue.release_many(items)
        finally:
            # A release that is cancelled is done.
            got.extend(values_of(items))

    async def consume(queue: DeadlineQueue, stop: asyncio.Event) -> None:
        while not stop.is_set():
            task = asyncio.ensure_future(chance.choice([take, dequeue])(queue))
            await asyncio.sleep(chance.random() * 0.004)
            task.cancel()
            await asyncio.wait([task])

    async def drain(queue: DeadlineQueue) -> None:
        while len(queue):
            items = await queue.dequeue_many(100, timeout=120)
            await queue.release_many(items)
            got.extend(values_of(items))

    async def run() -> list[bytes]:
        values = [b"%05d" % number for number in range(300)]
        stop = asyncio.Event()
        options: dict[str, Any] = {"sync": sync, "segment_items": 100, "lease_seconds": 600}
        async with DeadlineQueue(tmp_path / "q", **options) as queue:
            consumers = [asyncio.ensure_future(consume(queue, stop)) for _ in range(8)]
            for value in values:
                await queue.enqueue(value)
            stop.set()
            await asyncio.gather(*consumers)
            await drain(queue)
        return values

    values = asyncio.run(run())
    assert sorted(got) == values
