from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.tour import tour
from examples.tour.events import (
    DECODED,
    DEDUPLICATED,
    PER_QUEUE_MIN,
    QUEUES,
    REJECTED,
    Plan,
)
from examples.tour.jobs import JOBS
from examples.tour.page import cell_text
from tests.cli.helpers import NOTHING_LOADED, environment, start_held
from tests.examples.helpers import processes_that_name
from tests.examples.reading import PageReader
from tests.sources import ROOT
from tests.support.waiting import wait_until

EVENTS = PER_QUEUE_MIN * len(QUEUES)
PLAN = Plan(EVENTS)
LINES_MAX = 30
# About a minute on two idle cores; Spark starts four times, and others may be at work.
TOUR_SECONDS_MAX = 1200.0
Row = dict[str, Any]


# In the long tier: it starts Spark four times and takes two minutes. `./run` is this tour, and an
# ingest is killed and started again everyday in tests/pipelines/test_kills.py.
@pytest.mark.full
@pytest.mark.crash
def test_a_tour_with_three_kills_holds_its_claims(tmp_path: Path) -> None:
    # The space is there to show that it makes no difference.
    path = tmp_path / "the tour"

    told = run_tour(path)

    check_claims(path, told)
    check_report(path, told)


# In the long tier: it needs a tour of its own, and Spark once more.
@pytest.mark.full
@pytest.mark.crash
def test_a_tour_that_loses_a_file_fails_its_check(tmp_path: Path) -> None:
    path = tmp_path / "tour"
    run_tour(path)

    sorted((path / "tables").glob("landed/batch=[0-9]*/*.parquet"))[-1].unlink()
    code, output, said = finish(start("--out", path, "--check"))

    assert (code, said) == (tour.FAILED, b""), (output, said)
    assert b"2 of 5 claims FAILED" in output
    assert b"sums do not add up" in output
    assert len(output.splitlines()) <= LINES_MAX


def run_tour(path: Path) -> list[Row]:
    """Runs a whole tour and returns what it printed."""
    code, output, said = finish(start("--out", path, "--events", EVENTS, "--json"))
    assert (code, said) == (0, b""), (output, said)
    return [json.loads(line) for line in output.splitlines()]


def exit_code(*arguments: object) -> int | str | None:
    """Runs the program in this process."""
    with pytest.raises(SystemExit) as caught:
        tour.main([str(one) for one in arguments])
    return caught.value.code


def start(*arguments: object) -> subprocess.Popen[bytes]:
    """Starts the program as `./run` does."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "tour"), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Waits for a tour; one that hangs is ended, with all that it started."""
    try:
        output, said = process.communicate(timeout=TOUR_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, said = process.communicate(timeout=240)
    return process.returncode, output, said


def check_claims(path: Path, told: list[Row]) -> None:
    recovered, worker, resumed, *rest, last = told
    assert [row["holds"] for row in told[:-1]] == [True] * 9
    # As a rule not all of them: but it goes on while the one who is to kill it is held up.
    assert PLAN.per_queue * 2 // 5 <= recovered["acknowledged"] <= PLAN.per_queue
    assert PLAN.jobs.count < worker["acknowledged"] <= worker["found"] <= PLAN.jobs.steps
    assert resumed["published"] == resumed["kept"] >= 2
    assert resumed["back_seconds"] > 0
    assert rest[0]["queues"] == {
        **{queue: {"range": PLAN.per_queue, **PLAN.expected(queue)} for queue in QUEUES},
        JOBS: {"range": len(PLAN.jobs.left()), **PLAN.expected(JOBS)},
    }
    assert (last["claims"], last["failed"]) == (9, 0)
    assert last["report"] == str(path / "report.html")
    assert sorted(item.name for item in path.iterdir()) == [
        *("forward", "forward-check.log", "forward.log"),
        *("ingest.log", "ingest.toml", "jobs", "jobs.log", "jobs.toml", "queues"),
        *("reconcile.log", "report.html", "snapshot", "tables", "tour.json"),
    ]


def check_report(path: Path, told: list[Row]) -> None:
    page = PageReader((path / "report.html").read_text(encoding="utf-8"))
    names = ["range", "landed", "damaged", "trimmed"]
    names += [DECODED, REJECTED, DEDUPLICATED, "filtered"]
    queues = told[3]["queues"]
    order = [*sorted(QUEUES), JOBS]
    rows = [[queue, *(queues[queue][name] for name in names)] for queue in order]
    rows.append(["all", *(sum(queues[queue][name] for queue in order) for name in names)])
    sums = page.table("Counts in are counts out").rows
    assert sums == [[cell_text(cell) for cell in row] for row in rows]
    costs = page.table("What the crashes cost").rows
    assert [row[-2:] for row in costs] == [["0", "0"]] * 3
    assert costs[2][1] == cell_text(told[2]["back_seconds"])
    course = page.table("The plots as numbers").rows
    assert course[-1][3:] == [f"{PLAN.total:,}", f"{PLAN.total:,}", "0"]
    assert [one.attributes["class"] for one in page.all("li")] == ["holds"] * 9


# Tells what is loaded before anything is done, and goes no further than to the start of the ingest.
HELD = f"""
import time
sys.path.insert(0, {str(ROOT)!r})
from examples.tour import tour
from examples.tour.processes import Command
main = tour.main
check, start = tour._check_installation, Command.start

def held_check():
    tell_loaded()
    check()

def held_start(command):
    start(command)
    print("started", flush=True)
    time.sleep(600)

tour._check_installation, Command.start = held_check, held_start
"""
STARTED = b"started\n"


@pytest.mark.slow
def test_the_first_line_comes_at_once_and_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    process = start_held(HELD, "--out", tmp_path / "out", stdin=subprocess.DEVNULL)
    assert process.stdout is not None

    lines = list(itertools.takewhile(STARTED.__ne__, iter(process.stdout.readline, b"")))
    # A process that was just started has no name for a moment.
    ingests = wait_until(lambda: "ingest.toml" in str(processes_that_name(tmp_path)))
    running = processes_that_name(tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    left = processes_that_name(tmp_path)

    assert lines[0].startswith(b"forebay ")
    assert lines[2] == NOTHING_LOADED
    assert ingests
    assert (process.returncode, said.strip()) == (tour.INTERRUPTED, b"forebay: interrupted")
    # The producers were waited for; what the ingest had started may still be about to end.
    assert "producer" in str(running)
    assert "producer" not in str(left)
    assert wait_until(lambda: not processes_that_name(tmp_path))


@pytest.mark.slow
def test_a_directory_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "queues").mkdir()

    code = exit_code("--out", tmp_path)

    assert code == tour.CANNOT_CREATE
    assert [file.name for file in tmp_path.iterdir()] == ["queues"]


def test_a_second_tour_in_the_same_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    code = exit_code("--out", tmp_path)

    os.close(descriptor)
    assert code == tour.TRY_AGAIN
    assert "another tour" in capsys.readouterr().err


def test_there_is_nothing_to_check_where_no_tour_was(tmp_path: Path) -> None:
    assert exit_code("--out", tmp_path, "--check") == tour.NOTHING_THERE
    assert exit_code("--out", tmp_path / "none", "--check") == tour.NOTHING_THERE
