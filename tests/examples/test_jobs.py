"""The jobs of the tour, and the worker that goes on where the queue says that it was."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples.tour.checks import Comparison, claim_jobs, compare_jobs
from examples.tour.jobs import (
    BURIED,
    JOBS,
    RELEASED,
    REQUEUED,
    Jobs,
    fate_of,
    job,
    number_of,
)
from examples.tour.processes import Actor
from forebay import DeadlineReader
from tests.support.waiting import wait_until

Row = dict[str, Any]
JOB_ROWS = [
    {
        "value": job(number),
        "type": BURIED if fate == BURIED else "pending",
        "requeue_time": 1 if fate in (BURIED, REQUEUED) else None,
    }
    for number, fate in Jobs(100).left().items()
]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (JOB_ROWS, Comparison(right=60)),
        (JOB_ROWS[1:], Comparison(right=59, missing=1)),
        ([*JOB_ROWS, JOB_ROWS[5]], Comparison(right=60, twice=1)),
        ([*JOB_ROWS, {**JOB_ROWS[0], "value": job(0)}], Comparison(right=60, wrong=1)),
        (
            [*JOB_ROWS[1:], {**JOB_ROWS[0], "requeue_time": None}],
            Comparison(right=59, wrong=1, missing=1),
        ),
    ],
    ids=["exact", "missing", "twice", "released", "not requeued"],
)
def test_jobs_that_are_not_as_they_were_left_are_found(rows: list[Row], found: Comparison) -> None:
    assert compare_jobs(rows, Jobs(100)) == found
    assert claim_jobs(found).holds is (rows is JOB_ROWS)


def test_how_far_the_worker_has_come_follows_from_what_is_in_the_queue() -> None:
    jobs = Jobs(100)
    fates = [jobs.fate(number) for number in range(100)]

    assert Counter(fates) == {RELEASED: 40, REQUEUED: 9, BURIED: 1, "kept": 50}
    assert jobs.progress({}) == (0, 0)
    assert jobs.progress(dict.fromkeys(range(30), "kept")) == (30, 30)
    assert jobs.progress(jobs.left()) == (100, jobs.steps) == (100, 150)
    assert [number_of(job(number)) for number in range(100)] == list(range(100))
    assert fate_of(requeued=True, buried=True) == BURIED


@pytest.mark.slow
def test_a_worker_that_is_killed_goes_on_where_the_queue_says_that_it_was(tmp_path: Path) -> None:
    path, jobs = tmp_path / JOBS, Jobs(400)
    worker = Actor("worker", str(path), jobs.steps, 400.0, jobs.count)

    def look_until(steps: int) -> bool:
        worker.look()
        return worker.acknowledged >= steps

    promised = [0]
    try:
        for steps in (100, 420):
            worker.start()
            assert wait_until(partial(look_until, steps))
            worker.kill()
            promised += [worker.found or 0, worker.acknowledged]
        worker.start()
        assert wait_until(lambda: look_until(jobs.steps) and worker.done)
        promised += [worker.found or 0, worker.acknowledged]
    finally:
        worker.end()

    assert promised == sorted(promised)
    with DeadlineReader(path) as reader:
        found = {
            number_of(item.value): fate_of(requeued=item.requeue_ms > 0, buried=item.buried)
            for item in reader
        }
    assert found == jobs.left()
