"""Bytes, numbers and checksums in buffers: what all compiled modules share.

Numbers are little-endian and have 1 to 8 bytes, so that a 48-bit time takes six. This module has
the plain functions; compiled modules use the same ones inline, from `buffers.pxd`.

CRC-32 (the polynomial of zlib and of Ethernet) comes from the fastest library available. On short
records `zlib-ng` is four times as fast as the standard library. On 278 bytes its Python call costs
more than its work, so compiled modules call its C function directly if the library exports it:
`direct_address` finds it, checks it on a known value, and returns 0 if there is none.

`Rows` are buffers in Arrow's layout, which the loops of a format fill row by row. `PostedRecords`
and `gather` are the two ends of a client's file (docs/protocol.md): one puts records into mapped
memory, the other takes those that verify out of a copy of it.
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
# Before the bytes of a posted record: check 4, size 4, number 8, extra 8.
POSTED_BYTES = 24
_POSTED = cython.declare(cython.Py_ssize_t, POSTED_BYTES)
# Why `gather` stopped: there is no record with the next number; the buffer ends in the middle of
# it; it has another extra, or is one too many.
NONE, CUT_OFF, OTHER = 0, 1, 2
_NONE = cython.declare(cython.Py_ssize_t, NONE)
_CUT_OFF = cython.declare(cython.Py_ssize_t, CUT_OFF)
_OTHER = cython.declare(cython.Py_ssize_t, OTHER)


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

    def show_stores() -> None:
        """Does nothing: a lock of Python, which is released in between, does it."""

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


@cython.cclass
class PostedRecords:
    """Puts records into the file of a client: a copy and a checksum, no system call.

    Any thread may call `put`; compiled, it makes no Python call, and the interpreter's own lock
    makes it atomic. Otherwise it takes a lock. The file is used as a ring of `room` bytes from
    `start` on: a record that does not fit before its end goes to its start. `number` is that of the
    next record, `place` how many bytes were used so far, `head` how many of them are free again.
    """

    number = cython.declare(cython.ulonglong, visibility="readonly")
    place = cython.declare(cython.ulonglong, visibility="readonly")
    head = cython.declare(cython.ulonglong, visibility="readonly")
    _view: cython.uchar[::1]
    _start: cython.Py_ssize_t
    _room: cython.Py_ssize_t
    _size_max: cython.Py_ssize_t
    _asleep_at: cython.Py_ssize_t
    _seed: cython.ulonglong
    _ring: object
    _acquire: object
    _release: object
    _atomic: cython.bint

    def __init__(self, lock: object, ring: object) -> None:
        """Starts without room; `ring` is called, without the lock, when the reader sleeps."""
        self._view = memoryview(bytearray(1))
        self._ring = ring
        self._acquire = lock.acquire
        self._release = lock.release
        self._atomic = cython.compiled and direct_address() != 0
        self._start = self._room = self._asleep_at = 0
        self._size_max = -1
        self._seed = 0
        self.number = 1
        self.place = 0
        self.head = 0

    def use(
        self,
        buffer: object,
        start: cython.Py_ssize_t,
        asleep_at: cython.Py_ssize_t,
        size_max: cython.Py_ssize_t,
        seed: cython.ulonglong,
    ) -> None:
        """Puts records of up to `size_max` bytes into a mapped file, from `start` to its end.

        The byte at `asleep_at` is not 0 while the reader sleeps.
        """
        self._view = memoryview(buffer)
        self._start = start
        self._room = len(self._view) - start
        self._asleep_at = asleep_at
        self._seed = seed
        self.number = 1
        self.place = self.head = 0
        self._size_max = size_max

    def free(self, head: cython.ulonglong) -> None:
        """Makes the room of all before `head` free: the reader has it."""
        self.head = head

    def stop(self) -> None:
        """Puts nothing more, and releases the memory, so that it can be unmapped."""
        self._size_max = -1
        self._room = 0
        self._view = memoryview(bytearray(1))

    def put(self, value: object, extra: cython.ulonglong) -> object:
        """Puts one record and returns its number; None: it is no bytes, empty, or has no room.

        Once it has returned, the record survives this process.
        """
        # Without room do not touch the lock: in the child of a fork it may never be released.
        if self._size_max < 0 or type(value) is not bytes:
            return None
        if self._atomic:
            number = self._put(cython.cast(bytes, value), extra)
        else:
            self._acquire()
            try:
                number = self._put(value, extra)
            finally:
                self._release()
        if number is not None and self._view[self._asleep_at] != 0:
            self._view[self._asleep_at] = 0
            self._ring()
        return number

    @cython.cfunc
    def _put(self, value: bytes, extra: cython.ulonglong) -> object:
        size: cython.Py_ssize_t = len(value)
        if size == 0 or size > self._size_max:
            return None
        needed: cython.Py_ssize_t = (_POSTED + size + 7) // 8 * 8
        used: cython.ulonglong = self.place - self.head
        at: cython.Py_ssize_t = cython.cast(
            cython.Py_ssize_t, self.place % cython.cast(cython.ulonglong, self._room)
        )
        skipped: cython.Py_ssize_t = self._room - at if needed > self._room - at else 0
        if used + cython.cast(cython.ulonglong, skipped + needed) > cython.cast(
            cython.ulonglong, self._room
        ):
            return None
        position: cython.Py_ssize_t = self._start + (0 if skipped > 0 else at)
        put_bytes(self._view, position + _POSTED, value, size)
        put32(self._view, position + 4, cython.cast(cython.ulonglong, size))
        put_number(self._view, position + 8, self.number, 8)
        put_number(self._view, position + 16, extra, 8)
        # The check last: until then, nothing verifies. Of all that the reader will find: of the
        # memory, not of the value.
        check: cython.ulonglong = sum_bytes(self._view, position + 4, size + 20, self._seed)
        keep_order()
        put32(self._view, position, check)
        show_stores()
        number: cython.ulonglong = self.number
        self.number = number + 1
        self.place += cython.cast(cython.ulonglong, skipped + needed)
        return number


def gather(
    buffer: object,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
    size_max: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    target: object,
    extra: cython.ulonglong,
) -> tuple:
    """Copies posted records out of a buffer; returns how many, where it stopped, and why.

    The first must have this number, the others the next ones, and all this extra. In `target`, each
    is its size, 4 bytes, and its bytes; it must be as large as the buffer. Returns the count, the
    position in the buffer, the size in the target, the reason (`NONE`, `CUT_OFF` or `OTHER`), and
    the extra, or if it was cut off the size, of the record where it stopped.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    out: cython.uchar[::1] = memoryview(target)
    end: cython.Py_ssize_t = len(data)
    count: cython.Py_ssize_t = 0
    filled: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    found: cython.ulonglong
    if len(out) < end:
        raise ValueError("the target is smaller than the buffer")
    while True:
        if end - position < _POSTED:
            return count, position, filled, _CUT_OFF, _POSTED
        size = cython.cast(cython.Py_ssize_t, get32(data, position + 4))
        if size > size_max or get_number(data, position + 8, 8) != number:
            return count, position, filled, _NONE, 0
        if size > end - position - _POSTED:
            return count, position, filled, _CUT_OFF, _POSTED + size
        if get32(data, position) != sum_bytes(data, position + 4, size + 20, seed):
            return count, position, filled, _NONE, 0
        found = get_number(data, position + 16, 8)
        if found != extra or count == limit:
            return count, position, filled, _OTHER, found
        put32(out, filled, cython.cast(cython.ulonglong, size))
        copy_bytes(out, filled + 4, data, position + _POSTED, size)
        filled += 4 + size
        position += (_POSTED + size + 7) // 8 * 8
        number += 1
        count += 1
