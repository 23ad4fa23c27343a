"""A toy by the protocol of all kinds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from forebay.damage import Damage
from forebay.queues.shared.rows import Lent, Limits, Rows, value_json
from tests.support.toy.queue import Toy
from tests.support.toy.reader import ToyReader


def scan(path: str) -> Iterator[Rows | Damage]:
    with ToyReader(path) as reader:
        for item in reader.scan():
            yield item if isinstance(item, Damage) else rows_of([item])


def next_ms(path: str) -> int | None:
    with ToyReader(path) as reader:
        return 0 if reader.lines else None


def limits(toy: Toy) -> Limits:
    return Limits(1_000)


def put(toy: Toy, values: list[bytes]) -> tuple[None, None]:
    toy.replace(toy.lines() + values)
    return None, None


def lender(toy: Toy) -> Callable[[int], AbstractContextManager[Lent]]:
    @contextlib.contextmanager
    def lend(count: int) -> Iterator[Lent]:
        lines = toy.lines()
        yield Lent(rows_of(lines[:count]))
        toy.replace(lines[count:])

    return lend


def rows_of(lines: list[bytes]) -> Rows:
    return Rows(lines, lambda index: b'{"kind":"toy",%b}\n' % value_json(lines[index]))
