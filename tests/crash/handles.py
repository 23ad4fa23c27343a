"""The open files and directories of the forgetful file system.

They implement `File` and `Directory` of `forebay.storage.filesystem`, with the errors that the
system calls give. Closed handles refuse with EBADF; locks belong to a handle, as with `flock`.
"""

from __future__ import annotations

import errno
import os

from forebay.errors import Locked, NotAQueue
from forebay.storage.filesystem import Buffer, Directory, plain_name
from tests.crash.disk import Named, NamesSynced, Synced, SyncFailed
from tests.crash.pagecache import Folder, Node, PageCache, os_error


class ForgetfulFile:
    """An open file."""

    def __init__(self, cache: PageCache, node: Node, path: str, *, write: bool) -> None:
        self._cache = cache
        self._node = node
        self._path = path
        self._write = write
        self._closed = False
        node.handles += 1
        cache.open_handles.append(path)

    def pread(self, size: int, position: int) -> bytes:
        with self._cache.mutex:
            self._begin("pread")
            return bytes(self._node.content[position : position + size])

    def pwrite(self, data: Buffer, position: int) -> int:
        with self._cache.mutex:
            short = self._begin("pwrite", write=True)
            count = len(data)
            if not count:
                return 0
            if short:
                count = max(1, count // 2)
            if position + count > len(self._node.content):
                count = self._cache.room(self._node, position + count) - position
                if count <= 0:
                    raise os_error(errno.ENOSPC, self._path)
            self._cache.write(self._node, data[:count], position)
            return count

    def sync(self) -> None:
        with self._cache.mutex:
            try:
                self._begin("sync")
            except OSError:
                self._cache.log.append(SyncFailed(self._node.number))
                raise
            self._cache.log.append(Synced(self._node.number))

    def truncate(self, size: int) -> None:
        with self._cache.mutex:
            self._begin("truncate", write=True)
            if self._cache.room(self._node, size) < size:
                raise os_error(errno.ENOSPC, self._path)
            self._cache.resize(self._node, size)

    def allocate(self, position: int, size: int) -> None:
        with self._cache.mutex:
            self._begin("allocate", write=True)
            wanted = max(position + size, len(self._node.content))
            room = self._cache.room(self._node, wanted)
            # A disk that runs full in the middle leaves what it could allocate.
            self._cache.resize(self._node, room)
            if room < wanted:
                raise os_error(errno.ENOSPC, self._path)

    def size(self) -> int:
        with self._cache.mutex:
            self._check_open()
            return len(self._node.content)

    def map(self, size: int) -> bytearray:
        with self._cache.mutex:
            self._begin("map")
            if not self._write:
                raise os_error(errno.EACCES, self._path)
            if not self._cache.maps:
                raise os_error(errno.ENODEV, self._path)
            if not 0 < size <= len(self._node.content):
                raise ValueError(f"cannot map {size} of {len(self._node.content)} bytes")
            return self._cache.map(self._node, size)

    def lock(self, *, shared: bool = False) -> bool:
        # One machine, one owner: a shared lock is as good as one of its own.
        with self._cache.mutex:
            self._check_open()
            if self._node.owner is None:
                self._node.owner = self
            return self._node.owner is self

    def close(self) -> None:
        with self._cache.mutex:
            if self._closed:
                return
            self._closed = True
            self._cache.open_handles.remove(self._path)
            self._node.handles -= 1
            self._cache.forget(self._node)
            if self._node.owner is self:
                self._node.owner = None

    def _begin(self, kind: str, *, write: bool = False) -> bool:
        self._check_open()
        if write and not self._write:
            raise os_error(errno.EBADF, self._path)
        return self._cache.begin(kind, self._path)

    def _check_open(self) -> None:
        if self._closed:
            raise os_error(errno.EBADF, self._path)


class ForgetfulDirectory:
    """An open directory."""

    def __init__(self, cache: PageCache, folder: Folder, path: str) -> None:
        self.path = path
        self._cache = cache
        self._folder = folder
        self._closed = False
        cache.open_handles.append(path)

    @property
    def maps(self) -> bool:
        return self._cache.maps

    def names(self) -> list[str]:
        with self._cache.mutex:
            self._begin("names")
            return list(self._folder.entries)

    def open(self, name: str, *, write: bool = False) -> ForgetfulFile:
        with self._cache.mutex:
            node = self._find("open", name)
            if isinstance(node, Folder):
                raise NotAQueue(f"{self.path}/{name} is not a regular file")
            return ForgetfulFile(self._cache, node, f"{self.path}/{name}", write=write)

    def create(self, name: str) -> ForgetfulFile:
        with self._cache.mutex:
            self._begin("create", plain_name(name))
            if name in self._folder.entries:
                raise os_error(errno.EEXIST, f"{self.path}/{name}")
            node = self._cache.make_node(self._folder, name)
            return ForgetfulFile(self._cache, node, f"{self.path}/{name}", write=True)

    def rename(self, source: str, target: str, into: Directory | None = None) -> None:
        with self._cache.mutex:
            node = self._find("rename", source)
            folder = self._folder_of(into)
            replaced = folder.entries.get(plain_name(target))
            if replaced is node:
                return
            if replaced is not None and isinstance(node, Folder):
                raise os_error(errno.ENOTDIR, f"{self.path}/{target}")
            if isinstance(replaced, Folder):
                raise os_error(errno.EISDIR, f"{self.path}/{target}")
            del self._folder.entries[source]
            folder.entries[target] = node
            removed = ((self._folder.number, source), None)
            self._cache.log.append(Named((removed, ((folder.number, target), node.number))))
            if replaced is not None:
                replaced.linked = False
                self._cache.forget(replaced)

    def unlink(self, name: str) -> None:
        with self._cache.mutex:
            node = self._find("unlink", name)
            if isinstance(node, Folder):
                raise os_error(errno.EISDIR, f"{self.path}/{name}")
            del self._folder.entries[name]
            self._cache.log.append(Named((((self._folder.number, name), None),)))
            node.linked = False
            self._cache.forget(node)

    def sync(self) -> None:
        with self._cache.mutex:
            self._begin("directory sync")
            self._cache.log.append(NamesSynced(self._folder.number))

    def check_there(self) -> None:
        """Nothing: no directory is ever removed here."""

    def directory(self, name: str, *, create: bool = False) -> ForgetfulDirectory:
        with self._cache.mutex:
            self._begin("directory", plain_name(name))
            child = self._folder.entries.get(name)
            if child is None and create:
                child = self._cache.make_folder(self._folder, name)
            if child is None:
                raise os_error(errno.ENOENT, f"{self.path}/{name}")
            if isinstance(child, Node):
                raise NotAQueue(f"{self.path}/{name} is not a directory; refused")
            return ForgetfulDirectory(self._cache, child, f"{self.path}/{name}")

    def lock(self) -> None:
        with self._cache.mutex:
            if self._closed:
                raise os_error(errno.EBADF, self.path)
            if self._folder.owner not in (None, self):
                raise Locked(self.path, os.getpid())
            self._folder.owner = self

    def close(self) -> None:
        with self._cache.mutex:
            if self._closed:
                return
            self._closed = True
            self._cache.open_handles.remove(self.path)
            if self._folder.owner is self:
                self._folder.owner = None

    def _begin(self, kind: str, name: str = "") -> None:
        if self._closed:
            raise os_error(errno.EBADF, self.path)
        self._cache.begin(kind, self.path, name)

    def _find(self, kind: str, name: str) -> Node | Folder:
        self._begin(kind, plain_name(name))
        found = self._folder.entries.get(name)
        if found is None:
            raise os_error(errno.ENOENT, f"{self.path}/{name}")
        return found

    def _folder_of(self, into: Directory | None) -> Folder:
        if into is None:
            return self._folder
        if not isinstance(into, ForgetfulDirectory) or into._cache is not self._cache:
            raise os_error(errno.EXDEV, into.path)
        return into._folder
