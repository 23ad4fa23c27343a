"""The kinds of queue as the shared suite of asyncio sees them: the same few verbs for each."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forebay.aio
from forebay.storage.commit import GroupCommit

# So small that a hundred entries of a hundred bytes fill every kind.
SMALL = {"max_bytes": 2_000, "when_full": "block"}


@dataclass(frozen=True)
class Kind:
    """How to open a queue, add a value, and take the next value for good."""

    name: str
    make: Callable[..., Any]
    small: dict[str, Any]
    one: str
    many: str
    value: Callable[[bytes], Any]
    take: Callable[[Any, float | None], Awaitable[list[bytes]]]

    async def add(self, queue: Any, value: bytes) -> None:
        await getattr(queue, self.one)(self.value(value))

    async def add_many(self, queue: Any, values: list[bytes]) -> None:
        await getattr(queue, self.many)([self.value(value) for value in values])

    def add_blocking(self, queue: Any, value: bytes) -> None:
        """Adds by the blocking queue. On a thread."""
        getattr(queue.queue, self.one)(self.value(value))


# A name has one consumer at a time, which all tasks share.
_consumers: weakref.WeakKeyDictionary[Any, asyncio.Future[Any]] = weakref.WeakKeyDictionary()


async def _take_records(log: Any, timeout: float | None) -> list[bytes]:
    if log not in _consumers:
        _consumers[log] = asyncio.ensure_future(log.consumer("c"))
    consumer = await asyncio.shield(_consumers[log])
    records = await consumer.read(1, timeout=timeout)
    await consumer.commit()
    return [record.value for record in records]


async def _take_events(queue: Any, timeout: float | None) -> list[bytes]:
    batch = await queue.read(1, timeout=timeout)
    await batch.ack()
    return [event.fields["value"].encode() for event in batch]


async def _take_entries(fifo: Any, timeout: float | None) -> list[bytes]:
    values: list[bytes] = await fifo.pop_many(1, timeout=timeout)
    return values


async def _take_items(queue: Any, timeout: float | None) -> list[bytes]:
    items = await queue.dequeue_many(1, timeout=timeout)
    await queue.release_many(items)
    return [item.value for item in items]


def _event(value: bytes) -> dict[str, Any]:
    return {"fields": {"value": value.decode()}}


KINDS = [
    Kind(
        "log",
        forebay.aio.Log,
        {**SMALL, "segment_bytes": 1_000, "trim_interval_seconds": None},
        "append",
        "append_many",
        bytes,
        _take_records,
    ),
    Kind(
        "beats",
        forebay.aio.BeatsQueue,
        {**SMALL, "segment_bytes": 1_000},
        "put",
        "put_many",
        _event,
        _take_events,
    ),
    Kind(
        "fifo",
        forebay.aio.Fifo,
        {**SMALL, "file_bytes": 1_000},
        "push",
        "push_many",
        bytes,
        _take_entries,
    ),
    Kind(
        "deadline",
        forebay.aio.DeadlineQueue,
        {**SMALL, "segment_bytes": 1_000},
        "enqueue",
        "enqueue_many",
        bytes,
        _take_items,
    ),
]


def commit_of(queue: Any) -> GroupCommit:
    """Returns what makes the changes of a queue durable."""
    writer = "_journal" if hasattr(queue.queue, "_journal") else "_writer"
    commit: GroupCommit = getattr(queue.queue, writer).commit
    return commit


def open_small(kind: Kind, path: Path, **options: Any) -> Any:
    return kind.make(path / "q", **{**kind.small, **options})
