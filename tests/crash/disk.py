"""What a disk holds, and all that it might hold after the power is cut.

Owns the log of what was done to a disk, and its replay into what is durable and what is pending.
Weaker than ext4, as weak as POSIX:

* A write reaches the disk sector by sector, each sector whole and as the page cache held it after
  that write; each may be lost or come before the others, until the file is synced.
* The size is apart from the data: it may come first, and zeros (or the garbage of another file)
  appear; data behind the size that came cannot be seen. Sizes of a file keep their order.
* A name that is made, removed or renamed is pending until its directory is synced. Any of them
  may come, but never before what was done earlier to the same name. A rename comes whole or not
  at all, and with the sync of either directory.
* A failed sync forgets the data that it should have written, for good; the size stays pending.

Everything pending has one bit, in the order in which it was done, and a choice of what survives is
one integer: so that content can be remembered by the bits that made it. Histories only grow until
they are settled, then a new one takes their place: a state can be read long after it was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from random import Random
from typing import Literal, NamedTuple

SECTOR_SIZE = 512
ROOT = 0
CONTENT_SIZE_KEPT_MAX = 16 * 1024
CONTENTS_KEPT_MAX = 64

Place = tuple[int, str]
Change = tuple[Place, int | None]
Variant = Literal["", " with garbage", " torn"]
# What a content depends on: the bits that came, the variant, the horizon if it matters.
Memo = tuple[int, Variant, int]


class Wrote(NamedTuple):
    """Bytes went into a file; `image` is every sector that they touched, `size` a new size."""

    number: int
    size: int | None
    position: int
    image: bytes


class Resized(NamedTuple):
    """A file was cut, or extended with zeros."""

    number: int
    size: int


class Synced(NamedTuple):
    """The data and the size of a file became durable."""

    number: int


class SyncFailed(NamedTuple):
    """The pending data of a file will never become durable, whatever the page cache shows."""

    number: int


class Replaced(NamedTuple):
    """The durable content was altered behind the back of everybody."""

    number: int
    content: bytes


class Named(NamedTuple):
    """Names changed, all of them or none; `folder` is a directory made by it."""

    changes: tuple[Change, ...]
    folder: int | None = None


class NamesSynced(NamedTuple):
    """The names of a directory became durable, or only what was done to one name of it."""

    folder: int
    name: str | None = None


class Acknowledged(NamedTuple):
    """Somebody was told that something is done."""

    value: object


Entry = Wrote | Resized | Synced | SyncFailed | Replaced | Named | NamesSynced | Acknowledged


class Image(NamedTuple):
    """The whole content of a disk; files and directories have numbers, `ROOT` is the first."""

    names: dict[Place, int]
    folders: frozenset[int]
    files: dict[int, bytes]


class Tree(NamedTuple):
    """The names that can be reached; `paths` and `numbers` are those of the files, sorted."""

    paths: tuple[str, ...]
    numbers: tuple[int, ...]
    names: dict[Place, int]
    folders: frozenset[int]
    digest: bytes


class FileHistory:
    """The durable content of a file, and what was written to it since."""

    __slots__ = ("_contents", "_digests", "durable", "items", "mask", "stale")

    def __init__(self, durable: bytes) -> None:
        self.durable = durable
        # Each item: its bit, the position and the sector; or its bit, a size and None.
        self.items: list[tuple[int, int, bytes | None]] = []
        self.mask = 0
        # What the disk held before, where this file grows.
        self.stale = b""
        self._digests: dict[Memo, bytes] = {}
        self._contents: dict[Memo, bytes] = {}

    def add(self, bit: int, place: int, sector: bytes | None) -> None:
        self.items.append((bit, place, sector))
        self.mask |= bit

    def digest(self, mask: int, variant: Variant, horizon: int) -> bytes:
        """Returns 16 bytes that stand for `content` of the same arguments."""
        memo = self._memo(mask, variant, horizon)
        found = self._digests.get(memo)
        if found is None:
            content = self.content(mask, variant, horizon)
            found = self._digests[memo] = blake2b(content, digest_size=16).digest()
        return found

    def content(self, mask: int, variant: Variant, horizon: int) -> bytes:
        """Builds the file of which only the items in `mask` came, out of those below `horizon`."""
        memo = self._memo(mask, variant, horizon)
        if not memo[0]:
            return self.durable
        found = self._contents.get(memo)
        if found is None:
            found = self._build(memo[0], variant, horizon)
            # Most states of a point share all but one of their files.
            if len(found) <= CONTENT_SIZE_KEPT_MAX:
                if len(self._contents) >= CONTENTS_KEPT_MAX:
                    self._contents.clear()
                self._contents[memo] = found
        return found

    def _memo(self, mask: int, variant: Variant, horizon: int) -> Memo:
        chosen = mask & self.mask
        if not chosen:
            return 0, "", 0
        return chosen, variant, horizon if variant == " with garbage" else 0

    def _build(self, chosen: int, variant: Variant, horizon: int) -> bytes:
        last_size = last_data = 0
        for bit, _, sector in self.items:
            if bit & chosen and sector is None:
                last_size = bit
            elif bit & chosen:
                last_data = bit
        buffer = bytearray(self.durable)
        size = len(buffer)
        came: set[int] = set()
        for bit, place, sector in self.items:
            if sector is None:
                # A size that came brings the cuts before it: they are changes of one field.
                if bit <= last_size:
                    del buffer[place:]
                    size = place
            elif bit & chosen:
                torn = variant == " torn" and bit == last_data
                end = 1 + bit.bit_length() * 197 % (SECTOR_SIZE - 1) if torn else SECTOR_SIZE
                _put(buffer, place, sector[:end])
                came.add(place)
            elif variant == " with garbage" and bit < horizon and place not in came:
                start = max(place, len(self.durable))
                _put(buffer, start, self._garbage(start, place + SECTOR_SIZE))
        del buffer[size:]
        buffer.extend(bytes(size - len(buffer)))
        return bytes(buffer)

    def _garbage(self, start: int, end: int) -> bytes:
        old = self.stale[start:end]
        return old + b"\xa5" * (end - start - len(old))

    def settled(self, *, failed: bool = False) -> FileHistory:
        """Returns the history after a sync."""
        if not failed:
            return FileHistory(self.content(self.mask, "", 0))
        history = FileHistory(self.durable)
        history.stale = self.stale
        for bit, place, sector in self.items:
            if sector is None:
                history.add(bit, place, sector)
        return history


def _put(buffer: bytearray, position: int, data: bytes) -> None:
    if len(buffer) < position:
        buffer.extend(bytes(position - len(buffer)))
    buffer[position : position + len(data)] = data


class NameHistory:
    """The durable names, and what was done to names since."""

    __slots__ = ("_trees", "durable", "items", "latest", "mask")

    def __init__(self, durable: dict[Place, int]) -> None:
        self.durable = durable
        # Each item: its bit, the bits without which it cannot come, and the changes.
        self.items: list[tuple[int, int, tuple[Change, ...]]] = []
        self.latest: dict[Place, int] = {}
        self.mask = 0
        self._trees: dict[int, Tree] = {}

    def add(self, bit: int, changes: tuple[Change, ...]) -> None:
        needs = bit
        for place, _ in changes:
            needs |= self.latest.get(place, 0)
        for place, _ in changes:
            self.latest[place] = needs
        self.items.append((bit, needs, changes))
        self.mask |= bit

    def settled(self, folder: int, name: str | None) -> NameHistory:
        """Returns the history after a sync of a directory, or of one name in it."""
        mask = 0
        for bit, _, changes in self.items:
            for place, _ in changes:
                if place[0] == folder and name in (None, place[1]):
                    mask |= bit
        mask = self._closed(mask)
        history = NameHistory(self._apply(mask))
        for bit, _, changes in self.items:
            if not bit & mask:
                history.add(bit, changes)
        return history

    def tree(self, mask: int, folders: Iterable[int]) -> Tree:
        """Returns the names that are there if only the items in `mask` came, and what they need."""
        closed = self._closed(mask & self.mask)
        tree = self._trees.get(closed)
        if tree is None:
            tree = self._trees[closed] = build_tree(self._apply(closed), folders)
        return tree

    def _closed(self, mask: int) -> int:
        closed = 0
        for bit, needs, _ in self.items:
            if bit & mask:
                closed |= needs
        return closed & self.mask

    def _apply(self, mask: int) -> dict[Place, int]:
        names = dict(self.durable)
        for bit, _, changes in self.items:
            if bit & mask:
                for place, number in changes:
                    if number is None:
                        names.pop(place, None)
                    else:
                        names[place] = number
        return names


def build_tree(names: dict[Place, int], folders: Iterable[int]) -> Tree:
    """Finds the names that can be reached from the root."""
    children: dict[int, list[tuple[str, int]]] = {folder: [] for folder in folders}
    for (folder, name), number in names.items():
        children[folder].append((name, number))
    reached: dict[Place, int] = {}
    files: list[tuple[str, int]] = []
    paths = {ROOT: ""}
    waiting = [ROOT]
    for folder in waiting:
        for name, number in children[folder]:
            reached[folder, name] = number
            path = f"{paths[folder]}/{name}"
            if number in children:
                paths[number] = path
                waiting.append(number)
            else:
                files.append((path, number))
    files.sort()
    text = repr((sorted(paths.values()), [path for path, _ in files]))
    return Tree(
        tuple(path for path, _ in files),
        tuple(number for _, number in files),
        reached,
        frozenset(waiting),
        blake2b(text.encode(), digest_size=16).digest(),
    )


class Disk:
    """A disk in the middle of its log."""

    def __init__(self, image: Image, seed: int) -> None:
        self._random = Random(seed)
        self.names = NameHistory(image.names)
        self.files = {number: FileHistory(content) for number, content in image.files.items()}
        self.folders = set(image.folders)
        self.acknowledged = 0
        # Stands for everything acknowledged so far.
        self.promises = b""
        self.horizon = 1

    def apply(self, entry: Entry) -> bool:
        """Does what the log says; true if a choice made before would now mean something else."""
        match entry:
            case Wrote(number, size, position, image):
                file = self._file(number)
                if size is not None:
                    file.add(self._next_bit(), size, None)
                for start in range(0, len(image), SECTOR_SIZE):
                    sector = image[start : start + SECTOR_SIZE].ljust(SECTOR_SIZE, b"\0")
                    file.add(self._next_bit(), position + start, sector)
                return False
            case Resized(number, size):
                self._file(number).add(self._next_bit(), size, None)
                return False
            case Named(changes, folder):
                if folder is not None:
                    self.folders.add(folder)
                for _, child in changes:
                    if child is not None and child not in self.folders:
                        self.files.setdefault(child, FileHistory(b""))
                self.names.add(self._next_bit(), changes)
                return False
            case Synced(number):
                self.files[number] = self.files[number].settled()
            case SyncFailed(number):
                self.files[number] = self.files[number].settled(failed=True)
            case Replaced(number, content):
                self.files[number] = FileHistory(content)
            case NamesSynced(folder, name):
                self.names = self.names.settled(folder, name)
            case Acknowledged(value):
                self.acknowledged += 1
                self.promises = blake2b(self.promises + repr(value).encode()).digest()
        return True

    def _file(self, number: int) -> FileHistory:
        """Returns a file to change; where it grows, the disk may hold old bytes of another."""
        file = self.files[number]
        if not file.items:
            others = [old for old in self.files.values() if old is not file and old.durable]
            file.stale = self._random.choice(others).durable if others else b""
        return file

    def _next_bit(self) -> int:
        bit = self.horizon
        self.horizon <<= 1
        return bit

    def pending(self) -> list[int]:
        """Lists the bits of what is not durable, in the order in which it was done."""
        bits = [bit for bit, _, _ in self.names.items]
        for file in self.files.values():
            bits.extend(bit for bit, _, _ in file.items)
        return sorted(bits)

    def data_mask(self) -> int:
        """Returns the bits of the pending data, without sizes and names."""
        items = (item for file in self.files.values() for item in file.items)
        return sum(bit for bit, _, sector in items if sector is not None)
