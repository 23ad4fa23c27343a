"""The common part of the readers of all kinds: a directory that is read but not owned.

A reader takes no lock and writes nothing, whether the queue is in use or not. It needs the names
and the bytes of the files and nothing else, so they may be in any store. Damage raises `Damaged`;
with `salvage=True` it is added to `damage` and skipped.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Generator, Iterator
from typing import TypeVar, cast

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.queues.archive.store import ArchiveStore, open_store
from forebay.queues.shared.handle import Closing
from forebay.storage.filesystem import Directory, DiskFilesystem, Filesystem, lock_owner
from forebay.storage.readable import Stores
from forebay.storage.tail import Tail, TailFile

_Batch = TypeVar("_Batch")


class DirectoryReader(Closing):
    """A view of a queue's directory. One thread at a time may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        salvage: bool = False,
        filesystem: Stores | None = None,
    ) -> None:
        # Of these, a reader uses what stores have and nothing else. What it shares with recovery is
        # declared for directories; `tests/queues/test_stores.py` reads every kind without one.
        if filesystem is None:
            filesystem, store = open_store(os.fspath(path))
        else:
            store = filesystem.open_directory(os.fspath(path))
        self._filesystem = cast(Filesystem, filesystem)
        self._directory = cast(Directory, store)
        self.path = self._directory.path
        self.salvage = salvage
        self.damage: list[Damage] = []
        self._tail_file: TailFile | None = None
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def refresh(self) -> None:
        """Reads the present state of the directory again."""

    @property
    def directory(self) -> Directory:
        """The open directory, for callers that read single files."""
        return self._directory

    @property
    def archived(self) -> bool:
        """Whether it reads an archive, not the queue on its host."""
        return isinstance(self._directory, ArchiveStore)

    def owner(self) -> int | None:
        """Returns the process that owns the queue; None if there is none, or it is not known."""
        on_disk = isinstance(self._filesystem, DiskFilesystem)
        return lock_owner(self.path) if on_disk else None

    def size_of(self, name: str) -> int:
        """Returns how many bytes a file has; 0 if it is gone or not a file."""
        return size_of(self._directory, name)

    def close(self) -> None:
        """Closes its files."""
        if self._tail_file is not None:
            self._tail_file.close()
        self._directory.close()

    def _read_tail(self, name: str) -> Tail | None:
        """Returns the tail that the owner last wrote; None if there is none that can be read."""
        if self._tail_file is None:
            try:
                self._tail_file = TailFile.open(self._directory, write=False, name=name)
            except Damaged:
                return None
        return self._tail_file.read() if self._tail_file is not None else None

    def _sound(self, items: Generator[_Batch | Damage, None, None]) -> Iterator[_Batch]:
        """Yields what can be read; damage raises, or is added to `damage` and skipped."""
        # An error that is kept keeps this frame alive: the file being read must not stay open.
        with contextlib.closing(items):
            for item in items:
                if isinstance(item, Damage):
                    self._meet(item)
                else:
                    yield item

    def _meet(self, damage: Damage) -> None:
        if not self.salvage:
            raise Damaged(damage)
        self.damage.append(damage)


def size_of(directory: Directory, name: str) -> int:
    """Returns how many bytes a file has; 0 if it is gone or not a file."""
    try:
        file = directory.open(name)
    except (OSError, NotAQueue):
        return 0
    size = file.size()
    file.close()
    return size
