"""A Beats queue: a value is a field of an event; events are read in batches and acknowledged."""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import Any

import forebay
from tests.kinds.base import Fetched, Kind, Verb
from tests.kinds.session import Session


class BeatsKind(Kind):
    """Beats queues."""

    name = "beats"
    one = "put"
    many = "put_many"
    small = MappingProxyType({"segment_bytes": 1_000})
    reads_on_threads = True
    at_once = MappingProxyType({"retry_seconds": 0})

    def open(self, path: Any, **options: Any) -> Any:
        return super().open(path, **{"retry_seconds": 0.05, **options})

    def wrap(self, value: bytes) -> Any:
        return {"fields": {"value": value}}

    def unwrap(self, record: Any) -> bytes:
        value: bytes = record.fields["value"]
        return value

    def rest(self, queue: Any) -> list[bytes]:
        batch = queue.read(1_000)
        values = [self.unwrap(event) for event in batch]
        batch.ack()
        return values

    async def fetch(self, source: Any, count: int | None, timeout: float | None) -> Fetched:
        batch = await source.read(1 if count is None else count, timeout=timeout)
        return [self.unwrap(event) for event in batch], batch.ack

    def take_for(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        batch = session.queue.read(count, timeout=timeout)
        values = [self.unwrap(event) for event in batch]
        session.ledger.note_taking(values)
        try:
            batch.ack()
        except BaseException:
            # Who was not told that it is done may give it back; then it has to come again. An
            # interrupt may have come when it was settled already.
            settled = "settled" in repr(batch)
            with contextlib.suppress(forebay.Closed, forebay.LeaseLost, OSError):
                batch.nack()
                if not settled:
                    session.ledger.note_back(values)
            raise
        session.ledger.note_taken(values, durable=True)
        return len(values)

    def give_back(self, session: Session) -> None:
        session.queue.read(1).nack()

    def others(self) -> dict[str, Verb]:
        return {"damage": lambda session: session.queue.damage}
