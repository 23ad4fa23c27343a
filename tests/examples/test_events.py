from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from examples.tour.events import (
    DAMAGED_OFFSET,
    DAMAGED_QUEUE,
    DECODED,
    DEDUPLICATED,
    EVENT_QUEUE,
    LOGS,
    PER_QUEUE_MIN,
    QUEUES,
    REJECTED,
    Plan,
    event,
    fate,
    frame_position,
    number_of,
)
from tests.cli.helpers import make_log

PLAN = Plan(PER_QUEUE_MIN * len(QUEUES))


def test_what_becomes_of_an_event_follows_from_its_offset() -> None:
    fates = Counter(fate(offset) for offset in range(PLAN.per_queue))

    assert fates == {DECODED: 920, REJECTED: 10, DEDUPLICATED: 20, "filtered": 50}
    assert PLAN.expected("doors")["landed"] == 1_000
    assert PLAN.expected(DAMAGED_QUEUE) == {
        "landed": 999,
        "decoded": 919,
        "rejected": 10,
        "deduplicated": 20,
        "filtered": 50,
        "damaged": 1,
        "trimmed": 0,
    }
    assert (fate(DAMAGED_OFFSET), fate(DAMAGED_OFFSET + 5)) == (DECODED, DECODED)


@pytest.mark.parametrize("queue", QUEUES)
def test_events_are_what_their_fate_says(queue: str) -> None:
    ids: list[str] = []
    for offset in range(300):
        value = event(queue, offset)
        if fate(offset) == REJECTED and queue in LOGS:
            with pytest.raises(json.JSONDecodeError):
                json.loads(value)
            continue
        decoded = json.loads(value)
        if queue == EVENT_QUEUE:
            assert number_of(value) == offset
            decoded = decoded["fields"]
            assert isinstance(decoded["hall"], str) is (fate(offset) == REJECTED)
        assert (decoded["id"] in ids) is (fate(offset) == DEDUPLICATED)
        assert (decoded["kind"] == "heartbeat") is (fate(offset) == "filtered")
        ids.append(decoded["id"])


def test_the_frame_of_an_event_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    values = [event("doors", offset) for offset in range(50)]
    make_log(tmp_path / "doors", values, segment_bytes=100_000)

    data = (tmp_path / "doors" / "0000000000").read_bytes()

    position = frame_position("doors", 49)
    assert data[position + 12 : position + 12 + len(values[49])] == values[49]
