"""What is done with items by the tokens that `take --lease` printed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from forebay import DeadlineItem, DeadlineQueue
from forebay.cli.kinds import only_for
from forebay.cli.output import say
from forebay.errors import LeaseLost


@contextlib.contextmanager
def opened(path: str, verb: str) -> Iterator[DeadlineQueue]:
    """Owns a deadline queue that is there, for one change."""
    only_for(path, verb, "deadline")
    with DeadlineQueue(path, background=False) as queue:
        yield queue


def reclaim_all(
    queue: DeadlineQueue, tokens: Sequence[tuple[int, int]]
) -> tuple[list[DeadlineItem], list[str]]:
    """Returns the items of tokens, and those tokens that are lost, which it tells."""
    items, lost = [], []
    for id, count in dict.fromkeys(tokens):
        try:
            items.append(queue.reclaim(id, count))
        except LeaseLost as error:
            say(str(error))
            lost.append(f"{id}.{count}")
    return items, lost
