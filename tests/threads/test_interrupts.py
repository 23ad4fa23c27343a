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
from tests.support.cases import check_all, check_sample
from tests.threads import known
from tests.threads.interrupts import all_closes, all_errors, all_interrupts, run_blow
from tests.threads.known import BLOWS

pytestmark = pytest.mark.crash

# Kind, policy, verb; interrupts, errors or closes by a handler.
Verb = tuple[str, str, str, str]
VERBS: list[Verb] = [
    ("beats", "always", "take", "interrupts"),
    ("beats", "always", "take", "errors"),
    ("beats", "os", "put", "errors"),
    ("log", "always", "put", "interrupts"),
    ("fifo", "always", "put", "interrupts"),
    ("deadline", "always", "put", "interrupts"),
    ("beats", "always", "put", "interrupts"),
    ("deadline", "os", "wait", "interrupts"),
    ("fifo", "os", "sync", "errors"),
    ("fifo", "os", "close", "errors"),
    ("fifo", "os", "close", "interrupts"),
    ("log", "os", "close", "errors"),
    ("log", "always", "put_many", "errors"),
    ("log", "always", "put_many", "interrupts"),
    ("log", "interval", "consumer", "closes"),
]
CASES = {"interrupts": all_interrupts, "errors": all_errors, "closes": all_closes}


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_verb_that_was_not_safe_once_is_safe_at_every_place(verb: Verb) -> None:
    kind, policy, name, blows = verb
    wanted = [blow for blow in CASES[blows](kind) if (blow.policy, blow.verb) == (policy, name)]

    check_sample(wanted, run_blow, 60)


def test_an_interrupt_anywhere_leaves_nobody_waiting_and_nothing_lost(
    record_property: Count,
) -> None:
    check_sample(
        all_interrupts(), run_blow, 150, title="interrupts", record=record_property, known=BLOWS
    )


def test_a_signal_handler_that_closes_the_queue_never_hangs(record_property: Count) -> None:
    check_sample(
        all_closes(),
        run_blow,
        150,
        title="closes by a handler",
        record=record_property,
        known=BLOWS,
    )


def test_an_error_of_any_system_call_loses_nothing(record_property: Count) -> None:
    check_sample(
        all_errors(), run_blow, 250, title="failing calls", record=record_property, known=BLOWS
    )


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["compiled", "plain"])
def test_an_interrupt_at_every_place(kernels: str, record_property: Count) -> None:
    if kernels == "plain" and os.environ.get("FOREBAY_PURE") != "1":
        run_with_plain_kernels("test_an_interrupt_at_every_place[plain]")
        return
    check_all(
        f"interrupts-{kernels}",
        all_interrupts(),
        run_blow,
        title="interrupts",
        record=record_property,
        known=BLOWS,
    )


@pytest.mark.full
@pytest.mark.slow
def test_a_handler_that_closes_the_queue_at_every_place(record_property: Count) -> None:
    check_all(
        "closes",
        all_closes(),
        run_blow,
        title="closes by a handler",
        record=record_property,
        known=BLOWS,
    )


@pytest.mark.full
@pytest.mark.slow
def test_an_error_of_every_system_call(record_property: Count) -> None:
    check_all(
        "failing-calls",
        all_errors(),
        run_blow,
        title="failing calls",
        record=record_property,
        known=BLOWS,
    )


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.xfail(reason=known.PLAIN)
def test_an_interrupt_in_a_kernel_of_plain_python_leaves_nobody_waiting() -> None:
    # One of the first places of a push is where the kernel has just taken the lock.
    script = """
from tests.threads.interrupts import Blow, run_blow
for place in range(8):
    run_blow(Blow("fifo", "interval", "put", place))
"""
    result = run_plainly(script)

    assert result.returncode == 0, result.stderr[-2_000:]


@pytest.mark.slow
def test_an_interrupt_while_plain_python_stores_a_head_is_no_damage() -> None:
    script = """
from tests.threads.interrupts import Blow, count_places, run_blow
for place in range(200, count_places("fifo", "os", "take_many")):
    run_blow(Blow("fifo", "os", "take_many", place))
"""
    result = run_plainly(script)

    assert result.returncode == 0, result.stderr[-2_000:]


def run_plainly(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process whose kernels are plain Python."""
    folders = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FOREBAY_PURE": "1", "PYTHONPATH": folders},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


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
