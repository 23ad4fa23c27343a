"""The tests of the stream can fail: each of these bugs, planted into it, is caught.

A bug is a patch of our own code that a tired programmer might have written, and the story that
finds it (`stories.py`).
`test_without_a_bug_the_same_story_ends_well` is the control.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from forebay.queues.log import places
from forebay.spark import stream
from forebay.spark.kinds import log
from forebay.spark.planning import Range
from forebay.spark.stream import QueueStreamReader
from forebay.storage.slots import SlotFile
from forebay.storage.tail import Tail
from tests.counting import Count
from tests.spark.once import stories
from tests.support.planting import Bug, Patch, check_caught, check_control, each


def limit_ignored(patch: Patch) -> None:
    patch.setattr(
        stream,
        "_limited",
        lambda queues, limit: {path: mark.durable for path, (_, mark) in queues.items()},
    )


def not_prepared(patch: Patch) -> None:
    patch.setattr(QueueStreamReader, "prepareForTriggerAvailableNow", lambda self: None)


def read_past_durable(patch: Patch) -> None:
    original = log.mark_of

    def written(path: str, tail: Tail) -> log.LogMark:
        return original(path, tail._replace(durable=tail.written))

    patch.setattr(log, "mark_of", written)


def incarnation_ignored(patch: Patch) -> None:
    patch.setattr(Tail, "lost_since", lambda self, incarnation, offset: False)


def trim_over_cursors(patch: Patch) -> None:
    patch.setattr(places, "read_cursors", lambda queue: iter(()))


def committed_when_planned(patch: Patch) -> None:
    original = QueueStreamReader.latestOffset

    def early(self: QueueStreamReader, start: Any, limit: Any) -> Any:
        after = original(self, start, limit)
        self.commit(after)
        return after

    patch.setattr(QueueStreamReader, "latestOffset", early)


def replay_forgets_where_a_queue_came_in(patch: Patch) -> None:
    original = QueueStreamReader.partitions

    def partitions(self: QueueStreamReader, start: Any, end: Any) -> Any:
        for place in end["queues"].values():
            if "from" in place:
                place["from"] = place["offset"]
        return original(self, start, end)

    patch.setattr(QueueStreamReader, "partitions", partitions)


def replay_from_the_earliest(patch: Patch) -> None:
    original = QueueStreamReader.partitions

    def partitions(self: QueueStreamReader, start: Any, end: Any) -> Any:
        for place in end["queues"].values():
            place["from"] = 0
        return original(self, start, end)

    patch.setattr(QueueStreamReader, "partitions", partitions)


def replay_to_the_present_end(patch: Patch) -> None:
    original = QueueStreamReader.partitions

    def partitions(self: QueueStreamReader, start: Any, end: Any) -> Any:
        return original(self, start, self.reportLatestOffset())

    patch.setattr(QueueStreamReader, "partitions", partitions)


def beginning_not_kept(patch: Patch) -> None:
    original = QueueStreamReader.latestOffset

    def forgetting(self: QueueStreamReader, start: Any, limit: Any) -> Any:
        after = original(self, start, limit)
        for path in start["queues"]:
            after["queues"][path].pop("from", None)
        return after

    patch.setattr(QueueStreamReader, "latestOffset", forgetting)


def cursor_free_while_replaying(patch: Patch) -> None:
    original = QueueStreamReader.partitions

    def partitions(self: QueueStreamReader, start: Any, end: Any) -> Any:
        found = original(self, start, end)
        self._kept().close()
        return found

    patch.setattr(QueueStreamReader, "partitions", partitions)


def old_mark_taken_for_loss(patch: Patch) -> None:
    patch.setattr(log.LogMark, "_is_behind", lambda self, place: False)


def cursor_not_locked(patch: Patch) -> None:
    patch.setattr(SlotFile, "lock", lambda self: True)


def vanished_queue_dropped(patch: Patch) -> None:
    patch.setattr(QueueStreamReader, "_check_vanished", lambda self, before, known: {})


def parts_of_a_segment_overlap(patch: Patch) -> None:
    original = Range.cut

    def cut(self: Range, size: int) -> tuple[Range, Range]:
        head, rest = original(self, size)
        return head, replace(rest, cut_first=False)

    patch.setattr(Range, "cut", cut)


BUGS: dict[str, Bug] = {
    "limit ignored": (limit_ignored, stories.a_query_with_a_limit),
    "no AvailableNow preparation": (not_prepared, stories.a_writer_that_never_rests),
    "read past durable": (read_past_durable, stories.a_power_cut_behind_the_stream),
    "incarnation ignored": (incarnation_ignored, stories.a_disk_that_lied),
    "trim ignores cursors": (trim_over_cursors, stories.trimming_goes_on),
    "committed when planned": (committed_when_planned, stories.trimming_goes_on),
    "replay forgets where a queue came in": (
        replay_forgets_where_a_queue_came_in,
        stories.a_queue_that_comes_later,
    ),
    "replay from the earliest": (replay_from_the_earliest, stories.a_query_with_a_limit),
    "replay to the present end": (
        replay_to_the_present_end,
        stories.a_restart_before_the_batch_is_done,
    ),
    "beginning of the query not kept": (beginning_not_kept, stories.a_restart_in_the_first_batch),
    "second query not locked": (cursor_not_locked, stories.a_second_query_of_the_same_name),
    "cursor free while replaying": (
        cursor_free_while_replaying,
        stories.a_second_query_while_the_first_replays,
    ),
    "old mark taken for loss": (
        old_mark_taken_for_loss,
        stories.a_stream_that_comes_up_before_the_owner,
    ),
    "vanished queue dropped": (vanished_queue_dropped, stories.a_queue_that_vanished),
    "parts of a segment overlap": (parts_of_a_segment_overlap, stories.a_segment_for_many_tasks),
}


@each(BUGS)
def test_a_planted_bug_is_caught(
    bug: Bug, tmp_path: Path, monkeypatch: Patch, record_property: Count
) -> None:
    check_caught(bug, monkeypatch, record_property, tmp_path / "q")


@each(BUGS)
def test_without_a_bug_the_same_story_ends_well(bug: Bug, tmp_path: Path) -> None:
    check_control(bug, tmp_path / "q")
