"""The columns of every table, as Arrow has them; Spark's types follow from these.

`records` begins with the same columns for every kind of queue. What Spark gets must have exactly
the Arrow types that it derives from its own schema, so there is one list for both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_type
from pyspark.sql.types import StructType

from forebay.errors import InvalidOption
from forebay.spark.typed_text import check_type

_STRING, _LONG = pyarrow.string(), pyarrow.int64()
_TIMESTAMP = pyarrow.timestamp("us", tz="UTC")

_RECORDS = pyarrow.schema(
    [
        ("queue", _STRING),
        ("kind", _STRING),
        ("offset", _LONG),
        ("timestamp", _TIMESTAMP),
        ("value", pyarrow.binary()),
        ("segment", _STRING),
        ("position", _LONG),
    ]
)
# What a kind of queue adds, if all queues are of it.
_ADDED = {
    "beats": pyarrow.schema(
        [
            ("timestamp_ns", _LONG),
            ("flags", _LONG),
            ("meta", _STRING),
            ("fields", _STRING),
        ]
    ),
    "fifo": pyarrow.schema([("id", _LONG), ("ttl_seconds", _LONG), ("expires", _TIMESTAMP)]),
    "deadline": pyarrow.schema(
        [
            ("deadline", _TIMESTAMP),
            ("id", _LONG),
            ("type", _STRING),
            ("enqueue_time", _TIMESTAMP),
            ("requeue_time", _TIMESTAMP),
            ("dequeue_count", _LONG),
            ("reason", _STRING),
        ]
    ),
}
# JSON text, or what a user's schema makes of it.
_DOCUMENTS = ("meta", "fields")
# Not among the columns unless it is asked for: what tells a queue from another at its path.
_ID_COLUMN = pyarrow.field("queue_id", _STRING)
# Nor is this one: with it, each damaged place is a row of its own.
_DAMAGE_COLUMN = pyarrow.field(
    "damage",
    pyarrow.struct(
        [
            ("path", _STRING),
            ("position", _LONG),
            ("length", _LONG),
            ("reason", _STRING),
            ("torn", pyarrow.bool_()),
            ("count", _LONG),
        ]
    ),
)
_CONSUMERS = pyarrow.schema(
    [
        ("queue", _STRING),
        ("kind", _STRING),
        ("name", _STRING),
        ("type", _STRING),
        ("offset", _LONG),
        ("lag", _LONG),
    ]
)
_SEGMENTS = pyarrow.schema(
    [
        ("queue", _STRING),
        ("kind", _STRING),
        ("segment", _STRING),
        ("first_offset", _LONG),
        ("count", _LONG),
        ("bytes", _LONG),
        ("version", pyarrow.int32()),
        ("first_timestamp", _TIMESTAMP),
        ("sealed", pyarrow.bool_()),
    ]
)
_DAMAGE = pyarrow.schema(
    [
        ("queue", _STRING),
        ("kind", _STRING),
        ("segment", _STRING),
        ("position", _LONG),
        ("length", _LONG),
        ("reason", _STRING),
        ("torn", pyarrow.bool_()),
        ("offset", _LONG),
        ("count", _LONG),
    ]
)
_TABLES = {"records": _RECORDS, "consumers": _CONSUMERS, "segments": _SEGMENTS, "damage": _DAMAGE}


def arrow_schema(
    table: str, columns: Sequence[str] | None, kinds: Collection[str] = ()
) -> pyarrow.Schema:
    """Returns the columns of a table, or the chosen ones in the order in which they were named.

    `kinds` are those of the queues: records of one kind have its columns as well.
    """
    whole = _TABLES[table]
    if columns is None:
        added = _ADDED.get(*kinds) if table == "records" and len(kinds) == 1 else None
        return pyarrow.schema([*whole, *(added or ())])
    known = {field.name: field for field in whole}
    if table == "records":
        known |= {field.name: field for added in _ADDED.values() for field in added}
        known |= {"queue_id": _ID_COLUMN, "damage": _DAMAGE_COLUMN}
    for name in columns:
        if name not in known:
            allowed = ", ".join(known)
            raise InvalidOption(f"columns: {name!r} is not one of the table {table}: {allowed}")
    return pyarrow.schema([known[name] for name in columns])


def spark_schema(schema: pyarrow.Schema) -> StructType:
    """Returns a schema in Spark's types."""
    return from_arrow_schema(schema)


def check_schema(table: str, schema: StructType) -> pyarrow.Schema:
    """Returns the Arrow form of a schema that a user may have chosen; raises if it is not ours."""
    ours = arrow_schema(table, schema.fieldNames())
    chosen = []
    for found, expected in zip(schema.fields, ours, strict=True):
        if expected.name in _DOCUMENTS and isinstance(found.dataType, StructType):
            kind = to_arrow_type(found.dataType, timezone="UTC")
            check_type(found.name, kind)
            chosen.append(pyarrow.field(found.name, kind))
            continue
        names = found.dataType.simpleString(), from_arrow_type(expected.type).simpleString()
        if names[0] != names[1]:
            raise InvalidOption(f"schema: column {found.name} is {names[1]}, not {names[0]}")
        chosen.append(expected)
    return pyarrow.schema(chosen)
