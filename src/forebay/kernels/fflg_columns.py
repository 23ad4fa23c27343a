"""Frames to Arrow columns and back, without an object for each record.

`Columns` owns buffers laid out as Arrow wants them and fills them from verified frames; they may be
used again once their reader is done. `encode_columns` makes frames of the two buffers of a binary
column. The frame and its check are in `fflg.py`.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.fflg import claimed, get32, put_check
    from cython.cimports.forebay.kernels.little import copy_bytes
    from cython.cimports.forebay.kernels.rows import Rows
else:
    from forebay.kernels.fflg import claimed, get32, put_check
    from forebay.kernels.little import copy_bytes
    from forebay.kernels.rows import Rows

_FRAME = cython.declare(cython.Py_ssize_t, 12)
_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFF)


@cython.cclass
class Columns(Rows):
    """Rows that are being gathered: offsets, times, positions, and the payloads if they are wanted.

    `ends` (int32) has one more than `rows`, beginning with 0; `offsets` and `micros` (since 1970)
    are int64.
    """

    offsets = cython.declare(object, visibility="readonly")
    _offsets: cython.longlong[::1]

    def __init__(
        self, payload_bytes: cython.Py_ssize_t, rows_max: cython.Py_ssize_t, values: cython.bint
    ) -> None:
        """Makes room; without `values` frames are verified, but their payloads left out."""
        super().__init__(payload_bytes, rows_max, values)
        self.offsets = bytearray(8 * rows_max)
        self._offsets = memoryview(self.offsets).cast("q")

    def take(
        self,
        buffer: object,
        position: cython.Py_ssize_t,
        index: cython.ulonglong,
        seed: cython.ulonglong,
        limit: cython.Py_ssize_t,
        base: cython.longlong,
        epoch_ms: cython.longlong,
    ) -> tuple:
        """Adds good frames of `buffer` from `position` on; gives (count, where it stopped).

        `base` is the offset of the segment's index 0. Stops at `limit` frames, at one that is cut
        off or does not verify, or where there is no more room.
        """
        data: cython.const[cython.uchar][::1] = memoryview(buffer)
        end: cython.Py_ssize_t = len(data)
        size: cython.Py_ssize_t
        row: cython.Py_ssize_t = self.rows
        first: cython.Py_ssize_t = row
        used: cython.Py_ssize_t = self.used
        ms: cython.longlong
        if limit > self._rows_max - row:
            limit = self._rows_max - row
        while row - first < limit and end - position >= _FRAME:
            size = cython.cast(cython.Py_ssize_t, get32(data, position))
            if size > end - position - _FRAME or size > self._room - used:
                break
            ms = cython.cast(cython.longlong, get32(data, position + 8))
            if claimed(data, position, size, seed) != index & _MASK or ms == 0:
                break
            if self._values:
                copy_bytes(self._payload, used, data, position + _FRAME, size)
            used += size
            self._offsets[row] = base + cython.cast(cython.longlong, index)
            self._micros[row] = (epoch_ms + ms) * 1000
            self._positions[row] = position
            row += 1
            self._ends[row] = cython.cast(cython.int, used)
            index += 1
            position += _FRAME + size
        self.rows = row
        self.used = used
        return row - first, position


def encode_columns(
    ends: object,
    data: object,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    buffer: object,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    ms: cython.ulonglong,
) -> tuple:
    """Writes the frames of rows of a binary column to the start of `buffer`.

    `ends` and `data` are the column's buffers: row n is `data[ends[n]:ends[n + 1]]`, int32. Stops
    after `count` rows from `first` on, or where the next frame does not fit. Gives (how many rows,
    their size).
    """
    bounds: cython.const[cython.int][::1] = memoryview(ends).cast("B").cast("i")
    blobs: cython.const[cython.uchar][::1] = memoryview(data)
    out: cython.uchar[::1] = memoryview(buffer)
    room: cython.Py_ssize_t = len(out)
    position: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    row: cython.Py_ssize_t
    done: cython.Py_ssize_t = 0
    if count > 0 and (
        first < 0
        or first + count >= len(bounds)
        or bounds[first] < 0
        or bounds[first + count] > len(blobs)
    ):
        raise ValueError("the rows reach beyond the column's buffers")
    for row in range(first, first + count):
        start = bounds[row]
        size = bounds[row + 1] - start
        if size < 0 or size + _FRAME > room - position:
            break
        copy_bytes(out, position + _FRAME, blobs, start, size)
        put_check(out, position, size, index, seed, ms)
        index += 1
        position += _FRAME + size
        done += 1
    return done, position
