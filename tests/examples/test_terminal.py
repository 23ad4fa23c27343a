from __future__ import annotations

import pytest

from examples.tour.checks import QueueSums
from examples.tour.events import PER_QUEUE_MIN, QUEUES, Plan
from examples.tour.story import claim_recovered
from examples.tour.terminal import Terminal

PLAN = Plan(PER_QUEUE_MIN * len(QUEUES))


def test_the_sums_stand_below_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = (QueueSums(name, PLAN.per_queue, PLAN.expected(name), ()) for name in QUEUES)
    large = QueueSums(first.queue, first.range, {**first.counts, "decoded": 1_234_567}, ())

    Terminal(as_json=False).sums([large, *rest])

    head, *rows = capsys.readouterr().out.splitlines()
    places = [[place for place, sign in enumerate(row) if sign in "=+|"] for row in (head, *rows)]
    assert len(places[0]) == 8
    assert places == [places[0]] * (len(QUEUES) + 1)
    assert "1,234,567" in rows[0]


@pytest.mark.parametrize(("holds", "text"), [(True, "all 1 claims hold"), (False, "1 of 1 claims")])
def test_the_verdict_counts_what_failed(
    capsys: pytest.CaptureFixture[str], holds: bool, text: str
) -> None:
    terminal = Terminal(as_json=False)

    terminal.claim(claim_recovered(100, 100 if holds else 99, 0.5))
    terminal.verdict(1.0, "out/report.html")

    output = capsys.readouterr().out
    assert text in output
    assert output.endswith("out/report.html\n")
