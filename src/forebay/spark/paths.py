"""Turns the paths that a user gives into queue directories, absolute and sorted.

Spark plans in one process and reads in others, even on other machines: only an absolute path means
the same in all of them. A relative path is resolved against the directory in which the driver's JVM
runs, as Spark does for files.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote, urlsplit, urlunsplit

from forebay.errors import InvalidOption, NotAQueue
from forebay.storage.objects import is_address, joined, open_folder

# The innermost alternatives of a path: `{a,b}`.
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def alternatives(path: str) -> Iterator[str]:
    """Yields the paths that `{a,b}` in a path means, as in Spark's own file sources."""
    found = _BRACES.search(path)
    if found is None:
        yield path
        return
    for one in found[1].split(","):
        yield from alternatives(path[: found.start()] + one + path[found.end() :])


def absolute(path: str) -> str:
    """Returns the absolute form of a path or a `file:` URL, without touching the disk."""
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = unquote(parts.path)
    elif is_address(path):
        return joined(path)
    elif "://" in path:
        raise InvalidOption(f"path = {path!r}: must be a directory that every executor can see")
    return os.path.abspath(path)


def directory(path: str) -> str:
    """Returns the absolute form of what must be a directory: an address is refused."""
    if is_address(path):
        raise InvalidOption(f"path = {path!r}: must be a directory that every executor can see")
    return absolute(path)


def is_pattern(path: str) -> bool:
    """Returns whether a path is a pattern."""
    return glob.has_magic(urlsplit(path).path if is_address(path) else path)


def matches(path: str, pattern: str) -> bool:
    """Returns whether a pattern means a path that need not exist; a path means itself."""
    return path == pattern or _parts_match(path.split("/"), pattern.split("/"))


def _parts_match(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns or not names:
        return not names and all(pattern == "**" for pattern in patterns)
    if patterns[0] == "**" and _parts_match(names, patterns[1:]):
        return True
    if not fnmatch.fnmatchcase(names[0], patterns[0]):
        return False
    return _parts_match(names[1:], patterns if patterns[0] == "**" else patterns[1:])


def find(paths: Iterable[str]) -> list[str]:
    """Returns the existing directories among those that absolute paths and patterns name."""
    found: set[str] = set()
    for path in paths:
        with contextlib.suppress(NotAQueue):
            found.update(expand([path]))
    return sorted(found)


def expand(paths: Iterable[str]) -> list[str]:
    """Returns the directories that absolute paths name, each once.

    A path that is not a pattern must exist; a pattern means the directories that match it now.
    """
    found: set[str] = set()
    for path in paths:
        if is_address(path):
            found.update(_archives(path))
        elif is_pattern(path):
            matches = glob.glob(path, recursive=True)
            found.update(match.rstrip("/") for match in matches if os.path.isdir(match))
        elif os.path.isdir(path):
            found.add(path)
        else:
            state = "is not a directory" if os.path.exists(path) else "does not exist"
            raise NotAQueue(f"path = {path!r} {state}")
    return sorted(found)


def _archives(address: str) -> Iterator[str]:
    """Yields the addresses that one means: a pattern, the folders that match it now.

    Folders are listed down to the name of the queue; what is below is not.
    """
    if not is_pattern(address):
        yield address
        return
    parts = urlsplit(address)
    names = parts.path.strip("/").split("/")
    plain = next(number for number, name in enumerate(names) if glob.has_magic(name))
    root = urlunsplit((parts.scheme, parts.netloc, "", parts.query, ""))
    yield from _matching(joined(root, *names[:plain]), names[plain:])


def _matching(address: str, names: Sequence[str]) -> Iterator[str]:
    if not names:
        yield address
        return
    if not glob.has_magic(names[0]):
        yield from _matching(joined(address, names[0]), names[1:])
        return
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError), contextlib.closing(open_folder(address)) as folder:
        found = folder.folders()
    for name in fnmatch.filter(found, names[0]):
        yield from _matching(joined(address, name), names[1:])
