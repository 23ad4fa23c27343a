"""A fifo: values are popped, or taken and perhaps given back."""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import Any

import forebay
from tests.kinds.base import Fetched, Kind, Verb, nothing
from tests.kinds.session import Session


class FifoKind(Kind):
    """Fifos."""

    name = "fifo"
    one = "push"
    many = "push_many"
    small = MappingProxyType({"file_bytes": 1_000})

    def rest(self, queue: Any) -> list[bytes]:
        values: list[bytes] = queue.pop_many(1_000)
        return values

    async def fetch(self, source: Any, count: int | None, timeout: float | None) -> Fetched:
        if count is not None:
            return await source.pop_many(count, timeout=timeout), nothing
        value = await source.pop(timeout)
        return [] if value is None else [value], nothing

    def take_for(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        if count == 1:
            return self._take_one(session, timeout)
        # What a pop gives cannot be known before: nothing of what was put has to come again.
        session.ledger.note_taking(list(session.ledger.snapshot()[0]))
        values = session.queue.pop_many(count, timeout=timeout)
        session.ledger.note_taken(values, durable=session.always)
        return len(values)

    def give_back(self, session: Session) -> None:
        with contextlib.suppress(forebay.Empty, _Back), session.queue.take() as _:
            raise _Back

    def others(self) -> dict[str, Verb]:
        return {
            "pop": self._pop,
            "peek": lambda session: session.queue.peek(),
            "len": lambda session: len(session.queue),
        }

    def _take_one(self, session: Session, timeout: float | None) -> int:
        try:
            with session.queue.take(timeout=timeout) as entry:
                session.ledger.note_taking([entry.value])
        except forebay.Empty:
            return 0
        session.ledger.note_taken([entry.value], durable=session.always)
        return 1

    def _pop(self, session: Session) -> None:
        first = session.queue.peek()
        if first is not None:
            session.ledger.note_taking([first.value])
        value = session.queue.pop()
        if value is not None:
            session.ledger.note_taking([value])
            session.ledger.note_taken([value], durable=session.always)


class _Back(Exception):
    """Has an entry given back."""
