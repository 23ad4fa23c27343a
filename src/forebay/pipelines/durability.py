"""Makes files durable that somebody else wrote: Spark syncs nothing by itself."""

from __future__ import annotations

import contextlib
import os
import uuid


def sync_tree(path: str) -> None:
    """Makes a directory durable with all that is in it; what vanishes meanwhile is passed over."""
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            file = os.path.join(directory, name)
            if not os.path.islink(file):
                with contextlib.suppress(FileNotFoundError):
                    sync(file)
        with contextlib.suppress(FileNotFoundError):
            sync(directory)


def sync(path: str) -> None:
    """Makes the content of a file durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: str, data: bytes) -> None:
    """Writes a new file; its content is durable on return, its name once the directory is."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_link(target: str, path: str, aside: str) -> None:
    """Makes a symbolic link, over one that is there, in one step; durable once its directory is.

    It is made in the directory `aside` first, where nobody minds one that a crash left.
    """
    temporary = os.path.join(aside, uuid.uuid4().hex)
    os.symlink(target, temporary)
    os.rename(temporary, path)
