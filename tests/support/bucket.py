"""A place for files that has no file system: their names and their bytes, in memory."""

from __future__ import annotations

from pathlib import Path

from forebay.storage.filesystem import DiskFilesystem


class Blob:
    """Bytes that can be read, and nothing else."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        pass


class Bucket:
    """The files of a directory as they were, and of the folders in it."""

    def __init__(self, directory: Path) -> None:
        self.path = f"bucket/{directory.name}"
        self._blobs: dict[str, bytes] = {}
        self._folders: dict[str, Bucket] = {}
        for path in directory.iterdir():
            if path.is_file():
                self._blobs[path.name] = path.read_bytes()
            elif path.is_dir():
                self._folders[path.name] = Bucket(path)

    def names(self) -> list[str]:
        return list(self._blobs)

    def open(self, name: str) -> Blob:
        try:
            return Blob(self._blobs[name])
        except KeyError:
            raise FileNotFoundError(name) from None

    def directory(self, name: str) -> Bucket:
        try:
            return self._folders[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def close(self) -> None:
        pass


class Buckets:
    """This machine, with such places instead of directories: as they are when they are opened."""

    def open_directory(self, path: str) -> Bucket:
        return Bucket(Path(path))

    def boot_id(self) -> bytes:
        return DiskFilesystem().boot_id()
