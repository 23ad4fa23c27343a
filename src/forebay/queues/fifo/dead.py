"""`dead/`: entries of a fifo that came back too often and were put aside. Source of truth for them.

Each entry is a file in the entry format, durable before the head of the queue releases the entry.
After a crash in between, the entry is put aside again, into the same file. Only the user removes
these files or returns their entries to the queue. A name is the number of the entry and its id in
hex: `5-018bcfe568000005.entry`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.formats.entry import decode_entry, encode_entry, version_at
from forebay.kernels.entry import Entry
from forebay.storage import atomic
from forebay.storage.filesystem import Directory
from forebay.storage.readable import read_whole

DIRECTORY = "dead"
_NAME = re.compile(r"(0|[1-9][0-9]{0,18})-([0-9a-f]{16})\.entry")


def keep(queue: Directory, entry: Entry, version: bytes) -> None:
    """Puts an entry aside; durable on return."""
    with contextlib.closing(queue.directory(DIRECTORY, create=True)) as directory:
        queue.sync()
        atomic.replace(directory, _name(entry), encode_entry(entry, version))


def count(queue: Directory) -> int:
    """Returns how many entries were put aside."""
    return len(_names(queue))


def read(queue: Directory) -> Generator[Entry | Damage, None, None]:
    """Yields the entries that were put aside, oldest first, and each damage."""
    names = _names(queue)
    if not names:
        return
    with contextlib.closing(queue.directory(DIRECTORY)) as directory:
        for offset, name in names:
            path = f"{queue.path}/{DIRECTORY}/{name}"
            try:
                data = read_whole(directory, name) or b""
                yield decode_entry(data, 0, offset, path, version_at(data, 0) or b"")[0]
            except Damaged as error:
                yield error.damage


def remove(queue: Directory, entry: Entry) -> None:
    """Removes an entry that is in the queue again; durable on return."""
    with contextlib.closing(queue.directory(DIRECTORY)) as directory:
        directory.unlink(_name(entry))
        directory.sync()


def _name(entry: Entry) -> str:
    return f"{entry.offset}-{entry.id:016x}.entry"


def _names(queue: Directory) -> list[tuple[int, str]]:
    """Returns the numbers and names of the files, in order."""
    try:
        directory = queue.directory(DIRECTORY)
    except (FileNotFoundError, NotAQueue):
        return []
    with contextlib.closing(directory):
        found = [_NAME.fullmatch(name) for name in directory.names()]
        return sorted((int(match[1]), match[0]) for match in found if match is not None)
