"""A tape: fixed-size files that entries may span, written at one end and released at the other.

Knows no format. A position on the tape is a byte, counted from the first file there ever was:
`file number × file_bytes + position in the file`. Files are allocated whole when they are begun, so
that a write into one does not run out of space, and their names are durable before anything in them
is acknowledged. Names come from the caller's `name_of`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from forebay.storage.filesystem import Buffer, Directory, File, write_all


class TapeReader:
    """Reads a tape. Holds one file open; one thread at a time may use it."""

    def __init__(
        self, directory: Directory, file_bytes: int, name_of: Callable[[int], str]
    ) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._name_of = name_of
        self._number = -1
        self._file: File | None = None

    def read(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes; fewer only where a file is missing or too short."""
        parts: list[bytes] = []
        while size > 0:
            number, start = divmod(position, self._file_bytes)
            file = self._open(number)
            if file is None:
                break
            wanted = min(size, self._file_bytes - start)
            part = file.pread(wanted, start)
            parts.append(part)
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

    def _open(self, number: int) -> File | None:
        if self._file is not None and self._number == number:
            return self._file
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self._file = self._directory.open(self._name_of(number))
        self._number = number
        return self._file


class TapeWriter:
    """The files of a tape that its owner writes.

    Called with the queue's lock held, except that `sync` of a file may run without it. Bytes that
    `write` has returned for survive the process; a sync of `unsynced` makes them survive a power
    cut.
    """

    def __init__(
        self,
        directory: Directory,
        file_bytes: int,
        name_of: Callable[[int], str],
        numbers: Iterable[int],
    ) -> None:
        """`numbers` are those of the files that are there."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._name_of = name_of
        self.numbers = sorted(numbers)
        # By number: those with bytes that no sync has covered, and the one that is written last.
        self._files: dict[int, File] = {}
        self.broken = False

    @property
    def unsynced(self) -> dict[int, File]:
        """The files to sync, by number; a snapshot."""
        return dict(self._files)

    def write(self, data: Buffer, position: int) -> None:
        """Writes at the end; on an error nothing of it is left, or `broken` is set."""
        rest = memoryview(data)
        at = position
        begun: list[int] = []
        try:
            while rest:
                number, start = divmod(at, self._file_bytes)
                if number not in self._files:
                    self._files[number] = self._begin(number, begun)
                size = min(len(rest), self._file_bytes - start)
                write_all(self._files[number], rest[:size], start)
                rest = rest[size:]
                at += size
        except OSError:
            self._cut_back(position, begun)
            raise

    def synced(self, files: Iterable[int]) -> None:
        """Takes note of a sync; closes the files that are full."""
        newest = max(self._files, default=-1)
        for number in files:
            if number != newest and number in self._files:
                self._files.pop(number).close()

    def release(self, position: int) -> int:
        """Removes the files that end at or before a position; gives how many."""
        below = position // self._file_bytes
        doomed = [number for number in self.numbers if number < below]
        for number in doomed:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(self._name_of(number))
            self.numbers.remove(number)
        if doomed:
            self._directory.sync()
        return len(doomed)

    def close(self) -> None:
        """Closes all files."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _begin(self, number: int, begun: list[int]) -> File:
        """Opens a file to write to; a new one is allocated and named durably."""
        name = self._name_of(number)
        if number in self.numbers:
            return self._directory.open(name, write=True)
        with contextlib.suppress(FileNotFoundError):
            # What a failed try left.
            self._directory.unlink(name)
        file = self._directory.create(name)
        try:
            file.allocate(0, self._file_bytes)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._directory.unlink(name)
            raise
        begun.append(number)
        self.numbers.append(number)
        try:
            # After a power cut, what is acknowledged from here on must have a name.
            self._directory.sync()
        except OSError:
            file.close()
            self.broken = True
            raise
        return file

    def _cut_back(self, position: int, begun: list[int]) -> None:
        """Takes back what a failed write left: files that it began, and bytes behind `position`."""
        if self.broken:
            return
        try:
            for number in begun:
                self._files.pop(number).close()
                self.numbers.remove(number)
                self._directory.unlink(self._name_of(number))
            number, start = divmod(position, self._file_bytes)
            if number in self._files:
                self._files[number].truncate(start)
                self._files[number].allocate(start, self._file_bytes - start)
        except OSError:
            self.broken = True
