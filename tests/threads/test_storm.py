"""Power cuts while writers, takers, syncs, adoptions and upkeep run at once."""

from __future__ import annotations

import time

import pytest

from tests.counting import Count
from tests.kinds import EACH
from tests.support.cases import SEED, full_seconds
from tests.threads.storm import Storm

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(("kind", "policy"), EACH)
def test_a_power_cut_amid_many_threads_costs_nothing_that_was_promised(
    kind: str, policy: str, record_property: Count
) -> None:
    storm = Storm(kind, policy, SEED)

    storm.run(0.4)

    record_property("cuts under threads", storm.cuts)
    record_property("values found after them", storm.values)
    assert storm.cuts > 0


@pytest.mark.full
@pytest.mark.slow
def test_power_cuts_amid_many_threads_for_minutes(record_property: Count) -> None:
    until = time.monotonic() + full_seconds()
    seed, cuts, values = SEED, 0, 0

    while time.monotonic() < until:
        for kind, policy in EACH:
            storm = Storm(kind, policy, seed)
            storm.run(3)
            cuts, values = cuts + storm.cuts, values + storm.values
        seed += 1

    record_property("cuts under threads", f"{cuts:,}")
    record_property("values found after them", f"{values:,}")
    assert cuts > 0
