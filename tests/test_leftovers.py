"""A test that leaves something behind fails, and is told what; one that cleans up does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

# A short time for the threads: here they do not end.
CONFTEST = """
from tests.support import leftovers

leftovers.SECONDS = 0.1
"""

PLANTED = """
import fcntl, gc, os, signal, subprocess, sys, threading

import pytest

import forebay

kept = []

def die():
    raise KeyError("planted")

class Unraisable:
    def __del__(self):
        die()

def start(work):
    thread = threading.Thread(target=work, name="planted thread", daemon=True)
    thread.start()
    return thread

def test_fifo(tmp_path):
    kept.append(forebay.Fifo(tmp_path / "q"))

def test_thread():
    start(threading.Event().wait)

def test_dead_thread():
    start(die).join()

@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_dead_thread_that_is_expected():
    start(die).join()

def test_unraisable():
    Unraisable()

def test_lock_of_a_child(tmp_path):
    file = os.open(tmp_path / "lock", os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    kept.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file]))
    os.close(file)

def test_pipe():
    kept.append(os.pipe())

def test_directory(tmp_path):
    os.chdir(tmp_path)

def test_umask():
    os.umask(0o77)

def test_handler():
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

def test_hook(monkeypatch):
    threading.excepthook = print

def test_failure(tmp_path):
    kept.append(forebay.Fifo(tmp_path / "q"))
    assert False

@pytest.mark.xfail
def test_expected_failure(tmp_path):
    kept.append(forebay.Fifo(tmp_path / "q"))
    assert False

def test_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thread = start(lambda: None)
    with forebay.Fifo("q") as fifo:
        fifo.push(b"a")
    thread.join()

# The last one: pytest keeps what warned until it has told of it.
def test_garbage(tmp_path):
    cycle = [forebay.Fifo(tmp_path / "q")]
    cycle.append(cycle)
"""

CAUGHT = {
    "test_fifo": [
        r"descriptor \d+: \S*/test_fifo0/q\n",
        r"thread 'forebay maintenance' at \S+\.py:\d+ in \w+",
    ],
    "test_thread": [r"thread 'planted thread' at \S*threading\.py:\d+ in wait"],
    "test_dead_thread": [r"Exception in thread planted thread", r"KeyError: 'planted'"],
    "test_unraisable": [r"Exception ignored in: <function Unraisable", r"KeyError: 'planted'"],
    "test_garbage": [r"ResourceWarning: \S*/test_garbage0/q was not closed"],
    "test_lock_of_a_child": [r"lock FLOCK WRITE of device and inode \S+\n"],
    "test_pipe": [r"descriptor \d+: pipe:\["],
    "test_directory": [r"working directory: \S+/test_directory0, before: /"],
    "test_umask": [r"umask: 0077, before: 0"],
    "test_handler": [r"handler of <Signals.SIGUSR2: 12>: <Handlers.SIG_IGN: 1>, before"],
    "test_hook": [r"threading.excepthook: <built-in function print>, before"],
}
# How the others end, and those that are caught before their end.
ENDS = {
    "test_dead_thread": "FAILED",
    "test_unraisable": "FAILED",
    "test_dead_thread_that_is_expected": "PASSED",
    "test_failure": "FAILED",
    "test_expected_failure": "XFAIL",
    "test_nothing": "PASSED",
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of the planted tests."""
    folder: Path = tmp_path_factory.mktemp("planted")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_planted.py").write_text(PLANTED)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "tests.support.leftovers", folder],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUGHT)
def test_what_a_test_leaves_is_named(output: str, name: str) -> None:
    told = section(output, name)

    assert [pattern for pattern in CAUGHT[name] if not re.search(pattern, told)] == []


@pytest.mark.slow
def test_only_what_leaves_something_is_blamed_for_it(output: str) -> None:
    ends: dict[str, set[str]] = {}
    for end, name in re.findall(r"^([A-Z]+) \S+::(\w+)", output, re.MULTILINE):
        ends.setdefault(name, set()).add(end)

    at_their_end = {name: {"PASSED", "ERROR"} for name in set(CAUGHT) - set(ENDS)}
    assert ends == at_their_end | {name: {end} for name, end in ENDS.items()}


def section(output: str, name: str) -> str:
    """What is said of a test, or of its end."""
    title = f"(?:ERROR at teardown of )?{name}"
    found = re.search(f"^_+ {title} _+$(.*?)^[_=]{{3,}} ", output, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""
