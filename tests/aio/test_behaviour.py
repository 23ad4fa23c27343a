"""What holds for the queues of every kind on a loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import forebay.aio
from forebay import Closed, Empty, Full, Locked, NotAQueue, RecordTooLarge
from forebay.queues.shared.options import SyncPolicy
from tests.aio.helpers import begin_waiting, until
from tests.crash.forgetful import ForgetfulFilesystem
from tests.kinds import KINDS, Kind
from tests.kinds.shared import EACH_SHARED
from tests.kinds.toy import ToyKind, toys

pytestmark = pytest.mark.usefixtures("servers")
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
# Owned by this process, and shared.
each_way = pytest.mark.parametrize(
    "kind", [*KINDS.values(), *EACH_SHARED], ids=lambda kind: kind.name
)
each_sync = pytest.mark.parametrize("sync", ["always", "interval", "os"])


def numbered(count: int, size: int = 8) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(count)]


def open_small(kind: Kind, path: Path, **options: Any) -> Any:
    """Returns a queue that a hundred values of a hundred bytes fill."""
    bounds = {**kind.small, "max_bytes": 2_000, "when_full": "block"}
    return kind.on_loop(path / "q", **{**bounds, **options})


async def take(kind: Kind, queue: Any, timeout: float | None) -> list[bytes]:
    values, done = await kind.fetch(await kind.source_of(queue), 1, timeout)
    await done()
    return values


async def take_all(kind: Kind, queue: Any, count: int) -> list[str]:
    taken = [await take(kind, queue, 120.0) for _ in range(count)]
    return [value.decode() for (value,) in taken]


def texts(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]


@each_way
@each_sync
def test_what_was_added_is_taken_in_order_also_after_a_reopen(
    tmp_path: Path, kind: Kind, sync: SyncPolicy
) -> None:
    async def run() -> list[str]:
        async with kind.on_loop(tmp_path / "q", sync=sync) as queue:
            await kind.put(queue, numbered(1)[0])
            await kind.put_many(queue, numbered(6)[1:])
            first = await take_all(kind, queue, 3)
        async with await forebay.aio.open(tmp_path / "q", sync=sync) as queue:
            return first + await take_all(kind, queue, 3)

    assert asyncio.run(run()) == texts(numbered(6))


@each_way
@each_sync
def test_what_was_posted_is_taken_in_order(tmp_path: Path, kind: Kind, sync: SyncPolicy) -> None:
    async def run() -> list[str]:
        async with kind.on_loop(tmp_path / "q", sync=sync) as queue:
            tickets = [await kind.post(queue, value) for value in numbered(5)]
            await queue.flush(tickets[-1])
            await kind.post(queue, b"00000005")
            await queue.flush()
            return await take_all(kind, queue, 6)

    assert asyncio.run(run()) == texts(numbered(6))


@pytest.mark.slow
@each_kind
def test_a_sync_makes_durable_what_was_added(kind: Kind) -> None:
    async def run(filesystem: ForgetfulFilesystem) -> None:
        async with kind.on_loop("/q", sync="os", filesystem=filesystem, background=False) as queue:
            await kind.put(queue, b"one")
            await queue.sync()
            machines.append(filesystem.kill())

    async def found(filesystem: ForgetfulFilesystem) -> list[bytes]:
        async with kind.on_loop("/q", filesystem=filesystem, background=False) as queue:
            return await take(kind, queue, 60.0)

    machines: list[ForgetfulFilesystem] = []
    asyncio.run(run(ForgetfulFilesystem()))
    end = machines[0].operations
    states = machines[0].crash_states(points=lambda point: point == end, limit=8)

    values = [asyncio.run(found(state.restore())) for state in states]

    assert values
    assert all(each == [b"one"] for each in values)


@each_kind
def test_open_tells_the_kind_and_refuses_a_directory_without_a_queue(
    tmp_path: Path, kind: Kind
) -> None:
    async def run() -> Any:
        async with kind.on_loop(tmp_path / "q"):
            pass
        async with await forebay.aio.open(tmp_path / "q") as queue:
            found = type(queue), queue.path, (await queue.info()).kind
        with pytest.raises((NotAQueue, FileNotFoundError)):
            await forebay.aio.open(tmp_path / "nothing")
        return found

    assert asyncio.run(run()) == (kind.record.loop_class, str(tmp_path / "q"), kind.name)


def test_a_kind_without_a_class_for_loops_is_refused_and_closed(tmp_path: Path) -> None:
    with toys():
        ToyKind().open(tmp_path / "q").close()
        with pytest.raises(NotAQueue, match=r"is a toy: forebay\.aio has no class"):
            asyncio.run(forebay.aio.open(tmp_path / "q"))
        ToyKind().open(tmp_path / "q").close()


@each_kind
def test_sixty_four_tasks_that_add_durably_share_syncs(tmp_path: Path, kind: Kind) -> None:
    async def run() -> int:
        async with kind.on_loop(tmp_path / "q") as queue:
            await kind.put(queue, b"first")
            before = (await queue.info()).syncs
            for _ in range(4):
                await asyncio.gather(*(kind.put(queue, value) for value in numbered(64)))
            syncs: int = (await queue.info()).syncs - before
            return syncs

    # One each, or two where a sync had begun already.
    assert 4 <= asyncio.run(run()) <= 8


@pytest.mark.slow
@each_kind
def test_two_hundred_tasks_that_wait_leave_threads_to_those_who_add(
    tmp_path: Path, kind: Kind
) -> None:
    async def run() -> list[list[bytes]]:
        async with kind.on_loop(tmp_path / "q", sync="os") as queue:
            tasks = [asyncio.ensure_future(take(kind, queue, 300.0)) for _ in range(200)]
            await until(lambda: queue.queue.changes.is_watched)
            async with asyncio.timeout(240):
                for value in numbered(200):
                    await kind.put(queue, value)
                return await asyncio.gather(*tasks)

    assert all(len(taken) == 1 for taken in asyncio.run(run()))


@pytest.mark.slow
@each_way
def test_two_hundred_tasks_that_wait_for_room_leave_threads_to_those_who_take(
    tmp_path: Path, kind: Kind
) -> None:
    async def run() -> list[str]:
        async with open_small(kind, tmp_path) as queue:
            adding = [asyncio.ensure_future(kind.put(queue, value)) for value in numbered(200, 100)]
            await asyncio.sleep(0.2)
            unfinished = sum(not task.done() for task in adding)
            async with asyncio.timeout(300):
                taken = await take_all(kind, queue, 200)
                await asyncio.gather(*adding)
            assert unfinished > 64
            return taken

    assert sorted(asyncio.run(run())) == texts(numbered(200, 100))


@each_kind
@each_sync
def test_who_waits_is_woken_by_what_is_added(tmp_path: Path, kind: Kind, sync: str) -> None:
    async def run() -> list[bytes]:
        async with kind.on_loop(tmp_path / "q", sync=sync) as queue:
            task = await begin_waiting(queue, take(kind, queue, 120.0))
            await kind.put(queue, b"new")
            return await task

    assert len(asyncio.run(run())) == 1


@each_way
def test_who_waits_in_vain_gets_empty_in_time(tmp_path: Path, kind: Kind) -> None:
    async def run() -> float:
        async with kind.on_loop(tmp_path / "q") as queue:
            begin = time.monotonic()
            results = await asyncio.gather(
                *(take(kind, queue, 0.2) for _ in range(20)), return_exceptions=True
            )
            assert all(isinstance(result, Empty) for result in results)
            assert await take(kind, queue, None) == []
            return time.monotonic() - begin

    assert 0.2 <= asyncio.run(run()) < 60


@each_kind
def test_a_cancelled_wait_takes_nothing_and_the_line_moves_up(tmp_path: Path, kind: Kind) -> None:
    async def run() -> list[str]:
        async with kind.on_loop(tmp_path / "q") as queue:
            tasks = [await begin_waiting(queue, take(kind, queue, 120.0)) for _ in range(3)]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            await kind.put_many(queue, numbered(3))
            return await take_all(kind, queue, 3)

    assert asyncio.run(run()) == texts(numbered(3))


@each_kind
def test_close_wakes_who_waits_and_may_be_called_again(tmp_path: Path, kind: Kind) -> None:
    async def run() -> list[BaseException | list[bytes]]:
        queue = await kind.on_loop(tmp_path / "q").open()
        tasks = [await begin_waiting(queue, take(kind, queue, 600.0)) for _ in range(5)]
        async with asyncio.timeout(120):
            await asyncio.gather(queue.close(), queue.close())
            await queue.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for call in (kind.put(queue, b"x"), take(kind, queue, None), queue.info(), queue.open()):
            with pytest.raises(Closed, match="is closed"):
                await call
        return results

    assert all(isinstance(result, Closed) for result in asyncio.run(run()))


@each_way
def test_close_ends_those_who_wait_for_room(tmp_path: Path, kind: Kind) -> None:
    async def run() -> list[Any]:
        queue = await open_small(kind, tmp_path).open()
        adding = [asyncio.ensure_future(kind.put(queue, value)) for value in numbered(100, 100)]
        await asyncio.sleep(0.3)
        async with asyncio.timeout(120):
            await queue.close()
            return await asyncio.gather(*adding, return_exceptions=True)

    results = asyncio.run(run())
    refused = [result for result in results if isinstance(result, Exception)]
    assert len(refused) > 64
    assert all(isinstance(error, Closed) for error in refused)


@each_way
def test_a_queue_that_is_not_open_yet_says_so_and_closes_without_a_word(
    tmp_path: Path, kind: Kind
) -> None:
    async def run() -> None:
        queue = kind.on_loop(tmp_path / "q")
        with pytest.raises(Closed, match="not open yet"):
            await kind.put(queue, b"x")
        await queue.close()

    asyncio.run(run())

    assert not (tmp_path / "q").exists()


@each_kind
def test_errors_of_the_blocking_queue_come_unchanged(tmp_path: Path, kind: Kind) -> None:
    async def run() -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            await kind.on_loop(tmp_path / "q", colour="red").open()
        async with open_small(kind, tmp_path, when_full="reject") as queue:
            with pytest.raises(Locked) as caught:
                await kind.on_loop(tmp_path / "q").open()
            assert caught.value.pid in (None, os.getpid())
            with pytest.raises(RecordTooLarge):
                await kind.put(queue, b"x" * 5_000)
            results = await asyncio.gather(
                *(kind.put(queue, value) for value in numbered(100, 100)), return_exceptions=True
            )
            refused = [result for result in results if isinstance(result, BaseException)]
            assert {type(error) for error in refused} == {Full}
            assert len(refused) < len(results)

    asyncio.run(run())


@each_kind
def test_an_open_that_is_cancelled_leaves_nothing_open(tmp_path: Path, kind: Kind) -> None:
    async def run() -> str:
        opening = asyncio.ensure_future(kind.on_loop(tmp_path / "q").open())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with kind.on_loop(tmp_path / "q") as queue:
            return str((await queue.info()).kind)

    assert asyncio.run(run()) == kind.name


@each_way
def test_a_close_that_is_cancelled_has_closed(tmp_path: Path, kind: Kind) -> None:
    async def run() -> list[str]:
        queue = await kind.on_loop(tmp_path / "q").open()
        await kind.put(queue, b"kept")
        closing = asyncio.ensure_future(queue.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        async with kind.on_loop(tmp_path / "q") as queue:
            return await take_all(kind, queue, 1)

    assert asyncio.run(run()) == ["kept"]


@each_kind
def test_a_thread_may_use_the_blocking_queue_beside_the_loop(tmp_path: Path, kind: Kind) -> None:
    async def run() -> list[bytes]:
        async with kind.on_loop(tmp_path / "q") as queue:
            task = await begin_waiting(queue, take(kind, queue, 600.0))
            writer = threading.Thread(target=lambda: kind.put(queue.queue, b"thread"))
            writer.start()
            async with asyncio.timeout(120):
                taken = await task
            writer.join()
            return taken

    assert len(asyncio.run(run())) == 1
