"""The columns of every table as Arrow types; Spark's types are derived from them.

`records` starts with the same columns for every kind of queue. Spark must receive exactly the Arrow
types that it derives from its own schema, so there is one list for both.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_type
from pyspark.sql.types import StructType

from forebay.errors import InvalidOption
from forebay.spark.kinds import Kind, all_kinds
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
# Optional: distinguishes a queue from another one at the same path.
_ID_COLUMN = pyarrow.field("queue_id", _STRING)
# Optional: with this column, each damaged place is a row of its own.
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
    table: str, columns: Sequence[str] | None, found: Sequence[Kind] = ()
) -> pyarrow.Schema:
    """Returns the columns of a table, or the chosen ones in the order in which they were named.

    `found` are the kinds of the queues: if there is only one kind, its own columns are included.
    """
    whole = _TABLES[table]
    if columns is None:
        added = found[0].columns if table == "records" and len(found) == 1 else ()
        return pyarrow.schema([*whole, *added])
    known = {field.name: field for field in whole}
    if table == "records":
        known |= {"queue_id": _ID_COLUMN, "damage": _DAMAGE_COLUMN}
        for kind in all_kinds():
            # Import only as many kinds as needed to know the names.
            if known.keys() >= set(columns):
                break
            known |= {field.name: field for field in kind.columns}
    for name in columns:
        if name not in known:
            allowed = ", ".join(known)
            raise InvalidOption(
                f"columns: {name!r} is not a column of the table {table}, which has: {allowed}"
            )
    return pyarrow.schema([known[name] for name in columns])


def spark_schema(schema: pyarrow.Schema) -> StructType:
    """Returns a schema in Spark's types."""
    return from_arrow_schema(schema)


def check_schema(table: str, schema: StructType) -> pyarrow.Schema:
    """Returns the Arrow form of a schema that a user may have chosen; raises if it does not fit."""
    ours = arrow_schema(table, schema.fieldNames())
    chosen = []
    for found, expected in zip(schema.fields, ours, strict=True):
        if isinstance(found.dataType, StructType) and _is_document(expected.name):
            kind = to_arrow_type(found.dataType, timezone="UTC")
            check_type(found.name, kind)
            chosen.append(pyarrow.field(found.name, kind))
            continue
        names = found.dataType.simpleString(), from_arrow_type(expected.type).simpleString()
        if names[0] != names[1]:
            raise InvalidOption(f"schema: column {found.name} is {names[1]}, not {names[0]}")
        chosen.append(expected)
    return pyarrow.schema(chosen)


def _is_document(name: str) -> bool:
    """Returns whether a column is JSON text, which a user's schema may declare as a struct."""
    return any(name in kind.documents for kind in all_kinds())
