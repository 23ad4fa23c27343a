"""The kinds again, shared: the same verbs, asked of a server."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.kinds.base import Kind


def shared(kind: Kind) -> Kind:
    """Returns a kind whose queues are shared."""

    class Shared(type(kind)):  # type: ignore[misc]
        name = f"shared {kind.name}"
        record = kind.record

        @property
        def queue(self) -> Any:
            return partial(kind.queue, shared=True)

    made: Kind = Shared()
    return made
