"""A file system in memory that forgets what was not synced, tears, reorders, fails and runs full.

`ForgetfulFilesystem` implements `forebay.storage.filesystem.Filesystem`. What it may forget is
told in `tests/crash/disk.py`. All of it is decided by seeds: the same run gives the same states.

    fs = ForgetfulFilesystem(seed=1)
    run_the_queue(fs)                        # calls fs.acknowledge(value) for what is promised
    for state in fs.crash_states(8):
        after = state.restore()              # a machine that starts anew, with what was left
        check(recover(after), fs.acknowledgements[: state.acknowledged])

Three ways to hurt it:

* Power cut: `crash_states` yields what may be left after each operation. `restore` gives a file
  system that records in turn, so that a recovery can itself be cut.
* Kill: `kill` gives the machine after the process died; the page cache is whole, what was not
  synced is still not, and the log goes on, so that a power cut may follow.
* Faults: `fail_at` lets a call fail, `capacity_bytes` fills the disk.

Any thread may call anything; one lock is around each operation. Refuses what a queue never does:
hard links, symbolic links, removing or replacing directories. The space of a file is its size.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

from forebay.errors import NotAQueue
from tests.crash.disk import ROOT, Acknowledged, Image, NamesSynced, Replaced
from tests.crash.handles import ForgetfulDirectory
from tests.crash.pagecache import Faults, Folder, Node, PageCache, os_error
from tests.crash.states import Plan, Remains, find_remains


@dataclass(frozen=True, slots=True)
class CrashState:
    """What a power cut after operation `point` left.

    `acknowledged` counts what was acknowledged before it; `key` stands for the content of the disk,
    names and bytes. Two states may have one key, but then more was acknowledged for the later.
    """

    point: int
    description: str
    acknowledged: int
    key: bytes
    _remains: Remains = field(repr=False)
    _seed: int = field(repr=False)
    _capacity_bytes: int | None = field(repr=False)

    def restore(self) -> ForgetfulFilesystem:
        """Starts a machine on it: new boot id, all of the content durable, an empty log."""
        text = f"{self._seed} {self.key.hex()}".encode()
        seed = int.from_bytes(blake2b(text, digest_size=8).digest())
        machine = ForgetfulFilesystem(seed, image=self._remains.image())
        machine.capacity_bytes = self._capacity_bytes
        return machine

    def files(self) -> dict[str, bytes]:
        """Returns the content by path, without starting a machine."""
        tree = self._remains.tree
        contents = self._remains.image().files
        return dict(zip(tree.paths, (contents[number] for number in tree.numbers), strict=True))


class ForgetfulFilesystem:
    """A machine with such a disk; see the module."""

    def __init__(self, seed: int = 0, *, image: Image | None = None) -> None:
        self.acknowledgements: list[object] = []
        self._seed = seed
        self._boot_id = blake2b(f"boot {seed}".encode(), digest_size=16).digest()
        self._random: Random | None = None
        self._cache = PageCache(image or Image({}, frozenset([ROOT]), {}))

    def open_directory(
        self, path: str, *, create: bool = False, group_readable: bool = False
    ) -> ForgetfulDirectory:
        path = posixpath.abspath(path)
        with self._cache.mutex:
            self._cache.begin("open_directory", path)
            folder = self._cache.root
            for name in path.split("/"):
                if not name:
                    continue
                child = folder.entries.get(name)
                if create and (child is None or (isinstance(child, Folder) and not child.entries)):
                    child = self._make_durable_folder(folder, name, path)
                if child is None:
                    raise os_error(errno.ENOENT, path)
                if isinstance(child, Node):
                    raise NotAQueue(f"{path} is a file; a queue is a directory")
                folder = child
            return ForgetfulDirectory(self._cache, folder, path)

    def _make_durable_folder(self, parent: Folder, name: str, path: str) -> Folder:
        """Makes it unless it is there; an empty one may be left from before its name was synced."""
        found = parent.entries.get(name)
        if isinstance(found, Folder):
            folder = found
        else:
            self._cache.begin("directory", path)
            folder = self._cache.make_folder(parent, name)
        self._cache.begin("directory sync", path)
        self._cache.log.append(NamesSynced(parent.number))
        return folder

    def boot_id(self) -> bytes:
        return self._boot_id

    def random_bytes(self, count: int) -> bytes:
        with self._cache.mutex:
            if self._random is None:
                self._random = Random(self._seed)
            return self._random.randbytes(count)

    @property
    def capacity_bytes(self) -> int | None:
        """The size of the disk; None is without end. When full: a short write, then ENOSPC."""
        return self._cache.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity: int | None) -> None:
        self._cache.capacity_bytes = capacity

    @property
    def maps(self) -> bool:
        """Whether stores into mapped files are safe on this disk; if not, `map` refuses."""
        return self._cache.maps

    @maps.setter
    def maps(self, maps: bool) -> None:
        self._cache.maps = maps

    @property
    def open_handles(self) -> list[str]:
        """The paths of the files and directories that are open, one for each handle."""
        return list(self._cache.open_handles)

    @property
    def operations(self) -> int:
        """How many operations were logged, acknowledgements included; a crash point is one."""
        with self._cache.mutex:
            self._cache.notice_stores()
            return len(self._cache.log)

    @property
    def calls(self) -> int:
        """How many calls there were that can fail."""
        return self._cache.faults.calls

    @property
    def writes(self) -> int:
        """How many of these were writes."""
        return self._cache.faults.writes

    @property
    def faults(self) -> int:
        """How many calls failed, or wrote less, because `fail_at` said so."""
        return self._cache.faults.hits

    def acknowledge(self, value: object) -> None:
        """Logs that `value` was promised; `repr(value)` must tell it from other promises."""
        with self._cache.mutex:
            self._cache.notice_stores()
            self.acknowledgements.append(value)
            self._cache.log.append(Acknowledged(value))

    def fail_at(self, call: int, error: int | None, *, forever: bool = False) -> None:
        """Lets the `call`-th call from now, counted from 1, fail with `error`; or all from there.

        `None` makes the `call`-th *write* a short one; with `forever`, the disk is full after it.
        A file whose sync failed forgets what was not synced, as on Linux: a second sync succeeds
        and writes nothing, and the page cache shows what is not on the disk.
        """
        with self._cache.mutex:
            self._cache.faults.plan(call, error, forever=forever)

    def heal(self) -> None:
        """Ends the fault; what it broke stays broken."""
        with self._cache.mutex:
            self._cache.faults.heal()

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Lets nothing fail, and counts no call: for who looks at what a queue holds by now."""
        faults, self._cache.faults = self._cache.faults, Faults()
        try:
            yield
        finally:
            self._cache.faults = faults

    def kill(self) -> ForgetfulFilesystem:
        """Gives the machine after `kill -9`: no handles, no locks, no faults, the same page cache.

        The log goes on in it. Who still holds this one works in a world that nobody sees.
        """
        with self._cache.mutex:
            self._cache.notice_stores()
            image = self._cache.image()
            machine = ForgetfulFilesystem(int.from_bytes(self.random_bytes(8)), image=image)
            machine._cache.next_number = self._cache.next_number
            machine._cache.base = self._cache.base
            machine._cache.log = list(self._cache.log)
            machine._boot_id = self._boot_id
            machine.acknowledgements = list(self.acknowledgements)
            machine.capacity_bytes = self.capacity_bytes
            machine.maps = self.maps
            return machine

    def crash_states(
        self,
        random_subsets: int = 8,
        seed: int = 0,
        *,
        seen: set[bytes] | None = None,
        since: int = 0,
        points: Callable[[int], bool] | None = None,
        limit: int | None = None,
        garbage: bool = True,
        torn: bool = False,
    ) -> Iterator[CrashState]:
        """Yields every state in which a power cut after any operation so far may leave the disk.

        `seen` takes 16 bytes for each pair of content and acknowledgements, and what is in it is
        not yielded: give the same set to many calls to count what is distinct. `since` skips the
        points below an operation count; what was not synced there is still pending. `points` says
        which points to take, `limit` how many choices at each. With `garbage`, space that a file
        got but whose data did not come also shows old bytes of another file; with `torn`, a
        sector may end in its middle.
        """
        with self._cache.mutex:
            self._cache.notice_stores()
            log = list(self._cache.log)
        plan = Plan(
            random_subsets=random_subsets,
            seed=seed,
            seen=set() if seen is None else seen,
            since=since,
            points=points,
            limit=limit,
            garbage=garbage,
            torn=torn,
        )
        for left in find_remains(self._cache.base, log, plan):
            yield CrashState(
                left.point,
                left.description,
                left.acknowledged,
                left.key,
                left,
                self._seed,
                self.capacity_bytes,
            )

    def files(self) -> dict[str, bytes]:
        """Returns the content by path, as the page cache has it."""
        with self._cache.mutex:
            self._cache.notice_stores()
            return self._cache.files()

    def read_file(self, path: str) -> bytes:
        """Returns the content of a file, as the page cache has it."""
        files = self.files()
        if posixpath.abspath(path) not in files:
            raise os_error(errno.ENOENT, path)
        return files[posixpath.abspath(path)]

    def write_file(self, path: str, data: bytes) -> None:
        """Makes `data` the durable content of a file, new or not; its directory must be there.

        No call is counted, and no fault or full disk stands in the way.
        """
        with self._cache.mutex:
            self._cache.notice_stores()
            parent, name = posixpath.split(posixpath.abspath(path))
            folder = self._find_folder(parent)
            node = folder.entries.get(name)
            if node is None:
                node = self._cache.make_node(folder, name)
                self._cache.log.append(NamesSynced(folder.number, name))
            if isinstance(node, Folder):
                raise os_error(errno.EISDIR, path)
            node.cut(0)
            node.own().extend(data)
            node.show(0, len(data))
            self._cache.log.append(Replaced(node.number, bytes(data)))

    def _find_folder(self, path: str) -> Folder:
        folder = self._cache.root
        for name in path.split("/"):
            child = folder.entries.get(name) if name else folder
            if not isinstance(child, Folder):
                raise os_error(errno.ENOENT, path)
            folder = child
        return folder

    def damage(self, path: str, position: int, data: bytes) -> None:
        """Puts `data` over the durable bytes at `position`; the rest counts as synced by it."""
        content = bytearray(self.read_file(path))
        if position + len(data) > len(content):
            raise ValueError(f"{path} has {len(content)} bytes; no damage at {position}")
        content[position : position + len(data)] = data
        self.write_file(path, bytes(content))
