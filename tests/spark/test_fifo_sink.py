"""The sink into a fifo, called as Spark calls it, without a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.errors import NotAQueue
from forebay.queues.fifo.queue import Fifo
from forebay.queues.log.queue import Log
from forebay.spark.sink import ForebayStreamWriter, ForebayWriter
from tests.queues.beats_helpers import numbered as events
from tests.queues.beats_helpers import open_queue
from tests.queues.helpers import numbered, wait_until
from tests.spark.readers import offsets_of, read
from tests.spark.test_sink_writers import (
    batch_writer,
    left_in_inbox,
    stream_writer,
    task,
    values_in,
)


def opened(path: Path, **options: Any) -> Fifo:
    return Fifo(path, **{"file_bytes": 1000, "background": False, **options})


def write(path: Path, *partitions: list[bytes], **options: str) -> None:
    writer = batch_writer(path, **options)
    writer.commit([task(writer, values, number) for number, values in enumerate(partitions)])


def test_a_batch_can_be_read_and_popped_when_the_commit_returns(tmp_path: Path) -> None:
    with opened(tmp_path / "q") as fifo:
        fifo.push(b"first")

    write(tmp_path / "q", numbered(20), numbered(5, first=20))

    assert values_in(tmp_path / "q") == [b"first", *numbered(25)]
    assert offsets_of(read(tmp_path / "q")) == list(range(26))
    assert left_in_inbox(tmp_path / "q") == []
    with opened(tmp_path / "q") as fifo:
        assert fifo.pop_many(99) == [b"first", *numbered(25)]


@pytest.mark.slow
def test_a_running_owner_takes_the_batch_within_a_second_or_so(tmp_path: Path) -> None:
    with opened(tmp_path / "q", background=True, ttl_seconds=3600) as fifo:
        write(tmp_path / "q", numbered(20))

        assert wait_until(lambda: fifo.size == 20)
        assert {row["ttl_seconds"] for row in read(fifo.path)} == {3600}


def test_a_version_of_an_application_is_written_once(tmp_path: Path) -> None:
    opened(tmp_path / "q").close()

    for version, value in (("1", b"a"), ("1", b"again"), ("2", b"b"), ("0", b"too late")):
        write(tmp_path / "q", [value], txnAppId="app", txnVersion=version)

    assert values_in(tmp_path / "q") == [b"a", b"b"]


def test_a_micro_batch_is_written_once_by_query_and_number(tmp_path: Path) -> None:
    opened(tmp_path / "q").close()

    for batch in (0, 1, 1, 0, 2):
        writer = stream_writer(tmp_path / "q")
        writer.commit([task(writer, [b"%d" % batch])], batch)

    assert values_in(tmp_path / "q") == [b"0", b"1", b"2"]


def test_an_abort_after_the_commit_takes_nothing_back(tmp_path: Path) -> None:
    with opened(tmp_path / "q") as fifo:
        writer = batch_writer(tmp_path / "q")
        messages = [task(writer, [b"a"])]
        writer.commit(messages)
        writer.abort(messages)

        assert fifo.adopt() == 1
        writer.abort(messages)
        assert fifo.pop() == b"a"


def test_a_log_is_copied_into_a_fifo_and_an_event_queue_takes_none(tmp_path: Path) -> None:
    with Log(tmp_path / "log", background=False) as log:
        log.append_many(numbered(30))
    opened(tmp_path / "q").close()
    with open_queue(tmp_path / "events", "v2") as queue:
        queue.put_many(events(1))

    write(tmp_path / "q", [row["value"] for row in read(tmp_path / "log")])

    assert values_in(tmp_path / "q") == numbered(30)
    schema = StructType([StructField("value", BinaryType())])
    for kind in (ForebayWriter, ForebayStreamWriter):
        with pytest.raises(NotAQueue, match="is a Beats queue, not a log"):
            kind({"path": str(tmp_path / "events")}, schema)
