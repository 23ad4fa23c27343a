"""What the tests of storage share: a real directory, opened by the door."""

from __future__ import annotations

from pathlib import Path

from forebay.storage.filesystem import DiskDirectory, DiskFilesystem
from tests.support.closing import closed_at_end


def open_directory(path: Path) -> DiskDirectory:
    """Opens a directory of the real disk, made if it is missing; closed at the end of the test."""
    return closed_at_end(DiskFilesystem().open_directory(str(path / "d"), create=True))
