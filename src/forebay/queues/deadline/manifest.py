"""Keeps the manifest of a deadline queue: one change at a time, each durable on return.

The names in the directory of a deadline queue, which tell it from other kinds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from forebay.formats.deadline.manifest import NAME, Manifest
from forebay.storage import quarantine
from forebay.storage.filesystem import Directory


class ManifestFile:
    """The manifest on the disk. Any thread may call it, with the queue's lock or without.

    A change that failed may be on the disk or not. Whoever made it removes nothing that either of
    the two manifests names, and makes it again later.
    """

    def __init__(self, directory: Directory, manifest: Manifest) -> None:
        self._directory = directory
        self._mutex = threading.Lock()
        self.manifest = manifest

    def change(self, change: Callable[[Manifest], Manifest]) -> None:
        """Replaces the manifest by what `change` makes of it."""
        with self._mutex:
            before = self.manifest
            manifest = replace(change(before), generation=before.generation + 1)
            quarantine.replace_anything(self._directory, NAME, manifest.encode())
            self.manifest = manifest

    def reserve_ids(self, next_id: int) -> None:
        """Notes that ids below this one may be given out."""
        self.change(lambda manifest: replace(manifest, next_id=max(next_id, manifest.next_id)))

    def disown(self) -> None:
        """Lets the child of a fork go: another thread of the parent may have held the mutex."""
        self._mutex = threading.Lock()
