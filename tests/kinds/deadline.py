"""A deadline queue: values are due at once unless a test says otherwise; leased and released."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from types import MappingProxyType
from typing import Any

import forebay
from tests.kinds.base import Fetched, Kind, Verb
from tests.kinds.session import Session


class DeadlineKind(Kind):
    """Deadline queues."""

    name = "deadline"
    one = "enqueue"
    many = "enqueue_many"
    small = MappingProxyType({"segment_items": 16})
    ordered = False
    back_at_once = MappingProxyType({"retry_seconds": 0})

    def rest(self, queue: Any) -> list[bytes]:
        queue.kick(count=1_000)
        items = queue.dequeue_many(1_000)
        for _ in range(200):
            if items or not queue.pending:
                break
            # One that was given back is due a millisecond later than before.
            time.sleep(0.001)
            items = queue.dequeue_many(1_000)
        queue.release_many(items)
        return [item.value for item in items]

    async def fetch(self, source: Any, count: int | None, timeout: float | None) -> Fetched:
        if count is None:
            item = await source.dequeue(timeout)
            items = [] if item is None else [item]
        else:
            items = await source.dequeue_many(count, timeout)
        return [item.value for item in items], partial(source.release_many, items)

    def take_for(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        items = session.queue.dequeue_many(count, timeout)
        values = [item.value for item in items]
        session.ledger.note_taking(values)
        try:
            session.queue.release_many(items)
        except BaseException:
            with contextlib.suppress(forebay.Closed, forebay.LeaseLost, OSError):
                for item in items:
                    session.queue.requeue(item)
                    session.ledger.note_back([item.value])
            raise
        session.ledger.note_taken(values, durable=session.always)
        return len(values)

    def give_back(self, session: Session) -> None:
        item = session.queue.dequeue()
        if item is not None:
            session.queue.requeue(item)

    def others(self) -> dict[str, Verb]:
        return {
            "freeze": lambda session: session.queue.freeze(),
            "merge": lambda session: session.queue.merge(),
            "bury": self._bury,
            "peek": lambda session: session.queue.peek(),
            "browse": lambda session: session.queue.browse(),
            "len": lambda session: len(session.queue),
        }

    def _bury(self, session: Session) -> None:
        item = session.queue.dequeue()
        if item is not None:
            session.queue.bury(item)
            session.queue.kick(item.id)
