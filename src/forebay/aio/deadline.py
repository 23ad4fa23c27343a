"""`DeadlineQueue` on a loop: enqueue, dequeue what is due, release, requeue."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from functools import partial

from forebay.aio.queue import LoopQueue
from forebay.aio.room import Room
from forebay.aio.threads import raise_owed
from forebay.aio.waiting import Line
from forebay.errors import Closed, Empty, LeaseLost
from forebay.queues.deadline import queue as blocking
from forebay.queues.deadline.item import DeadlineItem, retry_seconds
from forebay.storage.filesystem import Buffer

# The shortest lease there is: what is touched with it is pending again at once.
_NO_LEASE_SECONDS = 0.001
# To make room a queue merges its runs. Who waits for room spends a tenth of the time on that.
_REST_FACTOR = 9


class DeadlineQueue(LoopQueue[blocking.DeadlineQueue]):
    """A durable queue by deadline. The options are those of `DeadlineOptions`."""

    async def enqueue(
        self,
        value: Buffer,
        *,
        delay: float | None = None,
        deadline: datetime | int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Takes in an item, due at a deadline, after a delay (seconds) or now; returns its id.

        As durably as the sync policy says. A full queue waits for room, at most `timeout` seconds
        if that is given, or raises `Full`. Cancelled while it waits, nothing was written; later it
        may have been.
        """
        ids = await self.enqueue_many([value], delay=delay, deadline=deadline, timeout=timeout)
        return ids[0]

    async def enqueue_many(
        self,
        values: Iterable[Buffer],
        *,
        delay: float | None = None,
        deadline: datetime | int | Sequence[datetime | int] | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """Takes in items with one commit and returns their ids; a crash leaves all or none.

        A list of deadlines has one for each.
        """
        enqueue = partial(
            self.queue.enqueue_many, list(values), delay=delay, deadline=deadline, timeout=0
        )
        return await self._room.add(enqueue, timeout)

    async def dequeue(
        self, timeout: float | None = None, *, lease_seconds: float | None = None
    ) -> DeadlineItem | None:
        """Returns the first item that is due; None if there is none.

        It belongs to the caller until the lease ends. With a timeout (seconds) it waits, and raises
        `Empty` if none became due. Cancelled, it gives the item back: it is pending again at once,
        and this counts as one of its attempts.
        """
        items = await self.dequeue_many(1, timeout, lease_seconds=lease_seconds)
        return items[0] if items else None

    async def dequeue_many(
        self, count: int, timeout: float | None = None, *, lease_seconds: float | None = None
    ) -> list[DeadlineItem]:
        """Returns up to `count` items that are due; with a timeout it waits for the first."""
        raise_owed()
        items = await self._items.wait(lambda: self._lend(count, lease_seconds), timeout)
        if items is None and timeout is not None:
            raise Empty(f"{self.path}: nothing became due in {timeout} s")
        return items or []

    @contextlib.asynccontextmanager
    async def take(
        self, timeout: float | None = None, *, lease_seconds: float | None = None
    ) -> AsyncIterator[DeadlineItem]:
        """Lends out the first item that is due: released on success, requeued otherwise.

        Otherwise means an exception or a cancellation. It is due again after 1 s, twice as long
        with each time, 300 s at most. Raises `Empty` if there is none, or none became due within
        `timeout` seconds.
        """
        item = await self.dequeue(0 if timeout is None else timeout, lease_seconds=lease_seconds)
        assert item is not None
        try:
            yield item
        except BaseException:
            # A closed queue, and a lease that has ended, have made it pending already.
            with contextlib.suppress(Closed, LeaseLost):
                await self.requeue(item, delay=retry_seconds(item))
            raise
        await self.release(item)

    async def release(self, item: DeadlineItem) -> None:
        """Takes an item away for good; raises `LeaseLost` if it is not the caller's any more."""
        await self._work(self.queue.release, item)

    async def release_many(self, items: Sequence[DeadlineItem]) -> None:
        """Takes items away with one commit; `LeaseLost`: all of them are still there."""
        await self._work(self.queue.release_many, items)

    async def requeue(
        self,
        item: DeadlineItem,
        *,
        delay: float | None = None,
        deadline: datetime | int | None = None,
        value: Buffer | None = None,
    ) -> None:
        """Returns an item back under a later deadline, with another value if one is given.

        One that was given out `max_attempts` times is buried instead. Raises `LeaseLost`.
        """
        await self._work(self.queue.requeue, item, delay=delay, deadline=deadline, value=value)

    async def reclaim(
        self, id: int, dequeue_count: int, *, lease_seconds: float | None = None
    ) -> DeadlineItem:
        """Returns an item back to who took it before and has its token, due or not.

        Raises `LeaseLost` if it was given out again since, is buried, or is gone.
        """
        reclaim = self.queue.reclaim
        return await self._work(reclaim, id, dequeue_count, lease_seconds=lease_seconds)

    async def touch(self, item: DeadlineItem, *, lease_seconds: float | None = None) -> None:
        """Restarts the lease of an item; raises `LeaseLost`."""
        await self._work(self.queue.touch, item, lease_seconds=lease_seconds)
        # It may end sooner now than those know who wait.
        self._news.tell()

    async def bury(self, item: DeadlineItem, reason: str = "") -> None:
        """Puts an item aside: it is kept and not given out until `kick`. Raises `LeaseLost`."""
        await self._work(self.queue.bury, item, reason)

    async def kick(self, id: int | None = None, *, count: int | None = None) -> int:
        """Makes a buried item pending again, or the `count` oldest ones; returns how many."""
        return await self._work(self.queue.kick, id, count=count)

    async def delete(self, id: int) -> bool:
        """Takes an item away for good, even one that is given out; False if there is none."""
        return await self._work(self.queue.delete, id)

    async def peek(self) -> DeadlineItem | None:
        """Returns the pending item that is due first, now or later; it stays."""
        return await self._work(self.queue.peek)

    async def get(self, id: int) -> DeadlineItem | None:
        """Returns an item by its id, pending, given out or buried; None if there is none."""
        return await self._work(self.queue.get, id)

    async def browse(self, count: int = 100) -> list[DeadlineItem]:
        """Returns the first items by deadline, given out ones too, buried ones last; they stay."""
        return await self._work(self.queue.browse, count)

    async def pending(self) -> int:
        """Returns how many items wait, due or not."""
        queue = self.queue
        return await self._work(lambda: queue.pending)

    async def due(self) -> int:
        """Returns how many of the pending items are due."""
        queue = self.queue
        return await self._work(lambda: queue.due)

    async def working(self) -> int:
        """Returns how many items are given out."""
        queue = self.queue
        return await self._work(lambda: queue.working)

    async def buried(self) -> int:
        """Returns how many items are put aside."""
        queue = self.queue
        return await self._work(lambda: queue.buried)

    async def freeze(self) -> bool:
        """Turns what is in memory into runs; False if there is nothing. Happens by itself."""
        return await self._work(self.queue.freeze)

    async def merge(self) -> bool:
        """Merges all runs into one; False if there is nothing to do. Happens by itself."""
        return await self._work(self.queue.merge)

    def __len__(self) -> int:
        """How many items there are, given out and buried ones too."""
        return len(self.queue)

    def serve(self, queue: blocking.DeadlineQueue) -> None:
        """Takes over a deadline queue that is open."""
        super().serve(queue)
        self._items = Line(self._news)
        self._room = Room(self.path, queue.options, self._news, self._add, rest_factor=_REST_FACTOR)

    def _make(self) -> blocking.DeadlineQueue:
        return blocking.DeadlineQueue(self.path, **self._options)

    async def _lend(self, count: int, lease_seconds: float | None) -> list[DeadlineItem] | None:
        """Takes what is due, or notes when something may be."""
        queue = self.queue

        def dequeue() -> tuple[list[DeadlineItem], float]:
            items = queue.dequeue_many(count, lease_seconds=lease_seconds)
            return items, 0.0 if items else queue.due_in()

        (items, due_in), cancellation = await self._see_through(dequeue)
        self._items.look_in = due_in
        if cancellation is not None:
            # What is given out is pending again when a closed queue is opened.
            with contextlib.suppress(Closed):
                await self._see_through(_give_back, queue, items)
                self._news.tell()
            raise cancellation
        return items or None


def _give_back(queue: blocking.DeadlineQueue, items: list[DeadlineItem]) -> None:
    """Lets leases end at once, so that the items are where they were in the order."""
    for item in items:
        with contextlib.suppress(LeaseLost):
            queue.touch(item, lease_seconds=_NO_LEASE_SECONDS)
