"""The hot loops of the fflg format: encode, verify, gather and stage frames.

A version 2 frame is `u32 size | u32 check | u32 ms | blob`, big-endian, and

    check = crc32(salt ‖ ms ‖ blob) XOR (index × SPREAD mod 2³²)

`seed` below is crc32(salt), so that one CRC runs over the frame's own contiguous bytes. Because the
index is mixed in last, a frame tells which index it claims: salvage needs no guess. The page is
docs/formats/fflg.md; versions 0 and 1, which have no check, are in `plain.py`.
"""

from __future__ import annotations

import time

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

from forebay.kernels.checksum import crc32, direct_address

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.forebay.kernels.direct import crc_function
    from cython.cimports.libc.string import memcpy
    from cython.cimports.posix.time import CLOCK_REALTIME, clock_gettime, timespec

    _direct = cython.declare(
        crc_function, cython.cast(crc_function, cython.cast(cython.size_t, direct_address()))
    )

COMPILED = cython.compiled
FRAME_BYTES = 12
_FRAME = cython.declare(cython.Py_ssize_t, 12)
_LARGE = cython.declare(cython.Py_ssize_t, 1 << 16)
_SPREAD = cython.declare(cython.ulonglong, 0x9E3779B1)
_UNSPREAD = cython.declare(cython.ulonglong, 0x0E8B2F51)
_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
def _get32(data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t) -> cython.ulonglong:
    if cython.compiled:
        return (
            (cython.cast(cython.ulonglong, data[position]) << 24)
            | (cython.cast(cython.ulonglong, data[position + 1]) << 16)
            | (cython.cast(cython.ulonglong, data[position + 2]) << 8)
            | cython.cast(cython.ulonglong, data[position + 3])
        )
    return int.from_bytes(data[position : position + 4], "big")


@cython.cfunc
@cython.inline
def _put32(
    out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.ulonglong
) -> cython.void:
    if cython.compiled:
        out[position] = (value >> 24) & 255
        out[position + 1] = (value >> 16) & 255
        out[position + 2] = (value >> 8) & 255
        out[position + 3] = value & 255
    else:
        out[position : position + 4] = value.to_bytes(4, "big")


@cython.cfunc
@cython.inline
def _take(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> bytes:
    if cython.compiled:
        if size == 0:
            return b""
        return PyBytes_FromStringAndSize(
            cython.cast(cython.p_char, cython.address(data[position])), size
        )
    return bytes(data[position : position + size])


@cython.cfunc
@cython.inline
def _crc(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    seed: cython.ulonglong,
) -> cython.ulonglong:
    if cython.compiled:
        if _direct != cython.NULL:
            return _direct(
                cython.cast(cython.uint, seed),
                cython.address(data[position]),
                cython.cast(cython.size_t, size),
            )
    crc: cython.ulonglong = crc32(_take(data, position, size), seed)
    return crc


@cython.cfunc
@cython.inline
def _claimed(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    seed: cython.ulonglong,
) -> cython.ulonglong:
    mixed: cython.ulonglong = _get32(data, position + 4) ^ _crc(data, position + 8, size + 4, seed)
    return (mixed * _UNSPREAD) & _MASK


@cython.cfunc
@cython.inline
def _put_frame(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    value: bytes,
    size: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    ms: cython.ulonglong,
) -> cython.void:
    """Puts the check in last: before it, the frame does not verify."""
    _put32(out, position, cython.cast(cython.ulonglong, size))
    _put32(out, position + 8, ms)
    if not cython.compiled:
        out[position + _FRAME : position + _FRAME + size] = value
    elif size > 0:
        memcpy(cython.address(out[position + _FRAME]), cython.cast(cython.p_char, value), size)
    crc: cython.ulonglong = _crc(out, position + 8, size + 4, seed)
    _put32(out, position + 4, crc ^ ((index * _SPREAD) & _MASK))


def encode(
    values: list,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    buffer: object,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    ms: cython.ulonglong,
    times: list | None = None,
) -> cython.Py_ssize_t:
    """Writes the frames of `count` values to the start of `buffer`; gives their size.

    All get the same `ms`, or each its own of `times`.
    """
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    value: bytes
    number: cython.Py_ssize_t
    for number in range(first, first + count):
        value = values[number]
        size = len(value)
        if times is not None:
            ms = times[number]
        _put_frame(out, position, value, size, index, seed, ms)
        index += 1
        position += _FRAME + size
    return position


def scan(
    buffer: object,
    position: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    limit: cython.Py_ssize_t,
    times: list | None,
) -> tuple:
    """Verifies frames from `position` on; gives their values and where it stopped.

    Stops at `limit` frames, at the end of the buffer, or at the first frame that does not verify.
    `times` gets the ms of each, if it is a list.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    values: list = []
    size: cython.Py_ssize_t
    while limit > 0 and end - position >= _FRAME:
        size = cython.cast(cython.Py_ssize_t, _get32(data, position))
        if size > end - position - _FRAME:
            break
        if _claimed(data, position, size, seed) != index & _MASK or _get32(data, position + 8) == 0:
            break
        values.append(_take(data, position + _FRAME, size))
        if times is not None:
            times.append(_get32(data, position + 8))
        index += 1
        limit -= 1
        position += _FRAME + size
    return values, position


@cython.cfunc
@cython.inline
def _may_follow(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Says whether the bytes at `position` can be the next frame, a tail of zeros or the end."""
    room: cython.Py_ssize_t = end - position - _FRAME
    return room < 0 or _get32(data, position) <= cython.cast(cython.ulonglong, room)


def find(
    buffer: object,
    position: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    most: cython.ulonglong,
) -> tuple:
    """Searches byte by byte for the next frame that verifies; gives (position, its index) or -1.

    Its index must be one that the bytes passed over leave room for, at most `most` above `index`:
    a chance hit is as likely as that range against 2³². A large frame is only summed if what
    follows it can be a frame: rubbish would cost a sum over megabytes at every byte.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    start: cython.Py_ssize_t = position
    ahead: cython.ulonglong
    passed: cython.ulonglong
    while end - position >= _FRAME:
        size = cython.cast(cython.Py_ssize_t, _get32(data, position))
        if (
            size <= end - position - _FRAME
            and _get32(data, position + 8) != 0
            and (size <= _LARGE or _may_follow(data, position + _FRAME + size, end))
        ):
            ahead = (_claimed(data, position, size, seed) - index) & _MASK
            passed = cython.cast(cython.ulonglong, (position - start) // _FRAME)
            if ahead <= passed and ahead <= most:
                return position, index + ahead
        position += 1
    return -1, 0


def gather(
    buffer: object,
    position: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    limit: cython.Py_ssize_t,
    payload: object,
    ends: object,
    times: object,
) -> tuple:
    """Verifies frames and lays them out as Arrow wants them.

    The blobs go into `payload` one behind the other, their ends into `ends` (int32, after a first
    0 that is there already), their ms into `times` (uint32). Gives (count, position).
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    out: cython.uchar[::1] = memoryview(payload)
    out_ends: cython.int[::1] = memoryview(ends)
    out_times: cython.uint[::1] = memoryview(times)
    end: cython.Py_ssize_t = len(data)
    room: cython.Py_ssize_t = len(out)
    size: cython.Py_ssize_t
    number: cython.Py_ssize_t = 0
    used: cython.Py_ssize_t = 0
    while number < limit and end - position >= _FRAME:
        size = cython.cast(cython.Py_ssize_t, _get32(data, position))
        if size > end - position - _FRAME or size > room - used:
            break
        if _claimed(data, position, size, seed) != index & _MASK or _get32(data, position + 8) == 0:
            break
        if cython.compiled:
            if size > 0:
                memcpy(cython.address(out[used]), cython.address(data[position + _FRAME]), size)
        else:
            out[used : used + size] = data[position + _FRAME : position + _FRAME + size]
        used += size
        out_times[number] = cython.cast(cython.uint, _get32(data, position + 8))
        number += 1
        out_ends[number] = used
        index += 1
        position += _FRAME + size
    return number, position


@cython.cclass
class Appender:
    """Appends frames to a mapped buffer: a put is a memory copy.

    Any thread may call `append`; all else is called with the queue's lock held. Between `begin`
    and `finish` the frames at `start`..`position` are the exact bytes of a segment's entries.

    Compiled, with the C functions for CRC and time, `append` makes no Python call: the
    interpreter's own lock makes it atomic against `finish`. Otherwise it takes the queue's lock.
    """

    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    index = cython.declare(cython.ulonglong, visibility="readonly")
    last_ms = cython.declare(cython.longlong, visibility="public")
    _end: cython.Py_ssize_t
    _base: cython.longlong
    _seed: cython.ulonglong
    _epoch_ms: cython.longlong
    _view: cython.uchar[::1]
    _acquire: object
    _release: object
    _now_ms: object
    _atomic: cython.bint

    def __init__(self, buffer: object, lock: object, now_ms: object) -> None:
        """Keeps a view of `buffer`; `now_ms` None means the wall clock of the machine."""
        self._view = memoryview(buffer)
        self._acquire = lock.acquire
        self._release = lock.release
        self._now_ms = now_ms
        self._atomic = now_ms is None and cython.compiled and direct_address() != 0
        self._end = 0
        self.position = 0
        self.index = 0
        self.last_ms = 0

    def begin(
        self,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        base: cython.longlong,
        index: cython.ulonglong,
        seed: cython.ulonglong,
        epoch_ms: cython.longlong,
    ) -> None:
        """Opens the room from `start` to `end` for entries from `index` on."""
        self.position = start
        self._base = base
        self.index = index
        self._seed = seed
        self._epoch_ms = epoch_ms
        self._end = end

    def finish(self) -> None:
        """Closes the room: `append` gives -1 until the next `begin`."""
        self._end = 0

    def release_buffer(self) -> None:
        """Lets go of the mapped memory, so that it can be unmapped."""
        self._end = 0
        self._view = memoryview(bytearray(1))

    def append(self, value: object) -> cython.longlong:
        """Appends one record and gives its offset; -1 if there is no room for it here."""
        if type(value) is not bytes:
            return -1
        if self._atomic:
            return self._append(cython.cast(bytes, value))
        self._acquire()
        try:
            return self._append(value)
        finally:
            self._release()

    @cython.cfunc
    @cython.inline
    def _append(self, value: bytes) -> cython.longlong:
        size: cython.Py_ssize_t = len(value)
        position: cython.Py_ssize_t = self.position
        if size > self._end - position - _FRAME:
            return -1
        now_ms: cython.longlong = self._now()
        if now_ms < self.last_ms:
            now_ms = self.last_ms
        ms: cython.longlong = now_ms - self._epoch_ms
        if ms > 0xFFFFFFFF:
            return -1
        self.last_ms = now_ms
        _put_frame(
            self._view,
            position,
            value,
            size,
            self.index,
            self._seed,
            cython.cast(cython.ulonglong, ms),
        )
        self.position = position + _FRAME + size
        offset: cython.longlong = self._base + cython.cast(cython.longlong, self.index)
        self.index += 1
        return offset

    @cython.cfunc
    @cython.inline
    def _now(self) -> cython.longlong:
        if self._now_ms is not None:
            return self._now_ms()
        if cython.compiled:
            now: timespec
            clock_gettime(CLOCK_REALTIME, cython.address(now))
            return cython.cast(cython.longlong, now.tv_sec) * 1000 + now.tv_nsec // 1_000_000
        return time.time_ns() // 1_000_000
