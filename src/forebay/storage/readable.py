"""Reads files that the disk gives back only in part: what cannot be read is damage, not an error.

A bad sector answers with EIO; a file may be of mode 000, or a directory, a symbolic link or a FIFO
may stand in its place. Everybody who scans the files of a queue opens them here, so that such a
place costs what lies in it and nothing else. `OSError` of any other sort passes through untouched:
too many open files are no damage.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Protocol

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.storage.filesystem import Directory, File

# What a disk, or a file system that checks its blocks, says of a place that it cannot give back.
_UNREADABLE = {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.ENODATA}
# What says that a file cannot be opened, whoever tries again.
_UNOPENABLE = _UNREADABLE | {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO}
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Hole:
    """A part of a file that cannot be read: from `start` to before `end`."""

    start: int
    end: int
    reason: str


class Content(Protocol):
    """As much of a file as a walk over its frames needs."""

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes; fewer only at the end."""
        ...

    def size(self) -> int:
        """Returns the size in bytes."""
        ...


class Readable:
    """Content that is read round what cannot be read. One thread at a time may use it."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.holes: list[Hole] = []

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes, fewer only at the end; zeros stand for what cannot be read.

        `hole` tells where.
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
        """Returns the first hole that was met between two positions; None if there is none."""
        if not self.holes:
            return None
        met = [hole for hole in self.holes if hole.start < end and start < hole.end]
        return min(met, key=lambda hole: hole.start, default=None)

    def _read_round(self, size: int, position: int) -> bytes:
        """Halves what failed until single sectors are left."""
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

    def __init__(self, file: File, path: str) -> None:
        super().__init__(file)
        self._file = file
        self.path = path

    def close(self) -> None:
        """Closes the file; a second time does nothing."""
        self._file.close()


def open_readable(directory: Directory, name: str) -> ReadableFile:
    """Opens a file to scan it; raises `Damaged` if it is there and cannot be opened.

    `FileNotFoundError` passes: whether the file must be there, the caller knows.
    """
    path = f"{directory.path}/{name}"
    try:
        return ReadableFile(open_again(directory, name), path)
    except FileNotFoundError:
        raise
    except (OSError, NotAQueue) as error:
        raise Damaged(unopenable(path, error)) from None


def unopenable(path: str, error: OSError | NotAQueue) -> Damage:
    """Returns the damage of a file that is there and cannot be opened; others are raised again."""
    if isinstance(error, NotAQueue):
        reason = str(error).removeprefix(f"{path} ").removesuffix("; refused")
        return Damage(path, 0, 0, reason)
    if error.errno not in _UNOPENABLE:
        raise error
    return Damage(path, 0, 0, why_unreadable(error))


def open_again(directory: Directory, name: str, *, write: bool = False) -> File:
    """Opens a file; what the disk refuses once is tried again before anybody believes it."""
    try:
        return directory.open(name, write=write)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return directory.open(name, write=write)


def read_whole(directory: Directory, name: str, size_max: int = 1 << 30) -> bytes | None:
    """Returns the content of a small file; None if there is none.

    Raises `Damaged` if it cannot be read whole: of a side file a part is of no use. So is one of
    more than `size_max` bytes.
    """
    try:
        file = open_readable(directory, name)
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


def is_readable(directory: Directory, name: str) -> bool:
    """Says whether every byte of a file can be read; `FileNotFoundError` if there is none."""
    try:
        file = open_readable(directory, name)
    except Damaged:
        return False
    try:
        file.pread(file.size(), 0)
        return not file.holes
    finally:
        file.close()


def why_unreadable(error: OSError) -> str:
    """Returns the reason of a damage that an error of the disk tells of."""
    return f"cannot be read: {os.strerror(error.errno or 0)}"
