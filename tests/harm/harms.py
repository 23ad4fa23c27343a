"""What is done to one file of a queue, and which of its bytes that hits."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forebay.storage.filesystem import DiskDirectory, DiskFile
from tests.harm.states import Place
from tests.harm.values import marks_in
from tests.support.inside import descriptor_of

SECTOR = 512


class NotHere(Exception):
    """The harm cannot be done to this file: an empty cell, with the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file of a copied queue, where it came from, and the chance of this case.

    With the first seed each harm hits its own place of the file, with others any.
    """

    queue: Path
    name: str
    place: Place
    random: random.Random
    seed: int = 0

    @property
    def path(self) -> Path:
        return self.queue / self.name

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def position(self, share: float) -> int:
        """Returns the position of a byte: at this share of the file, or at any."""
        if self.seed:
            share = self.random.random()
        return min(int(self.size * share), self.size - 1)


@dataclass(frozen=True, slots=True)
class Hit:
    """The bytes of the file that were hit; whether all that it held is out of reach."""

    low: int
    high: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Harm:
    """A way to harm a file. `failing` says what the system answers while the checks run."""

    name: str
    do: Callable[[Target], Hit]
    failing: str | None = None


def _flip(share: float) -> Callable[[Target], Hit]:
    def flip(target: Target) -> Hit:
        if not target.size:
            raise NotHere("the file is empty")
        return _flip_at(target, target.position(share))

    return flip


def _flip_at(target: Target, position: int) -> Hit:
    data = bytearray(target.path.read_bytes())
    data[position] ^= 1 << target.random.randrange(8)
    # In place: a living owner has the file open, or mapped.
    with target.path.open("r+b") as file:
        os.pwrite(file.fileno(), data[position : position + 1], position)
    return Hit(position, position + 1)


def _flip_value(target: Target) -> Hit:
    """Hits the value of a record, any of them."""
    _, first, last = target.random.choice(_values_in(target))
    return _flip_at(target, target.random.randrange(first, last))


def _flip_last(target: Target) -> Hit:
    """Hits the newest record of the file: what does not verify there may look like a torn end."""
    _, first, last = max(_values_in(target))
    return _flip_at(target, target.random.randrange(first, last))


def _values_in(target: Target) -> list[tuple[int, int, int]]:
    found = [row for row in marks_in(target.path.read_bytes()) if row[2] <= target.size]
    if not found:
        raise NotHere("there are no records in it")
    return found


def _overwrite(target: Target, low: int, high: int) -> Hit:
    if not any(target.path.read_bytes()[low:high]):
        raise NotHere("it is zeros already")
    with target.path.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(high - low), low)
    return Hit(low, high)


def _zero_part(target: Target) -> Hit:
    middle = target.position(0.5)
    return _overwrite(target, max(0, middle - 32), min(middle + 32, target.size))


def _zero(target: Target) -> Hit:
    return _overwrite(target, 0, target.size)


def _cut_to(target: Target, size: int) -> Hit:
    if size >= target.size:
        raise NotHere("the file is empty")
    old = target.size
    os.truncate(target.path, size)
    return Hit(size, old, whole=size == 0)


def _empty(target: Target) -> Hit:
    return _cut_to(target, 0)


def _cut(target: Target) -> Hit:
    return _cut_to(target, target.position(0.5))


def _cut_end(target: Target) -> Hit:
    return _cut_to(target, max(0, target.size - 1))


def _delete(target: Target) -> Hit:
    size = target.size
    target.path.unlink()
    return Hit(0, size, whole=True)


def _add_junk(target: Target) -> Hit:
    size = target.size
    with target.path.open("ab") as file:
        file.write(target.random.randbytes(200))
    return Hit(size, size)


def _replace_by(target: Target, other: Path) -> Hit:
    size = target.size
    shutil.copyfile(other, target.path)
    return Hit(0, size, whole=True)


def _older(target: Target) -> Hit:
    older = target.place.older_copy(target.name)
    if older is None:
        raise NotHere("it was never different")
    return _replace_by(target, older)


def _sibling(target: Target) -> Hit:
    other = target.place.sibling / target.name
    if not other.is_file():
        raise NotHere("the sibling has no such file")
    if other.read_bytes() == target.path.read_bytes():
        raise NotHere("the sibling's is the same")
    return _replace_by(target, other)


def _directory(target: Target) -> Hit:
    hit = _delete(target)
    target.path.mkdir(mode=0o700)
    return hit


def _symlink(target: Target) -> Hit:
    size, elsewhere = target.size, target.queue.parent / "elsewhere"
    shutil.move(target.path, elsewhere)
    target.path.symlink_to(elsewhere)
    return Hit(0, size, whole=True)


def _pipe(target: Target) -> Hit:
    hit = _delete(target)
    os.mkfifo(target.path, 0o600)
    return hit


def _forbid(target: Target) -> Hit:
    if os.geteuid() != 0:
        raise NotHere("only root can act as another user")
    target.path.chmod(0)
    return Hit(0, target.size, whole=True)


def _nothing_yet(target: Target) -> Hit:
    return Hit(0, target.size, whole=True)


def _one_sector(target: Target) -> Hit:
    if target.size == 0:
        raise NotHere("the file is empty")
    first = target.position(0.5) // SECTOR * SECTOR
    return Hit(first, min(first + SECTOR, target.size))


HARMS: dict[str, Harm] = {
    harm.name: harm
    for harm in (
        Harm("flip-start", _flip(0.002)),
        Harm("flip-quarter", _flip(0.25)),
        Harm("flip-middle", _flip(0.5)),
        Harm("flip-end", _flip(0.97)),
        Harm("flip-value", _flip_value),
        Harm("flip-last", _flip_last),
        Harm("zero-part", _zero_part),
        Harm("zeroed", _zero),
        Harm("emptied", _empty),
        Harm("cut", _cut),
        Harm("cut-end", _cut_end),
        Harm("deleted", _delete),
        Harm("junk", _add_junk),
        Harm("older", _older),
        Harm("sibling", _sibling),
        Harm("directory", _directory),
        Harm("symlink", _symlink),
        Harm("pipe", _pipe),
        Harm("mode000", _forbid, "user"),
        Harm("eio-sector", _one_sector, "sector"),
        Harm("eio-file", _nothing_yet, "read"),
        Harm("eio-open", _nothing_yet, "open"),
    )
}


@contextlib.contextmanager
def failing(harm: Harm, target: Target, hit: Hit) -> Iterator[None]:
    """Has the system answer as the harm says, for everything in this process."""
    if harm.failing is None:
        yield
    elif harm.failing == "user":
        with _another_user(target.queue):
            yield
    else:
        with _bad_disk(harm.failing, target.path, hit):
            yield


@contextlib.contextmanager
def _another_user(queue: Path) -> Iterator[None]:
    """Runs as nobody, who owns the queue: a file with no mode stays shut for it."""
    for path in [queue, *queue.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    os.chown(queue.parent, 65534, 65534)
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@contextlib.contextmanager
def _bad_disk(what: str, path: Path, hit: Hit) -> Iterator[None]:
    """Answers EIO for one file, known by its inode: one that takes its place is good again."""
    status = path.stat()
    bad = (status.st_dev, status.st_ino)
    opened, read, mapped = DiskDirectory.open, DiskFile.pread, DiskFile.map

    def is_bad(file: DiskFile) -> bool:
        status = os.fstat(descriptor_of(file))
        return (status.st_dev, status.st_ino) == bad

    def open_badly(self: DiskDirectory, name: str, *, write: bool = False) -> DiskFile:
        file = opened(self, name, write=write)
        if what == "open" and is_bad(file):
            file.close()
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return file

    def read_badly(self: DiskFile, size: int, position: int) -> bytes:
        within = what == "read" or (position < hit.high and hit.low < position + size)
        if what != "open" and within and is_bad(self):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, size, position)

    def map_badly(self: DiskFile, size: int) -> mmap.mmap:
        # The memory of a bad sector kills who touches it: there is nothing to test there.
        if is_bad(self):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return mapped(self, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskDirectory, "open", open_badly)
        patch.setattr(DiskFile, "pread", read_badly)
        patch.setattr(DiskFile, "map", map_badly)
        yield
