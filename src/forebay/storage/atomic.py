"""Small files that are replaced whole, even on a full disk.

`replace` writes a temporary file, syncs it, renames it over the old one and syncs the directory:
after a crash the name has the old bytes or the new ones. A `reserve` file keeps some space back:
when the disk is full it is given up, so that a consumer's position can still be saved and trimming
can make room.

`CheckedFile` guards a file whose format has no checksum by a two-slot file `NAME-check` that holds
the CRC of the present content and of the next one; rebuildable by a write.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Callable
from typing import TypeVar

from forebay.kernels.checksum import crc32
from forebay.storage.filesystem import Directory, write_all
from forebay.storage.slots import SlotFile

RESERVE = "reserve"
TEMPORARY = ".new"
RESERVE_BYTES = 64 * 1024
_MAGIC = b"FBCK"
_Result = TypeVar("_Result")
# crc32 of the present content 4 | of the next one 4
_CHECK = struct.Struct(">II")


def replace(directory: Directory, name: str, data: bytes) -> None:
    """Replaces a file whole; durable on return."""
    _with_reserve(directory, lambda: _replace(directory, name, data))


def keep_reserve(directory: Directory) -> None:
    """Sets space aside, if there is any and it is not there yet."""
    with contextlib.suppress(FileNotFoundError):
        directory.open(RESERVE).close()
        return
    file = directory.create(RESERVE)
    try:
        file.allocate(0, RESERVE_BYTES)
    except OSError:
        # posix_fallocate leaves what it got: an incomplete reserve would be a false promise.
        directory.unlink(RESERVE)
    finally:
        file.close()


def read_small(directory: Directory, name: str) -> bytes | None:
    """Gives the whole content of a small file; None if there is none."""
    try:
        file = directory.open(name)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


class CheckedFile:
    """A file that is replaced whole and checked by a second one. Called with the lock held."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self._name = name
        self._check: SlotFile | None = None

    def read(self) -> tuple[bytes, bool]:
        """Gives the content (empty if there is no file) and whether it is what was written.

        Without a check file, as other programs leave it, the content is taken as it is.
        """
        data = read_small(self._directory, self._name) or b""
        check = self._open_check(write=False)
        if check is None:
            return data, True
        payload = check.payload
        check.close()
        # A file that somebody removed is no file, whatever the check says: it starts anew. A check
        # without a good slot was just being made, for a file that had none.
        return data, not data or payload is None or crc32(data) in _CHECK.unpack(payload)

    def write(self, data: bytes) -> None:
        """Replaces the content; durable on return, and whole whenever the power goes."""
        if self._check is None:
            self._check = self._open_check(write=True)
        present = read_small(self._directory, self._name) or b""
        payload = _CHECK.pack(crc32(present), crc32(data))
        if self._check is None:
            name = f"{self._name}-check"
            self._check = _with_reserve(
                self._directory, lambda: SlotFile.create(self._directory, name, _MAGIC, payload)
            )
        else:
            self._check.write(payload)
            self._check.sync()
        replace(self._directory, self._name, data)

    def close(self) -> None:
        """Closes the check file."""
        if self._check is not None:
            self._check.close()
            self._check = None

    def _open_check(self, *, write: bool) -> SlotFile | None:
        name = f"{self._name}-check"
        return SlotFile.open(self._directory, name, _MAGIC, _CHECK.size, write=write)


def _replace(directory: Directory, name: str, data: bytes) -> None:
    temporary = name + TEMPORARY
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(temporary)
    file = directory.create(temporary)
    try:
        write_all(file, data, 0)
        # Sync before rename: after a crash the name must not exist without the bytes.
        file.sync()
    except OSError:
        directory.unlink(temporary)
        raise
    finally:
        file.close()
    directory.rename(temporary, name)
    directory.sync()


def _with_reserve(directory: Directory, action: Callable[[], _Result]) -> _Result:
    """Does something that needs a little space; on a full disk the reserve makes it."""
    try:
        return action()
    except OSError as error:
        if error.errno != errno.ENOSPC or not _give_up_reserve(directory):
            raise
        return action()


def _give_up_reserve(directory: Directory) -> bool:
    try:
        directory.unlink(RESERVE)
    except FileNotFoundError:
        return False
    return True
