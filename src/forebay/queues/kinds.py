"""The kinds of queue: told by the names in a directory, opened by their class.

The classes are imported at first use: who only has logs needs neither LZ4 nor AES nor CBOR.

Marks the losses of a queue as seen, whatever its kind.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from forebay.damage import Damage
from forebay.queues.beats.names import is_beats_queue
from forebay.queues.deadline.names import is_deadline_queue
from forebay.queues.fifo.names import is_fifo
from forebay.storage import losses
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
        ("forebay.queues.beats.queue", "BeatsQueue"),
        ("forebay.queues.beats.reader", "BeatsReader"),
        is_beats_queue,
    ),
    Kind(
        "fifo",
        ("forebay.queues.fifo.queue", "Fifo"),
        ("forebay.queues.fifo.reader", "FifoReader"),
        is_fifo,
    ),
    Kind(
        "deadline",
        ("forebay.queues.deadline.queue", "DeadlineQueue"),
        ("forebay.queues.deadline.reader", "DeadlineReader"),
        is_deadline_queue,
    ),
    Kind(
        "log",
        ("forebay.queues.log.queue", "Log"),
        ("forebay.queues.log.reader", "LogReader"),
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


def accept_losses(path: str | os.PathLike[str], found: Iterable[Damage] = ()) -> int:
    """Marks what a queue has lost as seen; returns how many losses were not yet.

    `forebay fsck` reports them no more, and no handle raises `Damaged` for them. `found` are losses
    that need not be on record. Durable on return; raises `Locked` while the queue is in use.
    """
    directory = DiskFilesystem().open_directory(os.fspath(path))
    try:
        directory.lock()
        return losses.accept(directory, found)
    finally:
        directory.close()
