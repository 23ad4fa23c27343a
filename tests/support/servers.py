"""Servers that tests of shared queues start: each is ended after its test, by its pid."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.client import queues as client
from forebay.client.finding import IDLE_VARIABLE

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
