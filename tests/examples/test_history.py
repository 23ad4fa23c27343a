from __future__ import annotations

from examples.tour.history import Outage, Sample, outage, rates

# Every second 10 are appended; they land in batches, and nothing lands from 3 s to 8 s.
COURSE = [(0, 0), (10, 0), (20, 20), (30, 20), (40, 20), (50, 20), (60, 20), (70, 20), (80, 75)]
SAMPLES = [
    Sample(float(at), (appended,), (landed,)) for at, (appended, landed) in enumerate(COURSE)
]


def test_rates_are_averages_over_the_window_before_a_sample() -> None:
    found = rates(SAMPLES, 2.0)

    assert found[:4] == [(0, 0), (5, 0), (10, 10), (10, 10)]
    assert found[-1] == (10, 27.5)


def test_an_outage_lasts_until_the_lag_is_as_small_as_before() -> None:
    found = outage(SAMPLES, killed=3.5)

    assert found == Outage(until_back=4.5, until_caught_up=4.5, lag_before=10, lag_most=50)


def test_an_ingest_that_is_back_may_still_be_behind() -> None:
    samples = [*SAMPLES[:6], Sample(6.0, (60,), (25,))]

    assert outage(samples, killed=3.5) == Outage(2.5, None, 10, 35)


def test_an_ingest_that_does_not_come_back_has_no_end_of_its_outage() -> None:
    found = outage(SAMPLES[:6], killed=3.5)

    assert (found.until_back, found.until_caught_up) == (None, None)


def test_a_promise_that_is_seen_late_gives_no_negative_lag() -> None:
    assert Sample(1.0, (5, 5), (7, 5)).lag == 0
