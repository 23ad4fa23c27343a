"""The names in the directory of a fifo, which tell it from other kinds."""

from __future__ import annotations

from forebay.errors import NotAQueue
from forebay.formats.entry import parse_file_name
from forebay.storage import atomic, losses, quarantine
from forebay.storage.filesystem import Directory
from forebay.storage.staging import NAME as STAGING

HEAD = "fifo-head"
TAIL = "fifo-tail"
BOUNDS = "fifo-bounds"
COPY = "fifo-copy"
# What only a fifo has.
MARKS = {HEAD, TAIL, BOUNDS, COPY}
OWN_NAMES = {*MARKS, STAGING, atomic.RESERVE, losses.NAME}
OWN_DIRECTORIES = {quarantine.DIRECTORY}


def is_fifo(names: list[str]) -> bool:
    """Says whether the names in a directory are those of a fifo."""
    return any(name in MARKS or parse_file_name(name) is not None for name in names)


def list_files(directory: Directory) -> list[int]:
    """Returns the numbers of the tape's files, in order."""
    numbers = (parse_file_name(name) for name in directory.names())
    return sorted(number for number in numbers if number is not None)


def is_temporary(name: str) -> bool:
    """Says whether a file was just being written when its writer stopped."""
    stem = name.removesuffix(atomic.TEMPORARY)
    return stem != name and (stem in OWN_NAMES or parse_file_name(stem) is not None)


def refuse_foreign(directory: Directory, names: list[str]) -> None:
    """Refuses a directory that holds something, and nothing of a fifo."""
    others = [name for name in names if not is_temporary(name)]
    allowed = OWN_NAMES | OWN_DIRECTORIES
    if is_fifo(names) or all(name in allowed - MARKS for name in others):
        return
    example = min(name for name in others if name not in allowed)
    raise NotAQueue(
        f"{directory.path} is not a fifo: it holds {example!r}; give an empty or a new directory"
    )
