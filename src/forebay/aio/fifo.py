"""`Fifo` on a loop: push, pop, take and peek."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from forebay.aio.queue import LoopQueue
from forebay.aio.room import Room
from forebay.aio.threads import owe_cancellation, raise_owed
from forebay.aio.waiting import Line
from forebay.errors import Closed, Empty
from forebay.formats.entry import Entry
from forebay.kernels.entry import METADATA_BYTES
from forebay.queues.fifo import queue as fifo
from forebay.storage.filesystem import Buffer

_Lent = tuple[AbstractContextManager[Entry], Entry]
_Result = TypeVar("_Result")
# How long a take without a timeout waits before it looks again whether there is anything to take.
_LENT_SECONDS = 1.0
_AT_ONCE = 100


class Fifo(LoopQueue[fifo.Fifo]):
    """A durable queue of bytes, first in first out. The options are those of `FifoOptions`."""

    async def push(
        self, value: Buffer, *, ttl_seconds: int | None = None, timeout: float | None = None
    ) -> int:
        """Pushes an entry and returns its id, as durably as the sync policy says.

        A full queue waits for room, at most `timeout` seconds if that is given, or does what
        `when_full` says. Cancelled while it waits, nothing was written; later it may have been.
        """
        push = partial(self.queue.push, value, ttl_seconds=ttl_seconds, timeout=0)
        return await self._room.add(push, timeout, ever_fits=lambda: self._ever_fits([value]))

    async def push_many(
        self,
        values: Iterable[Buffer],
        *,
        ttl_seconds: int | None = None,
        timeout: float | None = None,
    ) -> int | None:
        """Pushes entries with one commit and returns the id of the last; None if there are none."""
        batch = list(values)
        push = partial(self.queue.push_many, batch, ttl_seconds=ttl_seconds, timeout=0)
        return await self._room.add(push, timeout, ever_fits=lambda: self._ever_fits(batch))

    async def pop(self, timeout: float | None = None) -> bytes | None:
        """Takes the oldest entry for good; None if there is none.

        With a timeout (seconds) it waits, and raises `Empty` if none came. A cancellation takes
        nothing off. If it comes when the entry is just being taken off, the entry is given all the
        same, and the cancellation is raised by the task's next call that takes something.
        """
        return await self._pop(partial(self.queue.pop, timeout=0), timeout)

    async def pop_many(self, count: int, timeout: float | None = None) -> list[bytes]:
        """Takes up to `count` entries as `pop` does; an empty list if there are none."""
        return await self._pop(partial(self.queue.pop_many, count, timeout=0), timeout) or []

    @contextlib.asynccontextmanager
    async def take(self, timeout: float | None = None) -> AsyncIterator[Entry]:
        """Lends the oldest entry out: it is removed on success, and back at the front otherwise.

        Otherwise means an exception, a cancellation or a crash. Raises `Empty` if there is none, or
        none came within `timeout` seconds. While 128 are lent out it waits until one of them is
        back, at most `timeout` seconds if that is given; then it raises `Empty` as well.
        """
        raise_owed()
        found = await self._entries.wait(self._lend, timeout)
        while found is None and timeout is None and self.queue.all_lent:
            found = await self._entries.wait(self._lend, _LENT_SECONDS)
        if found is None:
            raise self._nothing(timeout or 0)
        lending, entry = found
        try:
            yield entry
        except BaseException as error:
            await self._give_back(lending, error)
            raise
        await self._work(lending.__exit__, None, None, None)

    async def peek(self, *, after: int | None = None) -> Entry | None:
        """Returns the oldest entry, or the oldest after an id; it stays. None if there is none."""
        return await self._work(self.queue.peek, after=after)

    async def __aiter__(self) -> AsyncIterator[Entry]:
        """Goes over all entries that have not expired, oldest first; none is removed."""
        entries = iter(self.queue)
        while True:
            some = await self._work(_next_of, entries)
            for entry in some:
                yield entry
            if not some:
                return

    async def put(self, value: Buffer) -> None:
        """Pushes an entry, as an `asyncio.Queue` takes one."""
        await self.push(value)

    async def get(self) -> bytes:
        """Takes the oldest entry, as an `asyncio.Queue` gives one: waits until there is one."""
        value = await self.pop(timeout=float("inf"))
        assert value is not None
        return value

    @property
    def size(self) -> int:
        """How many entries there are; those that have expired and nobody has passed yet included.

        Entries that are lent out by `take` do not count.
        """
        return self.queue.size

    @property
    def capacity(self) -> int | None:
        """How many entries it can hold (`max_entries`); None: no bound but that of bytes."""
        return self.queue.capacity

    @property
    def capacity_bytes(self) -> int | None:
        """How many bytes of entries it can hold, 32 for each included; None: no bound."""
        return self.queue.capacity_bytes

    def capacity_for(self, entry_bytes: int) -> int | None:
        """How many entries of a size an empty queue can hold; None: no bound."""
        return self.queue.capacity_for(entry_bytes)

    def qsize(self) -> int:
        """How many entries there are."""
        return self.size

    def empty(self) -> bool:
        """Whether there is no entry."""
        return self.queue.empty()

    def full(self) -> bool:
        """Whether not even an empty entry has room."""
        return self.queue.full()

    def __len__(self) -> int:
        return self.size

    def serve(self, queue: fifo.Fifo) -> None:
        """Takes over a fifo that is open."""
        super().serve(queue)
        self._entries = Line(self._news)
        most = queue.options.max_entries
        self._room = Room(self.path, queue.options, self._news, self._add, max_entries=most)

    def _make(self) -> fifo.Fifo:
        return fifo.Fifo(self.path, **self._options)

    def _ever_fits(self, values: list[Buffer]) -> bool:
        options = self.queue.options
        if options.max_entries is not None and len(values) > options.max_entries:
            return False
        size = sum(memoryview(value).nbytes + METADATA_BYTES for value in values)
        return options.max_bytes is None or size <= options.max_bytes

    async def _pop(
        self, pop: Callable[[], _Result | None], timeout: float | None
    ) -> _Result | None:
        """Pops when there is something. `pop` raises `Empty` at once if there is nothing."""

        def pop_if_any() -> _Result | None:
            try:
                return pop()
            except Empty:
                return None

        async def attempt() -> _Result | None:
            result, cancellation = await self._see_through(pop_if_any)
            if cancellation is not None:
                if result is None:
                    raise cancellation
                # It is off the queue for good: only the caller can have it.
                owe_cancellation()
            return result

        raise_owed()
        result = await self._entries.wait(attempt, timeout)
        if result is None and timeout is not None:
            raise self._nothing(timeout)
        return result

    async def _lend(self) -> _Lent | None:
        found, cancellation = await self._see_through(_enter, self.queue)
        if cancellation is not None:
            if found is not None:
                await self._give_back(found[0], cancellation)
            raise cancellation
        return found

    async def _give_back(
        self, lending: AbstractContextManager[Entry], error: BaseException
    ) -> None:
        """Puts an entry back to the front; a closed queue does so when it is opened again."""
        with contextlib.suppress(Closed):
            await self._work(lending.__exit__, type(error), error, error.__traceback__)

    def _nothing(self, seconds: float) -> Empty:
        return Empty(f"{self.path}: no entry in {seconds} s")


def _next_of(entries: Iterator[Entry]) -> list[Entry]:
    """Returns the next few entries: a turn on a thread for each would cost more than they do."""
    return list(itertools.islice(entries, _AT_ONCE))


def _enter(queue: fifo.Fifo) -> _Lent | None:
    """Lends an entry out on one thread, so that another can take it back."""
    lending = queue.take(timeout=0)
    try:
        return lending, lending.__enter__()
    except Empty:
        return None
