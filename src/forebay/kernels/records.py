"""Records as users get them, made without a Python call for each."""

from __future__ import annotations

from datetime import UTC, datetime

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython


@cython.final
@cython.cclass
class Record:
    """A record as it is read: `offset`, `time_ms` (None where the format has no time), `value`."""

    offset = cython.declare(cython.longlong, visibility="readonly")
    time_ms = cython.declare(object, visibility="readonly")
    value = cython.declare(bytes, visibility="readonly")

    def __init__(self, offset: int, time_ms: int | None, value: bytes) -> None:
        self.offset = offset
        self.time_ms = time_ms
        self.value = value

    @property
    def time(self):
        """When it was appended, in UTC; None where the format has no time."""
        if self.time_ms is None:
            return None
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)

    def __repr__(self) -> str:
        return f"Record(offset={self.offset}, time_ms={self.time_ms}, value={self.value!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        mine = (self.offset, self.time_ms, self.value)
        return mine == (other.offset, other.time_ms, other.value)

    def __hash__(self) -> int:
        return hash((self.offset, self.value))

    def __reduce__(self):
        return Record, (self.offset, self.time_ms, self.value)


def make_records(
    values: list, times: list | None, offset: cython.longlong, epoch_ms: cython.longlong
) -> list:
    """Makes records of what `scan` gave."""
    records: list = []
    record: Record
    number: cython.Py_ssize_t
    for number in range(len(values)):
        record = Record.__new__(Record)
        record.offset = offset + number
        record.time_ms = None if times is None else epoch_ms + times[number]
        record.value = values[number]
        records.append(record)
    return records
