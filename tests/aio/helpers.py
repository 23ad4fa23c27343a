"""What the tests on a loop share: tasks that have got somewhere, however long that takes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from forebay.aio import drive
from forebay.queues.shared.verbs import Steps, Work

_Result = TypeVar("_Result")


def run(call: Coroutine[Any, Any, _Result], seconds: float = 120.0) -> _Result:
    """Runs a coroutine on a loop of its own, not for ever."""

    async def limited() -> _Result:
        async with asyncio.timeout(seconds):
            return await call

    return asyncio.run(limited())


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits on the loop until something is true; raises if it does not come to be."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def begin_waiting(queue: Any, call: Awaitable[_Result]) -> asyncio.Future[_Result]:
    """Starts a task and returns when it sleeps until there is news."""
    task = asyncio.ensure_future(call)
    await until(lambda: queue.queue.changes.is_watched)
    # Those who come later have a seat by now, too.
    await asyncio.sleep(0.02)
    assert not task.done()
    return task


class Gate:
    """Work that begins, waits for a gate, and counts what was undone."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()
        self.undone: list[int] = []

    def steps(self, result: int | Exception = 5) -> Steps[int]:
        number: int = yield Work(lambda: self._call(result), self.undone.append)
        return number

    def _call(self, result: int | Exception) -> int:
        self.begun.set()
        self.open.wait(60)
        if isinstance(result, Exception):
            raise result
        return result


@contextlib.asynccontextmanager
async def no_free_thread() -> AsyncIterator[None]:
    """Keeps all threads that work for loops busy: work that is asked for does not begin."""
    gates = [Gate() for _ in range(8)]
    tasks = [asyncio.ensure_future(drive(gate.steps())) for gate in gates]
    try:
        await until(lambda: all(gate.begun.is_set() for gate in gates))
        yield
    finally:
        for gate in gates:
            gate.open.set()
        await asyncio.wait(tasks)
