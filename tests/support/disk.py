"""A disk in memory whose syncs take a while, for threads.

`SlowDisk` implements `forebay.storage.filesystem.Filesystem`. A sync covers what was there when it
began, and counts only when it has returned; `cut` gives the machine after a power cut, with exactly
that. (`tests/crash/forgetful.py` tries everything that a cut may leave of a run of one thread; here
many threads run, and what a cut leaves at least is enough to show a promise that is broken.)

Every call passes `on_visit`, which may wait or raise: so a test can hold a thread in the middle of
a sync, or let a call fail. Mapped memory is the file itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from forebay.errors import Locked, NotAQueue
from forebay.storage.filesystem import Buffer, Directory

# What `on_visit` is told: the name of the call, the path, and whether it is over: a call is visited
# before it does anything, and a sync a second time before what it covers counts.
Visit = Callable[[str, str, bool], None]
WRITES = frozenset(["pwrite", "allocate", "truncate", "create", "rename", "unlink"])
SYNCS = frozenset(["sync", "sync names"])
READS = frozenset(["pread", "open", "names", "directory", "map"])


class Node:
    """A file: what everybody sees, and what is durable."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = content
        self.durable_since = 0
        self.owner: object = None
        self._mapped = bytearray()

    def map(self, size: int) -> bytearray:
        """Returns the first `size` bytes as memory that stays one with the file."""
        self._mapped = self._mapped or bytearray(self.content[:size])
        if len(self._mapped) != size:
            raise ValueError(f"{len(self._mapped)} bytes are mapped, not {size}")
        return self._mapped

    def seen(self) -> bytearray:
        """Returns the content, with what was stored into the mapped memory."""
        self.content[: len(self._mapped)] = self._mapped
        return self.content

    def write(self, data: Buffer, position: int) -> None:
        end = position + len(data)
        if end > len(self.content):
            self.content.extend(bytes(end - len(self.content)))
        self.content[position:end] = data
        if position < len(self._mapped):
            stop = min(end, len(self._mapped))
            self._mapped[position:stop] = data[: stop - position]


class Folder:
    """A directory: its names, and those that are durable."""

    def __init__(self) -> None:
        self.entries: dict[str, Node | Folder] = {}
        self.durable: dict[str, Node | Folder] = {}
        self.durable_since = 0
        self.owner: object = None


@dataclass(frozen=True, slots=True)
class Left:
    """How many files and directories are open."""

    files: int
    directories: int


@dataclass(frozen=True, slots=True)
class Move:
    """A rename into another directory, which comes whole, with the sync of either."""

    source: Folder
    old: str
    target: Folder
    new: str
    node: Node | Folder
    since: int


class SlowDisk:
    """A machine with such a disk. Any thread may call it."""

    def __init__(
        self, root: Folder | None = None, seed: int = 0, boot_seed: int | None = None
    ) -> None:
        """`boot_seed` is the seed of the machine whose start this one shares, if not its own."""
        self.mutex = threading.Lock()
        self.root = root or Folder()
        self.on_visit: Visit | None = None
        # Asked whenever a file would grow; what it has already can be written over.
        self.is_full: Callable[[], bool] = lambda: False
        self.clock = 0
        self.moves: list[Move] = []
        # What is forgotten closes itself.
        self.files_open: weakref.WeakSet[SlowFile] = weakref.WeakSet()
        self.directories_open: weakref.WeakSet[SlowDirectory] = weakref.WeakSet()
        self._seed = seed
        self._boot_seed = seed if boot_seed is None else boot_seed
        self._random = Random(seed)
        self._quiet = threading.local()

    def has_no_room(self) -> bool:
        return not getattr(self._quiet, "on", False) and self.is_full()

    def visit(self, call: str, path: str, over: bool) -> None:
        if self.on_visit is not None and not getattr(self._quiet, "on", False):
            self.on_visit(call, path, over)

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """Lets this thread work unseen: for what another process does."""
        self._quiet.on = True
        try:
            yield
        finally:
            self._quiet.on = False

    def open_directory(
        self, path: str, *, create: bool = False, group_readable: bool = False
    ) -> SlowDirectory:
        path = posixpath.abspath(path)
        self.visit("open", path, False)
        with self.mutex:
            folder = self.root
            for name in filter(None, path.split("/")):
                child = folder.entries.get(name)
                if child is None and create:
                    # Durable at once: how a directory gets its name is not what is tested here.
                    child = folder.entries[name] = folder.durable[name] = Folder()
                if child is None:
                    raise _error(errno.ENOENT, path)
                if isinstance(child, Node):
                    raise NotAQueue(f"{path} is a file; a queue is a directory")
                folder = child
        return SlowDirectory(self, folder, path)

    def boot_id(self) -> bytes:
        return Random(f"boot {self._boot_seed}").randbytes(16)

    def random_bytes(self, count: int) -> bytes:
        with self.mutex:
            return self._random.randbytes(count)

    @property
    def left_open(self) -> Left:
        """What nobody has closed."""
        with self.mutex:
            return Left(len(self.files_open), len(self.directories_open))

    def cut(self, chance: float = 0.0) -> SlowDisk:
        """Returns the machine after a power cut.

        With a chance, what was written to a file and is not durable may have come all the same;
        and all names that are not, or none, because a rename comes whole.
        """
        with self.mutex:
            random = Random(f"{self._seed} {self.clock}")
            names = random.random() < chance
            root = _copy(self.root, names, lambda: random.random() < chance)
        return SlowDisk(root, self._seed + 1)

    def kill(self) -> SlowDisk:
        """Returns the machine after the process died: all that was written is there.

        It has not started again: what only a start takes away still counts.
        """
        with self.mutex:
            root = _copy(self.root, True, lambda: True)
        return SlowDisk(root, self._seed + 1, self._boot_seed)

    def settle_moves(self, folder: Folder, since: int) -> None:
        """Makes the other side durable of all moves that the sync of a directory has covered."""
        for move in list(self.moves):
            if folder in (move.source, move.target) and move.since < since:
                self.moves.remove(move)
                if move.source.durable.get(move.old) is move.node:
                    del move.source.durable[move.old]
                if move.target.entries.get(move.new) is move.node:
                    move.target.durable[move.new] = move.node

    def tick(self) -> int:
        self.clock += 1
        return self.clock


def _copy(folder: Folder, names: bool, keeps: Callable[[], bool]) -> Folder:
    copied: dict[int, Node | Folder] = {}
    result = Folder()
    for name, child in (folder.entries if names else folder.durable).items():
        if id(child) not in copied:
            if isinstance(child, Node):
                copied[id(child)] = Node(bytes(child.seen()) if keeps() else child.durable)
            else:
                copied[id(child)] = _copy(child, names, keeps)
        result.entries[name] = copied[id(child)]
    result.durable = dict(result.entries)
    return result


class SlowFile:
    """An open file."""

    def __init__(self, disk: SlowDisk, node: Node, path: str) -> None:
        self._disk = disk
        self._node = node
        self.path = path
        self._closed = False
        disk.files_open.add(self)

    def pread(self, size: int, position: int) -> bytes:
        self._begin("pread")
        with self._disk.mutex:
            self._check()
            return bytes(self._node.seen()[position : position + size])

    def pwrite(self, data: Buffer, position: int) -> int:
        self._begin("pwrite")
        with self._disk.mutex:
            self._check()
            self._check_room(position + len(data))
            self._node.write(data, position)
            return len(data)

    def sync(self) -> None:
        self._begin("sync")
        with self._disk.mutex:
            self._check()
            covered, since = bytes(self._node.seen()), self._disk.tick()
        self._disk.visit("sync", self.path, True)
        with self._disk.mutex:
            if since > self._node.durable_since:
                self._node.durable, self._node.durable_since = covered, since

    def truncate(self, size: int) -> None:
        self._begin("truncate")
        with self._disk.mutex:
            self._check()
            self._check_room(size)
            if size < len(self._node.content):
                del self._node.content[size:]
            self._grow(size)

    def allocate(self, position: int, size: int) -> None:
        self._begin("allocate")
        with self._disk.mutex:
            self._check()
            self._check_room(position + size)
            self._grow(position + size)

    def size(self) -> int:
        with self._disk.mutex:
            self._check()
            return len(self._node.content)

    def map(self, size: int) -> bytearray:
        self._begin("map")
        with self._disk.mutex:
            self._check()
            return self._node.map(size)

    def lock(self, *, shared: bool = False) -> bool:
        with self._disk.mutex:
            if self._node.owner is None:
                self._node.owner = self
            return self._node.owner is self

    def close(self) -> None:
        with self._disk.mutex:
            self._closed = True
            self._disk.files_open.discard(self)
            if self._node.owner is self:
                self._node.owner = None

    def _begin(self, call: str) -> None:
        self._disk.visit(call, self.path, False)

    def _check(self) -> None:
        if self._closed:
            raise _error(errno.EBADF, self.path)

    def _check_room(self, size: int) -> None:
        if size > len(self._node.content) and self._disk.has_no_room():
            raise _error(errno.ENOSPC, self.path)

    def _grow(self, size: int) -> None:
        missing = size - len(self._node.content)
        if missing > 0:
            self._node.content.extend(bytes(missing))


class SlowDirectory:
    """An open directory."""

    def __init__(self, disk: SlowDisk, folder: Folder, path: str) -> None:
        self.path = path
        self._disk = disk
        self.maps = True
        self._folder = folder
        self._closed = False
        disk.directories_open.add(self)

    def names(self) -> list[str]:
        with self._begin("names"):
            return list(self._folder.entries)

    def open(self, name: str, *, write: bool = False) -> SlowFile:
        with self._begin("open", name):
            node = self._find(name)
            if isinstance(node, Folder):
                raise NotAQueue(f"{self.path}/{name} is not a regular file")
            return SlowFile(self._disk, node, f"{self.path}/{name}")

    def create(self, name: str) -> SlowFile:
        with self._begin("create", name):
            if name in self._folder.entries:
                raise _error(errno.EEXIST, f"{self.path}/{name}")
            node = self._folder.entries[name] = Node()
            return SlowFile(self._disk, node, f"{self.path}/{name}")

    def rename(self, source: str, target: str, into: Directory | None = None) -> None:
        with self._begin("rename", source):
            other = into._folder if isinstance(into, SlowDirectory) else self._folder
            node = self._find(source)
            del self._folder.entries[source]
            other.entries[target] = node
            if other is not self._folder:
                move = Move(self._folder, source, other, target, node, self._disk.tick())
                self._disk.moves.append(move)

    def unlink(self, name: str) -> None:
        with self._begin("unlink", name):
            self._find(name)
            del self._folder.entries[name]

    def sync(self) -> None:
        self._disk.visit("sync names", self.path, False)
        with self._disk.mutex:
            if self._closed:
                raise _error(errno.EBADF, self.path)
            covered, since = dict(self._folder.entries), self._disk.tick()
        self._disk.visit("sync names", self.path, True)
        with self._disk.mutex:
            if since > self._folder.durable_since:
                self._folder.durable, self._folder.durable_since = covered, since
            self._disk.settle_moves(self._folder, since)

    def check_there(self) -> None:
        """Nothing: no directory is ever removed here."""

    def directory(self, name: str, *, create: bool = False) -> SlowDirectory:
        with self._begin("directory", name):
            if name not in self._folder.entries and create:
                self._folder.entries[name] = Folder()
            child = self._find(name)
            if isinstance(child, Node):
                raise _error(errno.ENOTDIR, f"{self.path}/{name}")
            return SlowDirectory(self._disk, child, f"{self.path}/{name}")

    def lock(self) -> None:
        with self._disk.mutex:
            if self._folder.owner not in (None, self):
                raise Locked(self.path, os.getpid())
            self._folder.owner = self

    def close(self) -> None:
        with self._disk.mutex:
            self._closed = True
            self._disk.directories_open.discard(self)
            if self._folder.owner is self:
                self._folder.owner = None

    @contextlib.contextmanager
    def _begin(self, call: str, name: str = "") -> Iterator[None]:
        self._disk.visit(call, f"{self.path}/{name}" if name else self.path, False)
        with self._disk.mutex:
            if self._closed:
                raise _error(errno.EBADF, self.path)
            yield

    def _find(self, name: str) -> Node | Folder:
        found = self._folder.entries.get(name)
        if found is None:
            raise _error(errno.ENOENT, f"{self.path}/{name}")
        return found


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
