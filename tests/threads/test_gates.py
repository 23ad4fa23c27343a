"""One thread held in a call, another at work, then a power cut: for every pair of verbs.

See `tests/threads/gates.py` for what a gate is.
"""

from __future__ import annotations

import pytest

from tests.counting import Count
from tests.support.cases import run_all, run_sample
from tests.threads.gates import all_gates, double_gates, run_gate

pytestmark = pytest.mark.crash

# Held, other, fault; and whether the other is held as well.
Pair = tuple[str, str, str, str, str, bool]
PAIRS: list[Pair] = [
    ("fifo", "always", "put", "put_many", "none", False),
    ("fifo", "os", "sync", "put_many", "none", False),
    ("fifo", "always", "put_many", "info", "full", False),
    ("log", "always", "adopt", "close", "none", False),
    ("log", "os", "take_many", "close", "none", False),
    ("log", "os", "adopt", "adopt", "full", False),
    ("events", "os", "put", "put", "full", False),
    ("events", "always", "put", "close", "none", False),
    ("events", "os", "take_many", "close", "none", False),
    ("deadline", "os", "sync", "freeze", "none", True),
    ("deadline", "os", "sync", "put", "full", False),
    ("deadline", "os", "freeze", "put", "full", False),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: " ".join(pair[:5]))
def test_a_pair_that_lost_something_once_loses_nothing_at_any_point(pair: Pair) -> None:
    gates = [
        gate
        for gate in (double_gates(pair[0]) if pair[5] else all_gates(pair[0]))
        if (gate.kind, gate.policy, gate.held, gate.other, gate.fault) == pair[:5]
    ]

    outcomes = run_sample(gates, run_gate, 60)

    assert outcomes.problems == ""


def test_no_pair_of_verbs_loses_what_was_promised(record_property: Count) -> None:
    gates = all_gates()

    outcomes = run_sample(gates, run_gate, 300)

    outcomes.report("gates", record_property, len(gates))
    assert outcomes.problems == ""


def test_no_two_held_verbs_lose_what_was_promised(record_property: Count) -> None:
    gates = double_gates()

    outcomes = run_sample(gates, run_gate, 100)

    outcomes.report("double gates", record_property, len(gates))
    assert outcomes.problems == ""


@pytest.mark.full
@pytest.mark.slow
def test_every_pair_of_verbs_at_every_point(record_property: Count) -> None:
    gates = all_gates()

    outcomes, done = run_all("gates", gates, run_gate)

    outcomes.report("gates", record_property)
    record_property("gates so far", f"{done:,} of {len(gates):,}")
    assert outcomes.problems == ""


@pytest.mark.full
@pytest.mark.slow
def test_every_two_held_verbs_at_every_point(record_property: Count) -> None:
    gates = double_gates()

    outcomes, done = run_all("double-gates", gates, run_gate)

    outcomes.report("double gates", record_property)
    record_property("double gates so far", f"{done:,} of {len(gates):,}")
    assert outcomes.problems == ""
