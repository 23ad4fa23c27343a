"""Servers that tests of shared queues start: each is ended after its test, by its pid."""

from __future__ import annotations

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
    while (pid := server_pid(log)) is not None:
        assert time.monotonic() < give_up_at, f"the server {pid} of {log} does not end"
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
        time.sleep(0.01)


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
