"""A machine whose clock and chance are the same at every run, so that the same bytes are hit."""

from __future__ import annotations

import random
from pathlib import Path

from forebay.storage.filesystem import DiskFilesystem

START_MS = 1_790_000_000_000


class SteadyMachine(DiskFilesystem):
    """The disk of this machine, with chance from a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


def files_of(path: Path) -> list[str]:
    """Lists the files below a directory by their path in it, in order."""
    return sorted(str(item.relative_to(path)) for item in path.rglob("*") if item.is_file())
