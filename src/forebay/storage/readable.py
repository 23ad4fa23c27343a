"""Reads files that the disk returns only in part: what cannot be read is damage, not an error.

Reading a bad sector fails with EIO; a file may have mode 000, or its name may belong to a
directory, a symbolic link or a FIFO. All scans of the files of a queue open them here, so that such
a place costs only the records in it. Any other `OSError` passes through untouched: too many open
files are not damage.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue

# How a disk, or a file system that checks its blocks, reports a place that it cannot return.
_UNREADABLE = {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.ENODATA}
# Errors that mean that a file cannot be opened, no matter how often it is tried.
_UNOPENABLE = _UNREADABLE | {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO}
_SECTOR_BYTES = 512
_File = TypeVar("_File")


@dataclass(frozen=True, slots=True)
class Hole:
    """A part of a file that cannot be read: from `start` up to but not including `end`."""

    start: int
    end: int
    reason: str


class Content(Protocol):
    """The part of a file's interface that a walk over its frames needs."""

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes; fewer only at the end."""
        ...

    def size(self) -> int:
        """Returns the size in bytes."""
        ...


class StoredFile(Content, Protocol):
    """A file that is open for reading; it can still be read after its name was removed."""

    def close(self) -> None:
        """Closes it; a second time does nothing."""
        ...


class Store(Protocol):
    """What a reader needs from the place that holds the files of a queue.

    A `Directory` is one. `open` raises `FileNotFoundError`, `NotAQueue` for anything that is not a
    regular file, or `OSError`.
    """

    path: str

    def names(self) -> list[str]:
        """Lists the files, in no order."""
        ...

    def open(self, name: str, /) -> StoredFile:
        """Opens a file for reading."""
        ...


class OpenStore(Store, Protocol):
    """A store that its reader closes."""

    def directory(self, name: str, /) -> OpenStore:
        """Opens the store of what lies in a folder; `FileNotFoundError` if there is none."""
        ...

    def close(self) -> None:
        """Closes it; a second time does nothing."""
        ...


class Stores(Protocol):
    """What a reader needs of a machine; a `Filesystem` is one."""

    def open_directory(self, path: str, /) -> OpenStore:
        """Opens the store of a queue."""
        ...

    def boot_id(self) -> bytes:
        """Returns 16 bytes that change whenever the machine of the queue's owner restarts."""
        ...


class Readable:
    """Content whose unreadable parts are skipped. One thread at a time may use it."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.holes: list[Hole] = []

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes, fewer only at the end; unreadable bytes are replaced by zeros.

        `hole` tells where they are.
        """
        try:
            return self._content.pread(size, position)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
        size = max(0, min(size, self._content.size() - position))
        return self._read_round(size, position)

    def size(self) -> int:
        """Returns the size in bytes."""
        return self._content.size()

    def hole(self, start: int, end: int) -> Hole | None:
        """Returns the first hole found between two positions; None if there is none."""
        if not self.holes:
            return None
        met = [hole for hole in self.holes if hole.start < end and start < hole.end]
        return min(met, key=lambda hole: hole.start, default=None)

    def _read_round(self, size: int, position: int) -> bytes:
        """Reads what it can of a range that failed, by halving it down to single sectors."""
        if size <= 0:
            return b""
        try:
            return self._content.pread(size, position).ljust(size, b"\0")
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            middle = (position + size // 2) // _SECTOR_BYTES * _SECTOR_BYTES
            if middle <= position:
                middle += _SECTOR_BYTES
            if middle >= position + size:
                self._note(position, position + size, why_unreadable(error))
                return bytes(size)
        first = self._read_round(middle - position, position)
        return first + self._read_round(position + size - middle, middle)

    def _note(self, start: int, end: int, reason: str) -> None:
        last = self.holes[-1] if self.holes else None
        if last is not None and last.start <= start <= last.end:
            self.holes[-1] = Hole(last.start, max(last.end, end), last.reason)
        elif self.hole(start, end) is None:
            self.holes.append(Hole(start, end, reason))


class ReadableFile(Readable):
    """A file that `open_readable` opened."""

    def __init__(self, file: StoredFile, path: str) -> None:
        super().__init__(file)
        self._file = file
        self.path = path

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._file.close()


def open_readable(store: Store, name: str) -> ReadableFile:
    """Opens a file to scan its readable parts; raises as `open_stored` does."""
    return ReadableFile(open_stored(store, name), f"{store.path}/{name}")


def open_stored(store: Store, name: str) -> StoredFile:
    """Opens a file; raises `Damaged` if it exists and cannot be opened.

    `FileNotFoundError` passes through: the caller knows whether the file must exist.
    """
    path = f"{store.path}/{name}"
    try:
        return open_again(lambda: store.open(name))
    except FileNotFoundError:
        raise
    except (OSError, NotAQueue) as error:
        raise Damaged(unopenable(path, error)) from None


def unopenable(path: str, error: OSError | NotAQueue) -> Damage:
    """Returns the damage for a file that exists and cannot be opened; re-raises other errors."""
    if isinstance(error, NotAQueue):
        reason = str(error).removeprefix(f"{path} ").removesuffix("; refused")
        return Damage(path, 0, 0, reason)
    if error.errno not in _UNOPENABLE:
        raise error
    return Damage(path, 0, 0, why_unreadable(error))


def open_again(open_file: Callable[[], _File]) -> _File:
    """Opens a file; if the disk reports an error, tries once more."""
    try:
        return open_file()
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return open_file()


def read_whole(store: Store, name: str, size_max: int = 1 << 30) -> bytes | None:
    """Returns the content of a small file; None if there is none.

    Raises `Damaged` if it cannot be read whole, because a part of a side file is of no use, or if
    it has more than `size_max` bytes.
    """
    try:
        file = open_readable(store, name)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        if size > size_max:
            reason = f"{size} bytes are more than any such file has"
            raise Damaged(Damage(file.path, 0, size, reason))
        data = file.pread(size, 0)
        if file.holes:
            hole = file.holes[0]
            raise Damaged(Damage(file.path, hole.start, hole.end - hole.start, hole.reason))
        return data
    finally:
        file.close()


def is_readable(store: Store, name: str) -> bool:
    """Returns whether every byte of a file can be read; `FileNotFoundError` if there is none."""
    try:
        file = open_readable(store, name)
    except Damaged:
        return False
    try:
        file.pread(file.size(), 0)
        return not file.holes
    finally:
        file.close()


def why_unreadable(error: OSError) -> str:
    """Returns the reason that a `Damage` states for an error of the disk."""
    return f"cannot be read: {os.strerror(error.errno or 0)}"
