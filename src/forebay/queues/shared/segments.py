"""An owner whose files are segments: it writes the newest, and rolls to the next.

Rolling is the same for every format; what a new segment needs before anything in it is acknowledged
is not, and stays with its kind.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from forebay.queues.shared.owner import FatalErrors, Owner, fatal_when_interrupted
from forebay.storage.filesystem import Directory
from forebay.storage.segments import SegmentList, SegmentWriter

_Active = TypeVar("_Active", bound=SegmentWriter)


class SegmentOwner(Owner, Generic[_Active]):
    """Writes the segments of a queue that this process owns."""

    def __init__(
        self, directory: Directory, durable: int, segments: SegmentList, *, always: bool
    ) -> None:
        super().__init__(directory, durable, always=always)
        self.segments = segments
        self._active: _Active | None = None

    @property
    def used_bytes(self) -> int:
        """How many bytes all segments take, without space that was preallocated. Lock held."""
        active = self._active.end if self._active is not None else 0
        return sum(self.segments.sizes.values()) + active

    @fatal_when_interrupted
    def roll(self) -> None:
        """Seals the segment being written; the next record starts a new one. Lock held."""
        self.drain()
        active, self._active = self._active, None
        if active is None:
            return
        # Open until a sync has covered it: another thread may be syncing it now.
        self.files.finish(active)
        if active.is_empty:
            self.segments.drop_last()
            self._discard(active.name)
            return
        with FatalErrors(self):
            active.seal()
        self.segments.sizes[self.segments.bases[-1]] = active.end
        self._sealed(active)

    def close(self) -> None:
        """Makes everything durable and marks the queue as cleanly closed."""
        self._close(self._finish, self._mark_clean)

    def release_files(self) -> None:
        """Closes all files."""
        self.files.close()
        if self._active is not None:
            self._active.close()
            self._active = None
        self.mark.close()

    @abstractmethod
    def publish(self, *, clean: bool = False, sync: bool = False) -> None:
        """Publishes in the mark how much is written. Lock held."""

    def _finish(self) -> None:
        """Writes out what is left, and seals the last segment. Lock held."""
        self.roll()

    def _mark_clean(self) -> None:
        with self.lock:
            self.publish(clean=True, sync=True)

    @abstractmethod
    def _discard(self, name: str) -> None:
        """Removes the file of a segment in which nothing was ever written."""

    def _sealed(self, active: _Active) -> None:
        """Does what has to follow when a segment is sealed. Lock held."""
