"""What the tests on a loop share: tasks that have got somewhere, however long that takes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits on the loop until something is true; raises if it does not come to be."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def begin_waiting(queue: Any, call: Awaitable[_Result]) -> asyncio.Future[_Result]:
    """Starts a task and returns when it sleeps until there is news, or stands behind who does."""
    task = asyncio.ensure_future(call)
    # Its first step: who finds that another waits already tries nothing.
    await asyncio.sleep(0)
    await until(lambda: queue._news._sleepers)
    return task


def count_calls(queue: Any) -> list[None]:
    """Lists the calls that go to the threads of a queue from now on."""
    calls: list[None] = []
    work = queue._threads.work

    def count(*arguments: Any, **keywords: Any) -> Any:
        calls.append(None)
        return work(*arguments, **keywords)

    queue._threads.work = count
    return calls


async def cancel_amid(queue: Any, call: Awaitable[_Result], lock: threading.Lock) -> None:
    """Cancels a call that a thread has begun and that waits for the queue's lock; sees its end."""
    with lock:
        calls = count_calls(queue)
        task = asyncio.ensure_future(call)
        await until(lambda: calls)
        task.cancel()
        # The task has met its cancellation before the thread can go on.
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled()
