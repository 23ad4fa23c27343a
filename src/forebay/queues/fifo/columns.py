"""Entries as Arrow columns, laid out by the kernels without an object for each entry.

Needs the `arrow` extra. Columns: `offset` (int64, the entry's number), `timestamp` (µs, UTC),
`value` (binary), `position` (int64, where the entry begins in its file), `id` and `ttl_seconds`
(int64), `expires` (µs, UTC; null where it never does).

The buffers are reused: a reader must finish with a batch before it takes the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow
from pyarrow import compute

from forebay.damage import Damage
from forebay.errors import RecordTooLarge
from forebay.formats.entry import encode_entry, file_name
from forebay.kernels.entry import METADATA_BYTES, EntryColumns
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.scanner import EntryBatch, FifoScanner, Place
from forebay.storage.filesystem import Directory

TIMESTAMP = pyarrow.timestamp("us", tz="UTC")
COLUMNS = ("offset", "timestamp", "value", "position", "id", "ttl_seconds", "expires")
# The segment of entries that are not on the tape yet.
STAGING = "staging"
_WINDOW_BYTES = 1 << 20
_ROWS_MAX = 1 << 15
# The most bytes that Arrow's 32-bit offsets can address.
_VALUE_BYTES_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Consecutive entries that begin in one file: some of the gathered rows.

    `start` and `end` are the places around all of the gathered rows.
    """

    columns: EntryColumns
    start: Place
    end: Place
    segment: str
    # Where in the segment the first gathered row begins.
    position: int
    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first

    def between(self, start: int, end: int) -> ColumnBatch:
        """Returns the rows with numbers from `start` up to `end`."""
        first = max(self.first, start - self.start.number)
        return replace(self, first=first, stop=max(first, min(self.stop, end - self.start.number)))

    def within(self, start_ms: int | None, end_ms: int | None) -> ColumnBatch:
        """Returns the rows pushed between two times; times never decrease."""
        micros = memoryview(self.columns.micros).cast("q")
        first, stop = self.first, self.stop
        if start_ms is not None:
            first = bisect_left(micros, start_ms * 1000, first, stop)
        if end_ms is not None:
            stop = bisect_left(micros, end_ms * 1000, first, stop)
        return replace(self, first=first, stop=stop)

    def column(self, name: str) -> Any:
        """Returns one column; it is valid until the next batch is taken."""
        columns = self.columns
        if name == "value":
            return self._array(pyarrow.binary(), columns.ends, columns.payload)
        if name == "timestamp":
            return self._array(TIMESTAMP, columns.micros)
        if name == "position":
            return self._array(pyarrow.int64(), columns.positions(self.position))
        if name == "expires":
            return self._expires()
        buffers = {"offset": columns.numbers, "id": columns.ids, "ttl_seconds": columns.ttls}
        return self._array(pyarrow.int64(), buffers[name])

    def _expires(self) -> Any:
        lives = self.column("ttl_seconds")
        pushed = self._array(pyarrow.int64(), self.columns.micros)
        ends = compute.add(pushed, compute.multiply(lives, 1_000_000))
        never = pyarrow.scalar(None, pyarrow.int64())
        return compute.if_else(compute.equal(lives, 0), never, ends).cast(TIMESTAMP)

    def _array(self, kind: Any, *buffers: bytearray) -> Any:
        held = [None, *map(pyarrow.py_buffer, buffers)]
        return pyarrow.Array.from_buffers(kind, len(self), held, offset=self.first)


class ColumnScanner:
    """Reads the entries of a directory as columns. One thread at a time may use it.

    Without `values`, payloads are verified but left out.
    """

    def __init__(
        self,
        directory: Directory,
        file_bytes: int,
        version: bytes,
        bounds: Bounds,
        *,
        values: bool = True,
    ) -> None:
        self._scanner = FifoScanner(directory, file_bytes, version, bounds)
        self._file_bytes = file_bytes
        self._version = version
        self._values = values
        self._columns: EntryColumns | None = None
        self._size = 0

    def scan(self, place: Place, end: Place) -> Iterator[ColumnBatch | Damage]:
        """Returns the entries between two places, and each damage where it occurs."""
        return self._scanner.scan_by(self._take, place, end, _WINDOW_BYTES)

    def scan_staged(self, batch: EntryBatch) -> Iterator[ColumnBatch]:
        """Yields the columns of entries that are not on the tape yet."""
        entries = (encode_entry(entry, self._version) for entry in batch.entries())
        data = memoryview(b"".join(entries))
        place = Place(0, batch.start.number, 0)
        while place.number < batch.end.number:
            taken = self._gather(data[place.position :], place, len(data), len(data))
            yield replace(taken, segment=STAGING, position=place.position)
            place = taken.end

    def close(self) -> None:
        """Closes the scanner's file."""
        self._scanner.close()

    def _take(self, data: bytes, place: Place, limit: int) -> ColumnBatch:
        stop = self._file_bytes - place.position % self._file_bytes
        return self._gather(data, place, limit, stop)

    def _gather(self, data: bytes | memoryview, place: Place, limit: int, stop: int) -> ColumnBatch:
        columns = self._room(len(data))
        file, position = divmod(place.position, self._file_bytes)
        count, size, last_id = columns.take(
            data, place.number, place.last_id, limit, stop, self._version
        )
        if not count:
            raise RecordTooLarge(
                f"entry {place.number} in {file_name(file)} is too large for a column: at most "
                f"{_VALUE_BYTES_MAX} bytes"
            )
        end = Place(place.position + size, place.number + count, last_id)
        return ColumnBatch(columns, place, end, file_name(file), position, 0, count)

    def _room(self, size: int) -> EntryColumns:
        if self._columns is None or size > self._size:
            rows = min(size // METADATA_BYTES + 1, _ROWS_MAX)
            room = min(max(size, 1), _VALUE_BYTES_MAX)
            self._columns, self._size = EntryColumns(room, rows, self._values), size
        self._columns.clear()
        return self._columns
