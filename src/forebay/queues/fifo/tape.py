"""A tape: fixed-size files that entries may span, written at one end and released at the other.

Knows no format. A position on the tape is a byte, counted from the very first file: `file number ×
file_bytes + position in the file`. A file has its full size from the start, but takes space from
the disk in steps, ahead of what is written: a write into space that was taken cannot run out of it,
and a small queue takes little. In a file that existed at the open, a step is read before it is
used: a bad sector is known before an entry lies on it. Names are durable before anything in a file
is acknowledged. They come from the caller's `name_of`.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable

from forebay.errors import Damaged
from forebay.storage import quarantine
from forebay.storage.filesystem import Directory, File, write_all
from forebay.storage.open_files import OpenFiles
from forebay.storage.readable import Readable, ReadableFile, open_readable

# What is taken from the disk at once: as much as the file already has, within these bounds.
_STEP_BYTES_MIN = 64 << 10
_STEP_BYTES_MAX = 4 << 20
# In a file that existed at the open, each step is read before use, the first one at every open.
_FOUND_STEP_BYTES_MAX = 256 << 10
# What `open_or_reason` returns for a file that does not exist.
MISSING = "is missing"


class TapeReader:
    """Reads a tape. Holds one file open; one thread at a time may use it."""

    def __init__(
        self, directory: Directory, file_bytes: int, name_of: Callable[[int], str]
    ) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._name_of = name_of
        self._number = -1
        self._file: ReadableFile | None = None
        # Whether the last read included something that the disk could not read.
        self.unreadable = False

    def read(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes; fewer only where a file is too short or cannot be opened.

        What cannot be read within a file is zeros, and `unreadable` is set.
        """
        parts: list[bytes] = []
        self.unreadable = False
        while size > 0:
            number, start = divmod(position, self._file_bytes)
            file = self._open(number)
            if file is None:
                break
            wanted = min(size, self._file_bytes - start)
            part = file.pread(wanted, start)
            parts.append(part)
            self.unreadable |= file.hole(start, start + wanted) is not None
            if len(part) < wanted:
                break
            size -= wanted
            position += wanted
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Closes the file that it holds open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, number: int) -> ReadableFile | None:
        if self._file is not None and self._number == number:
            return self._file
        self.close()
        found = open_or_reason(self._directory, self._name_of(number))
        self._file = None if isinstance(found, str) else found
        self._number = number
        return self._file


class _OpenFile:
    """A file that is written to."""

    __slots__ = ("allocated", "file", "found")

    def __init__(self, file: File, *, found: bool) -> None:
        self.file = file
        # Whether it existed at the open: new entries may then lie on a sector that has gone bad.
        self.found = found
        # How far it has space on the disk.
        self.allocated = 0


class TapeWriter:
    """The files of a tape that its owner writes.

    Called with the queue's lock held. Bytes for which `write` has returned survive the process; a
    sync of `files` makes them survive a power cut.
    """

    def __init__(
        self,
        directory: Directory,
        file_bytes: int,
        name_of: Callable[[int], str],
        numbers: Iterable[int],
    ) -> None:
        """`numbers` are those of the existing files."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._name_of = name_of
        self.numbers = sorted(numbers)
        self._open: dict[int, _OpenFile] = {}
        self.files = OpenFiles()
        self.broken = False

    def write(self, data: memoryview, position: int) -> None:
        """Writes at the end; on an error nothing of the data is left, or `broken` is set."""
        size = len(data)
        at = 0
        begun: list[int] = []
        try:
            while at < size:
                number, start = divmod(position + at, self._file_bytes)
                some = min(size - at, self._file_bytes - start)
                each = self._open.get(number) or self._begin(number, begun)
                if start + some > each.allocated:
                    self._allocate(each, start, start + some)
                self.files.wrote(each.file)
                if some == size:
                    write_all(each.file, data, start)
                else:
                    # Released in any case: an error that is kept would keep the memory mapped
                    # through its traceback.
                    with data[at : at + some] as part:
                        write_all(each.file, part, start)
                at += some
        except OSError:
            self._cut_back(position, size, begun)
            raise
        for number in [each for each in self._open if each < (position + size) // self._file_bytes]:
            self.files.finish(self._open.pop(number).file)

    def release(self, position: int) -> int:
        """Removes the files that end at or before a position; returns how many."""
        below = position // self._file_bytes
        doomed = [number for number in self.numbers if number < below]
        for number in doomed:
            # Not synced: a file that a power cut brings back is below the head, and goes again.
            quarantine.remove(self._directory, self._name_of(number))
            self.numbers.remove(number)
        return len(doomed)

    def close(self) -> None:
        """Closes all files."""
        for each in self._open.values():
            each.file.close()
        self._open = {}
        self.files.close()

    def _begin(self, number: int, begun: list[int]) -> _OpenFile:
        """Opens a file to write to; a new one gets its size and, durably, its name."""
        name = self._name_of(number)
        if number in self.numbers:
            each = self._open[number] = _OpenFile(
                self._directory.open(name, write=True), found=True
            )
            return each
        with contextlib.suppress(FileNotFoundError):
            # What a failed attempt left.
            self._directory.unlink(name)
        file = self._directory.create(name)
        try:
            file.truncate(self._file_bytes)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._directory.unlink(name)
            raise
        begun.append(number)
        self.numbers.append(number)
        each = self._open[number] = _OpenFile(file, found=False)
        try:
            # Before anything in it is acknowledged: after a power cut those bytes must have a name.
            self._directory.sync()
        except OSError:
            self.broken = True
            raise
        return each

    def _allocate(self, each: _OpenFile, start: int, end: int) -> None:
        """Takes space for the bytes up to `end` of a file, and for some more."""
        wanted = _step_end(start, end, self._file_bytes, found=each.found)
        if each.found and not _can_read(each.file, start, wanted):
            # An entry there could not be read back. A queue that is reopened begins a new file.
            self.broken = True
            raise OSError(errno.EIO, "the disk cannot read where the next entry goes")
        try:
            each.file.allocate(start, wanted - start)
        except OSError:
            # The little space that is left may still be enough for these bytes.
            each.file.allocate(start, end - start)
            wanted = end
        each.allocated = wanted

    def _cut_back(self, position: int, size: int, begun: list[int]) -> None:
        """Removes what a failed write left: files that it began, and bytes after `position`."""
        if self.broken:
            return
        try:
            for number in begun:
                self.files.drop(self._open.pop(number).file)
                self.numbers.remove(number)
                self._directory.unlink(self._name_of(number))
            number, start = divmod(position, self._file_bytes)
            each = self._open.get(number)
            if each is not None:
                self._blank(each, start, min(start + size, each.allocated))
        except OSError:
            self.broken = True

    def _blank(self, each: _OpenFile, start: int, end: int) -> None:
        """Overwrites with zeros what may have been written.

        The file keeps the space: on a full disk it could not be had again. Where even overwriting
        fails, as on a copy-on-write file system, the space is given up.
        """
        if end <= start:
            return
        self.files.wrote(each.file)
        try:
            write_all(each.file, bytes(end - start), start)
        except OSError:
            each.file.truncate(start)
            each.file.truncate(self._file_bytes)
            each.allocated = start


def can_write_on(file: File, start: int, file_bytes: int) -> bool:
    """Says whether the disk can read where the next entry of a file will go."""
    return _can_read(file, start, _step_end(start, start, file_bytes, found=True))


def _can_read(file: File, start: int, end: int) -> bool:
    content = Readable(file)
    content.pread(end - start, start)
    return not content.holes


def _step_end(start: int, end: int, file_bytes: int, *, found: bool) -> int:
    """Returns up to where a file takes space for what is written from `start` to `end` in it."""
    most = _FOUND_STEP_BYTES_MAX if found else _STEP_BYTES_MAX
    step = min(max(end, _STEP_BYTES_MIN), most)
    return min(file_bytes, max(end, start + step))


def open_or_reason(directory: Directory, name: str) -> ReadableFile | str:
    """Opens a file to read it; returns the reason if it is missing or cannot be opened."""
    try:
        return open_readable(directory, name)
    except FileNotFoundError:
        return MISSING
    except Damaged as error:
        return error.damage.reason
