"""Bytes, numbers and checksums in buffers: what all compiled modules share.

Numbers are little-endian and have 1 to 8 bytes, so that a 48-bit time takes six. This module has
the plain functions; compiled modules use the same ones inline, from `buffers.pxd`.

CRC-32 (the polynomial of zlib and of Ethernet) comes from the fastest library available. On short
records `zlib-ng` is four times as fast as the standard library. On 278 bytes its Python call costs
more than its work, so compiled modules call its C function directly if the library exports it:
`direct_address` finds it, checks it on a known value, and returns 0 if there is none.

`Rows` are buffers in Arrow's layout, which the loops of a format fill row by row.
"""

from __future__ import annotations

import sys
import time
import zlib

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.posix.dlfcn import RTLD_LAZY, dlopen, dlsym
    from cython.cimports.posix.time import CLOCK_BOOTTIME, clock_gettime, timespec

try:
    from zlib_ng import zlib_ng as _library

    LIBRARY = "zlib-ng"
except ImportError:
    _library = zlib
    LIBRARY = "zlib"

crc32 = _library.crc32


def direct_address() -> int:
    """Returns the address of the library's C function, or 0."""
    if not cython.compiled or LIBRARY != "zlib-ng":
        return 0
    # In a Python without the GIL, a caller that relies on the GIL must take its own lock.
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0
    path: bytes = _library.__file__.encode()
    handle: cython.p_void = dlopen(path, RTLD_LAZY)
    if handle == cython.NULL:
        return 0
    found: cython.p_void = dlsym(handle, b"zng_crc32_z")
    if found == cython.NULL:
        return 0
    function: crc_function = cython.cast(crc_function, found)
    sample: cython.p_char = b"123456789"
    if (
        function(0, cython.cast(cython.pointer(cython.const[cython.uchar]), sample), 9)
        != 0xCBF43926
    ):
        return 0
    return cython.cast(cython.size_t, found)


if cython.compiled:
    direct = cython.cast(crc_function, cython.cast(cython.size_t, direct_address()))
    python_crc32 = crc32
else:

    def get32(data: memoryview, position: int) -> int:
        """Reads the u32 at a position."""
        return int.from_bytes(data[position : position + 4], "little")

    def put32(out: memoryview, position: int, value: int) -> None:
        """Writes a u32."""
        out[position : position + 4] = value.to_bytes(4, "little")

    def get_number(data: memoryview, position: int, size: int) -> int:
        """Reads the number of `size` bytes at a position."""
        return int.from_bytes(data[position : position + size], "little")

    def put_number(out: memoryview, position: int, number: int, size: int) -> None:
        """Writes the lowest `size` bytes of a number."""
        for at in range(size):
            out[position + at] = (number >> (8 * at)) & 255

    def take_bytes(data: memoryview, position: int, size: int) -> bytes:
        """Copies bytes out of a buffer."""
        return bytes(data[position : position + size])

    def put_bytes(out: memoryview, position: int, value: bytes, size: int) -> None:
        """Copies `size` bytes, which is the whole value, into a buffer."""
        out[position : position + size] = value

    def copy_bytes(out: memoryview, to: int, data: memoryview, position: int, size: int) -> None:
        """Copies bytes from one buffer into another."""
        out[to : to + size] = data[position : position + size]

    def keep_order() -> None:
        """Does nothing: Python stores in the order of its statements."""

    def sum_bytes(data: memoryview, position: int, size: int, seed: int) -> int:
        """Returns the CRC-32 of some bytes, continuing from `seed`."""
        return crc32(data[position : position + size], seed)


@cython.cfunc
@cython.inline
def boot_ms() -> cython.longlong:
    """Returns the milliseconds since the machine started, including time asleep."""
    if cython.compiled:
        now: timespec
        clock_gettime(CLOCK_BOOTTIME, cython.address(now))
        return cython.cast(cython.longlong, now.tv_sec) * 1000 + now.tv_nsec // 1_000_000
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def measure(values: list) -> tuple:
    """Returns the sum of the sizes, the largest and the smallest; all must be bytes."""
    total: cython.longlong = 0
    largest: cython.longlong = 0
    smallest: cython.longlong = 0xFFFFFFFF
    size: cython.longlong
    for value in values:
        if type(value) is not bytes:
            raise TypeError(f"a record is bytes, not {type(value).__name__}")
        size = len(cython.cast(bytes, value))
        total += size
        if size > largest:
            largest = size
        if size < smallest:
            smallest = size
    return total, largest, smallest


def fit(
    values: list, first: cython.Py_ssize_t, room: cython.longlong, frame_bytes: cython.Py_ssize_t
) -> tuple:
    """Returns how many values from `first` on fit in `room` bytes as frames, and their size."""
    total: cython.longlong = 0
    size: cython.longlong
    number: cython.Py_ssize_t = first
    count: cython.Py_ssize_t = len(values)
    while number < count:
        size = total + len(cython.cast(bytes, values[number])) + frame_bytes
        if size > room:
            break
        total = size
        number += 1
    return number - first, total


@cython.cclass
class Rows:
    """Rows that are being collected: times, positions, and the payloads if they are wanted.

    `ends` (int32) has one more than `rows`, starting with 0; `micros` (since 1970) is int64.
    """

    def __init__(
        self, payload_bytes: cython.Py_ssize_t, rows_max: cython.Py_ssize_t, values: cython.bint
    ) -> None:
        """Allocates the buffers; without `values` payloads are verified, but left out."""
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
        """Starts over; the buffers must no longer be read."""
        self.rows = 0
        self.used = 0

    def positions(self, start: cython.longlong) -> bytearray:
        """Returns where the rows are in a file (int64), if the buffer started at `start` in it."""
        moved = bytearray(8 * self.rows + 8)
        out: cython.longlong[::1] = memoryview(moved).cast("q")
        row: cython.Py_ssize_t
        for row in range(self.rows):
            out[row] = self._positions[row] + start
        return moved
