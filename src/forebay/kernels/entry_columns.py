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
    from cython.cimports.libc.string import memcpy
else:
    from forebay.kernels.entry import entry_size, get_id, get_ttl

_META = cython.declare(cython.Py_ssize_t, 32)


@cython.cclass
class EntryColumns:
    """Rows that are being gathered: numbers, ids, times, lives, positions and, if wanted, payloads.

    `ends` (int32) has one more than `rows`, beginning with 0. `numbers`, `ids`, `micros` (of the
    push, since 1970) and `ttls` (seconds) are int64.
    """

    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    used = cython.declare(cython.Py_ssize_t, visibility="readonly")
    payload = cython.declare(object, visibility="readonly")
    ends = cython.declare(object, visibility="readonly")
    numbers = cython.declare(object, visibility="readonly")
    ids = cython.declare(object, visibility="readonly")
    micros = cython.declare(object, visibility="readonly")
    ttls = cython.declare(object, visibility="readonly")
    _payload: cython.uchar[::1]
    _ends: cython.int[::1]
    _numbers: cython.longlong[::1]
    _ids: cython.longlong[::1]
    _micros: cython.longlong[::1]
    _ttls: cython.longlong[::1]
    _positions: cython.longlong[::1]
    _room: cython.Py_ssize_t
    _rows_max: cython.Py_ssize_t
    _values: cython.bint

    def __init__(
        self, payload_bytes: cython.Py_ssize_t, rows_max: cython.Py_ssize_t, values: cython.bint
    ) -> None:
        """Makes room; without `values` entries are verified, but their payloads left out."""
        self.payload = bytearray(payload_bytes if values else 1)
        self.ends = bytearray(4 * (rows_max + 1))
        self.numbers = bytearray(8 * rows_max)
        self.ids = bytearray(8 * rows_max)
        self.micros = bytearray(8 * rows_max)
        self.ttls = bytearray(8 * rows_max)
        self._payload = memoryview(self.payload)
        self._ends = memoryview(self.ends).cast("i")
        self._numbers = memoryview(self.numbers).cast("q")
        self._ids = memoryview(self.ids).cast("q")
        self._micros = memoryview(self.micros).cast("q")
        self._ttls = memoryview(self.ttls).cast("q")
        self._positions = memoryview(bytearray(8 * rows_max)).cast("q")
        self._room = payload_bytes
        self._rows_max = rows_max
        self._values = values
        self.rows = 0
        self.used = 0

    def clear(self) -> None:
        """Begins anew: whoever reads the buffers must be done with them."""
        self.rows = 0
        self.used = 0

    def take(
        self,
        buffer: object,
        number: cython.ulonglong,
        last_id: cython.ulonglong,
        limit: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
    ) -> tuple:
        """Adds good entries from the start of `buffer`; gives (count, where it ended, last id).

        The first must be of this number and have an id above `last_id`, and so on. Takes none that
        begins at `stop` or behind, `limit` at most, and ends at one that is cut off or not good, or
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
            size = entry_size(data, position, end, number, last_id)
            if size < 0 or size > self._room - used:
                break
            if not cython.compiled:
                if self._values:
                    start = position + _META
                    self._payload[used : used + size] = data[start : start + size]
            elif self._values and size > 0:
                memcpy(
                    cython.address(self._payload[used]),
                    cython.address(data[position + _META]),
                    size,
                )
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

    def positions(self, start: cython.longlong) -> bytearray:
        """Gives where the entries lie (int64), if the buffer began at `start`."""
        moved = bytearray(8 * self.rows + 8)
        out: cython.longlong[::1] = memoryview(moved).cast("q")
        row: cython.Py_ssize_t
        for row in range(self.rows):
            out[row] = self._positions[row] + start
        return moved
