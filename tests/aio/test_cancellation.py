"""A task that is cancelled is cancelled, and loses nothing: as with an `asyncio.Queue`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay import Closed
from tests.aio.helpers import run
from tests.aio.subjects import OURS, SHARED, SUBJECTS, TAKING, Made, Subject

pytestmark = pytest.mark.usefixtures("servers")
each_subject = pytest.mark.parametrize("made", SUBJECTS, ids=str)
# Shared queues too, each of which starts a server: those are no part of the quick tier.
_SHARED = [pytest.param(made, marks=pytest.mark.slow) for made in SHARED]
each_and_shared = pytest.mark.parametrize("made", [*SUBJECTS, *_SHARED], ids=str)
# How many turns of the loop a task gets before it is cancelled; a few of them in the quick tier.
_TURNS = [0, 3, *(pytest.param(turns, marks=pytest.mark.slow) for turns in (1, 2, 5, 8, 30))]
each_turns = pytest.mark.parametrize("turns", _TURNS)
# Longer than any test lasts: whoever sleeps so long has lost its cancellation.
_FOR_EVER_SECONDS = 3_600.0
# What goes through a queue amid random cancellations.
_ITEMS = 50


async def let_run(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def until_waiting(task: asyncio.Task[Any]) -> None:
    """Returns when a task has come as far as it gets by itself."""
    await asyncio.sleep(0.05)
    assert not task.done()


async def get_then_sleep(queue: Subject, got: list[int]) -> None:
    await queue.use(got)
    await asyncio.sleep(_FOR_EVER_SECONDS)


async def put_then_sleep(queue: Subject, number: int) -> None:
    await queue.put(number)
    await asyncio.sleep(_FOR_EVER_SECONDS)


@each_subject
@each_turns
def test_a_get_that_is_cancelled_amid_leaves_the_item(
    tmp_path: Path, made: Made, turns: int
) -> None:
    async def use() -> None:
        got: list[int] = []
        async with made.opened(tmp_path) as queue:
            await queue.put(1)
            await queue.put(2)
            task = asyncio.ensure_future(get_then_sleep(queue, got))
            await let_run(turns)
            task.cancel()
            await asyncio.wait([task])

            assert task.cancelled()
            assert got + await queue.rest() == [1, 2]

    run(use())


@each_subject
@each_turns
def test_a_put_that_is_cancelled_amid_ends_and_the_queue_goes_on(
    tmp_path: Path, made: Made, turns: int
) -> None:
    async def use() -> None:
        async with made.opened(tmp_path) as queue:
            task = asyncio.ensure_future(put_then_sleep(queue, 1))
            await let_run(turns)
            task.cancel()
            await asyncio.wait([task])
            await queue.put(2)

            assert task.cancelled()
            assert await queue.rest() in ([1, 2], [2])

    run(use())


@each_and_shared
def test_a_get_that_waits_is_cancelled_at_once_and_the_next_one_is_served(
    tmp_path: Path, made: Made
) -> None:
    async def use() -> list[int]:
        async with made.opened(tmp_path) as queue:
            first = asyncio.ensure_future(queue.get())
            second = asyncio.ensure_future(queue.get())
            await until_waiting(first)
            first.cancel()
            await asyncio.wait([first])
            assert first.cancelled()
            await queue.put(1)
            await queue.put(2)
            return [await second, *await queue.rest()]

    assert run(use()) == [1, 2]


@each_subject
@each_turns
def test_an_item_that_comes_as_its_getter_is_cancelled_goes_to_the_next(
    tmp_path: Path, made: Made, turns: int
) -> None:
    async def use() -> list[int]:
        got: list[int] = []
        async with made.opened(tmp_path) as queue:
            first = asyncio.ensure_future(get_then_sleep(queue, got))
            second = asyncio.ensure_future(queue.use(got))
            await until_waiting(first)
            await queue.put(1)
            await let_run(turns)
            first.cancel()
            await queue.put(2)
            await second
            await asyncio.wait([first])
            assert first.cancelled()
            return sorted(got + await queue.rest())

    assert run(use()) == [1, 2]


@pytest.mark.parametrize("made", TAKING, ids=str)
@each_turns
def test_a_body_that_is_cancelled_twice_gives_its_record_back(
    tmp_path: Path, made: Made, turns: int
) -> None:
    async def hold(queue: Any) -> None:
        async with queue.lend():
            holds.set()
            await asyncio.sleep(_FOR_EVER_SECONDS)

    async def use() -> list[int]:
        async with made.opened(tmp_path) as queue:
            await queue.put(1)
            await queue.put(2)
            task = asyncio.ensure_future(hold(queue))
            await holds.wait()
            task.cancel()
            await let_run(turns)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            found = await queue.rest()
            while len(found) < 2:
                # It is there again when that is durable, which nobody waits for.
                await asyncio.sleep(0.001)
                found += await queue.rest()
            return sorted(found)

    holds = asyncio.Event()

    assert run(use()) == [1, 2]


@each_subject
def test_a_put_that_waits_for_room_is_cancelled_and_has_put_nothing(
    tmp_path: Path, made: Made
) -> None:
    async def use() -> None:
        async with made.opened(tmp_path, small=True) as queue:
            put = await fill(queue)
            waiting = [asyncio.ensure_future(queue.put(1_000 + number)) for number in range(3)]
            await until_waiting(waiting[0])
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

            assert all(task.cancelled() for task in waiting)
            assert await queue.rest() == list(range(put))
            await queue.put(7)
            assert await queue.rest() == [7]

    run(use())


async def fill(queue: Subject) -> int:
    """Puts numbers until there is no room; returns how many."""
    number = 0
    while True:
        task = asyncio.ensure_future(queue.put(number))
        done, _ = await asyncio.wait([task], timeout=0.2)
        if not done:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            return number
        number += 1


@each_and_shared
def test_a_timeout_of_nothing_raises_or_has_the_item(tmp_path: Path, made: Made) -> None:
    async def use() -> None:
        got: list[int] = []
        async with made.opened(tmp_path) as queue:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await queue.get()
            await queue.put(1)
            with_item = await attempt(queue, got, lambda: asyncio.timeout(0))
            assert with_item == bool(got)
            assert got + await queue.rest() == [1]

    run(use())


async def attempt(queue: Subject, got: list[int], limit: Callable[[], asyncio.Timeout]) -> bool:
    try:
        async with limit():
            await queue.use(got)
    except TimeoutError:
        return False
    return True


@each_subject
@pytest.mark.parametrize("seconds", [0, 0.000_1, 0.001, 0.02])
def test_a_wait_that_is_limited_raises_in_time_and_loses_nothing(
    tmp_path: Path, made: Made, seconds: float
) -> None:
    async def use() -> None:
        got: list[int] = []
        async with made.opened(tmp_path) as queue:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.get(), seconds)
            for number in range(20):
                await queue.put(number)
            for _ in range(20):
                try:
                    await asyncio.wait_for(queue.use(got), seconds)
                except TimeoutError:
                    continue
            assert sorted(got + await queue.rest()) == list(range(20))

    run(use())


@each_and_shared
def test_a_group_whose_sibling_fails_ends_all_who_wait(tmp_path: Path, made: Made) -> None:
    tasks: list[asyncio.Task[int]] = []

    async def fail() -> None:
        await asyncio.sleep(0.02)
        raise ValueError("sibling")

    async def wait_together(queue: Subject) -> None:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(queue.get()) for _ in range(5))
            group.create_task(fail())

    async def use() -> list[int]:
        async with made.opened(tmp_path) as queue:
            with pytest.raises(ExceptionGroup, match="unhandled errors"):
                await wait_together(queue)
            assert all(task.cancelled() for task in tasks)
            await queue.put(1)
            return await queue.rest()

    assert run(use()) == [1]


@pytest.mark.slow
@each_and_shared
@pytest.mark.parametrize("seed", range(3))
def test_random_cancellations_neither_lose_nor_double_an_item(
    tmp_path: Path, made: Made, seed: int
) -> None:
    chance = random.Random(seed)
    got: list[int] = []

    async def consume(queue: Subject) -> None:
        while True:
            task = asyncio.ensure_future(queue.use(got))
            await asyncio.sleep(chance.choice([0, 0.000_1, 0.001, 0.003]))
            task.cancel()
            await asyncio.wait([task])
            assert not task.done() or task.cancelled() or task.exception() is None

    async def use() -> None:
        async with made.opened(tmp_path) as queue:
            consumers = [asyncio.ensure_future(consume(queue)) for _ in range(6)]
            for number in range(_ITEMS):
                await queue.put(number)
                await asyncio.sleep(chance.choice([0, 0, 0.000_5]))
            for consumer in consumers:
                consumer.cancel()
            await asyncio.wait(consumers)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others)
            got.extend(await queue.rest())

    run(use())

    assert sorted(got) == list(range(_ITEMS))


@pytest.mark.parametrize("made", [*OURS, *_SHARED], ids=str)
def test_close_ends_all_who_wait(tmp_path: Path, made: Made) -> None:
    async def use() -> list[object]:
        async with made.opened(tmp_path) as queue:
            tasks = [asyncio.ensure_future(queue.get()) for _ in range(5)]
            await until_waiting(tasks[0])
            await queue.close()
            return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(result, Closed) for result in run(use()))
