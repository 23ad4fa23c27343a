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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kinds import KINDS, Kind
from tests.kinds.shared import shared

# What a bounded queue takes: a handful of numbers of this size.
_VALUE_BYTES = 100
_MAX_BYTES = 2_000
# How often a queue that reads on threads is found empty before it counts as empty.
_LOOKS = 3


class Subject(ABC):
    """A queue of numbers that tasks put and get."""

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

    def __init__(self, *, small: bool) -> None:
        self._queue: asyncio.Queue[int] = asyncio.Queue(10 if small else 0)

    async def put(self, number: int) -> None:
        await self._queue.put(number)

    async def get(self) -> int:
        return await self._queue.get()

    async def rest(self) -> list[int]:
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    async def close(self) -> None:
        pass


class Ours(Subject):
    """A queue of a kind, by the verbs for one value."""

    def __init__(self, kind: Kind, queue: Any, source: Any) -> None:
        self.kind = kind
        self.queue = queue
        self.source = source

    async def put(self, number: int) -> None:
        await self.kind.put(self.queue, _value(number))

    async def get(self) -> int:
        values, _ = await self.kind.fetch(self.source, None, math.inf)
        return int(values[0])

    async def rest(self) -> list[int]:
        numbers: list[int] = []
        empty = 0
        while True:
            values, done = await self.kind.fetch(self.source, 1_000, None)
            await done()
            numbers += map(int, values)
            if not values:
                empty += 1
                if not self.kind.reads_on_threads:
                    return numbers
                if empty == _LOOKS:
                    return sorted(numbers)
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        await self.queue.close()


class Taking(Ours):
    """A queue of a kind, by `take`."""

    def lend(self) -> Any:
        """Lends the first record; waits until there is one."""
        return self.source.take(timeout=math.inf)

    async def get(self) -> int:
        got: list[int] = []
        await self.use(got)
        return got[0]

    async def use(self, got: list[int]) -> None:
        async with self.lend() as record:
            # Done with when the block ends, even if the task is cancelled in that moment.
            got.append(int(self.kind.unwrap(record)))


class Many(Ours):
    """A queue of a kind, by the verbs for many values."""

    async def put(self, number: int) -> None:
        await self.kind.put_many(self.queue, [_value(number)])

    async def get(self) -> int:
        values, _ = await self.kind.fetch(self.source, 1, math.inf)
        return int(values[0])


@dataclass(frozen=True)
class Made:
    """How a subject is made; without a kind it is the reference."""

    way: type[Ours] = Ours
    kind: Kind | None = None
    sync: str = ""

    def __str__(self) -> str:
        if self.kind is None:
            return "asyncio.Queue"
        return f"{self.kind.name} {self.way.__name__.lower()} {self.sync}"

    @contextlib.asynccontextmanager
    async def opened(self, path: Path, *, small: bool = False) -> AsyncIterator[Subject]:
        """Opens a queue of its own; closes it."""
        if self.kind is None:
            yield Reference(small=small)
            return
        options: dict[str, Any] = {**self.kind.small, "max_bytes": _MAX_BYTES} if small else {}
        if self.way is Taking:
            options |= self.kind.back_at_once
        async with self.kind.on_loop(path / "q", sync=self.sync, **options) as queue:
            yield self.way(self.kind, queue, await self.kind.source_of(queue))


OURS = [
    Made(way, kind, sync)
    for way in (Ours, Taking, Many)
    for kind in KINDS.values()
    for sync in ("always", "os")
]
SHARED = [
    Made(way, shared(kind), "always") for way in (Ours, Taking, Many) for kind in KINDS.values()
]
TAKING = [made for made in OURS if made.way is Taking]
SUBJECTS = [Made(), *OURS]


def _value(number: int) -> bytes:
    return b"%0*d" % (_VALUE_BYTES, number)
