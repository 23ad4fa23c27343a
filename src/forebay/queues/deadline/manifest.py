"""Keeps the manifest of a deadline queue.

Makes one change at a time, each durable on return.
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

    A change that failed may be on the disk or not. Its caller must not remove anything that either
    of the two manifests names, and must make the change again later.
    """

    def __init__(self, directory: Directory, manifest: Manifest) -> None:
        self._directory = directory
        self._mutex = threading.Lock()
        self.manifest = manifest

    def change(self, change: Callable[[Manifest], Manifest]) -> None:
        """Replaces the manifest with what `change` makes of it."""
        with self._mutex:
            before = self.manifest
            manifest = replace(change(before), generation=before.generation + 1)
            quarantine.replace_anything(self._directory, NAME, manifest.encode())
            self.manifest = manifest

    def reserve_ids(self, next_id: int) -> None:
        """Records that ids below this one may be used."""
        self.change(lambda manifest: replace(manifest, next_id=max(next_id, manifest.next_id)))

    def disown(self) -> None:
        """Replaces the mutex in the child of a fork: a thread of the parent may have held it."""
        self._mutex = threading.Lock()
