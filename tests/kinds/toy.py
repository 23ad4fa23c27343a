"""The toy kind: what a suite must say of a fifth kind, to have it pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from forebay.queues import kinds
from tests.kinds.base import Fetched, Kind
from tests.kinds.session import Session
from tests.support.toy import TOY


class ToyKind(Kind):
    """Toys."""

    name = TOY.name
    one = "put"
    many = "put_many"
    small: Any = MappingProxyType({})
    record = TOY

    def unwrap(self, record: bytes) -> bytes:
        return record

    def rest(self, queue: Any) -> list[bytes]:
        values: list[bytes] = queue.take(1_000)
        return values

    async def fetch(self, source: Any, count: int | None, timeout: float | None) -> Fetched:
        raise NotImplementedError

    def take_for(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        raise NotImplementedError

    def give_back(self, session: Session) -> None:
        raise NotImplementedError


@contextlib.contextmanager
def toys() -> Iterator[None]:
    """Makes the toy one of the kinds that Forebay knows."""
    kinds.KINDS.insert(0, TOY)
    try:
        yield
    finally:
        kinds.KINDS.remove(TOY)
