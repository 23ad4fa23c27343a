"""Power cuts at every operation boundary: what was promised before is there afterwards.

Everyday 100,000 distinct states over two tests, so that two workers share them; a million with
FOREBAY_FULL=1. A failure tells the scenario, the seed, the point and the choice, which replays it.
"""

from __future__ import annotations

import logging
import os

import pytest

from tests.counting import Count
from tests.crash.campaign import Campaign
from tests.crash.scenarios import SCENARIOS

STATES = 1_000_000 if os.environ.get("FOREBAY_FULL") == "1" else 100_000
SHARES = 2


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("forebay").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_power_cut_breaks_a_promise_of_the_scenario(name: str) -> None:
    campaign = Campaign()

    campaign.run_scenario(name, seed=len(name))

    assert campaign.states > 20


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_no_power_cut_breaks_a_promise_of_random_operations(
    share: int, record_property: Count
) -> None:
    campaign = Campaign()
    seed = share
    while campaign.states < STATES // SHARES:
        campaign.run_random(seed, random_subsets=4, limit=60)
        seed += SHARES

    record_property("power-cut states, distinct by content", campaign.states)
    assert campaign.states >= STATES // SHARES
