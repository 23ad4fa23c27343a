"""What can be told of a fifo from outside: state, files, what is after its end.

Only reads, takes no lock, and works on a queue that is in use, was killed, or is damaged.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from forebay import FifoReader
from forebay.damage import Damage
from forebay.formats.entry import file_name
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.head import read_head
from forebay.queues.fifo.names import list_files
from forebay.queues.fifo.tape import open_or_reason

# What state a fifo is in, in a word, and what that means.
STATES = {
    "open": "open",
    "closed": "closed",
    "crashed": "was not closed; the next open recovers it",
    "head-damaged": "its head file is lost; what is there comes again, popped or not",
    "tail-damaged": "its tail file is lost; the next open makes a new one",
}


@dataclass(frozen=True, slots=True)
class TapeFile:
    """One file of the tape; `known`: it is noted where in it the first entry begins.

    `position` and `number` are of that entry; None if none begins there, or it is not known.
    """

    number: int
    name: str
    size: int
    size_expected: int
    # What it takes of the disk.
    disk_bytes: int
    known: bool
    first_position: int | None
    first_number: int | None

    @property
    def trouble(self) -> str | None:
        """Says what is wrong with the file, as far as its size tells."""
        if self.size == self.size_expected:
            return None
        return f"the file has {self.size} bytes, not {self.size_expected}"


def state_of(reader: FifoReader, owner: int | None) -> str:
    """Says whether a fifo is in use, closed, or left by a crash: a key of `STATES`."""
    if owner is not None:
        return "open"
    if read_head(reader.directory) is None:
        return "head-damaged"
    if reader.tail is None:
        return "tail-damaged"
    return "closed" if reader.tail.clean else "crashed"


def tape_files(reader: FifoReader) -> list[TapeFile]:
    """Describes the files of the tape, in order."""
    bounds = Bounds(reader.directory, reader.head.version)
    expected = reader.head.file_bytes
    files = []
    for number in list_files(reader.directory):
        name = file_name(number)
        try:
            status = os.stat(os.path.join(reader.path, name), follow_symlinks=False)
        except FileNotFoundError:
            # Its owner has just removed it.
            continue
        row = bounds.get(number)
        first = None if row is None or row.position >= expected else row
        files.append(
            TapeFile(
                number,
                name,
                status.st_size,
                expected,
                status.st_blocks * 512,
                row is not None,
                None if first is None else first.position,
                None if first is None else first.number,
            )
        )
    return files


def size_of(reader: FifoReader, name: str) -> int:
    """Returns the size of a side file; 0 if there is none."""
    try:
        return os.stat(os.path.join(reader.path, name), follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def is_being_made(reader: FifoReader, file: TapeFile) -> bool:
    """Says whether a file of the wrong size is only not finished: nothing stored is missing."""
    tail = reader.tail
    if tail is None or tail.clean:
        return False
    return (file.number, file.size) >= (tail.segment, tail.position)


def end_damage(reader: FifoReader, owner: int | None) -> Damage | None:
    """Says what is after the last entry, if there is anything: an unfinished write, mostly.

    Of a queue that is in use nothing can be said: its owner may be writing there now.
    """
    if owner is not None or (reader.tail is not None and reader.tail.clean):
        return None
    file_bytes = reader.head.file_bytes
    first: tuple[str, int] | None = None
    begin = end = 0
    for number in list_files(reader.directory):
        start = max(0, reader.stored.position - number * file_bytes)
        rest = _rest(reader, number, start) if start < file_bytes else b""
        if not rest:
            continue
        if first is None:
            first = (f"{reader.path}/{file_name(number)}", start)
            begin = number * file_bytes + start
        end = number * file_bytes + start + len(rest)
    if first is None:
        return None
    return Damage(*first, end - begin, "after the last entry", True, reader.end, 0)


def _rest(reader: FifoReader, number: int, start: int) -> bytes:
    file = open_or_reason(reader.directory, file_name(number))
    if isinstance(file, str):
        return b""
    try:
        return file.pread(reader.head.file_bytes - start, start).rstrip(b"\0")
    finally:
        file.close()
