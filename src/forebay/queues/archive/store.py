"""The store of an archived queue: what its readers need, from the manifest and by range reads.

A store is the archive as it was when it was opened. Names, sizes and headers come from the
manifest; the side files that a reader of the kind expects, such as `tail`, are made from it. An
object is opened when bytes are read that the manifest does not have. One that is gone, or is
shorter than it was, reads as a file that ends early: the scan then says which records are missing.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.kernels.buffers import crc32
from forebay.queues.archive import manifest as manifests
from forebay.queues.archive.manifest import HostQueue, Manifest, Row
from forebay.storage.filesystem import Directory, DiskFilesystem
from forebay.storage.objects import Folder, is_address, open_folder, plain_path
from forebay.storage.readable import OpenStore, Store, StoredFile, Stores

# The kinds whose segments are archived, and the modules that know them.
_ROOMS = {"log": "forebay.queues.log.archiving", "beats": "forebay.queues.beats.archiving"}


class Archiving(Protocol):
    """What the module `archiving` of a kind offers."""

    # How much of a segment a row repeats.
    HEAD_BYTES: int
    # Whether an owner keeps what a cursor has not passed.
    HAS_CURSORS: bool

    def on_host(self, path: str, *, without: str, key_file: str | None = None) -> HostQueue:
        """Returns what is on the host."""
        ...

    def side_files(self, manifest: Manifest) -> dict[str, bytes]:
        """Returns the files that a reader expects beside the segments."""
        ...

    def joined_files(
        self, directory: Directory, manifest: Callable[[], Manifest]
    ) -> dict[str, Callable[[], bytes] | None]:
        """Returns side files of a queue on its host that differ where its archive goes before it.

        None: the file is not there. `manifest` returns the present one.
        """
        ...

    def damage_in(self, store: Store, row: Row, *, key_file: str | None = None) -> Damage | None:
        """Returns the first frame of a segment that does not verify; None if all do."""
        ...


def archiving(kind: str) -> Archiving | None:
    """Returns the module of a kind; None if queues of that kind are not archived."""
    room = _ROOMS.get(kind)
    return None if room is None else cast(Archiving, importlib.import_module(room))


def read_manifest(folder: Folder) -> Manifest | None:
    """Returns the manifest of a folder; None if there is none."""
    try:
        file = folder.open(manifests.NAME)
    except FileNotFoundError:
        return None
    with contextlib.closing(file):
        return Manifest.decode(file.pread(file.size(), 0), f"{folder.path}/{manifests.NAME}")


class ArchiveStore:
    """The files of an archived queue. One thread at a time may use it."""

    def __init__(self, folder: Folder, manifest: Manifest, address: str) -> None:
        """`address` is where it is, with a query if that is needed."""
        room = archiving(manifest.kind)
        if room is None:
            raise NotAQueue(f"{folder.path} is an archive of a {manifest.kind}, which is unknown")
        self.path = folder.path
        self.address = address
        self.folder = folder
        self.manifest = manifest
        self._rows = {row.name: row for row in manifest.segments}
        self._side = room.side_files(manifest)

    def names(self) -> list[str]:
        """Lists the segments and side files."""
        return [*self._rows, *self._side]

    def open(self, name: str) -> StoredFile:
        """Opens a file for reading."""
        if name in self._side:
            return _Memory(self._side[name])
        if name not in self._rows:
            raise FileNotFoundError(errno.ENOENT, "not in the archive", f"{self.path}/{name}")
        return ArchivedFile(self.folder, self._rows[name])

    def directory(self, name: str) -> OpenStore:
        """Raises `FileNotFoundError`: an archive has no cursors, no quarantine and no inbox."""
        raise FileNotFoundError(errno.ENOENT, "not in the archive", f"{self.path}/{name}")

    def close(self) -> None:
        """Closes the folder."""
        self.folder.close()


class ArchivedFile:
    """A segment in an archive."""

    def __init__(self, folder: Folder, row: Row) -> None:
        self._folder = folder
        self._row = row
        self._head = bytes.fromhex(row.head)
        self._file: StoredFile | None = None
        self._gone = False

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes; fewer at the end of the object."""
        size = max(0, min(size, self._row.bytes - position))
        if position + size <= len(self._head):
            return self._head[position : position + size]
        if self._file is None and not self._gone:
            try:
                self._file = self._folder.open(self._row.object)
            except FileNotFoundError:
                self._gone = True
        return b"" if self._file is None else self._file.pread(size, position)

    def size(self) -> int:
        """Returns the size that the manifest has."""
        return self._row.bytes

    def close(self) -> None:
        """Closes it."""
        if self._file is not None:
            self._file.close()


class _Memory:
    """A file that is made from the manifest."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        pass


class Archives:
    """The stores of archived queues, for a reader that is given an address."""

    def __init__(self, address: str | None = None) -> None:
        """`address` is that of the one archive it opens, where a path does not tell it."""
        self._address = address

    def open_directory(self, path: str) -> ArchiveStore:
        """Opens the archive at an address."""
        address = path if self._address is None else self._address
        folder = open_folder(address)
        try:
            manifest = read_manifest(folder)
            if manifest is None:
                raise NotAQueue(f"{folder.path} is not an archive: it has no {manifests.NAME}")
            return ArchiveStore(folder, manifest, address)
        except BaseException:
            folder.close()
            raise

    def boot_id(self) -> bytes:
        """Returns an id that no machine has: nothing in an archive is still being written."""
        return bytes(16)


class JoinedStore:
    """A queue on its host, together with what only its archive still has.

    Names are read on the host first: what leaves the host meanwhile is in the archive.
    """

    def __init__(self, directory: Directory, address: str) -> None:
        self.path = directory.path
        self.address = address
        self._directory = directory
        self._archive = Archives().open_directory(address)
        self._before = self._archive.manifest
        room = archiving(self._before.kind)
        assert room is not None
        self._changed = room.joined_files(directory, lambda: self._before)

    def names(self) -> list[str]:
        """Lists the files of both."""
        there = [name for name in self._directory.names() if self._changed.get(name, name)]
        self._look_again()
        return list({*there, *(row.name for row in self._before.segments)})

    def open(self, name: str) -> StoredFile:
        """Opens a file where it is."""
        if name in self._changed:
            content = self._changed[name]
            if content is None:
                raise FileNotFoundError(errno.ENOENT, "not in a joined queue", name)
            self._directory.open(name).close()
            return _Made(content)
        with contextlib.suppress(FileNotFoundError):
            return self._directory.open(name)
        if name not in self._archive.names():
            # It has left the host since the manifest was read.
            self._look_again()
        return self._archive.open(name)

    def directory(self, name: str) -> OpenStore:
        """Opens the store of a folder on the host."""
        return self._directory.directory(name)

    def close(self) -> None:
        """Closes both."""
        self._archive.close()
        self._directory.close()

    def _look_again(self) -> None:
        archive = Archives().open_directory(self.address)
        self._archive.close()
        self._archive, self._before = archive, archive.manifest


class _Made(_Memory):
    """A file whose content is made at each read."""

    def __init__(self, content: Callable[[], bytes]) -> None:
        super().__init__(b"")
        self._content = content

    def pread(self, size: int, position: int) -> bytes:
        self._data = self._content()
        return super().pread(size, position)

    def size(self) -> int:
        return len(self._content())


class Joined(DiskFilesystem):
    """This machine, with an archive before a queue."""

    def __init__(self, address: str) -> None:
        self._address = address

    def open_directory(self, path: str, **options: bool) -> Any:
        """Opens a queue with its archive."""
        directory = super().open_directory(path, **options)
        try:
            return JoinedStore(directory, self._address)
        except BaseException:
            directory.close()
            raise


def stores_for(path: str, archive: str) -> Stores | None:
    """Returns where a reader finds a queue that is archived at an address; None if it is not."""
    if not archive:
        return None
    return Archives(archive) if is_archive(path) else Joined(archive)


def open_store(path: str) -> tuple[Stores, OpenStore]:
    """Opens what is at a path: a queue's directory, or an archive, there or at another address."""
    if is_address(path):
        archives = Archives()
        return archives, archives.open_directory(path)
    filesystem = DiskFilesystem()
    directory = filesystem.open_directory(plain_path(path))
    try:
        if not _has_manifest(directory):
            return filesystem, directory
    except BaseException:
        directory.close()
        raise
    directory.close()
    archives = Archives()
    return archives, archives.open_directory(path)


def is_archive(path: str) -> bool:
    """Says whether a path is an address, or a directory with an archive; it may not exist."""
    if is_address(path):
        return True
    try:
        directory = DiskFilesystem().open_directory(plain_path(path))
    except (OSError, NotAQueue):
        return False
    with contextlib.closing(directory):
        return _has_manifest(directory)


def _has_manifest(directory: Any) -> bool:
    try:
        directory.open(manifests.NAME).close()
    except (OSError, NotAQueue):
        return False
    return True


class _Summed:
    """A file that is read from front to end while its checksum is formed."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self.crc = 0
        self.end = 0

    def pread(self, size: int, position: int) -> bytes:
        data = self._file.pread(size, position)
        if position <= self.end < position + len(data):
            self.add(memoryview(data)[self.end - position :])
        return data

    def add(self, data: memoryview) -> None:
        self.crc = crc32(data, self.crc)
        self.end += len(data)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        """Does nothing: what a scan has left out is still to be read."""

    def finish(self) -> None:
        self._file.close()


class _ReadBack:
    """The objects of an archive as they are at the target, not as the manifest repeats them."""

    def __init__(self, folder: Folder, row: Row) -> None:
        self.path = folder.path
        self._row = row
        self.file = _Summed(folder.open(row.object))

    def names(self) -> list[str]:
        return [self._row.name]

    def open(self, name: str) -> StoredFile:
        return self.file


def read_back(folder: Folder, kind: str, row: Row, key_file: str | None) -> Damage | None:
    """Reads a segment from the target; returns what is wrong with it, None if nothing is.

    Its size, the checksum of all its bytes and every frame are compared.
    """
    path = f"{folder.path}/{row.object}"
    room = archiving(kind)
    assert room is not None
    try:
        store = _ReadBack(folder, row)
    except FileNotFoundError:
        return Damage(path, 0, row.bytes, "the object is missing")
    file = store.file
    try:
        if file.size() != row.bytes:
            return Damage(path, 0, 0, f"{file.size()} bytes, not {row.bytes}")
        try:
            found = room.damage_in(store, row, key_file=key_file)
        except Damaged as error:
            found = error.damage
        for _ in _rest(file):
            pass
        if file.end != row.bytes or f"{file.crc:08x}" != row.crc:
            return Damage(path, 0, row.bytes, f"checksum {row.crc} expected, {file.crc:08x} found")
        return found
    finally:
        file.finish()


def _rest(file: _Summed) -> Iterator[int]:
    """Reads what a scan has left out."""
    while file.end < file.size():
        before = file.end
        file.pread(1 << 20, before)
        if file.end == before:
            return
        yield file.end
