"""Processes that are killed with SIGKILL: forks of this one that write, and programs of their own.

A writer tells what was acknowledged, before it goes on: what it told must be there afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.sources import ROOT, python_path
from tests.support.waiting import wait_until

_NUMBER_BYTES = 8
Tell = Callable[[int], None]


def kill_a_writer(write: Callable[[Tell], None], *, seconds: float = 0.0, told: int = 1) -> int:
    """Lets a child write, and kills it so long after it told so often; returns the last it told.

    A child that has written all it had waits for its end: nothing is closed, nothing is flushed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            write(lambda number: _tell(writing, number))
            signal.pause()
        except BaseException:
            # The parent sees only that it ended.
            traceback.print_exc()
            raise
        finally:
            os._exit(1)
    os.close(writing)
    received = bytearray()
    while len(received) < told * _NUMBER_BYTES:
        data = os.read(reading, told * _NUMBER_BYTES - len(received))
        assert data, "the writer failed"
        received += data
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the writer failed"
    while data := os.read(reading, 1 << 20):
        received += data
    os.close(reading)
    whole = len(received) // _NUMBER_BYTES * _NUMBER_BYTES
    return int.from_bytes(received[whole - _NUMBER_BYTES : whole], "big")


def _tell(pipe: int, number: int) -> None:
    os.write(pipe, number.to_bytes(_NUMBER_BYTES, "big"))


def end_with_parent() -> None:
    """Ends this process when the test that started it is gone, whatever ended that."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Program:
    """A module of the tests that runs by itself; all that it starts is killed with it."""

    def __init__(self, module: str, *arguments: object, output: Path) -> None:
        self.output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": python_path()},
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
        """Kills it, and its group; returns when all that it started has ended.

        Spark's workers have groups of their own: they end when they see that Java is gone.
        """
        os.killpg(self._process.pid, signal.SIGKILL)
        self._end()
        assert wait_until(lambda: not _is_alive(self._process.pid))

    def finish(self, seconds: float = 240.0) -> int:
        """Closes its input, by which it learns that it is to end; returns how it ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(seconds)
        return self._end()

    def wait(self, seconds: float = 600.0) -> int:
        """Waits until it ends by itself; returns how it ended."""
        self._process.wait(seconds)
        return self._end()

    def _end(self) -> int:
        code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
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
