from __future__ import annotations

from typing import Any

import pytest

from examples.tour.checks import (
    Comparison,
    QueueSums,
    claim_damage,
    claim_decoded,
    claim_landed,
    claim_reconciled,
    compare_decoded,
    compare_landed,
)
from examples.tour.events import (
    DAMAGED_OFFSET,
    DAMAGED_QUEUE,
    DECODED,
    EVENT_QUEUE,
    PER_QUEUE_MIN,
    QUEUES,
    Plan,
    event,
    fate,
    frame_position,
)
from examples.tour.history import Outage
from examples.tour.jobs import JOBS
from examples.tour.story import claim_recovered, claim_resumed
from forebay.queues.beats.place import offset_of

PLAN = Plan(PER_QUEUE_MIN * len(QUEUES))
Row = dict[str, Any]


def _place(queue: str, number: int) -> int:
    """Returns an offset that an event may have: those of the Beats queue have gaps."""
    return offset_of(*divmod(number, 77)) if queue == EVENT_QUEUE else number


def landed_rows() -> list[Row]:
    return [
        {"queue": f"/x/{queue}", "offset": _place(queue, offset), "value": event(queue, offset)}
        for queue in QUEUES
        for offset in range(PLAN.per_queue)
        if not PLAN.is_damaged(queue, offset)
    ]


LANDED = landed_rows()
VICTIM = {"queue": f"/x/{DAMAGED_QUEUE}", "offset": DAMAGED_OFFSET}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (LANDED, Comparison(right=4_999)),
        (LANDED[1:], Comparison(right=4_998, missing=1)),
        ([*LANDED, LANDED[5]], Comparison(right=4_999, twice=1)),
        ([*LANDED[1:], {**LANDED[0], "value": b"?"}], Comparison(right=4_998, wrong=1)),
        ([*LANDED, {**LANDED[0], "queue": "/x/other"}], Comparison(right=4_999, wrong=1)),
        ([*LANDED, {**LANDED[0], "offset": PLAN.per_queue}], Comparison(right=4_999, wrong=1)),
        ([*LANDED, {**VICTIM, "value": b"?"}], Comparison(right=4_999, wrong=1)),
    ],
    ids=["exact", "missing", "twice", "changed", "stray queue", "past the end", "damaged"],
)
def test_landed_values_that_are_not_the_events_are_found(
    rows: list[Row], found: Comparison
) -> None:
    assert compare_landed(rows, PLAN) == found
    assert claim_landed(found).holds is (rows is LANDED)


DECODED_ROWS = [
    {"id": f"{queue}-{offset}"}
    for queue in QUEUES
    for offset in range(PLAN.per_queue)
    if fate(offset) == DECODED and not PLAN.is_damaged(queue, offset)
]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (DECODED_ROWS, Comparison(right=4_599)),
        (DECODED_ROWS[1:], Comparison(right=4_598, missing=1)),
        ([*DECODED_ROWS, DECODED_ROWS[5]], Comparison(right=4_599, twice=1)),
        ([*DECODED_ROWS, {"id": "doors-10"}], Comparison(right=4_599, wrong=1)),
    ],
    ids=["exact", "missing", "twice", "filtered"],
)
def test_decoded_ids_that_are_not_the_events_are_found(rows: list[Row], found: Comparison) -> None:
    assert compare_decoded(rows, PLAN) == found
    assert claim_decoded(found).holds is (rows is DECODED_ROWS)


def sums(**changes: int) -> list[QueueSums]:
    found = [
        QueueSums(queue, PLAN.per_queue, PLAN.expected(queue), ()) for queue in (*QUEUES, JOBS)
    ]
    return [QueueSums("doors", PLAN.per_queue, {**found[0].counts, **changes}, ()), *found[1:]]


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (sums(), True),
        (sums(decoded=919, filtered=51), False),
        (sums()[1:], False),
        (
            [QueueSums("doors", 1_000, PLAN.expected("doors"), ("2 are missing",)), *sums()[1:]],
            False,
        ),
    ],
    ids=["exact", "other sums", "a queue is missing", "do not add up"],
)
def test_sums_that_do_not_add_up_fail_their_claim(found: list[QueueSums], holds: bool) -> None:
    assert claim_reconciled(found, PLAN).holds is holds


PLACE = {
    "queue": DAMAGED_QUEUE,
    "segment": "0000000000",
    "offset": DAMAGED_OFFSET,
    "count": 1,
    "position": frame_position(DAMAGED_QUEUE, DAMAGED_OFFSET),
    "reason": "checksum does not match",
}


@pytest.mark.parametrize(
    ("damage", "holds"),
    [
        ([PLACE], True),
        ([], False),
        ([PLACE, PLACE], False),
        ([{**PLACE, "offset": 221}], False),
        ([{**PLACE, "count": 2}], False),
        ([{**PLACE, "position": 0}], False),
    ],
)
def test_damage_that_is_not_the_changed_byte_fails_its_claim(
    damage: list[Row], holds: bool
) -> None:
    assert claim_damage(damage).holds is holds


@pytest.mark.parametrize(("found", "holds"), [(99, False), (100, True), (103, True)])
def test_a_log_with_less_than_was_acknowledged_fails_its_claim(found: int, holds: bool) -> None:
    assert claim_recovered(100, found, 0.5).holds is holds


@pytest.mark.parametrize(
    ("after", "holds"),
    [
        ({0: "a", 1: "b", 2: "c"}, True),
        ({0: "a", 1: "b"}, False),
        ({0: "a", 1: "x", 2: "c"}, False),
        ({0: "a", 2: "c"}, False),
        ({0: "a", 1: "b", 3: "d"}, False),
    ],
    ids=["goes on", "stands still", "replaced", "gone", "gap"],
)
def test_an_ingest_that_does_not_go_on_where_it_was_fails_its_claim(
    after: dict[int, str], holds: bool
) -> None:
    outage = Outage(until_back=9.0, until_caught_up=12.0, lag_before=10, lag_most=50)

    assert claim_resumed({0: "a", 1: "b"}, after, outage).holds is holds
