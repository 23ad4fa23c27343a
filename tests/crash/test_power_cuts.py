"""Power cuts at every operation boundary: what was promised before is there afterwards.

Everyday the fixed sample below: every scenario at every point, a few choices at each, and random
operations. In `--full` every choice, more than 100,000 distinct states, and the campaign goes on as
long as it may. A failure tells the scenario, the seed, the point and the choice, which replays it.
"""

from __future__ import annotations

import gc
import logging

import pytest

from tests.counting import Count
from tests.crash.campaign import Campaign
from tests.crash.deadline_bugs import fail_a_sync_and_cut_the_power
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.kinds import CRASH_CAMPAIGNS, EACH_SCENARIO, KINDS
from tests.support.campaigns import FULL, seeds
from tests.support.planting import Broken

# Of random operations, each kind. Every test counts for itself: what two of them have in common is
# below a hundredth.
STATES = 11_500 if FULL else 2_000
# How many choices at each point of a scenario; all of them if None.
CHOICES = None if FULL else 5
COUNTED = "power-cut states, distinct by content"


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "forebay")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), EACH_SCENARIO)
def test_no_power_cut_breaks_a_promise_of_the_scenario(
    kind: str, name: str, record_property: Count
) -> None:
    campaign = Campaign(KINDS[kind])

    # Another seed for each: scenarios begin alike, and would share states with one another.
    seed = EACH_SCENARIO.index((kind, name))
    campaign.run_scenario(name, seed, limit=CHOICES)

    record_property(COUNTED, campaign.states)
    assert campaign.states > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_power_cut_breaks_a_promise_of_random_operations(
    kind: str, record_property: Count
) -> None:
    campaign = Campaign(KINDS[kind])
    seed = 0
    while campaign.states < STATES:
        campaign.run_random(seed, random_subsets=4, limit=60)
        seed += 1

    record_property(COUNTED, campaign.states)
    assert campaign.states >= STATES


def test_a_check_that_fails_leaves_no_queue_to_warn_in_another_test() -> None:
    work = KINDS["fifo"].workload(ForgetfulFilesystem(1), 1)
    work.append(10)
    machine = work.filesystem.kill()
    work.forget()
    strange = KINDS["fifo"].workload(ForgetfulFilesystem(2), 2)
    strange.forget()

    with pytest.raises(Broken):
        work.check(machine, [], strange.model, options=work.options, where="here")

    gc.collect()


def test_what_a_deadline_queue_serves_after_a_failed_sync_survives_a_power_cut() -> None:
    assert fail_a_sync_and_cut_the_power() > 0


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_no_power_cut_breaks_a_promise_for_as_long_as_it_may_take(
    kind: str, record_property: Count
) -> None:
    states = 0
    for seed in seeds("crash", f"power-cuts-{kind}", tests=CRASH_CAMPAIGNS):
        campaign = Campaign(KINDS[kind])
        campaign.run_random(seed, random_subsets=4, limit=60)
        states += campaign.states

    record_property("power-cut states of the campaign", states)
    assert states > 0
