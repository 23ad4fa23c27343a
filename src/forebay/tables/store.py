"""A place for files: a local directory, or an address such as `s3://bucket/prefix`.

Names are relative to the place, with slashes. A file appears whole or not at all. On a local disk
it is durable when the call returns; an object store promises the same itself. A store is opened
again in every process that gets it: it has no state except the address.

S3 takes its credentials, its region and its endpoint from the environment (`AWS_…`); everything
that `pyarrow.fs` accepts in an address works.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol, cast
from urllib.parse import urlsplit, urlunsplit


class Store(Protocol):
    """The files of a place."""

    @property
    def address(self) -> str:
        """The place: an absolute path, or a URL."""
        ...

    def path(self, name: str) -> str:
        """Returns the path or the URL of a file, as other libraries take it."""
        ...

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Writes a small file, or replaces it."""
        ...

    def create(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Opens a new file for writing, which appears when the context ends without an error."""
        ...

    def open(self, name: str) -> Any:
        """Opens a file for `pyarrow.parquet`."""
        ...

    def names(self, directory: str) -> list[str]:
        """Lists the files and directories in a directory; none if it does not exist."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file, or a directory with everything in it; neither needs to exist."""
        ...


def open_store(address: str) -> Store:
    """Returns the store at an address."""
    return Objects(address) if is_remote(address) else Directory(address)


def is_remote(address: str) -> bool:
    """Returns whether an address is one of an object store, and not a path."""
    return "://" in address and not address.startswith("file:")


@dataclass(frozen=True, slots=True)
class Directory:
    """A local directory, or one that all machines of a cluster share."""

    address: str

    def path(self, name: str) -> str:
        """Returns the path of a file."""
        return os.path.join(self.address, name)

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Writes a small file, or replaces it; durable on return, with its name."""
        with self.create(name) as file:
            file.write(data)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a new file for writing; readers pass over the name that it has until it is whole.

        A task that was given up may still write when its directory has got its final name: it then
        fails at the rename.
        """
        path = self.path(name)
        parent, base = os.path.split(path)
        os.makedirs(parent, exist_ok=True)
        unfinished = os.path.join(parent, f"_{base}.{uuid.uuid4().hex[:8]}")
        try:
            with open(unfinished, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.rename(unfinished, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
        sync(parent)

    def open(self, name: str) -> Any:
        """Returns the path: pyarrow maps the file itself."""
        return self.path(name)

    def names(self, directory: str) -> list[str]:
        """Lists the files and directories in a directory; none if it does not exist."""
        try:
            return sorted(os.listdir(self.path(directory)))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Removes a file, or a directory with everything in it; neither needs to exist."""
        path = self.path(name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def move(self, source: str, target: str) -> None:
        """Renames a directory; durable on return."""
        parent = os.path.dirname(self.path(target))
        os.makedirs(parent, exist_ok=True)
        # Before the rename: after a crash the name must not exist without what is in it.
        for directory, _, _ in os.walk(self.path(source), topdown=False):
            sync(directory)
        os.rename(self.path(source), self.path(target))
        sync(parent)


def sync(path: str) -> None:
    """Makes the content of a file durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Objects:
    """An object store."""

    address: str

    def path(self, name: str) -> str:
        """Returns the URL of a file."""
        parts = urlsplit(self.address)
        return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{name}", "", ""))

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        filesystem, path = self._at(name)
        try:
            with filesystem.open_input_file(path) as file:
                return cast(bytes, file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Writes a small file, or replaces it: one request."""
        with self.create(name) as file:
            file.write(data)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a new file for writing, which appears when the context ends without an error."""
        filesystem, path = self._at(name)
        stream = filesystem.open_output_stream(path)
        try:
            yield stream
        except BaseException:
            with contextlib.suppress(Exception):
                stream.abort()
            raise
        stream.close()

    def open(self, name: str) -> Any:
        """Opens a file for `pyarrow.parquet`, which then reads the parts it needs."""
        filesystem, path = self._at(name)
        return filesystem.open_input_file(path)

    def names(self, directory: str) -> list[str]:
        """Lists the files and directories in a directory; none if it does not exist."""
        from pyarrow import fs

        filesystem, path = self._at(directory)
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(one.base_name for one in found)

    def remove(self, name: str) -> None:
        """Removes a file, or everything under a prefix; neither needs to exist."""
        from pyarrow import fs

        filesystem, path = self._at(name)
        kind = filesystem.get_file_info(path).type
        try:
            if kind == fs.FileType.Directory:
                filesystem.delete_dir(path)
            elif kind == fs.FileType.File:
                filesystem.delete_file(path)
        except OSError:
            # Afterwards pyarrow writes a marker for the parent, which not every server takes.
            if filesystem.get_file_info(path).type != fs.FileType.NotFound:
                raise

    def _at(self, name: str) -> tuple[Any, str]:
        from pyarrow import fs

        address = self.address
        if address.startswith("s3://") and "allow_delayed_open" not in address:
            # A small file is then one request, and not one of the kind with several parts.
            address += ("&" if "?" in address else "?") + "allow_delayed_open=true"
        filesystem, root = fs.FileSystem.from_uri(address)
        return filesystem, f"{root}/{name}" if name else root
