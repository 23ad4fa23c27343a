"""What the tests on a loop share: tasks that have got somewhere, however long that takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

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
