"""The memory between the handles and the disk: what everybody sees until the power is cut.

Owns the content that the running programs see, the log of what was done to it, the faults that are
planned and the space that is left. Whoever calls it holds `mutex`.
"""

from __future__ import annotations

import errno
import functools
import os
import threading

from forebay.storage.filesystem import Buffer
from tests.crash.disk import ROOT, SECTOR_SIZE, Entry, Image, Named, Place, Resized, Wrote


def os_error(number: int, path: str) -> OSError:
    """Makes the error that the system would give."""
    return OSError(number, _text_of(number), path)


@functools.cache
def _text_of(number: int) -> str:
    """Asks the system once: whoever opens a queue looks for many files that are not there."""
    return os.strerror(number)


class Node:
    """A file: what the page cache holds of it, and who uses it."""

    __slots__ = ("content", "handles", "linked", "mappings", "number", "owner")

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
        # Shared with the disk until the first write: most files of a crash state are only read.
        self.content: bytes | bytearray = content
        self.mappings: list[bytearray] = []
        self.handles = 0
        self.linked = True
        self.owner: object = None

    def own(self) -> bytearray:
        """Returns the content for writing."""
        if isinstance(self.content, bytes):
            self.content = bytearray(self.content)
        return self.content

    def show(self, start: int, end: int, origin: bytearray | None = None) -> None:
        """Puts what was written between `start` and `end` into the mappings.

        Not into `origin`, from which it came: another thread may have stored more there meanwhile.
        """
        for mapping in self.mappings:
            stop = min(end, len(mapping), len(self.content))
            if start < stop and mapping is not origin:
                mapping[start:stop] = self.content[start:stop]

    def cut(self, size: int) -> None:
        """Drops what is behind `size`; a mapping then shows zeros there."""
        del self.own()[size:]
        for mapping in self.mappings:
            mapping[size:] = bytes(max(0, len(mapping) - size))


class Folder:
    """A directory."""

    __slots__ = ("entries", "number", "owner")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, Node | Folder] = {}
        self.owner: object = None


class Faults:
    """Counts the calls that can fail, and lets the planned one fail."""

    __slots__ = ("_fault", "calls", "hits", "writes")

    def __init__(self) -> None:
        self.calls = 0
        self.writes = 0
        self.hits = 0
        self._fault: tuple[int, int | None, bool] | None = None

    def plan(self, call: int, error: int | None, *, forever: bool) -> None:
        if call < 1:
            raise ValueError(f"call is {call}; the next call is 1")
        count = self.writes if error is None else self.calls
        self._fault = (count + call, error, forever)

    def heal(self) -> None:
        self._fault = None

    def check(self, kind: str, path: str, name: str) -> bool:
        """Counts a call and raises what is due; true says that this write has to be short."""
        self.calls += 1
        if kind == "pwrite":
            self.writes += 1
        if self._fault is None:
            return False
        path = f"{path}/{name}" if name else path
        target, error, forever = self._fault
        if error is None:
            return self._check_short(kind, path, target, forever)
        if self.calls < target:
            return False
        self._hit(forever)
        raise os_error(error, path)

    def _check_short(self, kind: str, path: str, target: int, forever: bool) -> bool:
        if kind == "pwrite" and self.writes == target:
            self._hit(forever)
            return True
        if kind in ("pwrite", "allocate") and self.writes >= target:
            self._hit(forever)
            raise os_error(errno.ENOSPC, path)
        return False

    def _hit(self, forever: bool) -> None:
        self.hits += 1
        if not forever:
            self._fault = None


class PageCache:
    """All files and directories of a machine, as its programs see them."""

    def __init__(self, image: Image) -> None:
        self.mutex = threading.RLock()
        self.faults = Faults()
        self.capacity_bytes: int | None = None
        # The paths of all files and directories that are open, one for each handle.
        self.open_handles: list[str] = []
        # Whether stores into mapped files are safe here, as the directories say.
        self.maps = True
        self.base = image
        self.log: list[Entry] = []
        self._mapped: list[Node] = []
        self._nodes = {number: Node(number, content) for number, content in image.files.items()}
        folders = {number: Folder(number) for number in image.folders}
        for (parent, name), number in image.names.items():
            folders[parent].entries[name] = folders.get(number) or self._nodes[number]
        self.root = folders[ROOT]
        self.next_number = 1 + max((*self._nodes, *folders))

    def image(self) -> Image:
        """Returns the content that can be reached."""
        names: dict[Place, int] = {}
        files: dict[int, bytes] = {}
        folders = [self.root]
        for folder in folders:
            for name, child in folder.entries.items():
                names[folder.number, name] = child.number
                if isinstance(child, Folder):
                    folders.append(child)
                else:
                    files[child.number] = bytes(child.content)
        return Image(names, frozenset(folder.number for folder in folders), files)

    def files(self) -> dict[str, bytes]:
        """Returns the content that can be reached, by path."""
        files: dict[str, bytes] = {}
        folders = [("", self.root)]
        for path, folder in folders:
            for name, child in folder.entries.items():
                if isinstance(child, Folder):
                    folders.append((f"{path}/{name}", child))
                else:
                    files[f"{path}/{name}"] = bytes(child.content)
        return dict(sorted(files.items()))

    def begin(self, kind: str, path: str, name: str = "") -> bool:
        """Starts a call that can fail, on a file or on a name in a directory.

        True says that this write has to be short.
        """
        if self._mapped:
            self.notice_stores()
        return self.faults.check(kind, path, name)

    def notice_stores(self) -> None:
        """Logs what was stored into mappings since the last call, sector by sector."""
        for node in self._mapped:
            for mapping in node.mappings:
                size = min(len(mapping), len(node.content))
                if node.content.startswith(mapping if size == len(mapping) else mapping[:size]):
                    continue
                for start in range(0, size, SECTOR_SIZE):
                    stored = mapping[start : min(start + SECTOR_SIZE, size)]
                    if stored != node.content[start : start + len(stored)]:
                        self.write(node, stored, start, mapping)

    def write(
        self, node: Node, data: Buffer, position: int, origin: bytearray | None = None
    ) -> None:
        """Writes all of `data`; `origin` is the mapping into which it was stored, if it was."""
        content = node.own()
        size = len(content)
        end = position + len(data)
        if position > size:
            content.extend(bytes(position - size))
        content[position:end] = data
        start = position - position % SECTOR_SIZE
        image = bytes(content[start : -(-end // SECTOR_SIZE) * SECTOR_SIZE])
        self.log.append(Wrote(node.number, end if end > size else None, start, image))
        node.show(position, end, origin)

    def resize(self, node: Node, size: int) -> None:
        """Cuts, or extends with zeros; the rest of the last sector is zeros either way."""
        content = node.own()
        if size == len(content):
            return
        node.cut(size)
        content.extend(bytes(size - len(content)))
        self.log.append(Resized(node.number, size))

    def room(self, node: Node, size: int) -> int:
        """Returns the size, up to `size`, to which a file can grow."""
        if self.capacity_bytes is None:
            return size
        free = self.capacity_bytes - sum(len(other.content) for other in self._nodes.values())
        return max(len(node.content), min(size, len(node.content) + free))

    def make_node(self, folder: Folder, name: str) -> Node:
        """Makes an empty file; its name is pending."""
        node = Node(self._take_number(), b"")
        self._nodes[node.number] = node
        folder.entries[name] = node
        self.log.append(Named((((folder.number, name), node.number),)))
        return node

    def make_folder(self, folder: Folder, name: str) -> Folder:
        """Makes an empty directory; its name is pending."""
        child = Folder(self._take_number())
        folder.entries[name] = child
        self.log.append(Named((((folder.number, name), child.number),), child.number))
        return child

    def _take_number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def map(self, node: Node, size: int) -> bytearray:
        """Returns a copy of the first bytes that is kept equal to the file from now on."""
        mapping = bytearray(node.content[:size])
        if not node.mappings:
            self._mapped.append(node)
        node.mappings.append(mapping)
        return mapping

    def forget(self, node: Node) -> None:
        """Frees the space of a file that has neither a name nor a handle."""
        if not node.linked and not node.handles:
            self._nodes.pop(node.number, None)
