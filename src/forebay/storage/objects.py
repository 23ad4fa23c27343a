"""Folders of whole objects: a directory, or what `pyarrow.fs` reaches, such as S3.

An object appears whole or not at all, and is durable once `write` has returned: a directory gets it
by a rename after a sync, an object store shows it when all of it has arrived. Nothing here lists
objects; folders are listed only where the caller asks for them.

An address is a path, `file:///…` or a URL of `pyarrow.fs`, which needs the `archive` extra.
Credentials in an address are refused, and its query, which may hold some, is never shown.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from forebay.errors import InvalidOption, NotAQueue, NotInstalled
from forebay.storage.atomic import TEMPORARY
from forebay.storage.filesystem import DiskDirectory, DiskFilesystem, write_all
from forebay.storage.readable import StoredFile

# What one request asks for if a file is read from front to end.
_AHEAD_BYTES = 8 << 20
# Smaller than this, an object is sent with one request where the server allows it.
_DELAYED = "allow_delayed_open=true"
# How often a range is asked for before the answer is given up.
_TRIES = 3
_INSTALL = 'addresses other than paths need pyarrow: pip install "forebay[archive]"'


class Folder(Protocol):
    """A place with objects and folders. One thread at a time may use it."""

    # What to call it: the path, or the address without its query.
    path: str

    def open(self, name: str) -> StoredFile:
        """Opens an object for reading; raises `FileNotFoundError`."""
        ...

    def write(self, name: str, chunks: Iterator[bytes]) -> None:
        """Writes an object whole, durable on return; one of that name is replaced."""
        ...

    def remove(self, name: str) -> None:
        """Removes an object; that there is none is no error."""
        ...

    def folders(self) -> list[str]:
        """Lists the folders in it."""
        ...

    def folder(self, name: str) -> Folder:
        """Opens a folder in it; `FileNotFoundError` if it is known that there is none."""
        ...

    def close(self) -> None:
        """Closes it; a second time does nothing."""
        ...


def is_address(path: str) -> bool:
    """Says whether a path is an address with a scheme; one of `file:` is a path."""
    scheme, found, _ = path.partition("://")
    return bool(found) and scheme.isalnum() and scheme != "file"


def plain_path(path: str) -> str:
    """Returns the path that a `file:` address means; any other path is returned unchanged."""
    parts = urlsplit(path) if path.startswith("file:") else None
    if parts is None or parts.netloc not in ("", "localhost"):
        return path
    return unquote(parts.path)


def shown(address: str) -> str:
    """Returns an address without its query, as messages name it."""
    if not is_address(address):
        return address
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def joined(address: str, *names: str) -> str:
    """Returns the address of what lies below another one."""
    if not is_address(address):
        return "/".join((address.rstrip("/"), *names))
    parts = urlsplit(address)
    path = "/".join((parts.path.rstrip("/"), *names))
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def open_folder(address: str, *, create: bool = False, group_readable: bool = False) -> Folder:
    """Opens the folder at an address; a directory may be created, as that of a queue is."""
    if is_address(address):
        return RemoteFolder.at(address)
    return DiskFolder(
        DiskFilesystem().open_directory(
            plain_path(address), create=create, group_readable=group_readable
        )
    )


class DiskFolder:
    """A folder that is a directory."""

    def __init__(self, directory: DiskDirectory) -> None:
        self._directory = directory
        self.path = directory.path

    def open(self, name: str) -> StoredFile:
        """Opens a file."""
        return self._directory.open(name)

    def write(self, name: str, chunks: Iterator[bytes]) -> None:
        """Writes a file beside its name and renames it."""
        temporary = name + TEMPORARY
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(temporary)
        file = self._directory.create(temporary)
        try:
            end = 0
            for chunk in chunks:
                write_all(file, chunk, end)
                end += len(chunk)
            # Sync before rename: after a crash the name must not exist without the bytes.
            file.sync()
        except BaseException:
            self._directory.unlink(temporary)
            raise
        finally:
            file.close()
        self._directory.rename(temporary, name)
        self._directory.sync()

    def remove(self, name: str) -> None:
        """Removes a file."""
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(name)

    def folders(self) -> list[str]:
        """Lists the directories."""
        found = []
        for name in sorted(self._directory.names()):
            with contextlib.suppress(OSError, NotAQueue):
                self._directory.directory(name).close()
                found.append(name)
        return found

    def folder(self, name: str) -> DiskFolder:
        """Opens a directory."""
        return DiskFolder(self._directory.directory(name))

    def close(self) -> None:
        """Closes the directory."""
        self._directory.close()


class RemoteFolder:
    """A folder that `pyarrow.fs` reaches."""

    def __init__(self, system: Any, root: str, path: str) -> None:
        self._system = system
        self._root = root.rstrip("/")
        self.path = path

    @classmethod
    def at(cls, address: str) -> RemoteFolder:
        """Opens the folder at an address; no request is made yet, except to find a region."""
        parts = urlsplit(address)
        if parts.username is not None or parts.password is not None:
            raise InvalidOption(
                f"{parts.scheme}://…@{parts.hostname or ''}: no credentials in an address, because "
                "addresses are printed; give them in the environment"
            )
        fs = _arrow()
        query = parts.query
        if parts.scheme == "s3" and "allow_delayed_open" not in query:
            query = f"{query}&{_DELAYED}" if query else _DELAYED
        complete = urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
        try:
            system, root = fs.FileSystem.from_uri(complete)
        except (ValueError, NotImplementedError) as error:
            # `ArrowInvalid` is a ValueError.
            raise InvalidOption(f"{shown(address)}: {error}") from None
        return cls(system, root, shown(address))

    def open(self, name: str) -> StoredFile:
        """Opens an object."""
        try:
            file = self._system.open_input_file(f"{self._root}/{name}")
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "there is no object", self._named(name)) from None
        return RemoteFile(file, self._named(name))

    def write(self, name: str, chunks: Iterator[bytes]) -> None:
        """Writes an object.

        All of it is read first: a stream that an error of the source ends would be closed, and so
        completed, half.
        """
        parts = list(chunks)
        stream = self._system.open_output_stream(f"{self._root}/{name}", compression=None)
        # An error of the target ends the stream, which then does not become an object.
        with stream:
            for part in parts:
                stream.write(part)

    def remove(self, name: str) -> None:
        """Removes an object."""
        path = f"{self._root}/{name}"
        try:
            self._system.delete_file(path)
        except FileNotFoundError:
            return
        except OSError:
            # pyarrow also marks the folder as existing, which some servers refuse.
            if self._system.get_file_info(path).type.name != "NotFound":
                raise

    def folders(self) -> list[str]:
        """Lists the folders, not what is in them."""
        selector = _arrow().FileSelector(self._root, recursive=False)
        found = self._system.get_file_info(selector)
        return sorted(each.base_name for each in found if each.type.name == "Directory")

    def folder(self, name: str) -> RemoteFolder:
        """Returns a folder, whether it exists or not."""
        return RemoteFolder(self._system, f"{self._root}/{name}", self._named(name))

    def close(self) -> None:
        """Does nothing: nothing is open."""

    def _named(self, name: str) -> str:
        return f"{self.path}/{name}"


class RemoteFile:
    """An object, open for reading; asks for more at once if it is read from front to end."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path
        self._size: int = file.size()
        self._start = 0
        self._block = b""

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes; fewer only at the end."""
        size = max(0, min(size, self._size - position))
        start = position - self._start
        if not 0 <= start <= start + size <= len(self._block):
            in_order = bool(self._block) and 0 <= start <= len(self._block)
            wanted = max(size, _AHEAD_BYTES) if in_order else size
            self._block = self._read(min(wanted, self._size - position), position)
            self._start, start = position, 0
        return self._block[start : start + size]

    def _read(self, size: int, position: int) -> bytes:
        """Reads a range; an answer that was cut off on its way is asked for again."""
        data: bytes = b""
        for _ in range(_TRIES):
            data += bytes(self._file.read_at(size - len(data), position + len(data)))
            if len(data) == size:
                return data
        # pyarrow does not tell such an answer from the end of an object.
        raise OSError(f"{self._path}: {len(data)} of {size} bytes from {position} on arrived")

    def size(self) -> int:
        """Returns the size in bytes."""
        return self._size

    def close(self) -> None:
        """Closes it."""
        self._block = b""
        self._file.close()


def _arrow() -> Any:
    """Returns the module `pyarrow.fs`, which most programs do not need."""
    try:
        from pyarrow import fs
    except ImportError:
        raise NotInstalled(_INSTALL) from None
    return fs


def host_name() -> str:
    """Returns the name of this machine, without its domain."""
    return os.uname().nodename.partition(".")[0]
