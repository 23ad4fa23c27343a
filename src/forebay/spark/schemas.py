"""The columns of every table, as Arrow has them; Spark's types follow from these.

`records` begins with the same columns for every kind of queue. What Spark gets must have exactly
the Arrow types that it derives from its own schema, so there is one list for both.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from forebay.errors import InvalidOption

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
# Not among the columns unless it is asked for: with it, each damaged place is a row of its own.
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


def arrow_schema(table: str, columns: Sequence[str] | None) -> pyarrow.Schema:
    """Gives the columns of a table, or the chosen ones in the order in which they were named."""
    whole = _TABLES[table]
    if columns is None:
        return whole
    known = {field.name: field for field in whole}
    if table == "records":
        known["damage"] = _DAMAGE_COLUMN
    for name in columns:
        if name not in known:
            allowed = ", ".join(known)
            raise InvalidOption(f"columns: {name!r} is not one of the table {table}: {allowed}")
    return pyarrow.schema([known[name] for name in columns])


def spark_schema(schema: pyarrow.Schema) -> StructType:
    """Gives a schema in Spark's types."""
    return from_arrow_schema(schema)


def check_schema(table: str, schema: StructType) -> pyarrow.Schema:
    """Gives the Arrow form of a schema that a user may have chosen; raises if it is not ours."""
    ours = arrow_schema(table, schema.fieldNames())
    for found, expected in zip(schema.fields, spark_schema(ours).fields, strict=True):
        names = found.dataType.simpleString(), expected.dataType.simpleString()
        if names[0] != names[1]:
            raise InvalidOption(f"schema: column {found.name} is {names[1]}, not {names[0]}")
    return ours
