"""`quarantine/`: bytes that recovery took out of a queue, kept and counted, never deleted."""

from __future__ import annotations

import contextlib

from forebay.errors import NotAQueue
from forebay.storage.atomic import read_small, replace
from forebay.storage.filesystem import Directory

DIRECTORY = "quarantine"


def keep_bytes(queue: Directory, name: str, data: bytes) -> None:
    """Keeps bytes that are about to be cut; durable on return. The same bytes are kept once."""
    directory = _open(queue)
    try:
        replace(directory, _free_name(directory, name, data), data)
    finally:
        directory.close()


def keep_rest(queue: Directory, name: str, position: int, data: bytes) -> int:
    """Keeps what is at a position of a file, without the zeros at its end; returns its size."""
    rest = data.rstrip(b"\0")
    if rest:
        keep_bytes(queue, f"{name}-{position}", rest)
    return len(rest)


def keep_file(queue: Directory, name: str, source: Directory | None = None) -> None:
    """Moves a file out of the queue, or out of `source` in it; durable on return."""
    directory = _open(queue)
    try:
        (source or queue).rename(name, _free_name(directory, name, None), into=directory)
        # One sync covers both directories: a rename is durable as a whole or not at all.
        directory.sync()
    finally:
        directory.close()


def remove(queue: Directory, name: str) -> None:
    """Removes a file of the queue, if it is there; a directory in its place is kept."""
    try:
        queue.unlink(name)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        keep_file(queue, name)


def replace_anything(queue: Directory, name: str, data: bytes) -> None:
    """Replaces a file of the queue whole; a directory of that name is moved out of the queue."""
    try:
        replace(queue, name, data)
    except IsADirectoryError:
        keep_file(queue, name)
        replace(queue, name, data)


def count_kept(queue: Directory) -> tuple[int, int]:
    """Returns how many files there are, and how many bytes they hold."""
    try:
        directory = queue.directory(DIRECTORY)
    except FileNotFoundError:
        return 0, 0
    try:
        names = directory.names()
        total = 0
        for name in names:
            # Skips a link or a directory that had the name of a file, and a file of mode 000.
            with contextlib.suppress(OSError, NotAQueue):
                file = directory.open(name)
                total += file.size()
                file.close()
        return len(names), total
    finally:
        directory.close()


def _free_name(directory: Directory, name: str, data: bytes | None) -> str:
    """Returns a free name; a repeated recovery finds its own bytes."""
    names = set(directory.names())
    number = 1
    free = name
    while free in names and (data is None or _content(directory, free) != data):
        number += 1
        free = f"{name}.{number}"
    return free


def _content(directory: Directory, name: str) -> bytes | None:
    try:
        return read_small(directory, name)
    except (OSError, NotAQueue):
        return None


def _open(queue: Directory) -> Directory:
    directory = queue.directory(DIRECTORY, create=True)
    queue.sync()
    return directory
