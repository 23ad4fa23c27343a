"""The threads of one queue, and how a task waits for what they do.

A call that has begun on a thread cannot be stopped. So a task that is cancelled either leaves it
alone (`Threads.add`), or sees it through and then deals with what it did (`finish`).
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

# As many writers as share one sync well; a thread starts when all others of its lane are busy.
THREADS_MAX = 64

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_owing: weakref.WeakSet[asyncio.Task[object]] = weakref.WeakSet()


class Threads:
    """Two lanes, so that who waits for room never holds up who makes it."""

    def __init__(self, name: str) -> None:
        self._adding = ThreadPoolExecutor(THREADS_MAX, f"forebay add {name}")
        self._working = ThreadPoolExecutor(THREADS_MAX, f"forebay {name}")

    def add(
        self,
        call: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **keywords: _Arguments.kwargs,
    ) -> asyncio.Future[_Result]:
        """Begins a call that writes something new, and may wait until there is room for it."""
        return _begin(self._adding, functools.partial(call, *arguments, **keywords))

    def work(
        self,
        call: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **keywords: _Arguments.kwargs,
    ) -> asyncio.Future[_Result]:
        """Begins a call that waits for nothing but the disk."""
        return _begin(self._working, functools.partial(call, *arguments, **keywords))

    def end(self, close: Callable[[], None]) -> None:
        """Lets what has begun come to its end, closes, and ends the threads. Not on the loop."""
        self._working.shutdown()
        try:
            close()
        finally:
            # Who waits for room learns from the close that there will be none.
            self._adding.shutdown()


def begin_alone(call: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Begins a call on a thread of its own, which no other call can hold up."""
    executor = ThreadPoolExecutor(1, "forebay")
    try:
        return _begin(executor, call)
    finally:
        executor.shutdown(wait=False)


async def finish(
    future: asyncio.Future[_Result],
) -> tuple[_Result, asyncio.CancelledError | None]:
    """Waits for the end of a call; returns its outcome, and the cancellation that came meanwhile.

    An error comes before a cancellation, which is then owed.
    """
    cancellation: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None and future.exception() is not None:
        owe_cancellation()
    return future.result(), cancellation


def owe_cancellation() -> None:
    """Notes that this task was cancelled and does not know it yet."""
    task = asyncio.current_task()
    assert task is not None
    _owing.add(task)


def raise_owed() -> None:
    """Raises the cancellation that this task is owed, unless its reason is gone by now.

    The reason goes when an `asyncio.timeout` ends that had run out: it has taken its request back.
    """
    task = asyncio.current_task()
    if task is not None and task in _owing:
        _owing.discard(task)
        if task.cancelling():
            raise asyncio.CancelledError


def _begin(executor: ThreadPoolExecutor, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
    return asyncio.get_running_loop().run_in_executor(executor, call)
