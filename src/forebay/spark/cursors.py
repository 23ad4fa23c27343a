"""The cursors of a stream: one a queue, held while the stream runs, so that trimming stays below.

Without a name nothing is held, and every call does nothing. Nor is anything held in Beats queues,
into which a stream writes nothing.
"""

from __future__ import annotations

from typing import Any

from forebay.queues.kinds import kind_of
from forebay.storage.cursors import Cursor, read_cursors
from forebay.storage.filesystem import DiskFilesystem

# The kinds of queue that have none.
WITHOUT_CURSORS = frozenset({"beats"})


class Cursors:
    """The places `cursors/NAME` of one stream. One thread at a time may use it."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._held: dict[str, Cursor] = {}
        self._without: set[str] = set()

    def saved(self, path: str) -> int | None:
        """Returns the place that an earlier stream of this name left in a queue."""
        if self._name is None or not self._may_hold(path):
            return None
        directory = DiskFilesystem().open_directory(path)
        try:
            return dict(read_cursors(directory)).get(self._name)
        finally:
            directory.close()

    def hold(self, path: str, offset: int, incarnation: int) -> None:
        """Takes the cursor of a queue, made at `offset` if there is none; or raises `Locked`."""
        if self._name is None or path in self._held or not self._may_hold(path):
            return
        directory = DiskFilesystem().open_directory(path)
        try:
            self._held[path] = Cursor.open(
                directory, self._name, start=offset, incarnation=incarnation
            )
        finally:
            directory.close()

    def _may_hold(self, path: str) -> bool:
        if path not in self._without and kind_of(path).name in WITHOUT_CURSORS:
            self._without.add(path)
        return path not in self._without

    def advance(self, places: dict[str, dict[str, Any]]) -> None:
        """Moves the cursors forward; durable on return."""
        for path, cursor in self._held.items():
            if path in places:
                cursor.advance(places[path]["offset"], places[path]["incarnation"])

    def let_go(self, path: str) -> None:
        """Gives up the cursor of a queue that is gone."""
        cursor = self._held.pop(path, None)
        if cursor is not None:
            cursor.close()

    def close(self) -> None:
        """Returns all of them back."""
        for path in list(self._held):
            self.let_go(path)
