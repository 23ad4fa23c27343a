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

# Kind, policy, verb, interrupts or errors; and why it fails, if it does.
Verb = tuple[str, str, str, str, str]
VERBS: list[Verb] = [
    ("events", "always", "take", "interrupts", known.EVENTS),
    ("events", "always", "take", "errors", ""),
    ("events", "os", "put", "errors", known.EVENTS),
    ("log", "always", "put", "interrupts", ""),
    ("fifo", "always", "put", "interrupts", ""),
    ("deadline", "always", "put", "interrupts", ""),
    ("events", "always", "put", "interrupts", ""),
    ("deadline", "os", "wait", "interrupts", known.LOCKS),
    ("fifo", "os", "close", "errors", known.LEFT_OPEN),
    ("log", "os", "close", "errors", known.LEFT_OPEN),
]


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(verb, id=" ".join(verb[:4]), marks=pytest.mark.xfail(reason=verb[4]))
        if verb[4]
        else pytest.param(verb, id=" ".join(verb[:4]))
        for verb in VERBS
    ],
)
def test_a_verb_that_was_not_safe_once_is_safe_at_every_place(verb: Verb) -> None:
    kind, policy, name, blows, _ = verb
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
def test_an_error_of_every_system_call(record_property: Count) -> None:
    blows = all_errors()

    outcomes, done = run_all("failing-calls", blows, run_blow, known=BLOWS)

    outcomes.report("failing calls", record_property)
    record_property("failing calls so far", f"{done:,} of {len(blows):,}")
    assert outcomes.problems == ""


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
