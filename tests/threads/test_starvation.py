"""A thread that is not scheduled for long; see `tests/threads/starvation.py`."""

from __future__ import annotations

import pytest

from tests.counting import Count
from tests.support.cases import check_all, check_sample
from tests.threads.starvation import all_starved, run_starved

pytestmark = pytest.mark.crash


def test_a_thread_that_was_held_for_long_is_told_the_truth(record_property: Count) -> None:
    check_sample(all_starved(), run_starved, 60, title="starved threads", record=record_property)


@pytest.mark.parametrize("kind", ["log", "beats"])
def test_a_put_whose_write_failed_long_ago_raises(kind: str) -> None:
    places = [case for case in all_starved() if case.kind == kind and case.policy == "always"]

    check_sample([case for case in places if case.verb == "put"], run_starved, 70)


@pytest.mark.full
@pytest.mark.slow
def test_a_thread_that_was_held_at_every_place(record_property: Count) -> None:
    check_all(
        "starved", all_starved(), run_starved, title="starved threads", record=record_property
    )
