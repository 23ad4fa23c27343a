"""Ends the handles of a parent in the child of a fork: two processes must not write one queue."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Disownable(Protocol):
    """A queue that is open."""

    def disown(self) -> None:
        """Ends the handle in the child; the parent's goes on. Does nothing if it is closed."""
        ...


_open_queues: weakref.WeakSet[Disownable] = weakref.WeakSet()


def disown_after_fork(queue: Disownable) -> None:
    """Has a handle ended in every child of a fork."""
    _open_queues.add(queue)


def _disown_all() -> None:
    for queue in list(_open_queues):
        queue.disown()


os.register_at_fork(after_in_child=_disown_all)
