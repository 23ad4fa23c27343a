"""The hot loops over Beats frames: encode, verify, search, and lay out for Arrow.

A frame is `u32 size | payload | u32 crc | u32 size`, little-endian. The size counts all four parts,
so a frame is 12 bytes longer than its payload, which is never empty. The CRC-32 covers the leading
size and the payload. Nothing in a frame tells its place in the segment.
Page: docs/formats/beats.md.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.little import (
        copy_bytes,
        get32,
        put32,
        put_bytes,
        sum_bytes,
        take_bytes,
    )
else:
    from forebay.kernels.little import copy_bytes, get32, put32, put_bytes, sum_bytes, take_bytes

COMPILED = cython.compiled
FRAME_BYTES = 12
GAVE_UP = -2
_FRAME = cython.declare(cython.Py_ssize_t, 12)
_SUMMED_MIN = cython.declare(cython.Py_ssize_t, 64 << 20)
_SUMMED_RATIO = cython.declare(cython.Py_ssize_t, 16)


@cython.cfunc
@cython.inline
def _good_size(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Gives the size of the frame at `position` if both of its sizes say the same, else 0."""
    if end - position <= _FRAME:
        return 0
    size: cython.Py_ssize_t = get32(data, position)
    if size <= _FRAME or size > end - position:
        return 0
    again: cython.Py_ssize_t = get32(data, position + size - 4)
    return size if again == size else 0


@cython.cfunc
@cython.inline
def _verified_size(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Gives the size of the frame at `position` if it verifies, else 0."""
    size: cython.Py_ssize_t = _good_size(data, position, end)
    if size == 0 or get32(data, position + size - 8) != sum_bytes(data, position, size - 8, 0):
        return 0
    return size


def encode(
    values: list, first: cython.Py_ssize_t, count: cython.Py_ssize_t, buffer: object
) -> cython.Py_ssize_t:
    """Writes the frames of `count` values to the start of `buffer`; gives their size."""
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    value: bytes
    number: cython.Py_ssize_t
    for number in range(first, first + count):
        value = values[number]
        size = len(value) + _FRAME
        put32(out, position, size)
        put_bytes(out, position + 4, value, size - _FRAME)
        put32(out, position + size - 8, sum_bytes(out, position, size - 8, 0))
        put32(out, position + size - 4, size)
        position += size
    return position


def scan(buffer: object, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> tuple:
    """Verifies frames from `position` on; gives their payloads and where it stopped.

    Stops at `limit` frames, at the end of the buffer, or at the first frame that does not verify.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    values: list = []
    size: cython.Py_ssize_t
    while limit > 0:
        size = _verified_size(data, position, end)
        if size == 0:
            break
        values.append(take_bytes(data, position + 4, size - _FRAME))
        limit -= 1
        position += size
    return values, position


def find(buffer: object, position: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Searches byte by byte for the next frame that verifies; returns its position or -1.

    The two sizes are compared before anything is summed, so rubbish costs no sum over megabytes.
    Bytes that were made to pass that at every place must not hold up the search: it ends when it
    has summed a multiple of what it was given, and returns `GAVE_UP`: good frames may follow.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    left: cython.Py_ssize_t = _SUMMED_MIN + _SUMMED_RATIO * (end - position)
    size: cython.Py_ssize_t
    while left > 0 and end - position > _FRAME:
        size = _good_size(data, position, end)
        if size != 0:
            if get32(data, position + size - 8) == sum_bytes(data, position, size - 8, 0):
                return position
            left -= size
        position += 1
    return -1 if left > 0 else -2


def hop(
    buffer: object, position: cython.Py_ssize_t, target: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Counts the frames from `position` to `target` by their leading sizes alone.

    Gives -1 if the sizes do not lead exactly there.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    while target - position > _FRAME:
        size = get32(data, position)
        if size <= _FRAME:
            return -1
        position += size
        count += 1
    return count if position == target else -1


def gather(
    buffer: object,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    payload: object,
    ends: object,
    positions: object,
) -> tuple:
    """Verifies frames and lays their payloads out as Arrow wants them.

    The payloads go into `payload` one behind the other, their ends into `ends` (int32, after a
    first 0 that is there already), where their frames lie into `positions` (int64, counted from the
    start of the buffer). Gives (count, position).
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    out: cython.uchar[::1] = memoryview(payload)
    out_ends: cython.int[::1] = memoryview(ends)
    out_positions: cython.longlong[::1] = memoryview(positions)
    end: cython.Py_ssize_t = len(data)
    room: cython.Py_ssize_t = len(out)
    size: cython.Py_ssize_t
    number: cython.Py_ssize_t = 0
    used: cython.Py_ssize_t = 0
    while number < limit:
        size = _verified_size(data, position, end)
        if size == 0 or size - _FRAME > room - used:
            break
        copy_bytes(out, used, data, position + 4, size - _FRAME)
        used += size - _FRAME
        out_positions[number] = position
        number += 1
        out_ends[number] = used
        position += size
    return number, position


def find_block(
    buffer: object, position: cython.Py_ssize_t, stored_max: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Searches for the next place that can be an LZ4 block: a size that is whole in the buffer.

    The highest bit of the size says that the block is not compressed. Gives -1 if there is none.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    while end - position > 4:
        size = get32(data, position) & 0x7FFFFFFF
        if 0 < size <= stored_max and size <= end - position - 4:
            return position
        position += 1
    return -1
