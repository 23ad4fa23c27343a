"""Entries of a deadline queue as Arrow columns.

Needs the `arrow` extra. Columns: `offset` and `id` (int64, the item's id), `timestamp` (µs, UTC:
when it was enqueued, or dequeued for a note of that), `value` (binary), `segment`, `position`
(int64, where its block begins in the run; null in a log), `deadline`, `type`, `enqueue_time`,
`requeue_time` (null: never), `dequeue_count`, `reason` (why it was buried).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
from pyarrow import compute

from forebay.formats.deadline.items import BURIED_BIT
from forebay.kernels.deadline import IS_TOMBSTONE
from forebay.queues.deadline.slices import DEQUEUED, VALUE, Row

TIMESTAMP = pyarrow.timestamp("us", tz="UTC")
COLUMNS = (
    *("offset", "timestamp", "value", "segment", "position", "deadline", "id", "type"),
    *("enqueue_time", "requeue_time", "dequeue_count", "reason"),
)
# The kind of an entry, by its attributes.
_TYPES = pyarrow.array(["pending", "tombstone", "buried", None, "dequeued"])
_ROWS_MAX = 1 << 15
# Far below what Arrow's 32-bit offsets can address, unless one value is larger.
_BATCH_BYTES = 64 << 20
_FIELDS = (
    *("deadline", "id", "attributes", "enqueue", "requeue", "count", "reason", "value"),
    *("segment", "position"),
)
assert _FIELDS[VALUE] == "value"


class ColumnBatch:
    """Some entries, column by column."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._count = len(rows)
        self._fields: dict[str, Any] = dict(zip(_FIELDS, zip(*rows, strict=True), strict=True))

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> Any:
        """Returns one column."""
        if name in ("offset", "id"):
            # As in the original program, where the highest bit is a sign.
            return pyarrow.array(self._fields["id"], pyarrow.uint64()).view(pyarrow.int64())
        if name == "deadline":
            deadlines = compute.bit_wise_and(self._numbers("deadline"), BURIED_BIT - 1)
            return compute.multiply(deadlines, 1000).cast(TIMESTAMP)
        if name == "type":
            return _TYPES.take(self._numbers("attributes"))
        if name == "value":
            return self._unless(self._kinds(IS_TOMBSTONE, DEQUEUED), self._array("value"))
        if name in ("position", "segment"):
            kind = pyarrow.int64() if name == "position" else pyarrow.string()
            return pyarrow.array(self._fields[name], kind)
        return self._fact(name)

    def _fact(self, name: str) -> Any:
        """Returns a column that only items have."""
        if name == "timestamp":
            return self._time("enqueue")
        if name == "enqueue_time":
            return self._unless(self._kinds(DEQUEUED), self._time("enqueue"))
        if name == "requeue_time":
            return self._time("requeue")
        if name == "dequeue_count":
            return self._unless(self._kinds(IS_TOMBSTONE), self._numbers("count"))
        texts = [reason.decode(errors="replace") or None for reason in self._fields["reason"]]
        return pyarrow.array(texts, pyarrow.string())

    def _array(self, field: str) -> Any:
        return pyarrow.array(self._fields[field], pyarrow.binary())

    def _numbers(self, field: str) -> Any:
        return pyarrow.array(self._fields[field], pyarrow.int64())

    def _time(self, field: str) -> Any:
        times = self._numbers(field)
        micros = compute.multiply(times, 1000).cast(TIMESTAMP)
        return self._unless(compute.equal(times, 0), micros)

    def _kinds(self, *attributes: int) -> Any:
        chosen = pyarrow.array(attributes, pyarrow.int64())
        return compute.is_in(self._numbers("attributes"), chosen)

    def _unless(self, absent: Any, column: Any) -> Any:
        return compute.if_else(absent, pyarrow.scalar(None, column.type), column)


def batches(rows: Sequence[Row]) -> Iterator[ColumnBatch]:
    """Divides rows into batches of a size that Arrow can hold."""
    for first in range(0, len(rows), _ROWS_MAX):
        yield from _halves(rows[first : first + _ROWS_MAX])


def _halves(rows: Sequence[Row]) -> Iterator[ColumnBatch]:
    if len(rows) > 1 and sum([len(row[VALUE]) for row in rows]) > _BATCH_BYTES:
        middle = len(rows) // 2
        yield from _halves(rows[:middle])
        yield from _halves(rows[middle:])
    else:
        yield ColumnBatch(rows)
