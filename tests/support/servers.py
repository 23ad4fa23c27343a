"""Servers that tests of shared queues start: each is ended after its test, by its pid."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.client import queues as client
from forebay.client.finding import IDLE_VARIABLE
from tests.sources import python_path
from tests.support.waiting import wait_until

SECONDS = 20.0


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets a test share queues below `tmp_path`; ends what serves them."""
    # Long: no test may depend on whether a server has just ended.
    monkeypatch.setenv(IDLE_VARIABLE, "60")
    yield
    client.disconnect()
    for log in tmp_path.rglob("server.log"):
        end_server(log)


def end_server(log: Path) -> None:
    """Ends the server that holds the lock of a log, and waits until it is gone."""
    give_up_at = time.monotonic() + SECONDS
    while is_locked(log):
        pid = server_pid(log)
        assert time.monotonic() < give_up_at, f"the server {pid} of {log} does not end"
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.01)


def is_locked(log: Path) -> bool:
    """Says whether a server lives, or is being started."""
    with log.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def server_pid(log: Path) -> int | None:
    """Returns the process that serves a directory; None if there is none."""
    wanted = os.stat(log)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found = os.stat(process / "fd" / "2")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return int(process.name)
    return None


def address_space(pid: int) -> int:
    """Returns how many bytes of address space a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def limit_address_space(pid: int, idle_bytes: int) -> None:
    """Allows a server no more address space than it had when it was idle, and 256 MiB."""
    most = idle_bytes + (256 << 20)
    resource.prlimit(pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def lift_address_space(pid: int) -> None:
    """Allows a server any address space."""
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_AS, (unlimited, unlimited))


class Service:
    """`forebay serve` in a process of its own."""

    def __init__(self, root: Path, *arguments: str, **environment: str) -> None:
        self.root = root
        self.errors = root.parent / f"{root.name}.stderr"
        command = [sys.executable, "-m", "forebay", "serve", str(root), *arguments]
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": python_path(), **environment},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_it_serves(self) -> None:
        """Returns when it has recovered its queues and answers."""
        assert wait_until(lambda: "serving" in self.text or self._process.poll() is not None)
        assert self._process.poll() is None, self.text

    @property
    def text(self) -> str:
        """What it has written to stderr."""
        return self.errors.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends it a signal and returns its exit code."""
        self._process.send_signal(number)
        return self._process.wait(SECONDS * 3)

    def kill(self) -> None:
        """Ends it as a crash would, if it still runs."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def serving(root: Path, *arguments: str, **environment: str) -> Iterator[Service]:
    """Runs `forebay serve ROOT` for the length of a block."""
    service = Service(root, *arguments, **environment)
    try:
        service.wait_until_it_serves()
        yield service
    finally:
        client.disconnect()
        service.kill()
