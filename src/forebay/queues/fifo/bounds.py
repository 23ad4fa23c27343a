"""`fifo-bounds`: where in each file of a tape the first entry begins, and which one it is.

Rebuildable from the files; not synced, so a power cut may leave fewer rows. Without a row, readers
search for the next good metadata instead. Rows are appended, big-endian, 32 bytes. If two rows
name the same file, the last one counts:

| field | bytes | meaning |
| --- | --- | --- |
| file | 8 | the number of the file |
| position | 4 | where in it the first entry begins; the size of a file if none begins there |
| number | 8 | of that entry |
| id | 8 | the entry's id is greater than this |
| crc32 | 4 | of all fields before it, seeded with the CRC-32 of the version of the entries |

In a queue of the old version the CRC starts from 0.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from forebay.errors import Damaged
from forebay.formats.entry import OLD_VERSION
from forebay.kernels.buffers import crc32
from forebay.kernels.entry import boundary
from forebay.queues.fifo.names import BOUNDS
from forebay.storage.filesystem import Directory, File, write_all
from forebay.storage.readable import read_whole

_ROW = struct.Struct(">QIQQ")
_CRC = struct.Struct(">I")
_CHECKED_ROW = struct.Struct(">QIQQI")
_ROW_BYTES = _CHECKED_ROW.size
assert _ROW_BYTES == 32


class TapeEnd(NamedTuple):
    """An end of the tape: the number after it, where it is, and the last entry's time."""

    number: int
    position: int
    last_ms: int


class Boundary(NamedTuple):
    """The first entry that begins in a file."""

    file: int
    position: int
    number: int
    last_id: int


class Bounds:
    """The known boundaries. Called with the queue's lock held."""

    def __init__(self, directory: Directory, version: bytes) -> None:
        """Reads the boundaries and changes nothing; `version` is that of the queue's entries."""
        self._directory = directory
        self._seed = 0 if version == OLD_VERSION else crc32(version)
        self._rows: dict[int, Boundary] = {}
        self._file: File | None = None
        self._written = 0
        data = _read(directory)
        good = 0
        for start in range(0, len(data) - _ROW_BYTES + 1, _ROW_BYTES):
            *row, crc = _CHECKED_ROW.unpack_from(data, start)
            if crc == crc32(data[start : start + _ROW.size], self._seed):
                self._rows[row[0]] = Boundary(*row)
                good += _ROW_BYTES
        # The size of the file, and of its rows that verify.
        self.sizes = len(data), good
        self._files = sorted(self._rows)
        self._is_plain = len(data) == len(self._rows) * _ROW_BYTES

    def after(self, file: int) -> Boundary | None:
        """Returns the boundary of the first later file that has one."""
        number = bisect_right(self._files, file)
        return self._rows[self._files[number]] if number < len(self._files) else None

    def get(self, file: int) -> Boundary | None:
        """Returns the boundary in a file, if it is known."""
        return self._rows.get(file)

    def missing(self, files: list[int]) -> list[int]:
        """Returns the files whose boundary is not known."""
        return [file for file in files if file not in self._rows]

    def note(self, boundary: Boundary) -> None:
        """Adds a boundary."""
        if boundary.file not in self._rows:
            insort(self._files, boundary.file)
        self._rows[boundary.file] = boundary
        # The boundary can also be found from the files, so a failed write is no reason to stop.
        with contextlib.suppress(OSError):
            self._append(boundary)

    def note_all(self, data: memoryview, start: TapeEnd, last_id: int, file_bytes: int) -> None:
        """Adds the boundaries of the files that whole entries, written at `start`, newly reach."""
        if start.position % file_bytes and start.position % file_bytes + len(data) <= file_bytes:
            return
        for row in boundaries_in(data, start, last_id, file_bytes):
            self.note(row)

    def keep_only(self, files: list[int]) -> None:
        """Forgets the boundaries in files that are not there, in memory and in the file."""
        present = set(files)
        if self._is_plain and present.issuperset(self._files):
            return
        self._rows = {file: row for file, row in self._rows.items() if file in present}
        self._files = sorted(self._rows)
        with contextlib.suppress(OSError):
            self._rewrite()

    def forget_below(self, file: int) -> None:
        """Forgets the boundaries in files that were removed."""
        count = bisect_right(self._files, file - 1)
        for gone in self._files[:count]:
            del self._rows[gone]
        del self._files[:count]
        if self._written > 64 + 2 * len(self._files):
            with contextlib.suppress(OSError):
                self._rewrite()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, boundary: Boundary) -> None:
        file = self._file or self._open()
        write_all(file, self._encode(boundary), self._written * _ROW_BYTES)
        self._written += 1

    def _rewrite(self) -> None:
        file = self._file or self._open()
        # A crash in between leaves fewer rows, which is allowed.
        file.truncate(0)
        self._written = 0
        write_all(file, b"".join(self._encode(self._rows[number]) for number in self._files), 0)
        self._written = len(self._files)

    def _encode(self, row_of: Boundary) -> bytes:
        row = _ROW.pack(*row_of)
        return row + _CRC.pack(crc32(row, self._seed))

    def _open(self) -> File:
        try:
            self._file = self._directory.open(BOUNDS, write=True)
        except FileNotFoundError:
            self._file = self._directory.create(BOUNDS)
        self._written = self._file.size() // _ROW_BYTES
        return self._file


def boundaries_in(
    data: memoryview, start: TapeEnd, last_id: int, file_bytes: int
) -> Iterator[Boundary]:
    """Returns the boundaries of the files that whole entries, written at `start`, newly reach.

    The id of the first entry is greater than `last_id`.
    """
    first = -(-start.position // file_bytes)
    last = (start.position + len(data) - 1) // file_bytes
    for file in range(first, last + 1):
        begin = file * file_bytes - start.position
        at, count = boundary(data, begin)
        yield Boundary(file, min(at - begin, file_bytes), start.number + count, last_id)


def _read(directory: Directory) -> bytes:
    """Returns the contents of the file; nothing if it cannot be read."""
    try:
        return read_whole(directory, BOUNDS) or b""
    except Damaged:
        return b""
