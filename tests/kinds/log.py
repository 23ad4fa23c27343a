"""A log: values are read by consumers, and stay until they are trimmed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import forebay
from tests.kinds.base import Fetched, Kind, Verb
from tests.kinds.session import Session


class LogKind(Kind):
    """Logs."""

    name = "log"
    one = "append"
    many = "append_many"
    small = MappingProxyType({"segment_bytes": 1_000})
    adopts = True

    def __init__(self) -> None:
        self._consumers: WeakKeyDictionary[Any, asyncio.Future[Any]] = WeakKeyDictionary()

    def rest(self, queue: Any) -> list[bytes]:
        consumer = queue.consumer("the sum")
        try:
            return [record.value for record in consumer.read(1_000)]
        finally:
            # Past what was raised, too: it is told once.
            consumer.commit()
            consumer.close()

    def drain(self, queue: Any) -> list[bytes]:
        values = super().drain(queue)
        queue.trim()
        return values

    async def source_of(self, queue: Any) -> Any:
        # A name has one consumer at a time, which all tasks share.
        if queue not in self._consumers:
            self._consumers[queue] = asyncio.ensure_future(queue.consumer("c"))
        return await asyncio.shield(self._consumers[queue])

    async def fetch(self, source: Any, count: int | None, timeout: float | None) -> Fetched:
        records = await source.read(1 if count is None else count, timeout=timeout)
        return [record.value for record in records], source.commit

    def take_for(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        with self._consumer(session) as consumer:
            records = consumer.read(count, timeout=timeout)
            # Before the commit: from then on a trim may take them.
            read = session.state.setdefault("read", {})
            read.update(dict.fromkeys(record.value for record in records))
            consumer.commit()
            return len(records)

    def give_back(self, session: Session) -> None:
        with self._consumer(session) as consumer:
            place = consumer.position
            consumer.read(1)
            consumer.seek(place)

    def others(self) -> dict[str, Verb]:
        return {
            "trim": self._trim,
            "consumer": self._open_consumer,
            "len": lambda session: len(session.queue),
        }

    def _open_consumer(self, session: Session) -> None:
        # Another thread may have it at the same time.
        with contextlib.suppress(forebay.Locked):
            session.queue.consumer("other", start="latest").close()

    def _trim(self, session: Session) -> None:
        # Segments that all consumers have read go: from now on their records may be missing; also
        # of those that are read before the trim has looked.
        session.ledger.note_taking(list(session.state.get("read", {})))
        try:
            session.queue.trim()
        finally:
            session.ledger.note_taking(list(session.state.get("read", {})))

    @contextlib.contextmanager
    def _consumer(self, session: Session) -> Iterator[Any]:
        """Lends the consumer to one thread at a time, as it asks for."""
        lock = session.state.setdefault("lock", threading.Lock())
        with lock:
            if "consumer" not in session.state:
                session.state["consumer"] = session.queue.consumer("taker")
            yield session.state["consumer"]
