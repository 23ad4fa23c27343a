"""Starts and kills the processes of these tests: drivers, producers and owners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from tests.queues.helpers import wait_until
from tests.sources import ROOT


def end_with_parent() -> None:
    """Ends this process when the test that started it is gone, whatever ended that."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Process:
    """A program of this directory; all that it starts is killed with it."""

    def __init__(self, program: str, *arguments: object, output: Path) -> None:
        self._output: IO[bytes] = output.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.spark.once.{program}", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            cwd=ROOT,
            # A group of its own, with the Java that a driver starts.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kills it, and its group, with SIGKILL; returns when all that it started has ended.

        Spark's workers have groups of their own: they end when they see that Java is gone.
        """
        os.killpg(self._process.pid, signal.SIGKILL)
        self._end()
        assert wait_until(lambda: not _is_alive(self._process.pid))

    def finish(self, seconds: float = 240.0) -> int:
        """Closes its input, by which it learns that it is to end; gives how it ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(seconds)
        return self._end()

    def _end(self) -> int:
        code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._output.close()
        return code


def _is_alive(session: int) -> bool:
    """Says whether a process of a session has not ended yet."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, found = file.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            # It ended just now.
            continue
        if int(found) == session and state != "Z":
            return True
    return False
