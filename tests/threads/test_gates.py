"""One thread held in a call, another at work, then a power cut: for every pair of verbs.

See `tests/threads/gates.py` for what a gate is.
"""

from __future__ import annotations

import pytest

from tests.counting import Count
from tests.kinds import EACH
from tests.support.cases import check_all, check_sample
from tests.threads.gates import all_gates, check_cut, double_gates, open_session, run_gate

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
    ("beats", "os", "put", "put", "full", False),
    ("beats", "always", "put", "close", "none", False),
    ("beats", "os", "take_many", "close", "none", False),
    ("deadline", "os", "sync", "freeze", "none", True),
    ("deadline", "os", "sync", "put", "full", False),
    ("deadline", "os", "freeze", "put", "full", False),
]


@pytest.mark.parametrize(("kind", "policy"), EACH)
def test_what_was_synced_survives_a_power_cut(kind: str, policy: str) -> None:
    disk, session = open_session(kind, policy)

    session.put()
    session.sync()

    assert check_cut(disk, session) > 0
    session.queue.close()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: " ".join(pair[:5]))
def test_a_pair_that_lost_something_once_loses_nothing_at_any_point(pair: Pair) -> None:
    gates = [
        gate
        for gate in (double_gates(pair[0]) if pair[5] else all_gates(pair[0]))
        if (gate.kind, gate.policy, gate.held, gate.other, gate.fault) == pair[:5]
    ]

    check_sample(gates, run_gate, 40)


def test_no_pair_of_verbs_loses_what_was_promised(record_property: Count) -> None:
    check_sample(all_gates(), run_gate, 300, title="gates", record=record_property)


def test_no_two_held_verbs_lose_what_was_promised(record_property: Count) -> None:
    check_sample(double_gates(), run_gate, 100, title="double gates", record=record_property)


@pytest.mark.full
@pytest.mark.slow
def test_every_pair_of_verbs_at_every_point(record_property: Count) -> None:
    check_all("gates", all_gates(), run_gate, title="gates", record=record_property)


@pytest.mark.full
@pytest.mark.slow
def test_every_two_held_verbs_at_every_point(record_property: Count) -> None:
    check_all(
        "double-gates", double_gates(), run_gate, title="double gates", record=record_property
    )
