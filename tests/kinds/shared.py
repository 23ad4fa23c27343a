"""The kinds again, shared: the same verbs, asked of a server."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.kinds import KINDS
from tests.kinds.base import Kind


class Shared:
    """What marks a kind whose queues are shared."""


def shared(kind: Kind) -> Kind:
    """Returns a kind whose queues are shared."""

    class SharedKind(Shared, type(kind)):  # type: ignore[misc]
        name = f"shared {kind.name}"
        record = kind.record

        @property
        def queue(self) -> Any:
            return partial(kind.queue, shared=True)

        def on_loop(self, path: Any, **options: Any) -> Any:
            return kind.on_loop(path, **options, shared=True)

    made: Kind = SharedKind()
    return made


# Each starts a server: none of them is part of the quick tier.
EACH_SHARED = [pytest.param(shared(kind), marks=pytest.mark.slow) for kind in KINDS.values()]
