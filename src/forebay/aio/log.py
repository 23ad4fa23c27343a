"""`Log` on a loop: append, named consumers, trimming."""

from __future__ import annotations

from collections.abc import Iterable

from forebay.aio.consumer import Consumer
from forebay.aio.queue import LoopQueue
from forebay.queues.log import queue as log
from forebay.queues.log.consumer import Start
from forebay.storage.filesystem import Buffer


class Log(LoopQueue[log.Log]):
    """A durable log. The options are those of `LogOptions`."""

    async def append(self, value: Buffer) -> int:
        """Appends a record and returns its offset, as durably as the sync policy says.

        A full log waits for room, or does what `when_full` says. Cancelled, it may have been
        written, or be written yet.
        """
        offset = await self._add(self.queue.append, value)
        # Under the weak policies the log itself tells only when it drains, a moment later.
        self._news.tell()
        return offset

    async def append_many(self, values: Iterable[Buffer]) -> int:
        """Appends records with one commit and returns the offset of the first."""
        offset = await self._add(self.queue.append_many, list(values))
        self._news.tell()
        return offset

    put = append
    put_many = append_many

    async def begin(self) -> int:
        """Returns the offset of the oldest record that is there."""
        queue = self.queue
        return await self._work(lambda: queue.begin)

    async def end(self) -> int:
        """Returns the offset that the next record gets."""
        queue = self.queue
        return await self._work(lambda: queue.end)

    async def durable(self) -> int:
        """Returns the offset after the last record that survives a power cut."""
        queue = self.queue
        return await self._work(lambda: queue.durable)

    async def consumer(self, name: str, *, start: Start = "earliest") -> Consumer:
        """Opens a named consumer at its saved place, or at `start` if it is new."""
        consumer = await self._work(self.queue.consumer, name, start=start)
        return Consumer(self.queue, consumer, self._see_through, self._news)

    async def forget_consumer(self, name: str) -> None:
        """Removes a consumer's saved place; trimming no longer waits for it."""
        await self._work(self.queue.forget_consumer, name)

    async def trim(self) -> int:
        """Removes whole segments that all consumers and cursors are past; returns how many records.

        Without a consumer nothing is removed. The newest segment always stays.
        """
        return await self._work(self.queue.trim)

    async def adopt(self) -> int:
        """Takes in what other processes left in `inbox/`; returns how many records."""
        return await self._work(self.queue.adopt)

    def _make(self) -> log.Log:
        return log.Log(self.path, **self._options)
