"""A disk with bad sectors: some ranges of some files, or whole files, cannot be read or opened."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from forebay.storage.filesystem import DiskDirectory, DiskFile, DiskFilesystem


class BadDisk(DiskFilesystem):
    """The real disk, of which some places answer with an error.

    `sectors` maps a file's name to the ranges that cannot be read; `unopenable` maps a name to the
    error that opening it gives.
    """

    def __init__(
        self,
        sectors: dict[str, list[tuple[int, int]]] | None = None,
        unopenable: dict[str, int] | None = None,
    ) -> None:
        self.sectors = sectors or {}
        self.unopenable = unopenable or {}

    def open_directory(self, path: str, **options: Any) -> Any:
        return _Directory(super().open_directory(path, **options), self)


class _Directory:
    def __init__(self, directory: DiskDirectory, disk: BadDisk) -> None:
        self._directory = directory
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._directory, name)

    def directory(self, name: str, *, create: bool = False) -> Any:
        return _Directory(self._directory.directory(name, create=create), self._disk)

    def rename(self, source: str, target: str, into: Any = None) -> None:
        other = into._directory if isinstance(into, _Directory) else into
        self._directory.rename(source, target, other)
        for faults in (self._disk.sectors, self._disk.unopenable):
            fault: Any = faults.pop(source, None)
            if fault is not None and other is None:
                faults[target] = fault

    def open(self, name: str, *, write: bool = False) -> Any:
        code = self._disk.unopenable.get(name)
        if code is not None:
            raise OSError(code, os.strerror(code), name)
        file = self._directory.open(name, write=write)
        return _File(file, lambda: self._disk.sectors.get(name, []))


class _File:
    def __init__(self, file: DiskFile, bad: Callable[[], list[tuple[int, int]]]) -> None:
        self._file = file
        self._bad = bad

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pread(self, size: int, position: int) -> bytes:
        end = min(position + size, self._file.size())
        if any(start < end and position < stop for start, stop in self._bad()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.pread(size, position)
