"""The sink into a deadline queue, called as Spark calls it, without a session."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from forebay import DeadlineReader
from forebay.errors import InvalidOption
from forebay.queues.deadline.adoption import adopt
from forebay.spark.schemas import arrow_schema, spark_schema
from forebay.spark.sink import ForebayStreamWriter, ForebayWriter, Written
from tests.queues.deadline_helpers import open_queue, values_of
from tests.queues.helpers import numbered
from tests.spark.readers import read
from tests.spark.test_sink_writers import left_in_inbox, schema

# Far in the future: no clock of a test comes there.
DUE = datetime(2096, 1, 2, 3, 4, 5, 678901, UTC)
DUE_MS = 3_976_311_845_678


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    open_queue(tmp_path / "q").close()
    return tmp_path / "q"


def write(path: Path, rows: dict[str, Any], columns: StructType, **options: str) -> None:
    writer = ForebayWriter({"path": str(path), **options}, columns)
    written = writer.write(iter([pyarrow.record_batch(rows)]))
    writer.commit([Written(0, "query", written.parts)])


def items_in(path: Path) -> dict[bytes, int]:
    with DeadlineReader(path) as reader:
        return {item.value: item.deadline_ms for item in reader}


def test_items_get_the_deadlines_of_a_column_and_null_is_now(queue: Path) -> None:
    before = round(datetime.now(UTC).timestamp() * 1000)
    due = pyarrow.array(
        [DUE, None, datetime(1969, 1, 1, tzinfo=UTC)], pyarrow.timestamp("us", "UTC")
    )

    write(
        queue,
        {"value": pyarrow.array(["late", "now", "past"]), "due": due},
        schema(value=StringType(), due=TimestampType()),
        deadlineColumn="due",
    )

    found = items_in(queue)
    assert found[b"late"] == DUE_MS
    assert before <= found[b"now"] <= round(datetime.now(UTC).timestamp() * 1000)
    assert found[b"past"] == 0
    assert left_in_inbox(queue) == []


def test_milliseconds_are_deadlines_too_and_no_column_means_now(queue: Path) -> None:
    columns = schema(value=BinaryType(), deadline=LongType())

    write(queue, {"value": [b"a"], "deadline": [DUE_MS]}, columns)
    write(queue, {"value": [b"b"]}, schema(value=BinaryType()))

    assert items_in(queue)[b"a"] == DUE_MS
    with open_queue(queue) as opened:
        assert values_of(opened.dequeue_many(9)) == [b"b"]


def test_a_queue_is_copied_as_it_was_read(queue: Path, tmp_path: Path) -> None:
    with open_queue(queue) as opened:
        opened.enqueue_many(numbered(5), deadline=DUE_MS)
    open_queue(tmp_path / "copy").close()
    columns = arrow_schema("records", None, {"deadline"})
    rows = pyarrow.RecordBatch.from_pylist(read(queue), columns).to_pydict()

    write(tmp_path / "copy", rows, spark_schema(columns))

    assert items_in(tmp_path / "copy") == items_in(queue) == dict.fromkeys(numbered(5), DUE_MS)


def test_versions_and_micro_batches_are_written_once(queue: Path) -> None:
    columns = schema(value=BinaryType())
    for version, value in (("1", b"a"), ("1", b"again"), ("2", b"b"), ("0", b"too late")):
        write(queue, {"value": [value]}, columns, txnAppId="app", txnVersion=version)
    for batch in (0, 1, 1, 0):
        writer = ForebayStreamWriter({"path": str(queue)}, columns)
        written = writer.write(iter([pyarrow.record_batch({"value": [b"%d" % batch]})]))
        writer.commit([Written(0, "query", written.parts)], batch)

    assert sorted(items_in(queue)) == [b"0", b"1", b"a", b"b"]


def test_a_batch_waits_for_the_owner_that_runs(queue: Path) -> None:
    with open_queue(queue) as opened:
        write(queue, {"value": [b"a"]}, schema(value=BinaryType()))

        assert len(opened) == 0
        assert adopt(opened) == 1
        assert values_of(opened.dequeue_many(9)) == [b"a"]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"due": StringType()}, {"deadlineColumn": "due"}, "of type string: must be timestamp"),
        ({}, {"deadlineColumn": "due"}, "deadlineColumn = 'due': there are the columns value"),
        ({"when": TimestampType()}, {}, "column 'when' has no place in a queue"),
    ],
)
def test_a_wrong_column_is_refused_by_name(
    queue: Path, columns: dict[str, DataType], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        ForebayWriter({"path": str(queue), **options}, schema(value=BinaryType(), **columns))


def test_a_deadline_out_of_bounds_and_a_queue_without_deadlines_are_refused(
    queue: Path, tmp_path: Path
) -> None:
    columns = schema(value=BinaryType(), due=LongType())

    with pytest.raises(InvalidOption, match="a deadline of 140737488355328 ms: must be below"):
        write(queue, {"value": [b"a"], "due": [1 << 47]}, columns, deadlineColumn="due")
    assert left_in_inbox(queue) == []
    with pytest.raises(InvalidOption, match="log is not a deadline queue; make one by"):
        ForebayWriter({"path": str(tmp_path / "log"), "deadlineColumn": "due"}, columns)
    with pytest.raises(InvalidOption, match="column 'value' is null in row 0"):
        write(queue, {"value": pyarrow.array([None], pyarrow.binary())}, schema(value=BinaryType()))
