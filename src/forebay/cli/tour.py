"""`forebay tour`: events through queues into proven tables, with three kills on the way."""

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

import click

from forebay import __version__
from forebay.cli import exits, tour_checks
from forebay.cli.arguments import json_option
from forebay.cli.tour_events import PER_QUEUE_MIN, QUEUES, Plan
from forebay.cli.tour_processes import TEMPORARY, ProcessFailed
from forebay.cli.tour_teller import TourTeller
from forebay.errors import NotInstalled

REPORT = "report.html"
_MADE = (
    *("queues", "tables", TEMPORARY, "ingest.toml", "ingest.log", "reconcile.log", REPORT),
    *("jobs", "snapshot", "jobs.toml", "jobs.log"),
)
# Says that a directory is one of the tour's, so that the next tour may replace what is there.
_MARK = "tour.json"


@click.command("tour")
@click.option(
    "--out", metavar="DIR", default="out", show_default=True, help="Where everything goes."
)
@click.option(
    "--events",
    type=click.IntRange(min=PER_QUEUE_MIN * len(QUEUES)),
    default=300_000,
    show_default=True,
    help="How many events the producers write.",
)
@click.option("--check", is_flag=True, help="Only prove again what the last tour left in DIR.")
@json_option
def command(out: str, events: int, check: bool, as_json: bool) -> int:
    """Write events, kill a producer, kill the ingest on Spark, and prove that nothing is lost.

    Five processes append events to four logs and a Beats queue, and an ingest brings them
    into tables meanwhile. A sixth fills a deadline queue and works it off. One producer, the worker
    and the ingest are killed with SIGKILL and started again. Then every event and every job is
    accounted for, and DIR/report.html shows the whole way. Code 1 if a claim does not hold.

    What an earlier tour left in DIR is replaced.
    """
    started = time.monotonic()
    teller = TourTeller(as_json)
    directory = os.path.abspath(out)
    plan = _earlier_plan(directory) if check else Plan(events)
    with _interruptible(), _locked(directory):
        try:
            if check:
                report = None
                teller.line(
                    f"forebay {__version__} proves again what is in {directory}, by forebay "
                    "pipeline reconcile and by looking each event up"
                )
                _check_installation()
                _prove(directory, plan, teller)
            else:
                _announce(directory, plan, teller)
                _check_installation()
                _prepare(directory, plan)
                report = _run(directory, plan, teller, started)
        except ProcessFailed as error:
            raise exits.Failure(str(error)) from None
        finally:
            shutil.rmtree(os.path.join(directory, TEMPORARY), ignore_errors=True)
    teller.verdict(time.monotonic() - started, report)
    return exits.OK if teller.failed == 0 else exits.ERROR


def _announce(directory: str, plan: Plan, teller: TourTeller) -> None:
    teller.line(
        f"forebay {__version__}: {plan.total:,} events and {plan.jobs.count:,} jobs go through "
        f"{len(QUEUES) + 1} queues to tables on Spark, with three kills"
    )
    teller.line(f"   in {directory}; takes one to three minutes, longer on a busy machine")


def _run(directory: str, plan: Plan, teller: TourTeller, started: float) -> str:
    """Runs the story, proves its claims and writes the report; gives its path."""
    from forebay.cli import tour_report
    from forebay.cli.tour_story import Story

    story = Story(directory, plan, teller)
    story.tell()
    teller.line("7. forebay pipeline reconcile counts the tables, and each event is looked up")
    proof = _prove(directory, plan, teller)
    path = os.path.join(directory, REPORT)
    page = tour_report.make(
        plan,
        story.facts,
        story.watch.samples,
        story.watch.marks,
        proof,
        teller.told,
        story.settings,
        time.monotonic() - started,
    )
    Path(path).write_text(page.html(), encoding="utf-8")
    return path


def _prove(directory: str, plan: Plan, teller: TourTeller) -> tour_checks.Proof:
    proof = tour_checks.prove(directory, plan)
    teller.sums(proof.sums)
    teller.claim(tour_checks.claim_reconciled(proof.sums, plan))
    teller.claim(tour_checks.claim_landed(proof.landed))
    teller.claim(tour_checks.claim_decoded(proof.decoded))
    teller.claim(tour_checks.claim_jobs(proof.jobs))
    teller.claim(tour_checks.claim_damage(proof.damage))
    return proof


def _check_installation() -> None:
    """Raises `NotInstalled` if Spark or Java are missing, before anything is replaced."""
    from forebay.spark.java import find_java

    for name in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise NotInstalled(f'{name} is not installed: pip install "forebay[spark,java]"')
    find_java()


def _prepare(directory: str, plan: Plan) -> None:
    """Makes room in a directory that is new, empty or of an earlier tour."""
    if not os.path.exists(os.path.join(directory, _MARK)) and os.listdir(directory):
        raise exits.Failure(
            f"{directory} is not empty and not of a tour; give another --out", exits.CANNOT_CREATE
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
        raise exits.Failure(f"{directory} holds no tour", exits.NOTHING) from None


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Keeps a second tour out of the directory; makes it if need be."""
    os.makedirs(directory, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise exits.Failure(f"another tour runs in {directory}", exits.TRY_AGAIN) from None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ends by SIGTERM and a closed terminal as by Ctrl-C: no process is left behind."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    old = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
