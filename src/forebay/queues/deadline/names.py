"""The names in the directory of a deadline queue, which tell it from other kinds."""

from __future__ import annotations

from forebay.errors import NotAQueue
from forebay.formats.deadline.items import FileKind, file_name, parse_file_name
from forebay.formats.deadline.manifest import FILE_BITS
from forebay.formats.deadline.manifest import NAME as MANIFEST
from forebay.formats.deadline.mark import NAME as MARK
from forebay.storage import atomic, inbox, losses, quarantine, staging
from forebay.storage.filesystem import Directory

# While a directory of the original program is taken over.
TAKEOVER = "takeover"
OWN_NAMES = {TAKEOVER, MANIFEST, MARK, atomic.RESERVE, inbox.LEDGER, losses.NAME, staging.NAME}
OWN_DIRECTORIES = {quarantine.DIRECTORY, inbox.DIRECTORY}
_OWN_KINDS = {FileKind.WAL, *FILE_BITS}
# What the original program never wrote.
_OURS = {*_OWN_KINDS, FileKind.COMBINED_RUN}


def is_deadline_queue(names: list[str]) -> bool:
    """Says whether the names in a directory are those of a deadline queue."""
    return any(name in (MANIFEST, MARK) or _parse(name) is not None for name in names)


def list_files(names: list[str]) -> list[tuple[int, FileKind]]:
    """Returns number and kind of the logs and runs of a queue, sorted."""
    return sorted(found for found in map(_parse, names) if found is not None)


def file_names(names: list[str]) -> list[str]:
    """Returns the logs and runs of a queue among names."""
    return [name for name in names if _parse(name) is not None]


def wal_name(number: int) -> str:
    """Returns the name of a log."""
    return file_name(number, FileKind.WAL)


def original_names(names: list[str]) -> list[str]:
    """Returns the files of the original program among names, the oldest first."""
    parsed = [(parse_file_name(name), name) for name in names]
    known = [(key, name) for key, name in parsed if key is not None and key[1] not in _OURS]
    return [name for _, name in sorted(known)]


def is_temporary(name: str) -> bool:
    """Says whether a file was just being written when its writer stopped."""
    stem = name.removesuffix(atomic.TEMPORARY)
    return stem != name and (stem in OWN_NAMES or _parse(stem) is not None)


def refuse_foreign(directory: Directory, names: list[str]) -> None:
    """Refuses a directory that holds something, and nothing of a deadline queue."""
    others = [name for name in names if not is_temporary(name)]
    allowed = OWN_NAMES | OWN_DIRECTORIES
    if is_deadline_queue(names) or all(name in allowed for name in others):
        return
    example = min(name for name in others if name not in allowed)
    raise NotAQueue(
        f"{directory.path} is not a deadline queue: it holds {example!r}; "
        "give an empty or a new directory"
    )


def _parse(name: str) -> tuple[int, FileKind] | None:
    found = parse_file_name(name)
    return found if found is not None and found[1] in _OWN_KINDS else None
