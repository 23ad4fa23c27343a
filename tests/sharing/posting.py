"""Clients' files and their owners, without sockets, and with a death at any call to the disk."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from forebay.kernels.buffers import PostedRecords
from forebay.storage.filesystem import Directory, DiskFilesystem, Filesystem
from forebay.storage.posted import ASLEEP_AT, DATA_AT, ClientFile, size_max
from tests.kinds import KINDS
from tests.support.planting import Broken

ROOM = 8192
# How many tests share the time of this suite's campaign: kills of four kinds, kills under posts of
# two, hostile files.
CAMPAIGNS = 7


class Client:
    """A client that puts records into a file of its own, and never asks a server."""

    def __init__(self, path: Path, room: int = ROOM, boot: bytes | None = None) -> None:
        filesystem = DiskFilesystem()
        with contextlib.closing(filesystem.open_directory(str(path), create=True)) as directory:
            self.file = ClientFile(directory, boot or filesystem.boot_id(), room)
        self.rings = 0
        self.records = PostedRecords(threading.Lock(), self._ring)
        self.records.use(self.file.mapping, DATA_AT, ASLEEP_AT, size_max(room), self.file.seed)

    def _ring(self) -> None:
        self.rings += 1

    def post(self, value: bytes, extra: int = 0) -> bool:
        """Posts a value; False if there is no room even after asking."""
        if self.records.put(value, extra) is None:
            self.records.free(self.file.note().place)
            return self.records.put(value, extra) is not None
        return True

    def end(self) -> None:
        """Ends as a process that is killed does: nothing is flushed."""
        self.records.stop()
        self.file.close()


class DeadlyFilesystem:
    """The machine's, which kills this process at a call that changes something."""

    def __init__(self, at: int) -> None:
        self._real = DiskFilesystem()
        self._left = at

    def open_directory(self, path: str, **options: Any) -> Any:
        return _deadly(self._real.open_directory(path, **options), self)

    def boot_id(self) -> bytes:
        return self._real.boot_id()

    def random_bytes(self, count: int) -> bytes:
        return self._real.random_bytes(count)

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


_CHANGES = frozenset({"pwrite", "sync", "truncate", "allocate", "rename", "unlink", "create"})


def _deadly(real: Any, filesystem: DeadlyFilesystem) -> Any:
    """Makes an object count its changes, and those of what it opens."""
    for name in _CHANGES & set(dir(real)):
        setattr(real, name, _counted(getattr(real, name), filesystem))
    for name in ("open", "directory"):
        if hasattr(real, name):
            setattr(real, name, _followed(getattr(real, name), filesystem))
    return real


def _counted(call: Callable[..., Any], filesystem: DeadlyFilesystem) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        filesystem.count()
        result = call(*arguments, **options)
        return _deadly(result, filesystem) if call.__name__ == "create" else result

    return counted


def _followed(call: Callable[..., Any], filesystem: DeadlyFilesystem) -> Callable[..., Any]:
    return lambda *arguments, **options: _deadly(call(*arguments, **options), filesystem)


def dies(work: Callable[[], None]) -> bool:
    """Runs something in a fork; says whether that was killed. Raises `Broken` if it failed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise Broken(f"the owner ended with {code}")
    return code != 0


def owner(path: Path, kind: str, filesystem: Filesystem | None = None, **options: Any) -> Any:
    given = {} if filesystem is None else {"filesystem": filesystem}
    # Small files: a batch goes into several.
    return KINDS[kind].queue(path, background=False, **KINDS[kind].small, **options, **given)


def left(path: Path, kind: str, **options: Any) -> list[bytes]:
    """Returns what is in the queue once its owner has taken in what was posted."""
    with owner(path, kind, **options) as queue:
        return KINDS[kind].drain(queue)


def files(path: Path) -> list[str]:
    folder = path / "posted"
    return sorted(os.listdir(folder)) if folder.exists() else []


def deaths(path: Path, kind: str, before: Callable[[Path], list[bytes]], **options: Any) -> int:
    """Kills the owner at every call in turn as it takes in; checks what is there after each.

    `before` makes a queue with clients that have ended, and returns what must be there. Returns how
    often the owner was killed.
    """
    for at in range(1, 1000):
        place = path / str(at)
        wanted = before(place)

        def work(place: Path = place, at: int = at) -> None:
            owner(place, kind, DeadlyFilesystem(at), **options)

        killed = dies(work)
        check(left(place, kind, **options), wanted, at)
        if files(place):
            raise Broken(f"death {at}: {files(place)} are left")
        if not killed:
            return at - 1
    raise Broken("it never ends")


def check(found: list[bytes], wanted: list[bytes], at: object = "") -> None:
    if found != wanted:
        twice = len(found) - len(set(found))
        lost = [value for value in wanted if value not in set(found)]
        raise Broken(f"{at}: {twice} twice, {len(lost)} lost, {len(found)} of {len(wanted)} there")


def each_open(path: Path) -> Iterator[Directory]:
    directory = DiskFilesystem().open_directory(str(path))
    with contextlib.closing(directory):
        yield directory
