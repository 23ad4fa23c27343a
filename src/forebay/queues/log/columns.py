"""Records as Arrow columns, laid out by the kernels without an object for each record.

Needs the `arrow` extra. Columns: `offset` (int64), `timestamp` (µs, UTC; null where the format has
no time), `value` (binary), and on request `position` (int64, where the frame begins in its
segment).

Fresh memory costs half as much as the work on it. A reader that has finished a batch before it
takes the next one passes `ReusedBuffers`, which are filled again and again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow

from forebay.formats.fflg import Frames, Header
from forebay.kernels.fflg import FRAME_BYTES, Columns
from forebay.queues.log.scanner import RecordBatch

if TYPE_CHECKING:
    from forebay.queues.log.reader import LogReader


TIMESTAMP = pyarrow.timestamp("us", tz="UTC")
SCHEMA = pyarrow.schema(
    [
        pyarrow.field("offset", pyarrow.int64(), nullable=False),
        pyarrow.field("timestamp", TIMESTAMP),
        pyarrow.field("value", pyarrow.binary(), nullable=False),
    ]
)
_ROWS_MAX = 1 << 15
# Returns columns with room for the rows of that many bytes of frames.
Buffers = Callable[[int], Columns]


class FrameRows:
    """Some of the rows that were gathered from one buffer of frames."""

    def __init__(self, columns: Columns, first: int, stop: int) -> None:
        self.columns = columns
        self.first = first
        self.stop = stop

    def __len__(self) -> int:
        return self.stop - self.first

    def __getitem__(self, part: slice) -> FrameRows:
        first, stop, _ = part.indices(len(self))
        return FrameRows(self.columns, self.first + first, self.first + stop)

    def array(self, kind: Any, *buffers: bytearray) -> Any:
        """Returns an Arrow array over buffers of the columns; it copies nothing."""
        held = [None, *map(pyarrow.py_buffer, buffers)]
        return pyarrow.Array.from_buffers(kind, len(self), held, offset=self.first)


class ColumnFrames(Frames):
    """The frames of one segment, taken as columns."""

    def __init__(self, header: Header, buffers: Buffers) -> None:
        super().__init__(header)
        self._buffers = buffers

    def scan(
        self, data: bytes, position: int, index: int, limit: int, times: list[int] | None
    ) -> tuple[Any, int]:
        """Takes whole, good frames from `position` on; returns their rows and where it stopped."""
        if not self.layout.checked:
            return super().scan(data, position, index, limit, times)
        columns = self._buffers(len(data) - position)
        header = self.header
        count, stop = columns.take(
            data, position, index, self.seed, limit, header.base_offset, header.epoch_ms
        )
        return FrameRows(columns, 0, count), stop


class ReusedBuffers:
    """The same memory for every batch; without `values`, payloads are verified but left out."""

    def __init__(self, *, values: bool = True) -> None:
        self._values = values
        self._columns: Columns | None = None
        self._size = 0

    def __call__(self, size: int) -> Columns:
        if self._columns is None or size > self._size:
            self._columns, self._size = make_columns(size, values=self._values), size
        self._columns.clear()
        return self._columns


def make_columns(size: int, *, values: bool = True) -> Columns:
    """Returns columns with room for the rows of that many bytes of frames."""
    return Columns(max(size, 1), min(size // FRAME_BYTES + 1, _ROWS_MAX), values)


def record_batches(reader: LogReader) -> Iterator[Any]:
    """Yields the records of a reader as Arrow record batches."""
    for batch in reader.batches(frames=partial(ColumnFrames, buffers=make_columns)):
        columns = [column(batch, name) for name in SCHEMA.names]
        yield pyarrow.record_batch(columns, schema=SCHEMA)


def column(batch: RecordBatch, name: str) -> Any:
    """Returns one column of a batch: `offset`, `timestamp`, `value` or `position`."""
    rows: Any = batch.values
    if isinstance(rows, list):
        return _MAKERS[name](batch)
    columns: Columns = rows.columns
    if name == "value":
        return rows.array(pyarrow.binary(), columns.ends, columns.payload)
    if name == "timestamp":
        return rows.array(TIMESTAMP, columns.micros)
    if name == "offset":
        return rows.array(pyarrow.int64(), columns.offsets)
    return rows.array(pyarrow.int64(), columns.positions(batch.position))


def _offsets(batch: RecordBatch) -> Any:
    numbers = array("q", range(batch.offset, batch.offset + len(batch.values)))
    return pyarrow.Array.from_buffers(
        pyarrow.int64(), len(numbers), [None, pyarrow.py_buffer(numbers)]
    )


def _timestamps(batch: RecordBatch) -> Any:
    if batch.times is None:
        return pyarrow.nulls(len(batch.values), TIMESTAMP)
    return pyarrow.array([(batch.epoch_ms + ms) * 1000 for ms in batch.times], TIMESTAMP)


def _values(batch: RecordBatch) -> Any:
    return pyarrow.array(batch.values, pyarrow.binary())


def _positions(batch: RecordBatch) -> Any:
    sizes = (len(value) + batch.frame_bytes for value in batch.values[:-1])
    return pyarrow.array(accumulate(sizes, initial=batch.position), pyarrow.int64())


_MAKERS = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "value": _values,
    "position": _positions,
}
