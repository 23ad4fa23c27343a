"""`_bulk`: what is sent for a record and an event, and what the status of each item means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay import BeatsQueue, Event, Log, OutputManager
from forebay.errors import InvalidOption
from forebay.forward.bulk import BulkOutput
from tests.support.forwarding import FAST, check_holds, forward_all, numbered_objects
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

# 2024-05-06T07:08:09.123Z
TIME_NS = 1_714_979_289_123_456_789


def output(receiver: Receiver, path: str, **options: Any) -> BulkOutput:
    return BulkOutput(receiver.url(path), timeout_seconds=5, **options)


def forward_events(
    folder: Path, receiver: Receiver, path: str, *events: Event, **options: Any
) -> Any:
    with BeatsQueue(folder / "q") as queue:
        queue.put_many(events)
        forward_all(queue, output(receiver, path, **options), state=folder / "s")
    return receiver.values(path)


def test_each_item_is_delivered_repeated_or_set_aside_by_its_status(
    tmp_path: Path, receiver: Receiver
) -> None:
    path = "items/_bulk"
    receiver.script(path, seed=7, item_faults=[429, 503, 403], item_share=0.2, poison="poison")

    with Log(tmp_path / "q") as log:
        log.append_many(numbered_objects(200, [11, 150]))
        settled = forward_all(log, output(receiver, path)).settled

    found = [value["document"]["n"] for value in receiver.values(path)]
    assert (settled.delivered, settled.set_aside) == (198, 2)
    assert sorted(found) == [number for number in range(200) if number not in (11, 150)]
    assert check_holds(tmp_path / "q").records == 200


def test_what_is_there_already_is_delivered(tmp_path: Path, receiver: Receiver) -> None:
    path = "again/_bulk"
    receiver.script(path, script=["ok", "die-after", "reset-answering"])

    with Log(tmp_path / "q") as log:
        log.append_many(numbered_objects(60))
        settled = forward_all(log, output(receiver, path)).settled

    found = receiver.summary(path)
    assert settled.delivered == 60
    assert (found["records"], found["repeats"]) == (60, 40)


def test_ids_tell_queues_apart(tmp_path: Path, receiver: Receiver) -> None:
    path = "ids/_bulk"

    for name in ("q", "r"):
        with Log(tmp_path / name) as log:
            log.append_many(numbered_objects(3))
            forward_all(log, output(receiver, path))

    ids = [value["meta"]["_id"] for value in receiver.values(path)]
    assert len(set(ids)) == 6
    assert [each.rpartition("-")[2] for each in ids] == ["0", "1", "2"] * 2


def test_a_record_gets_a_time_and_keeps_its_own(tmp_path: Path, receiver: Receiver) -> None:
    path = "times/_bulk"
    own = b'{"@timestamp":"2020-01-01T00:00:00Z"}'

    with Log(tmp_path / "q") as log:
        log.append_many([b"plain", own, b'{"deep":{"@timestamp":1}}', b"{}"])
        forward_all(log, output(receiver, path))

    documents = [value["document"] for value in receiver.values(path)]
    assert documents[0]["value"] == "plain"
    assert documents[1] == {"@timestamp": "2020-01-01T00:00:00Z"}
    assert all(document["@timestamp"] for document in documents)


def test_an_event_is_the_document_that_filebeat_sends(tmp_path: Path, receiver: Receiver) -> None:
    event = Event(
        TIME_NS, meta={"pipeline": "p", "raw_index": "i"}, fields={"message": "hello", "n": 4}
    )

    (found,) = forward_events(tmp_path, receiver, "doc/_bulk", event)

    assert found["document"] == {
        "@timestamp": "2024-05-06T07:08:09.123Z",
        "message": "hello",
        "n": 4,
    }
    assert found["action"] == "create"
    assert (found["meta"]["_index"], found["meta"]["pipeline"]) == ("i", "p")
    assert found["meta"]["_id"].endswith("-0-0-0")


@pytest.mark.parametrize(
    ("meta", "index"),
    [
        ({"alias": "a", "index": "i", "raw_index": "r"}, "a"),
        ({"index": "i", "raw_index": "r"}, "i-2024.05.06"),
        ({"raw_index": "r"}, "r"),
        ({}, "filebeat-8.4.0"),
    ],
)
def test_the_index_is_that_of_the_metadata_or_of_the_beat(
    tmp_path: Path, receiver: Receiver, meta: dict[str, Any], index: str
) -> None:
    fields = {"agent": {"type": "filebeat", "version": "8.4.0"}}

    (found,) = forward_events(
        tmp_path, receiver, "_bulk", Event(TIME_NS, meta=meta, fields=fields)
    )[-1:]

    assert found["meta"]["_index"] == index


def test_an_event_may_name_its_id_and_its_action(tmp_path: Path, receiver: Receiver) -> None:
    own = {"_id": "mine", "op_type": "index"}
    gone = {"_id": "gone", "op_type": "delete"}

    found = forward_events(
        *(tmp_path, receiver, "own/_bulk", Event(TIME_NS, meta=own), Event(TIME_NS, meta=gone))
    )

    assert [(each["meta"]["_id"], each["action"]) for each in found] == [
        ("mine", "index"),
        ("gone", "delete"),
    ]


def test_an_index_is_needed_somewhere(tmp_path: Path, receiver: Receiver) -> None:
    with Log(tmp_path / "q") as log:
        log.append(b"x")

        with pytest.raises(InvalidOption, match="names no index"):
            forward_all(log, output(receiver, "_bulk"))


def test_an_answer_that_is_not_of_bulk_is_no_delivery(tmp_path: Path, receiver: Receiver) -> None:
    path = "other/_bulk"
    receiver.script(path, script=["misled"] * 1000)
    sent = output(receiver, path)

    with Log(tmp_path / "q") as log:
        log.append(b"{}")
        with OutputManager(log, sent, **FAST) as manager:
            assert wait_until(lambda: manager.live().attempts > 1)
            assert manager.settled.delivered == 0
