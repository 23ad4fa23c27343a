"""The loops of the fflg format: encode, verify and find frames, and lay them out for Arrow.

A version 2 frame is `u32 size | u32 check | u32 ms | blob`, big-endian, and

    check = crc32(salt ‖ ms ‖ blob) XOR (index × SPREAD mod 2³²)

`seed` below is crc32(salt), so that one CRC covers the frame's own contiguous bytes. Because the
index is mixed in last, a frame shows which index it claims: salvage does not have to guess. Frames
of versions 0 and 1 have no check: they are `u32 size | blob`. The page is docs/formats/fflg.md.

`Columns` owns buffers in Arrow's layout and fills them from verified frames, without an object for
each record; `encode_columns` makes frames from the two buffers of a binary column.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.buffers import (
        Rows,
        copy_bytes,
        put_bytes,
        sum_bytes,
        take_bytes,
    )
    from cython.cimports.forebay.kernels.buffers import get32 as get_little32
else:
    from forebay.kernels.buffers import Rows, copy_bytes, put_bytes, sum_bytes, take_bytes
    from forebay.kernels.buffers import get32 as get_little32

FRAME_BYTES = 12
_FRAME = cython.declare(cython.Py_ssize_t, FRAME_BYTES)
_LARGE = cython.declare(cython.Py_ssize_t, 1 << 16)
_SPREAD = cython.declare(cython.ulonglong, 0x9E3779B1)
_UNSPREAD = cython.declare(cython.ulonglong, 0x0E8B2F51)
_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
def get32(data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t) -> cython.ulonglong:
    """Reads a big-endian u32."""
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
def put32(
    out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.ulonglong
) -> cython.void:
    """Writes a big-endian u32."""
    if cython.compiled:
        out[position] = (value >> 24) & 255
        out[position + 1] = (value >> 16) & 255
        out[position + 2] = (value >> 8) & 255
        out[position + 3] = value & 255
    else:
        out[position : position + 4] = value.to_bytes(4, "big")


@cython.cfunc
@cython.inline
def claimed(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    seed: cython.ulonglong,
) -> cython.ulonglong:
    """Returns the index, modulo 2³², that the check of a frame claims."""
    mixed: cython.ulonglong = get32(data, position + 4) ^ sum_bytes(
        data, position + 8, size + 4, seed
    )
    return (mixed * _UNSPREAD) & _MASK


@cython.cfunc
@cython.inline
def put_check(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    ms: cython.ulonglong,
) -> cython.void:
    """Makes a frame of a blob that is already in place; it verifies once the check is written."""
    put32(out, position, cython.cast(cython.ulonglong, size))
    put32(out, position + 8, ms)
    crc: cython.ulonglong = sum_bytes(out, position + 8, size + 4, seed)
    put32(out, position + 4, crc ^ ((index * _SPREAD) & _MASK))


@cython.cfunc
@cython.inline
def put_frame(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    value: bytes,
    size: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    ms: cython.ulonglong,
) -> cython.void:
    """Writes the frame of one value."""
    put_bytes(out, position + _FRAME, value, size)
    put_check(out, position, size, index, seed, ms)


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
    """Writes the frames of `count` values to the start of `buffer`; returns their size.

    All have the same `ms`, or each has its own from `times`.
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
        put_frame(out, position, value, size, index, seed, ms)
        index += 1
        position += _FRAME + size
    return position


def measure_sized(buffer: object) -> tuple:
    """Returns how many records a buffer holds, their bytes, the largest and the smallest.

    A record is `u32 size`, little-endian, and that many bytes. The count is -1 if the records do
    not fill the buffer exactly.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    largest: cython.Py_ssize_t = 0
    smallest: cython.Py_ssize_t = 0xFFFFFFFF
    size: cython.Py_ssize_t
    while end - position >= 4:
        size = cython.cast(cython.Py_ssize_t, get_little32(data, position))
        if size > end - position - 4:
            break
        if size > largest:
            largest = size
        if size < smallest:
            smallest = size
        count += 1
        position += 4 + size
    if position != end:
        return -1, 0, 0, 0
    return count, end - 4 * count, largest, smallest


def fit_sized(
    buffer: object,
    position: cython.Py_ssize_t,
    room: cython.longlong,
    frame_bytes: cython.Py_ssize_t,
) -> tuple:
    """Returns how many records of a measured buffer fit into `room` bytes, and their size.

    It counts the records from `position` on; `frame_bytes` is what a frame adds to each.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    count: cython.Py_ssize_t = 0
    total: cython.longlong = 0
    size: cython.Py_ssize_t
    while end - position >= 4:
        size = cython.cast(cython.Py_ssize_t, get_little32(data, position))
        if total + frame_bytes + size > room or size > end - position - 4:
            break
        total += frame_bytes + size
        count += 1
        position += 4 + size
    return count, total


def encode_sized(
    buffer: object,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    target: object,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    ms: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Writes the frames of `count` records of a buffer from `start` on to the start of `target`.

    Returns the position after those records.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    out: cython.uchar[::1] = memoryview(target)
    end: cython.Py_ssize_t = len(data)
    room: cython.Py_ssize_t = len(out)
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    while count > 0 and end - start >= 4:
        size = cython.cast(cython.Py_ssize_t, get_little32(data, start))
        if size > end - start - 4 or size > room - position - _FRAME:
            break
        copy_bytes(out, position + _FRAME, data, start + 4, size)
        put_check(out, position, size, index, seed, ms)
        index += 1
        count -= 1
        start += 4 + size
        position += _FRAME + size
    return start


def scan(
    buffer: object,
    position: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    limit: cython.Py_ssize_t,
    times: list | None,
) -> tuple:
    """Verifies frames from `position` on; returns their values and where it stopped.

    Stops at `limit` frames, at the end of the buffer, or at the first frame that does not verify.
    `times` gets the ms of each, if it is a list.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    values: list = []
    size: cython.Py_ssize_t
    while limit > 0 and end - position >= _FRAME:
        size = cython.cast(cython.Py_ssize_t, get32(data, position))
        if size > end - position - _FRAME:
            break
        if claimed(data, position, size, seed) != index & _MASK or get32(data, position + 8) == 0:
            break
        values.append(take_bytes(data, position + _FRAME, size))
        if times is not None:
            times.append(get32(data, position + 8))
        index += 1
        limit -= 1
        position += _FRAME + size
    return values, position


@cython.cfunc
@cython.inline
def _may_follow(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Returns whether the bytes at `position` can be the next frame, a tail of zeros or the end."""
    room: cython.Py_ssize_t = end - position - _FRAME
    return room < 0 or get32(data, position) <= cython.cast(cython.ulonglong, room)


def find(
    buffer: object,
    position: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    most: cython.ulonglong,
    before: cython.Py_ssize_t = 0,
) -> tuple:
    """Searches byte by byte for the next frame that verifies; returns (position, its index) or -1.

    `index` is the one that is expected `before` bytes ahead of `position`. The index found must be
    possible for the bytes skipped, at most `most` above it: the chance of a false hit is that range
    divided by 2³². The checksum of a large frame is computed only if what follows it can be a
    frame: garbage would otherwise cost a checksum of megabytes at every byte.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    start: cython.Py_ssize_t = position - before
    ahead: cython.ulonglong
    passed: cython.ulonglong
    while end - position >= _FRAME:
        size = cython.cast(cython.Py_ssize_t, get32(data, position))
        if (
            size <= end - position - _FRAME
            and get32(data, position + 8) != 0
            and (size <= _LARGE or _may_follow(data, position + _FRAME + size, end))
        ):
            ahead = (claimed(data, position, size, seed) - index) & _MASK
            passed = cython.cast(cython.ulonglong, (position - start) // _FRAME)
            if ahead <= passed and ahead <= most:
                return position, index + ahead
        position += 1
    return -1, 0


def verify(
    buffer: object,
    position: cython.Py_ssize_t,
    index: cython.ulonglong,
    seed: cython.ulonglong,
    limit: cython.Py_ssize_t,
    last_ms: cython.ulonglong,
) -> tuple:
    """Counts good frames whose ms do not fall; returns (count, where it stopped, the last ms).

    Stops at `limit` frames, or at one that is cut off, does not verify, or has a lower ms than the
    one before.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    count: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    ms: cython.ulonglong
    while count < limit and end - position >= _FRAME:
        size = cython.cast(cython.Py_ssize_t, get32(data, position))
        if size > end - position - _FRAME:
            break
        ms = get32(data, position + 8)
        if claimed(data, position, size, seed) != index & _MASK or ms == 0 or ms < last_ms:
            break
        last_ms = ms
        index += 1
        count += 1
        position += _FRAME + size
    return count, position, last_ms


def encode_unchecked(
    values: list, first: cython.Py_ssize_t, count: cython.Py_ssize_t, buffer: object
) -> cython.Py_ssize_t:
    """Writes the frames of `count` values to the start of `buffer`; returns their size."""
    parts: list = []
    value: bytes
    number: cython.Py_ssize_t
    for number in range(first, first + count):
        value = values[number]
        parts.append(len(value).to_bytes(4, "big"))
        parts.append(value)
    data: bytes = b"".join(parts)
    memoryview(buffer)[: len(data)] = data
    return len(data)


def scan_unchecked(
    data: bytes, position: cython.Py_ssize_t, limit: cython.Py_ssize_t, zero_size_ends: cython.bint
) -> tuple:
    """Reads whole frames from `position` on; returns their values and where it stopped."""
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    values: list = []
    while limit > 0 and end - position >= 4:
        size = int.from_bytes(data[position : position + 4], "big")
        if size > end - position - 4 or (size == 0 and zero_size_ends):
            break
        values.append(data[position + 4 : position + 4 + size])
        limit -= 1
        position += 4 + size
    return values, position


@cython.cclass
class Columns(Rows):
    """Rows that are being collected: offsets, times, positions, and the payloads if wanted.

    `ends` (int32) has one more than `rows`, starting with 0; `offsets` and `micros` (since 1970)
    are int64.
    """

    offsets = cython.declare(object, visibility="readonly")
    _offsets: cython.longlong[::1]

    def __init__(
        self, payload_bytes: cython.Py_ssize_t, rows_max: cython.Py_ssize_t, values: cython.bint
    ) -> None:
        """Allocates the buffers; without `values` payloads are verified, but left out."""
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
        """Adds good frames of `buffer` from `position` on; returns (count, where it stopped).

        `base` is the offset of the segment's index 0. Stops after `limit` frames, at a frame that
        is cut off or does not verify, or when the buffers are full.
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
    after `count` rows from `first` on, or if the next frame does not fit. Returns how many rows
    were written, and their size.
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
