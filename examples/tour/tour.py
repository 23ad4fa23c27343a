"""The command of the tour: its options, its directory, its exit codes."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from examples.tour import checks
from examples.tour.events import PER_QUEUE_MIN, QUEUES, Plan
from examples.tour.processes import TEMPORARY, ProcessFailed
from examples.tour.terminal import Terminal
from forebay import ForebayError, NotInstalled, __version__

REPORT = "report.html"
_MADE = (
    *("queues", "tables", TEMPORARY, "ingest.toml", "ingest.log", "reconcile.log", REPORT),
    *("jobs", "snapshot", "jobs.toml", "jobs.log"),
    *("forward", "forward.log", "forward-check.log"),
)
# Marks a directory as one of the tour's, so that the next tour may replace its content.
_MARK = "tour.json"

# The exit codes, which are those of `forebay`.
FAILED = 1
NOTHING_THERE = 3
CANNOT_CREATE = 73
TRY_AGAIN = 75
INTERRUPTED = 130
BROKEN_PIPE = 141


class TourError(Exception):
    """The tour cannot continue: one line for the user, and the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command and exits with its code; an error is one line on stderr."""
    try:
        code = command.main(arguments, prog_name="./run", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        code = error.exit_code
    except TourError as error:
        code = _complain(str(error), error.code)
    except click.Abort:
        code = _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Buffered output is discarded, or the interpreter would report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    except (ForebayError, OSError) as error:
        code = _complain(str(error), FAILED)
    sys.exit(code)


def _complain(text: str, code: int) -> int:
    print(f"forebay: {text}", file=sys.stderr)
    return code


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--out", metavar="DIR", default="out", show_default=True, help="The directory for everything."
)
@click.option(
    "--events",
    type=click.IntRange(min=PER_QUEUE_MIN * len(QUEUES)),
    default=300_000,
    show_default=True,
    help="How many events the producers write.",
)
@click.option("--check", is_flag=True, help="Only check the result of the last tour in DIR again.")
@click.option("--json", "as_json", is_flag=True, help="Print each claim as one JSON object.")
def command(out: str, events: int, check: bool, as_json: bool) -> int:
    """Write events, kill a producer, kill the ingest on Spark, and prove that nothing is lost.

    Five processes append events to four logs and a Beats queue, while an ingest loads them into
    tables. A sixth fills a deadline queue and processes it. One producer, the worker and the ingest
    are killed with SIGKILL and started again. Then every event and every job is accounted for, and
    DIR/report.html shows the result. Code 1 if a claim does not hold.

    Replaces the result of an earlier tour in DIR.
    """
    started = time.monotonic()
    terminal = Terminal(as_json)
    directory = os.path.abspath(out)
    plan = _earlier_plan(directory) if check else Plan(events)
    with _interruptible(), _locked(directory):
        try:
            if check:
                report = None
                terminal.line(
                    f"forebay {__version__} checks {directory} again, with forebay "
                    "pipeline reconcile and by looking up each event"
                )
                _check_installation()
                _prove(directory, plan, terminal)
            else:
                _announce(directory, plan, terminal)
                _check_installation()
                _prepare(directory, plan)
                report = _run(directory, plan, terminal, started)
        except ProcessFailed as error:
            raise TourError(str(error)) from None
        finally:
            shutil.rmtree(os.path.join(directory, TEMPORARY), ignore_errors=True)
    terminal.verdict(time.monotonic() - started, report)
    return FAILED if terminal.failed else 0


def _announce(directory: str, plan: Plan, terminal: Terminal) -> None:
    terminal.line(
        f"forebay {__version__}: {plan.total:,} events and {plan.jobs.count:,} jobs go through "
        f"{len(QUEUES) + 1} queues to tables on Spark, with three kills"
    )
    terminal.line(f"   in {directory}; takes one to three minutes, longer on a busy machine")


def _run(directory: str, plan: Plan, terminal: Terminal, started: float) -> str:
    """Runs the story, proves its claims and writes the report; returns the report's path."""
    from examples.tour import report
    from examples.tour.outage import OutageChapter, with_outage
    from examples.tour.story import Story

    story = Story(directory, plan, terminal)
    story.run()
    terminal.line("7. forebay pipeline reconcile counts the tables, and each event is looked up")
    proof = _prove(directory, plan, terminal)
    chapter = OutageChapter(directory, terminal)
    chapter.run()
    path = os.path.join(directory, REPORT)
    page = report.make(story, proof, terminal.claims, time.monotonic() - started)
    page = with_outage(page, chapter.facts)
    Path(path).write_text(page.html(), encoding="utf-8")
    return path


def _prove(directory: str, plan: Plan, terminal: Terminal) -> checks.Proof:
    proof = checks.prove(directory, plan)
    terminal.sums(proof.sums)
    terminal.claim(checks.claim_reconciled(proof.sums, plan))
    terminal.claim(checks.claim_landed(proof.landed))
    terminal.claim(checks.claim_decoded(proof.decoded))
    terminal.claim(checks.claim_jobs(proof.jobs))
    terminal.claim(checks.claim_damage(proof.damage))
    return proof


def _check_installation() -> None:
    """Raises `NotInstalled` if Spark or Java is missing, before anything is replaced."""
    from forebay.spark.java import find_java

    for name in ("pyspark", "pyarrow", "deltalake"):
        if importlib.util.find_spec(name) is None:
            raise NotInstalled(f'{name} is not installed: pip install "forebay[spark,java,delta]"')
    find_java()


def _prepare(directory: str, plan: Plan) -> None:
    """Clears a directory that is new, empty or from an earlier tour."""
    if not os.path.exists(os.path.join(directory, _MARK)) and os.listdir(directory):
        raise TourError(
            f"{directory} is not empty and not from a tour; give another --out", CANNOT_CREATE
        )
    for name in _MADE:
        path = os.path.join(directory, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    Path(directory, _MARK).write_text(json.dumps({"v": 1, "events": plan.events}) + "\n")


def _earlier_plan(directory: str) -> Plan:
    path = os.path.join(directory, _MARK)
    try:
        with open(path, encoding="utf-8") as file:
            return Plan(int(json.load(file)["events"]))
    except (FileNotFoundError, ValueError, KeyError):
        raise TourError(f"{directory} holds no tour", NOTHING_THERE) from None


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Keeps a second tour out of the directory; creates it if necessary."""
    os.makedirs(directory, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise TourError(f"another tour is running in {directory}", TRY_AGAIN) from None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Handles SIGTERM and a closed terminal like Ctrl-C: no process is left running."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    old = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
