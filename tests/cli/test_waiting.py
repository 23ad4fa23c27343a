"""A command that waits is woken: it sleeps while nothing changes, and does not look again."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay
from forebay.cli import exits
from forebay.cli.waiting import FileWatch, wait_for_lock
from tests.cli.helpers import make_log, numbered, run, start
from tests.support.waiting import wait_until

QUIET_SECONDS = 0.6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_log(tmp_path / "q", numbered(3))


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Takes processes, and ends them."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("tail", "-n", 0, "-f"),
        ("take", "--consumer", "late", "--timeout", 600),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_a_command_that_waits_for_records_sleeps(
    path: Path, arguments: tuple[object, ...], started: list[subprocess.Popen[bytes]]
) -> None:
    with forebay.Log(path) as log:
        log.consumer("late", start="latest").commit()

    started.append(start(arguments[0], path, *arguments[1:], stdin=subprocess.DEVNULL))

    assert wait_until(lambda: is_quiet(started[0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("trim", "--wait", 600),
        ("consumers", "--forget", "c", "--wait", 600),
        ("take", "--consumer", "c", "--timeout", 600),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_a_command_that_waits_for_the_lock_sleeps_and_goes_on(
    path: Path, arguments: tuple[object, ...], started: list[subprocess.Popen[bytes]]
) -> None:
    with forebay.Log(path) as log:
        log.consumer("c")
        started.append(start(arguments[0], path, *arguments[1:], stdin=subprocess.DEVNULL))
        slept = wait_until(lambda: is_quiet(started[0]))

    assert slept
    assert started[0].wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("put",), ("take", "--consumer", "c"), ("trim",)],
    ids=lambda arguments: str(arguments[0]),
)
def test_a_wait_for_the_lock_can_be_interrupted(
    path: Path, arguments: tuple[object, ...], started: list[subprocess.Popen[bytes]]
) -> None:
    with forebay.Log(path) as log:
        log.consumer("c")
        waiting = ("--wait", 600, *arguments[1:])
        started.append(start(arguments[0], path, *waiting, stdin=subprocess.DEVNULL))
        assert wait_until(lambda: is_quiet(started[0]))

        started[0].send_signal(signal.SIGINT)

        assert started[0].wait(60) == exits.INTERRUPTED


def test_a_watch_is_woken_by_a_record_in_mapped_memory(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "q", sync="os") as log:
        watch = FileWatch(log.path)
        with forebay.read(log.path, kind="log") as reader:
            log.append(b"in memory")
            before = time.monotonic()
            while not reader.has_news():
                watch.wait(60)
        watch.close()

    assert time.monotonic() - before < 30


def test_a_wait_for_a_lock_ends_in_time(path: Path) -> None:
    with forebay.Log(path):
        before = time.monotonic()
        waited = [wait_for_lock(str(path), seconds) for seconds in (0, 0.2)]
        took = time.monotonic() - before
    free = wait_for_lock(str(path), 600)

    assert waited == [True, True]
    assert free is False
    assert 0.2 <= took < 30


def test_a_command_may_wait_for_a_lock_in_any_thread(path: Path) -> None:
    codes: list[int] = []
    with forebay.Log(path) as log:
        log.consumer("c")
        thread = threading.Thread(
            target=lambda: codes.append(run("trim", path, "--wait", 60).exit_code)
        )
        thread.start()
        time.sleep(0.2)
    thread.join(60)

    assert codes == [0]


def is_quiet(process: subprocess.Popen[bytes]) -> bool:
    """Returns whether a process sleeps for a while without waking up in between."""
    before = switches(process)
    time.sleep(QUIET_SECONDS)
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S" and switches(process) == before


def switches(process: subprocess.Popen[bytes]) -> int:
    """Returns how often the main thread of a process has gone to sleep."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    row = next(line for line in status.splitlines() if line.startswith("voluntary_ctxt"))
    return int(row.split()[1])
