"""Reads the files of a deadline queue as far as the disk lets it.

A bad sector costs the bytes that lie in it and no others. They read as zeros, so that the checks
of the formats find them, and the reason is kept for the report of the damage.
"""

from __future__ import annotations

import errno

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError
from forebay.storage.filesystem import Directory, File

_SECTOR_BYTES = 512
_READ_BYTES = 1 << 20
# The errors of a disk that cannot return its bytes. Any other error is not about these bytes.
_UNREADABLE = {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EILSEQ}

# The errors for something that exists but is not a file that may be read.
_NO_FILE = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR),
    *(errno.ELOOP, errno.ENXIO, errno.ENODEV),
}


class SafeReader:
    """Reads one file by position. One thread at a time may use it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._unreadable: dict[int, str] = {}

    def __call__(self, position: int, size: int) -> bytes:
        """Returns the bytes at a position, fewer only at the end; what cannot be read is zeros."""
        try:
            return self._file.pread(size, position)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
        end = min(position + size, self._file.size())
        parts = []
        while position < end:
            stop = min(position - position % _SECTOR_BYTES + _SECTOR_BYTES, end)
            parts.append(self._sector(position, stop - position))
            position = stop
        return b"".join(parts)

    def trouble(self, position: int, size: int) -> str | None:
        """Returns why some bytes could not be read; None if they could, or were not read yet."""
        for sector, reason in self._unreadable.items():
            if position < sector + _SECTOR_BYTES and sector < position + size:
                return f"it cannot be read: {reason}"
        return None

    def _sector(self, position: int, size: int) -> bytes:
        # Read twice: an error may be temporary, and bytes given up here are lost in a merge.
        for _ in range(2):
            try:
                return self._file.pread(size, position)
            except OSError as error:
                if error.errno not in _UNREADABLE:
                    raise
                self._unreadable[position - position % _SECTOR_BYTES] = str(error.strerror)
        return bytes(size)


def read_whole(directory: Directory, name: str) -> tuple[bytes, SafeReader]:
    """Returns the content of a file; raises `Damaged` if it cannot be opened, not if it is gone."""
    path = f"{directory.path}/{name}"
    try:
        file = open_file(directory, name)
    except FileNotFoundError:
        raise
    except (OSError, ForebayError) as error:
        if not is_of_the_file(error):
            raise
        raise Damaged(Damage(path, 0, 0, reason_of(error))) from None
    try:
        reader = SafeReader(file)
        size = file.size()
        parts = [reader(at, min(_READ_BYTES, size - at)) for at in range(0, size, _READ_BYTES)]
        return parts[0] if len(parts) == 1 else b"".join(parts), reader
    finally:
        file.close()


def open_file(directory: Directory, name: str) -> File:
    """Opens a file; tries twice, because an error of the disk may be temporary."""
    try:
        return directory.open(name)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return directory.open(name)


def is_of_the_file(error: OSError | ForebayError) -> bool:
    """Says whether an error is about the file itself, so that another try would fail as well."""
    return not isinstance(error, OSError) or error.errno in _UNREADABLE | _NO_FILE


def reason_of(error: OSError | ForebayError) -> str:
    """Returns a short reason why a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    if isinstance(error, OSError):
        return f"it cannot be opened: {error.strerror}"
    if isinstance(error, Damaged):
        return error.damage.reason
    return str(error)
