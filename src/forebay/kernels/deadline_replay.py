"""Brings what a write-ahead log says into memory, and what is in memory into a log."""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels import deadline_fields as fields
    from cython.cimports.forebay.kernels.deadline_memory import Memory
    from cython.cimports.forebay.kernels.little import put_bytes, put_number
else:
    from forebay.kernels import deadline_fields as fields
    from forebay.kernels.deadline_memory import Memory
    from forebay.kernels.little import put_bytes, put_number

_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)
_BURIED = cython.declare(cython.ulonglong, 2)
# What records of a log take beside reason and value.
_LOG_ITEM = cython.declare(cython.Py_ssize_t, 38)
_LOG_TOMBSTONE = cython.declare(cython.Py_ssize_t, 15)
_LOG_DEQUEUED = cython.declare(cython.Py_ssize_t, 25)


def replay(memory: Memory, records: list) -> None:
    """Takes in records of a log as `deadline_wal.scan` gives them, in the order of writing."""
    record: tuple
    for record in records:
        kind = record[0]
        if kind == 3:
            memory.kill(record[1], record[2])
        elif kind == 4:
            memory.mark(record[1], record[2], record[5], record[3])
        elif kind < 3:
            memory.add(record[1], record[2], record[3], record[4], record[5], record[7], record[8])


def put_records(
    memory: Memory, row: cython.Py_ssize_t, buffer: object, end: cython.Py_ssize_t
) -> tuple:
    """Writes rows from one on as records of a log; gives the row behind them, and the size.

    They go behind the head of a batch, up to `end`; the first one is written in any case.
    """
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = 8
    size: cython.Py_ssize_t
    while row < memory.used:
        if memory._rows[fields.ROW * row + fields.STATE] != 0:
            size = record_size(memory, row)
            if position + size > end and position > 8:
                break
            if position + size > out.shape[0]:
                raise ValueError("a record is larger than the buffer")
            _put_record(memory, out, position, row)
            position += size
        row += 1
    return row, position - 8


@cython.ccall
def record_size(memory: Memory, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Gives what a row takes as a record of a log."""
    state: cython.ulonglong = memory._rows[fields.ROW * row + fields.STATE]
    if state == fields.TOMBSTONE:
        return _LOG_TOMBSTONE
    if state == fields.MARK:
        return _LOG_DEQUEUED
    if state == 0:
        return 0
    return _LOG_ITEM + len(memory._reasons.get(row, b"")) + len(memory._values[row])


@cython.cfunc
def _put_record(
    memory: Memory,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> object:
    at: cython.Py_ssize_t = fields.ROW * row
    state: cython.ulonglong = memory._rows[at + fields.STATE]
    deadline: cython.ulonglong = memory._rows[at]
    put_number(out, position + 1, deadline, 6)
    put_number(out, position + 7, memory._rows[at + 1], 8)
    if state == fields.TOMBSTONE:
        put_number(out, position, 3, 1)
        return
    if state == fields.MARK:
        put_number(out, position, 4, 1)
        put_number(out, position + 15, memory._rows[at + fields.COUNT], 4)
        put_number(out, position + 19, memory._rows[at + fields.TIME], 6)
        return
    reason: bytes = memory._reasons.get(row, b"")
    value: bytes = memory._values[row]
    put_number(out, position, 2, 1)
    put_number(out, position + 15, memory._rows[at + fields.TIME], 6)
    put_number(out, position + 21, memory._rows[at + fields.REQUEUE], 6)
    put_number(out, position + 27, memory._rows[at + fields.COUNT], 4)
    put_number(out, position + 31, _BURIED if deadline >= _BURIED_BIT else 0, 1)
    put_number(out, position + 32, cython.cast(cython.ulonglong, len(reason)), 2)
    put_number(out, position + 34, cython.cast(cython.ulonglong, len(value)), 4)
    put_bytes(out, position + _LOG_ITEM, reason, len(reason))
    put_bytes(out, position + _LOG_ITEM + len(reason), value, len(value))
