"""A tape: fixed-size files that entries may span, written at one end and released at the other.

Knows no format. A position on the tape is a byte, counted from the first file there ever was:
`file number × file_bytes + position in the file`. A file has its full size from the start, but
takes space from the disk in steps, ahead of what is written: a write into space that was taken does
not run out of it, and a small queue takes little. Names are durable before anything in a file is
acknowledged. They come from the caller's `name_of`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from forebay.errors import Damaged
from forebay.storage import quarantine
from forebay.storage.filesystem import Buffer, Directory, File, write_all
from forebay.storage.readable import ReadableFile, open_readable

# What is taken from the disk at once: as much as the file has already, within these bounds.
_STEP_BYTES_MIN = 64 << 10
_STEP_BYTES_MAX = 4 << 20
# What `open_or_reason` returns of a file that is not there.
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
        # Whether there was something in the last read that the disk did not give.
        self.unreadable = False

    def read(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes; fewer only where a file is too short or cannot be opened.

        What cannot be read within a file is zeros, and `unreadable` says so.
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


class TapeWriter:
    """The files of a tape that its owner writes.

    Called with the queue's lock held. Bytes that `write` has returned for survive the process; a
    sync of the files that hold them makes them survive a power cut. That sync may run without the
    lock, one at a time, between `begin_sync` and `end_sync`: until then no file is closed.
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
        # Those that are open, by number, and up to where each has space on the disk.
        self._files: dict[int, File] = {}
        self._allocated: dict[int, int] = {}
        # How often each was changed since it was opened, and how often when a sync had covered it.
        self._changes: dict[int, int] = {}
        self._covered: dict[int, int] = {}
        self._syncing: dict[int, int] | None = None
        self._closed = False
        self.broken = False

    @property
    def unsynced(self) -> dict[int, File]:
        """The files with bytes that no sync has covered, by number; a snapshot."""
        return {
            number: file
            for number, file in self._files.items()
            if self._covered[number] != self._changes[number]
        }

    def begin_sync(self) -> list[File]:
        """Returns the files to sync, and keeps them open until `end_sync`."""
        files = self.unsynced
        self._syncing = {number: self._changes[number] for number in files}
        return list(files.values())

    def end_sync(self, *, done: bool) -> None:
        """Takes note that the sync that was begun is over; `done`: it covered all files.

        What was written meanwhile is not covered: a full file is closed only if nothing was.
        """
        covered, self._syncing = self._syncing, None
        if done and covered is not None:
            self._covered.update(covered)
        self._close_full()

    def sync(self) -> None:
        """Syncs everything, with the lock held; a sync that runs without it goes on."""
        files = self.unsynced
        for file in files.values():
            file.sync()
        self._covered.update({number: self._changes[number] for number in files})
        self._close_full()

    def write(self, data: Buffer, position: int) -> None:
        """Writes at the end; on an error nothing of it is left, or `broken` is set."""
        size = len(data)
        at = 0
        begun: list[int] = []
        # Released whatever happens: an error that somebody keeps must not keep the memory mapped.
        with memoryview(data) as view:
            try:
                while at < size:
                    number, start = divmod(position + at, self._file_bytes)
                    if number not in self._files:
                        self._begin(number, begun)
                    some = min(size - at, self._file_bytes - start)
                    self._allocate(number, start, start + some)
                    self._changes[number] += 1
                    with view[at : at + some] as part:
                        write_all(self._files[number], part, start)
                    at += some
            except OSError:
                self._cut_back(position, size, begun)
                raise

    def release(self, position: int) -> int:
        """Removes the files that end at or before a position; returns how many."""
        below = position // self._file_bytes
        doomed = [number for number in self.numbers if number < below]
        for number in doomed:
            remove_file(self._directory, self._name_of(number))
            self.numbers.remove(number)
        if doomed:
            self._directory.sync()
        return len(doomed)

    def close(self) -> None:
        """Closes all files; those that a sync is running on when it has ended."""
        self._closed = True
        self._close_full()

    def _close_full(self) -> None:
        """Closes the files to which nothing more is written, and which are synced."""
        if self._syncing is not None:
            return
        newest = max(self._files, default=-1)
        for number in list(self._files):
            full = number != newest and self._covered[number] == self._changes[number]
            if self._closed or full:
                self._forget(number)

    def _forget(self, number: int) -> None:
        file = self._files.pop(number)
        del self._allocated[number], self._changes[number], self._covered[number]
        file.close()

    def _begin(self, number: int, begun: list[int]) -> None:
        """Opens a file to write to; a new one gets its size and, durably, its name."""
        name = self._name_of(number)
        if number in self.numbers:
            self._add(number, self._directory.open(name, write=True))
            return
        with contextlib.suppress(FileNotFoundError):
            # What a failed try left.
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
        self._add(number, file)
        try:
            # After a power cut, what is acknowledged from here on must have a name.
            self._directory.sync()
        except OSError:
            self.broken = True
            raise

    def _add(self, number: int, file: File) -> None:
        self._files[number] = file
        self._allocated[number] = self._changes[number] = self._covered[number] = 0

    def _allocate(self, number: int, start: int, end: int) -> None:
        """Takes space for the bytes up to `end` of a file, and for some more."""
        taken = self._allocated[number]
        if end <= taken:
            return
        step = min(max(end, _STEP_BYTES_MIN), _STEP_BYTES_MAX)
        wanted = min(self._file_bytes, max(end, start + step))
        file = self._files[number]
        try:
            file.allocate(start, wanted - start)
        except OSError:
            # The little that is left may still do for these bytes.
            file.allocate(start, end - start)
            wanted = end
        self._allocated[number] = wanted

    def _cut_back(self, position: int, size: int, begun: list[int]) -> None:
        """Takes back what a failed write left: files that it began, and bytes after `position`."""
        if self.broken:
            return
        try:
            for number in begun:
                self._forget(number)
                self.numbers.remove(number)
                self._directory.unlink(self._name_of(number))
            number, start = divmod(position, self._file_bytes)
            if number in self._files:
                self._blank(number, start, min(start + size, self._allocated[number]))
        except OSError:
            self.broken = True

    def _blank(self, number: int, start: int, end: int) -> None:
        """Puts zeros over what may have been written.

        The space stays with the file: on a full disk it could not be had again. Where not even
        that can be written over, which is so on a file system that copies, it is given up.
        """
        if end <= start:
            return
        self._changes[number] += 1
        file = self._files[number]
        try:
            write_all(file, bytes(end - start), start)
        except OSError:
            file.truncate(start)
            file.truncate(self._file_bytes)
            self._allocated[number] = start


def open_or_reason(directory: Directory, name: str) -> ReadableFile | str:
    """Opens a file to read it; returns the reason if it is missing or cannot be opened."""
    try:
        return open_readable(directory, name)
    except FileNotFoundError:
        return MISSING
    except Damaged as error:
        return error.damage.reason


def remove_file(directory: Directory, name: str) -> None:
    """Removes a file of the tape; a directory that stands in its place is kept aside."""
    try:
        directory.unlink(name)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        quarantine.keep_file(directory, name)
