"""Starts, hears and kills the owner of `owner.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.queues.helpers import wait_until
from tests.sources import ROOT


class Owner:
    """A process that owns a queue; `acknowledged` are the records that it is sure of."""

    def __init__(self, path: Path, first: int = 0, window: str = "") -> None:
        self.acknowledged: list[bytes] = []
        self._words: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.owner", str(path), str(first), window],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            cwd=ROOT,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def has_said(self, word: str) -> bool:
        """Says whether a line came that begins with a word."""
        return word in self._words

    def wait_for(self, word: str) -> bool:
        """Waits for a line that begins with a word; says whether it came."""
        return wait_until(lambda: self.has_said(word))

    def kill(self) -> None:
        """Kills it with SIGKILL and waits for its end."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("own"):
                self.acknowledged.append(line.rstrip("\n").encode())
            self._words.add(line.split()[0])
