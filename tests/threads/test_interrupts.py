"""An interrupt at every place of every verb, and an error at every system call.

See `tests/threads/interrupts.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.counting import Count
from tests.sources import ROOT
from tests.support.cases import run_all, run_sample
from tests.threads import known
from tests.threads.interrupts import all_closes, all_errors, all_interrupts, run_blow
from tests.threads.known import BLOWS

pytestmark = pytest.mark.crash

# Kind, policy, verb, interrupts or errors.
Verb = tuple[str, str, str, str]
VERBS: list[Verb] = [
    ("events", "always", "take", "interrupts"),
    ("events", "always", "take", "errors"),
    ("events", "os", "put", "errors"),
    ("log", "always", "put", "interrupts"),
    ("fifo", "always", "put", "interrupts"),
    ("deadline", "always", "put", "interrupts"),
    ("events", "always", "put", "interrupts"),
    ("deadline", "os", "wait", "interrupts"),
    ("fifo", "os", "sync", "errors"),
    ("fifo", "os", "close", "errors"),
    ("fifo", "os", "close", "interrupts"),
    ("log", "os", "close", "errors"),
    ("log", "always", "put_many", "errors"),
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_verb_that_was_not_safe_once_is_safe_at_every_place(verb: Verb) -> None:
    kind, policy, name, blows = verb
    cases = all_interrupts(kind) if blows == "interrupts" else all_errors(kind)
    wanted = [blow for blow in cases if (blow.policy, blow.verb) == (policy, name)]

    outcomes = run_sample(wanted, run_blow, 120)

    assert outcomes.problems == ""


def test_an_interrupt_anywhere_leaves_nobody_waiting_and_nothing_lost(
    record_property: Count,
) -> None:
    blows = all_interrupts()

    outcomes = run_sample(blows, run_blow, 150, known=BLOWS)

    outcomes.report("interrupts", record_property, len(blows))
    assert outcomes.problems == ""


def test_a_signal_handler_that_closes_the_queue_never_hangs(record_property: Count) -> None:
    blows = all_closes()

    outcomes = run_sample(blows, run_blow, 150, known=BLOWS)

    outcomes.report("closes by a handler", record_property, len(blows))
    assert outcomes.problems == ""


def test_an_error_of_any_system_call_loses_nothing(record_property: Count) -> None:
    blows = all_errors()

    outcomes = run_sample(blows, run_blow, 400, known=BLOWS)

    outcomes.report("failing calls", record_property, len(blows))
    assert outcomes.problems == ""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["compiled", "plain"])
def test_an_interrupt_at_every_place(kernels: str, record_property: Count) -> None:
    if kernels == "plain" and os.environ.get("FOREBAY_PURE") != "1":
        run_with_plain_kernels("test_an_interrupt_at_every_place[plain]")
        return
    blows = all_interrupts()

    outcomes, done = run_all(f"interrupts-{kernels}", blows, run_blow, known=BLOWS)

    outcomes.report("interrupts", record_property)
    record_property("interrupts so far", f"{done:,} of {len(blows):,}")
    assert outcomes.problems == ""


@pytest.mark.full
@pytest.mark.slow
def test_a_handler_that_closes_the_queue_at_every_place(record_property: Count) -> None:
    blows = all_closes()

    outcomes, done = run_all("closes", blows, run_blow, known=BLOWS)

    outcomes.report("closes by a handler", record_property)
    record_property("closes by a handler so far", f"{done:,} of {len(blows):,}")
    assert outcomes.problems == ""


@pytest.mark.full
@pytest.mark.slow
def test_an_error_of_every_system_call(record_property: Count) -> None:
    blows = all_errors()

    outcomes, done = run_all("failing-calls", blows, run_blow, known=BLOWS)

    outcomes.report("failing calls", record_property)
    record_property("failing calls so far", f"{done:,} of {len(blows):,}")
    assert outcomes.problems == ""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.xfail(reason=known.PLAIN)
def test_an_interrupt_in_a_kernel_of_plain_python_leaves_nobody_waiting() -> None:
    script = """
from tests.threads.interrupts import Blow, run_blow
for place in range(5):
    run_blow(Blow("fifo", "always", "take_many", place))
"""
    folders = os.pathsep.join([str(ROOT / "src"), str(ROOT)])

    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FOREBAY_PURE": "1", "PYTHONPATH": folders},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert result.returncode == 0, result.stderr[-2_000:]


def run_with_plain_kernels(test: str) -> None:
    """Runs a test of this file in a process whose kernels are plain Python."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{test}"],
        env={**os.environ, "FOREBAY_PURE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8_000:]
