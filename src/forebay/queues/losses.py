"""Marks the losses of a queue as seen, whatever its kind."""

from __future__ import annotations

import os
from collections.abc import Iterable

from forebay.frames import Damage
from forebay.storage import losses
from forebay.storage.filesystem import DiskFilesystem


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
