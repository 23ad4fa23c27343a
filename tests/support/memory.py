"""Where tests put their files: in memory, if the machine has room for it.

Queues sync thousands of times in these tests, and a disk takes milliseconds for each. Whether a
sync reaches a disk no test could see: the forgetful file system of `tests/crash` answers for that,
and the real ones of `tests/filesystems` for the rest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MEMORY = "/dev/shm"
_ROOM_BYTES_MIN = 2 << 30


def folder_in_memory() -> str | None:
    """Returns a directory in memory; None if there is none, or too little room in it."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    room = os.statvfs(_MEMORY)
    return _MEMORY if room.f_bavail * room.f_frsize >= _ROOM_BYTES_MIN else None


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Lends a new directory, in memory if there is room; other users may pass through it."""
    path = Path(tempfile.mkdtemp(prefix=f"forebay-{name}-", dir=folder_in_memory()))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path)
