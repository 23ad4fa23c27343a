"""Turns the paths that a user gives into queue directories, absolute and sorted.

Spark plans in one process and reads in others, even on other machines: only an absolute path means
the same in all of them. A relative path is resolved against the directory in which the driver's JVM
runs, as Spark does for files.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from forebay.errors import InvalidOption, NotAQueue


def absolute(path: str) -> str:
    """Returns the absolute form of a path or a `file:` URL, without touching the disk."""
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = unquote(parts.path)
    elif "://" in path:
        raise InvalidOption(f"path = {path!r}: must be a directory that every executor can see")
    return os.path.abspath(path)


def is_pattern(path: str) -> bool:
    """Returns whether a path is a pattern."""
    return glob.has_magic(path)


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
        if is_pattern(path):
            matches = glob.glob(path, recursive=True)
            found.update(match.rstrip("/") for match in matches if os.path.isdir(match))
        elif os.path.isdir(path):
            found.add(path)
        else:
            state = "is not a directory" if os.path.exists(path) else "does not exist"
            raise NotAQueue(f"path = {path!r} {state}")
    return sorted(found)
