"""Beats queues as tables, without Spark: columns, damage, keys, kinds that are mixed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import forebay
from forebay import Event
from forebay.errors import Damaged, DataLoss, InvalidOption, WrongKey
from forebay.queues.beats.place import offset_of
from forebay.spark.source import ForebaySource
from tests.queues.beats_helpers import (
    GOLDEN,
    PER_SEGMENT,
    WRITABLE,
    copy_golden,
    leave_segment,
    make_key,
    numbered,
    open_queue,
    segment_names,
)
from tests.spark.readers import batch_reader, offsets_of, read, rows_of

COMMON = ["queue", "kind", "offset", "timestamp", "value", "segment", "position"]
ADDED = ["timestamp_ns", "flags", "meta", "fields"]


def opened(path: Path, version: str = "v2", **options: Any) -> forebay.BeatsQueue:
    return open_queue(path, version, **options)


def fill(path: Path, count: int, first: int = 0, **options: Any) -> None:
    with opened(path, **options) as queue:
        queue.put_many(numbered(count, first))


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["timestamp_ns"] - 10**9 for row in rows]


def typed(path: Path, **types: DataType) -> list[Any]:
    """Reads `fields` with the types that a user declared."""
    schema = StructType([StructField("fields", struct(**types))])
    return [row["fields"] for row in rows_of(ForebaySource({"path": str(path)}).reader(schema))]


def struct(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def test_a_row_is_an_event_and_says_where_it_is(tmp_path: Path) -> None:
    time_ns = 1_700_000_000_123_456_789
    with opened(tmp_path / "q", version="v1") as queue:
        queue.put(Event(time_ns, 1, {"_id": "a"}, {"message": "hä", "n": 1, "raw": b"\x00"}))
        queue.put(Event(-1, 0, {}, {}))

    first, second = read(tmp_path / "q")

    fields = '{"message":"hä","n":1,"raw":{"$bytes_b64":"AA=="}}'
    assert list(first) == COMMON + ADDED
    assert first == {
        "queue": str(tmp_path / "q"),
        "kind": "beats",
        "offset": 0,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
        "value": b'{"timestamp_ns":1700000000123456789,"flags":1,"meta":{"_id":"a"},"fields":'
        + fields.encode()
        + b"}",
        "segment": "0.seg",
        "position": 8,
        "timestamp_ns": time_ns,
        "flags": 1,
        "meta": '{"_id":"a"}',
        "fields": fields,
    }
    assert second["timestamp"] == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)


@pytest.mark.parametrize("version", WRITABLE)
def test_every_version_gives_the_same_rows(version: str, tmp_path: Path) -> None:
    fill(tmp_path / "q", 30, version=version)

    rows = read(tmp_path / "q", keyFile=str(make_key(tmp_path)))

    assert numbers(rows) == list(range(30))
    names = segment_names(tmp_path / "q")
    assert [row["segment"] for row in rows][:: len(rows) - 1] == [names[0], names[-1]]
    assert len(set(offsets_of(rows))) == 30
    assert offsets_of(rows) == sorted(offsets_of(rows))


def test_directories_of_beats_are_read_as_they_are() -> None:
    expected = [
        json.loads(line)
        for line in (GOLDEN / "expected" / "small-cbor.jsonl").read_text().split("\n")[:-1]
    ]

    rows = read(GOLDEN / "v1-small")

    assert [json.loads(row["value"]) for row in rows] == expected


def test_a_schema_gives_types_to_fields(tmp_path: Path) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(
            [
                {"fields": {"n": 1, "text": "a", "within": {"x": 0.5}, "list": [1, 2], "other": 1}},
                {"fields": {"text": "b"}},
            ]
        )

    rows = typed(
        tmp_path / "q",
        n=LongType(),
        text=StringType(),
        within=struct(x=DoubleType()),
        list=ArrayType(IntegerType()),
    )

    assert rows == [
        {"n": 1, "text": "a", "within": {"x": 0.5}, "list": [1, 2]},
        {"n": None, "text": "b", "within": None, "list": None},
    ]


def test_what_does_not_fit_the_schema_is_null_or_text(tmp_path: Path) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(
            [
                {"fields": {"n": "one", "text": {"a": [1]}, "small": 2**40, "yes": 1}},
                {"fields": {"n": 2, "text": "b", "small": 3, "yes": True}},
            ]
        )

    rows = typed(
        tmp_path / "q", n=LongType(), text=StringType(), small=IntegerType(), yes=BooleanType()
    )

    assert rows == [
        {"n": None, "text": '{"a":[1]}', "small": None, "yes": None},
        {"n": 2, "text": "b", "small": 3, "yes": True},
    ]


def test_a_type_that_json_does_not_have_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "q", 1)

    with pytest.raises(InvalidOption, match=r"fields\.at is timestamp.*from_json"):
        typed(tmp_path / "q", at=TimestampType())


def test_queues_of_mixed_kinds_have_the_common_columns(tmp_path: Path) -> None:
    fill(tmp_path / "events", 3)
    with forebay.Log(tmp_path / "log") as log:
        log.append(b"a record")

    rows = read(f"{tmp_path}/*", keyFile=str(make_key(tmp_path)))

    assert list(rows[0]) == COMMON
    assert [row["kind"] for row in rows] == ["beats"] * 3 + ["log"]
    chosen = read(f"{tmp_path}/*", columns="kind,fields", keyFile=str(make_key(tmp_path)))
    assert [row["fields"] is None for row in chosen] == [False] * 3 + [True]


def test_a_key_is_asked_for_and_shows_nowhere(tmp_path: Path) -> None:
    fill(tmp_path / "q", 2, version="v3-seed")
    other = make_key(tmp_path / "q", b"another key 0123")

    with pytest.raises(WrongKey):
        read(tmp_path / "q")
    with pytest.raises(WrongKey):
        read(tmp_path / "q", keyFile=str(other))
    reader = batch_reader(tmp_path / "q", keyFile=str(make_key(tmp_path)))
    assert b"keykeykey" not in _pickled(reader)


def _pickled(thing: Any) -> bytes:
    from pyspark import cloudpickle

    data: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    return data


def test_damage_raises_is_passed_over_or_a_row_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path / "q", 30, version="v1")
    file = tmp_path / "q" / "1.seg"
    data = bytearray(file.read_bytes())
    data[150] ^= 1
    file.write_bytes(data)

    with pytest.raises(Damaged, match=r"1\.seg, byte 108: checksum.*table=damage"):
        read(tmp_path / "q")
    rows = read(tmp_path / "q", mode="DROPMALFORMED")
    assert numbers(rows) == [number for number in range(30) if number != PER_SEGMENT + 1]
    columns = "offset,timestamp_ns,damage"
    rows = read(tmp_path / "q", mode="PERMISSIVE", columns=columns)
    found = [row for row in rows if row["damage"] is not None]
    assert [row["offset"] for row in found] == [offset_of(1, 1)]
    assert found[0]["damage"]["count"] == 1
    (row,) = read(tmp_path / "q", table="damage")
    assert (row["segment"], row["position"], row["offset"]) == ("1.seg", 108, offset_of(1, 1))


def test_an_unfinished_end_is_no_damage_among_the_records(tmp_path: Path) -> None:
    file = leave_segment(tmp_path / "q", 0, "v1", numbered(3), count=0)
    file.write_bytes(file.read_bytes()[:-5])

    assert numbers(read(tmp_path / "q")) == [0, 1]
    (row,) = read(tmp_path / "q", table="damage")
    assert row["torn"]


def test_a_segment_that_is_nothing_is_damage(tmp_path: Path) -> None:
    fill(tmp_path / "q", 20, version="v1")
    (tmp_path / "q" / "1.seg").write_bytes(b"not a segment at all")

    assert numbers(read(tmp_path / "q", mode="DROPMALFORMED")) == [*range(9), *range(18, 20)]
    rows = read(tmp_path / "q", table="damage")
    assert [(row["segment"], row["torn"]) for row in rows] == [("1.seg", False)]


def test_a_read_begins_behind_what_is_acknowledged(tmp_path: Path) -> None:
    with opened(tmp_path / "q") as queue:
        queue.put_many(numbered(20))
        queue.read(12).ack()

    unread = read(tmp_path / "q", startingOffsets="consumer:state")

    assert numbers(unread) == list(range(12, 20))
    (row,) = read(tmp_path / "q", table="consumers")
    assert (row["name"], row["type"], row["offset"]) == ("state", "state", offset_of(1, 3))


def test_bounds_are_offsets(tmp_path: Path) -> None:
    fill(tmp_path / "q", 30)

    rows = read(
        tmp_path / "q",
        startingOffsets=str(offset_of(1, 2)),
        endingOffsets=str(offset_of(2, 1)),
    )

    assert numbers(rows) == list(range(11, 19))


def test_options_that_events_do_not_have_are_refused(tmp_path: Path) -> None:
    fill(tmp_path / "q", 1)

    with pytest.raises(InvalidOption, match="times are not ordered"):
        batch_reader(tmp_path / "q", startingTimestamp="0").partitions()


def test_the_segments_table_has_counts_where_headers_tell_them(tmp_path: Path) -> None:
    fill(tmp_path / "q", 12, version="v1")
    leave_segment(tmp_path / "q", 7, "v0", numbered(3))

    rows = read(tmp_path / "q", table="segments")

    assert [(row["segment"], row["count"], row["version"], row["sealed"]) for row in rows] == [
        ("0.seg", 9, 1, True),
        ("1.seg", 3, 1, True),
        ("7.seg", None, 0, False),
    ]


def test_a_segment_that_goes_after_planning_is_data_loss(tmp_path: Path) -> None:
    fill(tmp_path / "q", 20)
    for options, rows in (({}, None), ({"failOnDataLoss": "false"}, 11)):
        reader = batch_reader(tmp_path / "q", **options)
        tasks = reader.partitions()
        held = (tmp_path / "q" / "0.seg").read_bytes()
        (tmp_path / "q" / "0.seg").unlink()
        if rows is None:
            with pytest.raises(DataLoss, match=r"0\.seg was removed"):
                rows_of(reader, tasks)
        else:
            assert len(rows_of(reader, tasks)) == rows
        (tmp_path / "q" / "0.seg").write_bytes(held)


def test_a_directory_that_a_beat_left_is_not_changed(tmp_path: Path) -> None:
    path = copy_golden("v1-mid", tmp_path / "q")
    before = {file.name: file.read_bytes() for file in path.iterdir()}

    assert len(read(path)) == 3633
    for table in ("segments", "consumers", "damage"):
        read(path, table=table)

    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
