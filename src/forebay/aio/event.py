"""`BeatsQueue` on a loop: put, read and acknowledge events."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from forebay.aio.queue import LoopQueue
from forebay.aio.threads import raise_owed
from forebay.aio.waiting import Line
from forebay.damage import Damage
from forebay.errors import Closed, Empty
from forebay.formats.beats.events import Event
from forebay.queues.beats import batch as event_batch
from forebay.queues.beats import queue as event


class BeatsQueue(LoopQueue[event.BeatsQueue]):
    """A durable queue of events, in the files of Beats. The options are those of `BeatsOptions`."""

    async def put(self, event: Event | Mapping[str, Any]) -> None:
        """Puts an event, as durably as the sync policy says.

        A full queue waits for room, or does what `when_full` says. Cancelled, it may have been
        written, or be written yet.
        """
        await self._add(self.queue.put, event)

    async def put_many(self, events: Iterable[Event | Mapping[str, Any]]) -> None:
        """Puts events with one commit."""
        await self._add(self.queue.put_many, list(events))

    async def read(self, count: int = 1000, timeout: float | None = None) -> EventBatch:
        """Hands out up to `count` of the next events; an empty batch if there are none now.

        With a timeout (seconds) it waits for the first, and raises `Empty` if none came. Raises
        `Damaged`, `UndecodableEvent` and `Overtaken` as the blocking one does. Cancelled, it gives
        the events back.
        """
        raise_owed()
        batch = await self._events.wait(lambda: self._deliver(count), timeout)
        if batch is None:
            if timeout is not None:
                raise Empty(f"{self.path}: no event in {timeout} s")
            batch = event_batch.EventBatch([], None, None)
        return EventBatch(batch, self._work)

    async def damage(self) -> list[Damage]:
        """Returns what was met so far that could not be read, or looked wrong."""
        queue = self.queue
        return await self._work(lambda: queue.damage)

    @property
    def version(self) -> str:
        """Of the segments that it writes."""
        return self.queue.version

    def serve(self, queue: event.BeatsQueue) -> None:
        """Takes over a Beats queue that is open."""
        super().serve(queue)
        self._events = Line(self._news)

    def _make(self) -> event.BeatsQueue:
        return event.BeatsQueue(self.path, **self._options)

    async def _deliver(self, count: int) -> event_batch.EventBatch | None:
        batch, cancellation = await self._see_through(self.queue.read, count)
        if cancellation is not None:
            # What a closed queue had handed out comes again when it is opened anew.
            with contextlib.suppress(Closed):
                await self._work(batch.nack)
            raise cancellation
        return batch if len(batch) else None


class EventBatch:
    """Events, in the order in which they were put, to be acknowledged or given back, once."""

    def __init__(
        self,
        blocking: event_batch.EventBatch,
        work: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self.events = blocking.events
        self._batch = blocking
        self._work = work

    async def ack(self) -> None:
        """Says that the events are done with; when all before them are too, durably on return.

        A second time does nothing. A cancellation is raised when it is done.
        """
        await self._work(self._batch.ack)

    async def nack(self) -> None:
        """Returns the events back: the next reads hand them out again, before newer ones."""
        await self._work(self._batch.nack)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __repr__(self) -> str:
        return f"<forebay.aio of {self._batch!r}>"
