"""Records as Arrow columns, laid out by the kernels without an object for each record.

Needs the `arrow` extra. Columns: `offset` (int64), `timestamp` (ms, UTC; null where the format has
no time), `value` (binary).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute

from forebay.formats.fflg import Frames
from forebay.kernels.fflg import FRAME_BYTES, gather
from forebay.queues.scanner import RecordBatch

if TYPE_CHECKING:
    from forebay.queues.reader import LogReader

SCHEMA = pyarrow.schema(
    [
        pyarrow.field("offset", pyarrow.int64(), nullable=False),
        pyarrow.field("timestamp", pyarrow.timestamp("ms", tz="UTC")),
        pyarrow.field("value", pyarrow.binary(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The values of a batch, and their ms after the segment's epoch where there are any."""

    values: Any
    ms: Any | None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Columns:
        return Columns(self.values[part], None if self.ms is None else self.ms[part])


class ColumnFrames(Frames):
    """The frames of one segment, taken as columns."""

    def scan(
        self, data: bytes, position: int, index: int, limit: int, times: list[int] | None
    ) -> tuple[Any, int]:
        """Takes whole, good frames from `position` on; gives their columns and where it stopped."""
        if not self.layout.checked:
            values, stop = super().scan(data, position, index, limit, times)
            return Columns(pyarrow.array(values, pyarrow.binary()), None), stop
        room = len(data) - position
        rows = min(limit, room // FRAME_BYTES)
        payload = bytearray(room)
        ends = memoryview(bytearray(4 * (rows + 1))).cast("i")
        ms = memoryview(bytearray(4 * max(rows, 1))).cast("I")
        count, stop = gather(data, position, index, self.seed, rows, payload, ends, ms)
        buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(payload)]
        values = pyarrow.Array.from_buffers(pyarrow.binary(), count, buffers)
        milliseconds = pyarrow.Array.from_buffers(
            pyarrow.uint32(), count, [None, pyarrow.py_buffer(ms)]
        )
        return Columns(values, milliseconds), stop


def record_batches(reader: LogReader) -> Iterator[Any]:
    """Gives the records of a reader as Arrow record batches."""
    for batch in reader.batches(frames=ColumnFrames):
        yield _to_arrow(batch)


def _to_arrow(batch: RecordBatch) -> Any:
    columns: Any = batch.values
    if isinstance(columns, list):
        ms = pyarrow.array(batch.times, pyarrow.uint32()) if batch.times is not None else None
        columns = Columns(pyarrow.array(columns, pyarrow.binary()), ms)
    count = len(columns)
    numbers = array("q", range(batch.offset, batch.offset + count))
    offsets = pyarrow.Array.from_buffers(pyarrow.int64(), count, [None, pyarrow.py_buffer(numbers)])
    if columns.ms is None:
        times = pyarrow.nulls(count, SCHEMA.field("timestamp").type)
    else:
        since_1970 = pyarrow.compute.add(columns.ms.cast(pyarrow.int64()), batch.epoch_ms)
        times = since_1970.cast(SCHEMA.field("timestamp").type)
    return pyarrow.record_batch([offsets, times, columns.values], schema=SCHEMA)
