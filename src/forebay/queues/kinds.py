"""The kinds of queue: told by the names in a directory, opened by their class.

The classes are imported at first use: who only has logs needs neither LZ4 nor AES nor CBOR.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.queues.deadline_names import is_deadline_queue
from forebay.queues.event_names import is_event_queue
from forebay.queues.fifo_names import is_fifo
from forebay.storage.filesystem import DiskFilesystem


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of queue: where its class and its reader's are, and whether names are those of one."""

    name: str
    queue: tuple[str, str]
    reader: tuple[str, str]
    fits: Callable[[list[str]], bool]

    def open_queue(self, path: str | os.PathLike[str], **options: Any) -> Any:
        """Opens a queue as its owner."""
        return _class(*self.queue)(path, **options)

    def open_reader(self, path: str | os.PathLike[str], **options: Any) -> Any:
        """Opens a queue without owning it."""
        return _class(*self.reader)(path, **options)


# The last one takes what no other does: its reader says what is wrong.
KINDS = (
    Kind(
        "beats",
        ("forebay.queues.event", "EventQueue"),
        ("forebay.queues.event_reader", "EventReader"),
        is_event_queue,
    ),
    Kind(
        "fifo",
        ("forebay.queues.fifo", "Fifo"),
        ("forebay.queues.fifo_reader", "FifoReader"),
        is_fifo,
    ),
    Kind(
        "deadline",
        ("forebay.queues.deadline", "DeadlineQueue"),
        ("forebay.queues.deadline_reader", "DeadlineReader"),
        is_deadline_queue,
    ),
    Kind(
        "log",
        ("forebay.queues.log", "Log"),
        ("forebay.queues.reader", "LogReader"),
        lambda names: True,
    ),
)


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """Tells what kind of queue a directory holds."""
    directory = DiskFilesystem().open_directory(os.fspath(path))
    try:
        names = directory.names()
    finally:
        directory.close()
    return next(kind for kind in KINDS if kind.fits(names))


def _class(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
