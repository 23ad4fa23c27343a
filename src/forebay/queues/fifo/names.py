"""The names in the directory of a fifo."""

from __future__ import annotations

from forebay.formats.entry import parse_file_name
from forebay.queues.shared.names import FIFO
from forebay.storage.filesystem import Directory

HEAD = "fifo-head"
TAIL = "fifo-tail"
BOUNDS = "fifo-bounds"
COPY = "fifo-copy"
OWN_NAMES = FIFO.own_files
OWN_DIRECTORIES = FIFO.directories

is_fifo = FIFO.fit
is_temporary = FIFO.is_temporary
refuse_foreign = FIFO.refuse_foreign


def list_files(directory: Directory) -> list[int]:
    """Returns the numbers of the tape's files, in order."""
    numbers = (parse_file_name(name) for name in directory.names())
    return sorted(number for number in numbers if number is not None)
