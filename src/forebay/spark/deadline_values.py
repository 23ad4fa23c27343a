"""What the sink writes for a deadline queue: each value with its deadline before it.

The deadline is a timestamp, or whole milliseconds since 1970; null, or no column for it, means: due
at once. The layout is that of `queues/deadline/adoption.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow
from pyarrow import compute
from pyspark.sql.types import LongType, StructType, TimestampType

from forebay.errors import InvalidOption
from forebay.formats.deadline.items import BURIED_BIT
from forebay.queues.deadline.adoption import NOW, PREFIX

if TYPE_CHECKING:
    from pyarrow import Array

DEADLINE = "deadline"


def check_deadline(schema: StructType, column: str | None) -> str | None:
    """Returns the column of the deadlines, if there is one; raises `InvalidOption` if it is wrong.

    Without a name it is `deadline`, as the source calls it.
    """
    name = column or DEADLINE
    if name not in schema.fieldNames():
        if column is None:
            return None
        names = ", ".join(schema.fieldNames())
        raise InvalidOption(f"deadlineColumn = {column!r}: there are the columns {names}")
    kind = schema[name].dataType
    if not isinstance(kind, TimestampType | LongType):
        raise InvalidOption(
            f"column {name!r} is of type {kind.simpleString()}: must be timestamp, or bigint for "
            "ms since 1970"
        )
    return name


def with_deadlines(values: Array, deadlines: Array | None) -> Array:
    """Returns values with their deadlines before them; null stays null."""
    ms = _milliseconds(len(values), deadlines)
    prefix = pyarrow.Array.from_buffers(
        pyarrow.binary(PREFIX.size), len(ms), [None, ms.buffers()[1]], offset=ms.offset
    )
    kind = pyarrow.large_binary()
    return compute.binary_join_element_wise(
        prefix.cast(pyarrow.binary()).cast(kind), values.cast(kind), pyarrow.scalar(b"", kind)
    )


def _milliseconds(count: int, deadlines: Array | None) -> Array:
    if deadlines is None:
        return pyarrow.repeat(pyarrow.scalar(NOW, pyarrow.int64()), count)
    if pyarrow.types.is_timestamp(deadlines.type):
        micros = deadlines.cast(pyarrow.timestamp("us", tz="UTC")).cast(pyarrow.int64())
        ms = compute.divide(micros, 1000)
    else:
        ms = deadlines.cast(pyarrow.int64())
    least = compute.max_element_wise(ms, pyarrow.scalar(0, pyarrow.int64()), skip_nulls=False)
    highest = compute.max(least).as_py()
    if highest is not None and highest >= BURIED_BIT:
        raise InvalidOption(f"a deadline of {highest} ms: must be below {BURIED_BIT} ms since 1970")
    return compute.fill_null(least, NOW)
