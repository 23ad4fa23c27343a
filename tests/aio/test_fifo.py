"""`forebay.aio.Fifo`: entries are neither lost nor doubled, whoever is cancelled when."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from forebay import Full
from forebay.aio import Fifo
from tests.aio.helpers import begin_waiting, no_free_thread, until

SMALL: dict[str, Any] = {"file_bytes": 500, "max_bytes": 1_000}


async def fill(fifo: Fifo) -> int:
    """Pushes until there is no room; gives how many entries there are."""
    while True:
        try:
            await fifo.push(b"x" * 100, timeout=0)
        except Full:
            return len(fifo)


@pytest.mark.slow
def test_an_entry_is_put_aside_also_if_the_task_is_cancelled_before_that_begins(
    tmp_path: Path,
) -> None:
    async def fail(fifo: Fifo, may_fail: asyncio.Event) -> None:
        async with fifo.take():
            await may_fail.wait()
            raise ValueError

    async def run() -> tuple[int, list[bytes]]:
        async with Fifo(tmp_path / "q", max_attempts=1) as fifo:
            await fifo.push(b"poison")
            may_fail = asyncio.Event()
            task = asyncio.ensure_future(fail(fifo, may_fail))
            await until(lambda: len(fifo) == 0)
            async with no_free_thread():
                may_fail.set()
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
            await until(lambda: fifo.queue.info().dead == 1)
            return (await fifo.info()).taken, [entry.value for entry in await fifo.dead()]

    assert asyncio.run(run()) == (0, [b"poison"])


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError()])
def test_a_take_whose_body_fails_gives_the_entry_back(tmp_path: Path, error: BaseException) -> None:
    async def fail_with(fifo: Fifo, error: BaseException) -> None:
        async with fifo.take() as entry:
            assert (entry.value, len(fifo)) == (b"1", 1)
            raise error

    async def run() -> list[bytes]:
        async with Fifo(tmp_path / "q") as fifo:
            await fifo.push_many([b"1", b"2"])
            with pytest.raises(type(error)) as caught:
                await fail_with(fifo, error)
            assert caught.value is error
            return await fifo.pop_many(5)

    assert asyncio.run(run()) == [b"1", b"2"]


def test_an_entry_that_is_taken_when_the_queue_closes_is_there_after_a_reopen(
    tmp_path: Path,
) -> None:
    async def close_and_fail(fifo: Fifo) -> None:
        async with fifo.take():
            await fifo.close()
            raise ValueError("bad")

    async def run() -> bytes | None:
        fifo = await Fifo(tmp_path / "q").open()
        await fifo.push(b"1")
        with pytest.raises(ValueError, match="bad"):
            await close_and_fail(fifo)
        async with Fifo(tmp_path / "q") as fifo:
            return await fifo.pop()

    assert asyncio.run(run()) == b"1"


def test_a_push_that_is_cancelled_while_it_waits_for_room_has_written_nothing(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[int, list[bytes]]:
        async with Fifo(tmp_path / "q", **SMALL) as fifo:
            count = await fill(fifo)
            pushing = [await begin_waiting(fifo, fifo.push(b"y" * 100)) for _ in range(3)]
            for task in pushing:
                task.cancel()
            await asyncio.gather(*pushing, return_exceptions=True)
            return count, await fifo.pop_many(100)

    count, values = asyncio.run(run())
    assert values == [b"x" * 100] * count


def test_a_push_waits_for_room_as_long_as_it_is_told(tmp_path: Path) -> None:
    async def run() -> float:
        async with Fifo(tmp_path / "q", **SMALL) as fifo:
            await fill(fifo)
            begun = time.monotonic()
            with pytest.raises(Full, match="in time; nothing was written"):
                await fifo.push(b"y" * 100, timeout=0.2)
            spent = time.monotonic() - begun
            pushing = await begin_waiting(fifo, fifo.push(b"y" * 100, timeout=600))
            assert not pushing.done()
            await fifo.pop()
            await pushing
            return spent

    assert 0.2 <= asyncio.run(run()) < 60


def test_a_batch_that_never_fits_is_refused_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with Fifo(tmp_path / "q", **SMALL) as fifo:
            with pytest.raises(Full, match="more than max_bytes"):
                await asyncio.wait_for(fifo.push_many([b"x" * 100] * 50), 120)

    asyncio.run(run())

    assert (tmp_path / "q").is_dir()


def test_it_stands_where_an_asyncio_queue_stood(tmp_path: Path) -> None:
    async def use(queue: Fifo | asyncio.Queue[bytes]) -> list[object]:
        getting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0.05)
        await queue.put(b"1")
        seen: list[object] = [await getting, queue.qsize(), queue.empty(), queue.full()]
        await queue.put(b"2")
        return [*seen, queue.qsize(), queue.empty()]

    async def run() -> list[list[object]]:
        async with Fifo(tmp_path / "q") as fifo:
            return [await use(fifo), await use(asyncio.Queue())]

    ours, theirs = asyncio.run(run())
    assert ours == theirs


def test_peek_goes_over_the_entries_and_lets_them_stay(tmp_path: Path) -> None:
    async def run() -> list[object]:
        async with Fifo(tmp_path / "q", **SMALL) as fifo:
            first = await fifo.push(b"1", ttl_seconds=3_600)
            last = await fifo.push_many([b"2", b"3"])
            entry = await fifo.peek()
            following = await fifo.peek(after=first)
            assert entry is not None
            assert following is not None
            behind = await fifo.peek(after=last)
            sizes = [len(fifo), fifo.capacity, fifo.capacity_bytes, fifo.capacity_for(68)]
            seen = [entry.value async for entry in fifo]
            return [entry.id == first, entry.ttl_seconds, following.value, behind, *sizes, seen]

    all_of_it = [b"1", b"2", b"3"]
    assert asyncio.run(run()) == [True, 3_600, b"2", None, 3, None, 1_000, 10, all_of_it]
