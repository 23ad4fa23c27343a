"""How a loop drives the steps of a verb: tickets, news, work and loans."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time

import pytest

from forebay.aio import Awaited, awaited, drive, lent, off_loop
from forebay.queues.shared.verbs import News, Steps, verb
from forebay.storage.commit import GroupCommit, Ticket
from tests.aio.helpers import Gate, no_free_thread, run, until
from tests.queues.helpers import wait_until
from tests.queues.test_verbs import Box


class LoopBox(Awaited[Box]):
    """The box of numbers on a loop."""

    def __init__(self) -> None:
        self._blocking = Box()

    put = awaited(Box.put)
    get = awaited(Box.get)
    take = lent(Box.take)
    careful = awaited(Box.careful)
    look = off_loop(Box.get)


def test_a_verb_returns_what_its_steps_return() -> None:
    async def use() -> list[object]:
        box = LoopBox()
        return [await box.put(7), await box.get(), await box.get(), await box.look()]

    assert run(use()) == [1, 7, None, None]


def test_a_verb_is_typed_and_documented_as_the_blocking_one() -> None:
    assert inspect.iscoroutinefunction(LoopBox.get)
    assert inspect.signature(LoopBox.get) == inspect.signature(Box.get)
    assert LoopBox.get.__doc__ == Box.get.__doc__
    assert LoopBox.get.__name__ == "get"


def test_a_verb_without_steps_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Box\.__init__ has no steps"):
        awaited(Box.__init__)


def test_sixty_four_tasks_share_one_sync() -> None:
    async def use() -> int:
        box = LoopBox()
        await asyncio.gather(*(box.put(number) for number in range(64)))
        return box.queue.commit.syncs

    assert run(use()) == 1


def test_a_change_from_a_thread_wakes_the_first_of_a_line() -> None:
    async def use() -> list[int | None]:
        box = LoopBox()
        tasks = [asyncio.ensure_future(box.get(timeout=600)) for _ in range(8)]
        await until(lambda: box.queue.tries == 16)
        await asyncio.to_thread(box.queue.put, 0)
        # The second was woken when the first left; the others sleep on.
        await until(lambda: box.queue.tries == 18)
        await asyncio.sleep(0.01)
        assert box.queue.tries == 18
        for number in range(1, 8):
            await box.put(number)
        return await asyncio.gather(*tasks)

    assert run(use()) == list(range(8))


class SlowBox(Box):
    """A box whose numbers are gone for good when a gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.slow = GroupCommit(self._sync, 0)

    @verb
    def get_for_good(self) -> Steps[int]:
        """Takes the first number; waits until there is one, and for the gate."""
        while True:
            with self.lock:
                number = self.numbers.pop(0) if self.numbers else None
            if number is not None:
                yield Ticket(self.slow, number)
                return number
            yield News(self.changes, math.inf, "items")

    def _sync(self) -> int:
        self.gate.wait(60)
        return 100


def test_who_waits_for_the_disk_holds_up_nobody_in_its_line() -> None:
    async def use() -> list[int]:
        box = SlowBox()
        steps = SlowBox.get_for_good.steps  # type: ignore[attr-defined]
        tasks = [asyncio.ensure_future(drive(steps(box))) for _ in range(4)]
        await asyncio.sleep(0.02)
        with box.lock:
            box.numbers += [1, 2, 3, 4]
            box.changes.announce()
        await until(lambda: not box.numbers)
        box.gate.set()
        await asyncio.gather(*tasks)
        assert box.slow.syncs <= 2
        return sorted(task.result() for task in tasks)

    assert run(use()) == [1, 2, 3, 4]


def test_a_thread_that_waits_for_the_disk_holds_up_nobody_in_its_line() -> None:
    box = SlowBox()
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.append(box.get_for_good())) for _ in range(4)]
    for thread in threads:
        thread.start()
    with box.lock:
        box.numbers += [1, 2, 3, 4]
        box.changes.announce()
    assert wait_until(lambda: not box.numbers)
    box.gate.set()
    for thread in threads:
        thread.join()

    assert sorted(taken) == [1, 2, 3, 4]


def test_a_wait_ends_in_time() -> None:
    async def use() -> int | None:
        return await LoopBox().get(timeout=0.01)

    assert run(use()) is None


def test_a_task_that_is_cancelled_leaves_its_seat() -> None:
    async def use() -> bool:
        box = LoopBox()
        task = asyncio.ensure_future(box.get(timeout=600))
        await until(lambda: box.queue.tries == 2)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return box.queue.changes.is_watched

    assert run(use()) is False


def test_a_loan_is_finished_at_the_end_and_given_back_after_an_error_or_a_cancellation() -> None:
    async def take(box: LoopBox) -> None:
        async with box.take():
            await asyncio.sleep(600)

    async def use() -> list[int]:
        box = LoopBox()
        box.queue.numbers = [1, 2]
        async with box.take() as number:
            assert number == 1
        with pytest.raises(RuntimeError):
            async with box.take():
                raise RuntimeError
        task = asyncio.ensure_future(take(box))
        await until(lambda: not box.queue.numbers)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return box.queue.numbers

    assert run(use()) == [2]


def test_what_fails_is_raised_where_the_steps_wait() -> None:
    async def use() -> list[int]:
        box = LoopBox()
        box.queue.numbers = [1, 2]
        with pytest.raises(OSError, match="the disk"):
            await box.careful()
        return box.queue.numbers

    assert run(use()) == [1, 2]


def test_work_whose_task_is_cancelled_is_undone_when_it_ends() -> None:
    async def use() -> None:
        gate = Gate()
        task = asyncio.ensure_future(drive(gate.steps()))
        await until(gate.begun.is_set)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert gate.undone == []
        gate.open.set()
        await until(lambda: gate.undone == [5])

    run(use())


def test_work_that_has_not_begun_as_its_task_is_cancelled_is_done_and_undone() -> None:
    async def use() -> None:
        gate = Gate()
        gate.open.set()
        async with no_free_thread():
            task = asyncio.ensure_future(drive(gate.steps()))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert not gate.begun.is_set()
        await until(lambda: gate.undone == [5])

    run(use())


def test_work_that_ends_as_its_task_is_cancelled_is_undone() -> None:
    async def use() -> None:
        gate = Gate()
        task = asyncio.ensure_future(drive(gate.steps()))
        await until(gate.begun.is_set)
        gate.open.set()
        # The loop has no turn in which the task could take the result.
        time.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await until(lambda: gate.undone == [5])

    run(use())


def test_an_error_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        gate = Gate()
        task = asyncio.ensure_future(drive(gate.steps(ValueError("lost"))))
        await until(gate.begun.is_set)
        task.cancel()
        await asyncio.wait([task])
        gate.open.set()
        await until(lambda: "lost" in caplog.text)

    with caplog.at_level(logging.WARNING):
        run(use())

    assert "has failed: lost" in caplog.text


def test_a_ticket_that_settles_after_its_loop_has_ended_harms_nobody() -> None:
    held = threading.Event()

    def sync() -> int:
        held.wait(60)
        return 1

    commit = GroupCommit(sync, 0)

    def steps() -> Steps[None]:
        yield Ticket(commit, 1)

    async def use() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await drive(steps())

    run(use())
    held.set()
    commit.wait(1)

    assert commit.durable == 1
