"""A thread that is not scheduled for long; see `tests/threads/starvation.py`."""

from __future__ import annotations

import pytest

from tests.counting import Count
from tests.support.cases import run_all, run_sample
from tests.threads.starvation import all_starved, run_starved

pytestmark = pytest.mark.crash


def test_a_thread_that_was_held_for_long_is_told_the_truth(record_property: Count) -> None:
    cases = all_starved()

    outcomes = run_sample(cases, run_starved, 60)

    outcomes.report("starved threads", record_property, len(cases))
    assert outcomes.problems == ""


@pytest.mark.parametrize("kind", ["log", "events"])
def test_a_put_whose_write_failed_long_ago_raises(kind: str) -> None:
    places = [case for case in all_starved() if case.kind == kind and case.policy == "always"]

    outcomes = run_sample([case for case in places if case.verb == "put"], run_starved, 70)

    assert outcomes.problems == ""


@pytest.mark.full
@pytest.mark.slow
def test_a_thread_that_was_held_at_every_place(record_property: Count) -> None:
    cases = all_starved()

    outcomes, done = run_all("starved", cases, run_starved)

    outcomes.report("starved threads", record_property)
    record_property("starved threads so far", f"{done:,} of {len(cases):,}")
    assert outcomes.problems == ""
