"""What the suite of cancellations is run on: an `asyncio.Queue`, and queues of every kind.

Each takes numbers and returns them in their order. What a `get` has returned is the caller's; what
is left when it was cancelled must still be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import forebay.aio

# What a bounded queue takes: a handful of numbers of this size.
_VALUE_BYTES = 100
_SMALL: dict[str, Any] = {"max_bytes": 2_000}


class Subject(ABC):
    """A queue of numbers that tasks put and get."""

    name: ClassVar[str]

    @abstractmethod
    async def put(self, number: int) -> None:
        """Puts a number; waits while there is no room."""

    @abstractmethod
    async def get(self) -> int:
        """Takes the first number; waits until there is one."""

    async def use(self, got: list[int]) -> None:
        """Takes the first number and puts it down as used."""
        got.append(await self.get())

    @abstractmethod
    async def rest(self) -> list[int]:
        """Takes all that is there."""

    @abstractmethod
    async def close(self) -> None:
        """Closes it."""


class Reference(Subject):
    """What the queues are held to."""

    name = "asyncio.Queue"

    def __init__(self, path: Path, sync: str, *, small: bool) -> None:
        self._queue: asyncio.Queue[int] = asyncio.Queue(10 if small else 0)

    async def put(self, number: int) -> None:
        await self._queue.put(number)

    async def get(self) -> int:
        return await self._queue.get()

    async def rest(self) -> list[int]:
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    async def close(self) -> None:
        pass


class FifoSubject(Subject):
    """A fifo, by `get`."""

    name = "fifo"

    def __init__(self, path: Path, sync: Any, *, small: bool) -> None:
        bounds = {**_SMALL, "file_bytes": 1_000} if small else {}
        self.queue = forebay.aio.Fifo(path / "q", sync=sync, **bounds)

    async def put(self, number: int) -> None:
        await self.queue.put(_value(number))

    async def get(self) -> int:
        return int(await self.queue.get())

    async def rest(self) -> list[int]:
        return [int(value) for value in await self.queue.pop_many(1_000)]

    async def close(self) -> None:
        await self.queue.close()


class DeadlineSubject(Subject):
    """A deadline queue."""

    name = "deadline"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, path: Path, sync: Any, *, small: bool) -> None:
        bounds = {**_SMALL, "segment_bytes": 1_000} if small else {}
        self.queue = forebay.aio.DeadlineQueue(path / "q", sync=sync, **bounds, **self.options)

    async def put(self, number: int) -> None:
        await self.queue.enqueue(_value(number), deadline_ms=1_000 + number)

    async def get(self) -> int:
        item = await self.queue.dequeue(timeout=math.inf)
        assert item is not None
        return int(item.value)

    async def rest(self) -> list[int]:
        items = await self.queue.dequeue_many(1_000)
        await self.queue.release_many(items)
        return [int(item.value) for item in items]

    async def close(self) -> None:
        await self.queue.close()


class LogSubject(Subject):
    """A log with one consumer, which all tasks share."""

    name = "log"

    def __init__(self, path: Path, sync: Any, *, small: bool) -> None:
        bounds = {**_SMALL, "segment_bytes": 1_000} if small else {}
        self.queue = forebay.aio.Log(path / "q", sync=sync, trim_interval_seconds=None, **bounds)
        self._consumer: forebay.aio.Consumer | None = None

    async def consumer(self) -> forebay.aio.Consumer:
        if self._consumer is None:
            self._consumer = await self.queue.consumer("c")
        return self._consumer

    async def put(self, number: int) -> None:
        await self.queue.append(_value(number))

    async def get(self) -> int:
        (record,) = await (await self.consumer()).read(1, timeout=math.inf)
        return int(record.value)

    async def rest(self) -> list[int]:
        consumer = await self.consumer()
        records = await consumer.read(1_000)
        await consumer.commit()
        return [int(record.value) for record in records]

    async def close(self) -> None:
        await self.queue.close()


class BeatsSubject(Subject):
    """A Beats queue."""

    name = "beats"

    def __init__(self, path: Path, sync: Any, *, small: bool) -> None:
        bounds = {**_SMALL, "segment_bytes": 1_000} if small else {}
        self.queue = forebay.aio.BeatsQueue(path / "q", sync=sync, **bounds)

    async def put(self, number: int) -> None:
        await self.queue.put({"fields": {"number": _value(number).decode()}})

    async def get(self) -> int:
        (event,) = await self.queue.read(1, timeout=math.inf)
        return int(event.fields["number"])

    async def rest(self) -> list[int]:
        numbers: list[int] = []
        empty = 0
        # What a cancelled read had is back when its thread is done.
        while empty < 3:
            batch = await self.queue.read(1_000)
            await batch.ack()
            numbers += [int(event.fields["number"]) for event in batch]
            if not batch:
                empty += 1
                await asyncio.sleep(0.02)
        return sorted(numbers)

    async def close(self) -> None:
        await self.queue.close()


class Taking(Subject):
    """A queue, by `take`."""

    @abstractmethod
    def lend(self) -> AbstractAsyncContextManager[Any]:
        """Lends the first record; waits until there is one."""

    @abstractmethod
    def number_of(self, record: Any) -> int:
        """Returns the number of a record."""

    async def get(self) -> int:
        got: list[int] = []
        await self.use(got)
        return got[0]

    async def use(self, got: list[int]) -> None:
        async with self.lend() as record:
            # Done with when the block ends, even if the task is cancelled in that moment.
            got.append(self.number_of(record))


class TakingFifo(Taking, FifoSubject):
    """A fifo, by `take`."""

    name = "fifo, take"

    def lend(self) -> AbstractAsyncContextManager[Any]:
        return self.queue.take(timeout=math.inf)

    def number_of(self, record: Any) -> int:
        return int(record.value)


class TakingDeadline(Taking, DeadlineSubject):
    """A deadline queue, by `take`."""

    name = "deadline, take"
    options: ClassVar[dict[str, Any]] = {"retry_seconds": 0}

    def lend(self) -> AbstractAsyncContextManager[Any]:
        return self.queue.take(timeout=math.inf)

    def number_of(self, record: Any) -> int:
        return int(record.value)


class TakingLog(Taking, LogSubject):
    """A log with one consumer, by `take`."""

    name = "log, take"

    def lend(self) -> AbstractAsyncContextManager[Any]:
        assert self._consumer is not None
        return self._consumer.take(timeout=math.inf)

    def number_of(self, record: Any) -> int:
        return int(record.value)


class TakingBeats(Taking, BeatsSubject):
    """A Beats queue, by `take`."""

    name = "beats, take"

    def lend(self) -> AbstractAsyncContextManager[Any]:
        return self.queue.take(timeout=math.inf)

    def number_of(self, record: Any) -> int:
        return int(record.fields["number"])


class ManyFifo(FifoSubject):
    """A fifo, by the verbs for many."""

    name = "fifo, many"

    async def put(self, number: int) -> None:
        await self.queue.put_many([_value(number)])

    async def get(self) -> int:
        (value,) = await self.queue.pop_many(1, timeout=math.inf)
        return int(value)


class ManyDeadline(DeadlineSubject):
    """A deadline queue, by the verbs for many."""

    name = "deadline, many"

    async def put(self, number: int) -> None:
        await self.queue.put_many([_value(number)], deadline_ms=1_000 + number)

    async def get(self) -> int:
        (item,) = await self.queue.dequeue_many(1, timeout=math.inf)
        return int(item.value)


class ManyLog(LogSubject):
    """A log, by `put_many`."""

    name = "log, many"

    async def put(self, number: int) -> None:
        await self.queue.put_many([_value(number)])


class ManyBeats(BeatsSubject):
    """A Beats queue, by `put_many`."""

    name = "beats, many"

    async def put(self, number: int) -> None:
        await self.queue.put_many([{"fields": {"number": _value(number).decode()}}])


TAKING: list[Any] = [TakingFifo, TakingDeadline, TakingLog, TakingBeats]
OURS: list[Any] = [
    *(FifoSubject, DeadlineSubject, LogSubject, BeatsSubject),
    *TAKING,
    *(ManyFifo, ManyDeadline, ManyLog, ManyBeats),
]
SUBJECTS: list[tuple[Any, str]] = [
    (Reference, ""),
    *((subject, sync) for subject in OURS for sync in ("always", "os")),
]


@contextlib.asynccontextmanager
async def opened(
    made: tuple[Any, str], path: Path, *, small: bool = False
) -> AsyncIterator[Subject]:
    """Opens a queue of its own; closes it."""
    kind, sync = made
    subject: Subject = kind(path, sync, small=small)
    queue = getattr(subject, "queue", None)
    if queue is not None:
        await queue.open()
    if isinstance(subject, LogSubject):
        await subject.consumer()
    try:
        yield subject
    finally:
        await subject.close()


def _value(number: int) -> bytes:
    return b"%0*d" % (_VALUE_BYTES, number)
