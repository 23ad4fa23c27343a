"""A queue that grows and is trimmed in the background, while a test does something else."""

from __future__ import annotations

import threading
from pathlib import Path

import forebay
from tests.queues.helpers import SEGMENT_BYTES
from tests.support.values import numbered

_COUNT = 20


class Appending:
    """Appends until it is left; `values` are all that was appended."""

    def __init__(self, path: Path, pause_seconds: float) -> None:
        self.values: list[bytes] = []
        self._pause_seconds = pause_seconds
        self._log = forebay.Log(path, segment_bytes=SEGMENT_BYTES, trim_interval_seconds=0.5)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._append)

    def __enter__(self) -> Appending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._log.close()

    def _append(self) -> None:
        while not self._stopping.wait(self._pause_seconds):
            more = numbered(_COUNT, first=len(self.values))
            self._log.append_many(more)
            self.values += more
