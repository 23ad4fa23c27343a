"""A machine whose power can be cut: its owner writes to a disk that forgets, a stream reads there.

The owner's log is on the forgetful file system of the crash tests. What a reader would see of it is
copied to a real directory, with the machine's boot id: streams read real files. After a power cut
the real directory holds what was left, and goes on from there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.queues.log.queue import Log
from forebay.storage.filesystem import DiskDirectory, DiskFile, DiskFilesystem
from tests.crash.forgetful import CrashState, ForgetfulFilesystem
from tests.queues.helpers import SEGMENT_BYTES, kill

_INSIDE = "/q"
Files = dict[str, bytes]


class Machine:
    """One machine, one queue; `path` is where streams read it."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, seed: int = 1) -> None:
        self.path = path
        self.disk = ForgetfulFilesystem(seed)
        self._boot_id = self.disk.boot_id()
        patch.setattr(DiskFilesystem, "boot_id", lambda _: self._boot_id)
        # The real directory only shows what the forgetful disk has: its syncs would cost time.
        patch.setattr(DiskFile, "sync", lambda _: None)
        patch.setattr(DiskDirectory, "sync", lambda _: None)

    @contextmanager
    def owner(self, **options: Any) -> Iterator[Log]:
        """Opens the log before the power cut; its handle is only dropped."""
        log = Log(
            _INSIDE,
            filesystem=self.disk,
            segment_bytes=SEGMENT_BYTES,
            background=False,
            **options,
        )
        yield log
        kill(log, self.disk)

    def files(self) -> Files:
        """Returns what a process of this machine sees now."""
        return self.disk.files()

    def show(self, files: Files | None = None) -> None:
        """Lets streams see the files as they are now, or as they were once."""
        shutil.rmtree(self.path, ignore_errors=True)
        for name, data in (self.files() if files is None else files).items():
            file = self.path / Path(name).relative_to(_INSIDE)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def crashes(self, since: int, until: int, limit: int) -> Iterator[CrashState]:
        """Returns what a power cut may leave after one of some operations, a few states each."""
        return self.disk.crash_states(since=since, points=lambda point: point <= until, limit=limit)

    def restart(self, files: Files) -> None:
        """Starts the machine again, with what the power cut left."""
        self._boot_id = bytes(byte ^ 0xFF for byte in self.disk.boot_id())
        self.show(files)
