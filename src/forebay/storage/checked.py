"""A file that is replaced whole and whose format has no checksum.

A two-slot file `NAME-check` holds the CRC of the present content and of the next one; rebuildable
by a write.
"""

from __future__ import annotations

import contextlib
import struct

from forebay.errors import Damaged, NotAQueue
from forebay.kernels.buffers import crc32
from forebay.storage import quarantine
from forebay.storage.atomic import replace, with_reserve
from forebay.storage.filesystem import Directory
from forebay.storage.readable import read_whole
from forebay.storage.slots import SlotFile

_MAGIC = b"FBCK"
# crc32 of the present content 4 | of the next one 4
_CHECK = struct.Struct(">II")


class CheckedFile:
    """A file that is replaced whole and checked by a second one. Call it with the lock held."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self._name = name
        self._check: SlotFile | None = None

    def read(self) -> tuple[bytes, bool | None]:
        """Returns the content (empty if there is no file) and whether it is what was written.

        The second value is None if that is unknown: there is no check file, as in a directory that
        another program wrote, or it does not verify. Raises `Damaged` if the content cannot be
        read.
        """
        data = read_whole(self._directory, self._name) or b""
        try:
            check = self._open_check(write=False)
        except (OSError, NotAQueue):
            return data, None
        if check is None:
            return data, None
        payload = check.payload
        check.close()
        if payload is None:
            return data, None
        sound = crc32(data) in _CHECK.unpack(payload)
        # With a bad slot the check itself is damaged: the slot that matches may be the lost one.
        return data, True if sound else False if check.whole else None

    def write(self, data: bytes) -> None:
        """Replaces the content; durable on return, old or new as a whole after a power cut."""
        if self._check is None:
            self._check = self._open_check_or_set_aside()
        present = self._present()
        if self._check is None:
            self._write_first(data, present)
            return
        self._check.write(_CHECK.pack(crc32(present), crc32(data)))
        self._check.sync()
        replace(self._directory, self._name, data)
        if not present:
            self._settle(data)

    def write_unchecked(self, data: bytes) -> None:
        """Replaces a file that another program changes too, and removes the check."""
        self._present()
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(f"{self._name}-check")
        replace(self._directory, self._name, data)

    def _write_first(self, data: bytes, present: bytes) -> None:
        name = f"{self._name}-check"
        payload = _CHECK.pack(crc32(present), crc32(data))
        self._check = with_reserve(
            self._directory, lambda: SlotFile.create(self._directory, name, _MAGIC, payload)
        )
        replace(self._directory, self._name, data)
        self._settle(data)

    def _settle(self, data: bytes) -> None:
        """Records that the file is no longer empty: emptying or removing it is then damage."""
        assert self._check is not None
        self._check.write(_CHECK.pack(crc32(data), crc32(data)))
        self._check.sync()

    def _present(self) -> bytes:
        """Reads the content; if it cannot be read, moves it aside."""
        try:
            return read_whole(self._directory, self._name) or b""
        except Damaged:
            quarantine.keep_file(self._directory, self._name)
            return b""

    def faults(self) -> list[str]:
        """Lists what in the check file is not a good slot."""
        check = self._open_check(write=False)
        if check is None:
            return []
        try:
            return check.faults()
        finally:
            check.close()

    def close(self) -> None:
        """Closes the check file."""
        if self._check is not None:
            self._check.close()
            self._check = None

    def _open_check_or_set_aside(self) -> SlotFile | None:
        try:
            return self._open_check(write=True)
        except (OSError, NotAQueue):
            quarantine.keep_file(self._directory, f"{self._name}-check")
            return None

    def _open_check(self, *, write: bool) -> SlotFile | None:
        name = f"{self._name}-check"
        return SlotFile.open(self._directory, name, _MAGIC, _CHECK.size, write=write)
