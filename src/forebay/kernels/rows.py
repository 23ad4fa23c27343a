"""Buffers laid out as Arrow wants them, which the kernels of a format fill row by row.

They may be used again once their reader is done. What a compiled kernel fills stands in `rows.pxd`.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython


@cython.cclass
class Rows:
    """Rows that are being gathered: times, positions, and the payloads if they are wanted.

    `ends` (int32) has one more than `rows`, beginning with 0; `micros` (since 1970) is int64.
    """

    def __init__(
        self, payload_bytes: cython.Py_ssize_t, rows_max: cython.Py_ssize_t, values: cython.bint
    ) -> None:
        """Makes room; without `values` all is verified, but the payloads are left out."""
        self.payload = bytearray(payload_bytes if values else 1)
        self.ends = bytearray(4 * (rows_max + 1))
        self.micros = bytearray(8 * rows_max)
        self._payload = memoryview(self.payload)
        self._ends = memoryview(self.ends).cast("i")
        self._micros = memoryview(self.micros).cast("q")
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

    def positions(self, start: cython.longlong) -> bytearray:
        """Gives where the rows lie in a file (int64), if the buffer began at `start` in it."""
        moved = bytearray(8 * self.rows + 8)
        out: cython.longlong[::1] = memoryview(moved).cast("q")
        row: cython.Py_ssize_t
        for row in range(self.rows):
            out[row] = self._positions[row] + start
        return moved
