"""The writers of the sink, called as Spark calls them, without a session."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import forebay
from forebay.errors import Damaged, ForebayError, InvalidOption, NotAQueue
from forebay.queues.log.queue import Log
from forebay.spark.sink import writer as sink
from forebay.spark.sink.writer import ForebayStreamWriter, ForebayWriter, Written
from tests.support.values import flip, numbered
from tests.support.waiting import wait_until


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


VALUE = schema(value=BinaryType())


def batch_writer(path: Path, **options: str) -> ForebayWriter:
    return ForebayWriter({"path": str(path), **options}, VALUE)


def stream_writer(path: Path, **options: str) -> ForebayStreamWriter:
    return ForebayStreamWriter({"path": str(path), **options}, VALUE)


def rows(values: list[bytes | None]) -> Iterator[pyarrow.RecordBatch]:
    yield pyarrow.record_batch({"value": pyarrow.array(values, pyarrow.binary())})


def task(
    writer: ForebayWriter | ForebayStreamWriter, values: list[Any], partition: int = 0
) -> Written:
    written = writer.write(rows(values))
    return Written(partition, "the-query", written.parts)


def values_in(path: Path) -> list[bytes]:
    with forebay.read(path, kind="log") as reader:
        return list(reader.values())


def left_in_inbox(path: Path) -> list[str]:
    return os.listdir(path / "inbox") if path.exists() else []


def test_a_batch_can_be_read_when_the_commit_returns(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "q")
    messages = [task(writer, [b"c"], 1), task(writer, [b"a", b"b"], 0), task(writer, [], 2)]

    batch_writer(tmp_path / "q").commit(messages)

    assert values_in(tmp_path / "q") == [b"a", b"b", b"c"]
    assert left_in_inbox(tmp_path / "q") == []


def test_batches_without_a_name_are_all_written_and_leave_no_line(tmp_path: Path) -> None:
    for value in (b"a", b"b", b"a"):
        writer = batch_writer(tmp_path / "q")
        writer.commit([task(writer, [value])])

    assert values_in(tmp_path / "q") == [b"a", b"b", b"a"]
    with Log(tmp_path / "q") as log:
        assert log.info().adopted == {}


def test_batches_that_wait_together_are_adopted_in_the_order_of_their_commits(
    tmp_path: Path,
) -> None:
    with Log(tmp_path / "q", background=False) as log:
        for value in numbered(8):
            writer = batch_writer(tmp_path / "q")
            writer.commit([task(writer, [value])])
            # Their order is that of the clock, which counts milliseconds.
            time.sleep(0.002)
        assert log.adopt() == 8

    assert values_in(tmp_path / "q") == numbered(8)


def test_a_version_of_an_application_is_written_once(tmp_path: Path) -> None:
    for version, value in (("1", b"a"), ("1", b"again"), ("2", b"b"), ("0", b"too late")):
        writer = batch_writer(tmp_path / "q", txnAppId="app", txnVersion=version)
        writer.commit([task(writer, [value])])

    assert values_in(tmp_path / "q") == [b"a", b"b"]
    assert left_in_inbox(tmp_path / "q") == []


def test_a_micro_batch_is_written_once_by_query_and_number(tmp_path: Path) -> None:
    for number, value in ((0, b"a"), (0, b"again"), (1, b"b"), (1, b"again")):
        writer = stream_writer(tmp_path / "q")
        writer.commit([task(writer, [value])], number)
    writer = stream_writer(tmp_path / "q")
    other = Written(0, "another-query", task(writer, [b"c"]).parts)
    writer.commit([other], 0)

    assert values_in(tmp_path / "q") == [b"a", b"b", b"c"]
    assert left_in_inbox(tmp_path / "q") == []


def test_an_empty_batch_publishes_nothing_and_leaves_an_empty_queue(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "q")
    writer.commit([task(writer, [])])
    stream_writer(tmp_path / "q").commit([], 0)

    assert values_in(tmp_path / "q") == []
    assert left_in_inbox(tmp_path / "q") == []


def test_a_running_owner_takes_the_batch_within_a_second_or_so(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        log.append(b"own")
        writer = stream_writer(tmp_path / "q")
        writer.commit([task(writer, [b"a"])], 0)

        assert wait_until(lambda: log.end == 2)

    assert values_in(tmp_path / "q") == [b"own", b"a"]


def test_an_abort_removes_the_parts_of_the_tasks_that_succeeded(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "q")
    messages = [task(writer, [b"a"]), None, task(writer, [b"b"])]

    batch_writer(tmp_path / "q").abort(messages)

    assert left_in_inbox(tmp_path / "q") == []


@pytest.mark.parametrize("owned", [False, True], ids=["adopted", "waiting for the owner"])
def test_an_abort_after_the_commit_takes_nothing_back(tmp_path: Path, owned: bool) -> None:
    path = tmp_path / "q"
    owner = Log(path, background=False) if owned else None
    writer = stream_writer(path)
    messages = [task(writer, [b"a"]), task(writer, [b"b"], 1)]

    stream_writer(path).commit(messages, 0)
    stream_writer(path).abort(messages, 0)
    replayed = [task(writer, [b"a"]), task(writer, [b"b"], 1)]
    stream_writer(path).commit(replayed, 0)

    if owner is not None:
        assert owner.adopt() == 2
        owner.close()
    assert values_in(path) == [b"a", b"b"]
    assert left_in_inbox(path) == []


def test_a_commit_with_a_task_missing_publishes_nothing(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "q")
    messages = [task(writer, [b"a"]), None]

    with pytest.raises(InvalidOption, match="a task sent no message; nothing was published"):
        writer.commit(messages)
    writer.abort(messages)

    assert left_in_inbox(tmp_path / "q") == []


def test_a_micro_batch_of_an_unknown_query_is_refused(tmp_path: Path) -> None:
    writer = stream_writer(tmp_path / "q")

    with pytest.raises(InvalidOption, match=r"Spark passed no sql\.streaming"):
        writer.commit([writer.write(rows([b"a"]))], 0)

    assert len(left_in_inbox(tmp_path / "q")) == 1


def test_an_abort_before_anything_was_written_does_nothing(tmp_path: Path) -> None:
    batch_writer(tmp_path / "q").abort([None, None])

    assert not (tmp_path / "q").exists()


def test_a_task_that_comes_after_the_abort_changes_nothing(tmp_path: Path) -> None:
    writer = stream_writer(tmp_path / "q")
    writer.abort([task(writer, [b"a"]), None], 0)
    late = task(writer, [b"late"], 1)
    replay = [task(writer, [b"a"]), task(writer, [b"b"], 1)]

    writer.commit(replay, 0)

    assert values_in(tmp_path / "q") == [b"a", b"b"]
    assert left_in_inbox(tmp_path / "q") == [late.parts[0].name]


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "q", segmentBytes="1000")

    with pytest.raises(InvalidOption, match=r"column 'value' is null in row 30 of partition 0"):
        writer.write(rows([*numbered(30), None]))

    assert left_in_inbox(tmp_path / "q") == []


def test_a_write_that_fails_leaves_no_directory_that_was_not_there(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    forebay.Log(old, background=False).close()

    for path in (new, old):
        writer = batch_writer(path)
        written = task(writer, [b"a"])
        with pytest.raises(InvalidOption):
            writer.write(rows([None]))
        writer.abort([written, None])

    assert os.listdir(tmp_path) == ["old"]
    assert values_in(old) == []


def test_parts_that_vanished_before_the_commit_are_told_and_nothing_lands(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "q")
    messages = [task(writer, [b"a"]), task(writer, [b"b"], 1)]
    (tmp_path / "q" / "inbox" / messages[1].parts[0].name).unlink()

    with pytest.raises(Damaged, match="the part is gone; nothing was published"):
        writer.commit(messages)
    writer.abort(messages)

    assert left_in_inbox(tmp_path / "q") == []


def test_segments_are_as_large_as_the_option_says(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "q", segmentBytes="1000")
    writer.commit([task(writer, numbered(20))])

    with Log(tmp_path / "q") as log:
        assert (log.end, log.info().segments) == (20, 3)


def test_a_queue_that_its_group_may_read_stays_so(tmp_path: Path) -> None:
    Log(tmp_path / "q", group_readable=True).close()
    writer = batch_writer(tmp_path / "q")
    writer.commit([task(writer, [b"a"])])

    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "q").iterdir()}
    assert {modes["0000000000"], modes["ledger"], modes["tail"]} == {0o640}


def test_a_commit_takes_in_what_others_published_while_it_held_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q"
    late = batch_writer(path)
    messages = [task(late, [b"late"])]
    closing = Log.close

    def close_after_another_commit(log: Log) -> None:
        monkeypatch.setattr(Log, "close", closing)
        late.commit(messages)
        closing(log)

    monkeypatch.setattr(Log, "close", close_after_another_commit)
    writer = batch_writer(path)
    writer.commit([task(writer, [b"first"])])

    assert values_in(path) == [b"first", b"late"]


def test_an_error_after_the_publishing_does_not_fail_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: str, **options: object) -> Log:
        raise OSError("the disk is tired")

    path = tmp_path / "q"
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(sink, "Log", fail)
        writer = batch_writer(path)
        writer.commit([task(writer, [b"a"])])

    assert "could not be adopted: the disk is tired" in caplog.text
    Log(path).close()
    assert values_in(path) == [b"a"]


def test_a_damaged_ledger_is_told_before_anything_is_published(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "q", txnAppId="a", txnVersion="1")
    writer.commit([task(writer, [b"a"])])
    flip(tmp_path / "q" / "ledger", 4)
    messages = [task(writer, [b"b"])]

    with pytest.raises(Damaged, match="ledger"):
        writer.commit(messages)

    assert left_in_inbox(tmp_path / "q") == [messages[0].parts[0].name]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": BinaryType(), "key": BinaryType()}, "column 'key' has no place in a queue"),
        ({"key": BinaryType()}, "column 'key' has no place"),
        ({"offset": LongType()}, "a column 'value' is required; there are: offset"),
        ({"value": LongType()}, "column 'value' has type bigint: must be binary or string"),
    ],
)
def test_other_columns_are_refused_by_name(
    tmp_path: Path, columns: dict[str, DataType], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        ForebayWriter({"path": str(tmp_path / "q")}, schema(**columns))


@pytest.mark.parametrize("queue", [forebay.Fifo, forebay.DeadlineQueue, forebay.BeatsQueue])
def test_a_queue_of_another_kind_is_refused_with_what_to_do_instead(
    tmp_path: Path, queue: Any
) -> None:
    queue(tmp_path / "q").close()

    with pytest.raises(InvalidOption, match=r"writes only to a log\. .* with foreachPartition"):
        batch_writer(tmp_path / "q")

    assert not (tmp_path / "q" / "inbox").exists()


def test_the_columns_of_the_source_are_taken_and_ignored(tmp_path: Path) -> None:
    columns = schema(
        queue=StringType(),
        kind=StringType(),
        offset=LongType(),
        timestamp=TimestampType(),
        value=StringType(),
        segment=StringType(),
        position=LongType(),
    )
    writer = ForebayWriter({"path": str(tmp_path / "q")}, columns)
    batch = pyarrow.record_batch({"offset": [17], "value": ["a"], "position": [34]})
    writer.commit([writer.write(iter([batch]))])

    assert values_in(tmp_path / "q") == [b"a"]


@pytest.mark.parametrize("kind", [ForebayWriter, ForebayStreamWriter])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path is missing"),
        ({"path": "/spool/*"}, "must be one directory, not a pattern"),
        ({"path": "hdfs://host/spool"}, "must be a directory that every executor can see"),
        ({"path": "/q", "segmentBytes": "much"}, "segmentBytes = 'much': must be a whole number"),
        ({"path": "/q", "segmentBytes": "999"}, "segmentBytes = '999': must be a whole number"),
        ({"path": "/q", "txnAppId": "a"}, "belong together"),
        ({"path": "/q", "txnVersion": "1"}, "belong together"),
        ({"path": "/q", "txnAppId": "a", "txnVersion": "-1"}, "txnVersion = '-1'"),
        ({"path": "/q", "fsync": "none"}, "option 'fsync' is unknown to the sink"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(
    kind: type[ForebayWriter], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        kind(options, VALUE)


def test_a_stream_is_idempotent_by_itself_and_takes_no_transaction(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="for batch writes"):
        stream_writer(tmp_path / "q", txnAppId="a", txnVersion="1")


@pytest.mark.parametrize("kind", [ForebayWriter, ForebayStreamWriter])
def test_overwrite_is_refused_before_anything_is_touched(
    tmp_path: Path, kind: type[ForebayWriter]
) -> None:
    with pytest.raises(InvalidOption, match="only appended to"):
        kind({"path": str(tmp_path / "q")}, VALUE, True)

    assert os.listdir(tmp_path) == []


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1")

    with pytest.raises(NotAQueue, match=r"is not a log: it holds 'part-0\.parquet'"):
        batch_writer(tmp_path)

    assert os.listdir(tmp_path) == ["part-0.parquet"]


def test_a_file_is_refused_as_a_queue(tmp_path: Path) -> None:
    (tmp_path / "q").write_bytes(b"")

    with pytest.raises(ForebayError, match="is a file; a queue is a directory"):
        batch_writer(tmp_path / "q")


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}"])
def test_a_file_address_names_the_same_queue(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a queue"
    writer = ForebayWriter({"path": form.format(str(path).replace(" ", "%20"))}, VALUE)
    writer.commit([task(writer, [b"a"])])

    assert values_in(path) == [b"a"]
