"""How tasks wait until a queue has something for them, or room: without a thread.

The queue tells its news from whatever thread changed it. Tasks that want the same thing stand in
line: at news the first of them tries, so that a push wakes one task and not a thousand.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from forebay.queues.shared.owner import Signal

# Not everything is news: that the handle failed is found by trying. Once a second costs nothing.
_LOOK_SECONDS = 1.0
_Result = TypeVar("_Result")


class News:
    """Wakes the tasks of one loop when a queue changes."""

    def __init__(self, changes: Signal) -> None:
        self._loop = asyncio.get_running_loop()
        self._changes = changes
        self._sleepers: set[asyncio.Future[None]] = set()
        self._listeners = 0
        self._on_its_way = False
        self.count = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Counts the news from here on; the queue tells them only while somebody listens."""
        self._listeners += 1
        self._changes.listener = self._hear
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._changes.listener = None

    async def wait(self, count: int, seconds: float) -> None:
        """Waits for news after the first `count`, or so long."""
        if self.count != count:
            return
        sleeper = self._loop.create_future()
        self._sleepers.add(sleeper)
        try:
            await asyncio.wait([sleeper], timeout=seconds)
        finally:
            self._sleepers.discard(sleeper)

    def tell(self) -> None:
        """Wakes all who wait. On the loop."""
        self._on_its_way = False
        self.count += 1
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    def _hear(self) -> None:
        """Takes news from any thread, which holds the queue's lock."""
        if not self._on_its_way:
            self._on_its_way = True
            # A loop that is closed has no tasks left to wake, and the queue must go on.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.tell)


class Line:
    """Tasks that wait for the same thing, in the order in which they came."""

    def __init__(self, news: News) -> None:
        self._news = news
        self._turn = asyncio.Lock()
        # In so many seconds there may be something without news; set by an attempt that knows.
        self.look_in = math.inf

    async def wait(
        self, attempt: Callable[[], Awaitable[_Result | None]], timeout: float | None
    ) -> _Result | None:
        """Returns what `attempt` gives; None if that was nothing within `timeout` seconds.

        Without a timeout it tries once, past the line.
        """
        seconds = 0 if timeout is None else timeout
        deadline = asyncio.get_running_loop().time() + seconds
        if seconds <= 0 or not self._turn.locked():
            result = await attempt()
            if result is not None or seconds <= 0:
                return result
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            return None
        try:
            return await self._wait_first(attempt, deadline)
        finally:
            self._turn.release()

    async def _wait_first(
        self, attempt: Callable[[], Awaitable[_Result | None]], deadline: float
    ) -> _Result | None:
        """Waits at the head of the line."""
        # Before the attempt: what comes while it runs would otherwise not be told.
        with self._news.listening():
            while True:
                count = self._news.count
                result = await attempt()
                left = deadline - asyncio.get_running_loop().time()
                if result is not None or left <= 0:
                    return result
                await self._news.wait(count, min(left, self.look_in, _LOOK_SECONDS))
