"""Entries to Arrow columns, without an object for each entry.

`EntryColumns` owns buffers laid out as Arrow wants them and fills them from verified entries; they
may be used again once their reader is done. The entry and its check are in `entry.py`.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.entry import entry_size, get_id, get_ttl
    from cython.cimports.forebay.kernels.little import copy_bytes
    from cython.cimports.forebay.kernels.rows import Rows
else:
    from forebay.kernels.entry import entry_size, get_id, get_ttl
    from forebay.kernels.little import copy_bytes
    from forebay.kernels.rows import Rows

_META = cython.declare(cython.Py_ssize_t, 32)


@cython.cclass
class EntryColumns(Rows):
    """Rows that are being gathered: numbers, ids, times, lives, positions and, if wanted, payloads.

    `ends` (int32) has one more than `rows`, beginning with 0. `numbers`, `ids`, `micros` (of the
    push, since 1970) and `ttls` (seconds) are int64.
    """

    numbers = cython.declare(object, visibility="readonly")
    ids = cython.declare(object, visibility="readonly")
    ttls = cython.declare(object, visibility="readonly")
    _numbers: cython.longlong[::1]
    _ids: cython.longlong[::1]
    _ttls: cython.longlong[::1]

    def __init__(
        self, payload_bytes: cython.Py_ssize_t, rows_max: cython.Py_ssize_t, values: cython.bint
    ) -> None:
        """Makes room; without `values` entries are verified, but their payloads left out."""
        super().__init__(payload_bytes, rows_max, values)
        self.numbers = bytearray(8 * rows_max)
        self.ids = bytearray(8 * rows_max)
        self.ttls = bytearray(8 * rows_max)
        self._numbers = memoryview(self.numbers).cast("q")
        self._ids = memoryview(self.ids).cast("q")
        self._ttls = memoryview(self.ttls).cast("q")

    def take(
        self,
        buffer: object,
        number: cython.ulonglong,
        last_id: cython.ulonglong,
        limit: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        version: bytes,
    ) -> tuple:
        """Adds good entries from the start of `buffer`; returns (count, where it ended, last id).

        The first must be of this number and have an id above `last_id`, and so on. Takes none that
        begins at `stop` or after, `limit` at most, and ends at one that is cut off or not good, or
        where there is no more room.
        """
        data: cython.const[cython.uchar][::1] = memoryview(buffer)
        end: cython.Py_ssize_t = len(data)
        position: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        row: cython.Py_ssize_t = self.rows
        first: cython.Py_ssize_t = row
        used: cython.Py_ssize_t = self.used
        if limit > self._rows_max - row:
            limit = self._rows_max - row
        while row - first < limit and position < stop:
            size = entry_size(data, position, end, number, last_id, version)
            if size < 0 or size > self._room - used:
                break
            if self._values:
                copy_bytes(self._payload, used, data, position + _META, size)
            used += size
            last_id = get_id(data, position)
            self._numbers[row] = cython.cast(cython.longlong, number)
            self._ids[row] = cython.cast(cython.longlong, last_id)
            self._micros[row] = cython.cast(cython.longlong, last_id >> 16) * 1000
            self._ttls[row] = cython.cast(cython.longlong, get_ttl(data, position))
            self._positions[row] = position
            row += 1
            self._ends[row] = cython.cast(cython.int, used)
            number += 1
            position += _META + size
        self.rows = row
        self.used = used
        return row - first, position, last_id
