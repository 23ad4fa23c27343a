"""A reader needs `names`, and files with `size` and `pread`: what an object store has as well."""

from __future__ import annotations

from pathlib import Path

from forebay import BeatsQueue, Log
from forebay.queues.beats.delivery import EventCursor, Taken
from forebay.queues.beats.place import End, Place
from forebay.queues.beats.segments import Access, list_event_segments
from forebay.queues.log.scanner import RecordBatch, Scanner, list_segments
from tests.support.bucket import Bucket


def test_the_records_of_a_log_are_read_from_any_store(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(500)]
    with Log(tmp_path / "log", segment_bytes=4_096) as log:
        log.append_many(values)
    bucket = Bucket(tmp_path / "log")

    batches = list(Scanner(bucket, list_segments(bucket)).scan(0, 500, 500))

    found = [value for batch in batches if isinstance(batch, RecordBatch) for value in batch.values]
    assert found == values


def test_the_events_of_a_beats_queue_are_read_from_any_store(tmp_path: Path) -> None:
    with BeatsQueue(tmp_path / "beats", segment_bytes=4_096) as queue:
        queue.put_many([{"fields": {"number": number}} for number in range(200)])
    bucket = Bucket(tmp_path / "beats")
    segments = list_event_segments(bucket)

    cursor = EventCursor(bucket, Access(None, None), Place(segments.bases[0]))
    taken = cursor.take(segments, End(200, segments.bases[-1], 0, None), 1_000)

    assert isinstance(taken, Taken)
    assert [event.fields["number"] for event in taken.events] == list(range(200))
