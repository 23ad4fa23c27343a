"""A named consumer of a log, on a loop.

What a cancelled read has read is kept and given by the next one: `position` is always behind the
last record that somebody was given, and that is what `commit` saves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

from forebay.aio.threads import raise_owed
from forebay.aio.waiting import Line, News
from forebay.errors import Closed, Empty, InvalidOption
from forebay.queues.log import consumer
from forebay.queues.log import queue as log
from forebay.queues.log.consumer import Start
from forebay.queues.log.staged import Record

_FETCH_RECORDS = 1000
_Result = TypeVar("_Result")


class _SeeThrough(Protocol):
    """Runs a call on a thread to its end; returns its result, and a cancellation if one came."""

    async def __call__(
        self, call: Callable[[], _Result], /
    ) -> tuple[_Result, asyncio.CancelledError | None]: ...


class Consumer:
    """Reads a log from its own place on. Tasks that share one get each record once."""

    def __init__(
        self, queue: log.Log, blocking: consumer.Consumer, see_through: _SeeThrough, news: News
    ) -> None:
        self._log = queue
        self._consumer = blocking
        self._see_through = see_through
        self._records = Line(news)
        # Read from the log, and given to nobody yet.
        self._ahead: deque[Record] = deque()
        # The blocking consumer is for one thread at a time.
        self._mutex = asyncio.Lock()
        self.name = blocking.name
        self.position = blocking.position

    @property
    def committed(self) -> int:
        """The place that is saved."""
        return self._consumer.committed

    async def lag(self) -> int:
        """Returns how many records there are that it has not committed."""
        return await self._run(lambda: self._consumer.lag)

    async def read(self, count: int = 1000, *, timeout: float | None = None) -> list[Record]:
        """Returns up to `count` of the next records; an empty list if there are none now.

        With a timeout (seconds) it waits for the first, and raises `Empty` if none came. Raises
        `Damaged` and `Overtaken` as the blocking one does. Cancelled, it has read nothing.
        """
        if count < 1:
            raise InvalidOption(f"count = {count}: must be at least 1")
        raise_owed()
        records = await self._records.wait(lambda: self._take(count, count), timeout)
        if records is None and timeout is not None:
            raise Empty(f"{self._log.path}: nothing new for {self.name!r} in {timeout} s")
        return records or []

    async def commit(self) -> None:
        """Saves the place after the last record that was given; durable on return."""
        position = self.position

        def save() -> None:
            self._log.save_position(self.name, position)
            self._consumer.committed = position

        async with self._mutex:
            await self._run(save)

    async def seek(self, start: Start) -> None:
        """Moves to "earliest", "latest", an offset, or the first record not older than a time.

        Nothing is saved before `commit`.
        """
        async with self._mutex:
            _, cancellation = await self._see_through(lambda: self._consumer.seek(start))
            self._ahead.clear()
            self.position = self._consumer.position
        if cancellation is not None:
            raise cancellation

    async def close(self) -> None:
        """Closes its files; the saved place stays."""
        async with self._mutex:
            # A log that is closed has closed its consumers.
            with contextlib.suppress(Closed):
                await self._run(self._consumer.close)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Returns the records that are there now, one by one; `commit` saves what was given."""
        return self

    async def __anext__(self) -> Record:
        raise_owed()
        records = await self._take(1, _FETCH_RECORDS)
        if records is None:
            raise StopAsyncIteration
        return records[0]

    def __repr__(self) -> str:
        return f"<forebay.aio.Consumer {self.name!r} at {self.position} of {self._log.path}>"

    async def _take(self, count: int, fetched: int) -> list[Record] | None:
        """Returns up to `count` records that were read ahead, or reads some; None if none."""
        async with self._mutex:
            if not self._ahead:
                await self._fetch(fetched)
            taken = [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]
            if taken:
                self.position = taken[-1].offset + 1
            return taken or None

    async def _fetch(self, count: int) -> None:
        try:
            records, cancellation = await self._see_through(lambda: self._consumer.read(count))
        except Exception:
            # What is damaged or gone was told, and the place is behind it.
            self.position = self._consumer.position
            raise
        self._ahead.extend(records)
        if cancellation is not None:
            raise cancellation

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        result, cancellation = await self._see_through(call)
        if cancellation is not None:
            raise cancellation
        return result
