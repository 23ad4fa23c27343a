"""The names in the directory of a deadline queue."""

from __future__ import annotations

from forebay.formats.deadline.items import FileKind, file_name, parse_file_name
from forebay.formats.deadline.manifest import FILE_BITS
from forebay.queues.shared.names import DEADLINE

# Exists while a directory of the original program is being taken over.
TAKEOVER = "takeover"
OWN_NAMES = DEADLINE.own_files
OWN_DIRECTORIES = DEADLINE.directories
# The kinds of files that the original program never wrote.
_OURS = {FileKind.WAL, FileKind.COMBINED_RUN, *FILE_BITS}

is_deadline_queue = DEADLINE.fit
is_temporary = DEADLINE.is_temporary
refuse_foreign = DEADLINE.refuse_foreign


def list_files(names: list[str]) -> list[tuple[int, FileKind]]:
    """Returns number and kind of the logs and runs of a queue, sorted."""
    found = (parse_file_name(name) for name in file_names(names))
    return sorted(each for each in found if each is not None)


def file_names(names: list[str]) -> list[str]:
    """Returns those names that are logs or runs of a queue."""
    return [name for name in names if DEADLINE.is_data(name)]


def wal_name(number: int) -> str:
    """Returns the name of a log."""
    return file_name(number, FileKind.WAL)


def original_names(names: list[str]) -> list[str]:
    """Returns those names that are files of the original program, the oldest first."""
    parsed = [(parse_file_name(name), name) for name in names]
    known = [(key, name) for key, name in parsed if key is not None and key[1] not in _OURS]
    return [name for _, name in sorted(known)]
