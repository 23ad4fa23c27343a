"""Little-endian numbers, bytes and checksums in buffers: what the kernels of a format share.

A number has 1 to 8 bytes, so that 48 bits of a time take six. What other compiled kernels call
without a Python call in between stands in `little.pxd`.
"""

from __future__ import annotations

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

    _direct = cython.declare(
        crc_function, cython.cast(crc_function, cython.cast(cython.size_t, direct_address()))
    )


@cython.cfunc
@cython.inline
def get_number(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.ulonglong:
    """Reads the number of `size` bytes at a position."""
    if not cython.compiled:
        return int.from_bytes(data[position : position + size], "little")
    number: cython.ulonglong = 0
    at: cython.Py_ssize_t
    for at in range(size):
        number |= cython.cast(cython.ulonglong, data[position + at]) << (8 * at)
    return number


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_number(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    size: cython.Py_ssize_t,
) -> cython.void:
    """Writes the lowest `size` bytes of a number."""
    at: cython.Py_ssize_t
    for at in range(size):
        out[position + at] = (number >> (8 * at)) & 255


@cython.cfunc
@cython.inline
def take_bytes(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> bytes:
    """Copies bytes out of a buffer."""
    if cython.compiled:
        if size == 0:
            return b""
        return PyBytes_FromStringAndSize(
            cython.cast(cython.p_char, cython.address(data[position])), size
        )
    return bytes(data[position : position + size])


@cython.cfunc
@cython.inline
def put_bytes(
    out: cython.uchar[::1], position: cython.Py_ssize_t, value: bytes, size: cython.Py_ssize_t
) -> cython.void:
    """Copies `size` bytes, which is all of a value, into a buffer."""
    if not cython.compiled:
        out[position : position + size] = value
    elif size > 0:
        memcpy(cython.address(out[position]), cython.cast(cython.p_char, value), size)


@cython.cfunc
@cython.inline
def copy_bytes(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    """Copies `size` bytes from one buffer into another."""
    if not cython.compiled:
        out[position : position + size] = data[start : start + size]
    elif size > 0:
        memcpy(cython.address(out[position]), cython.address(data[start]), size)


@cython.cfunc
@cython.inline
def sum_bytes(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    seed: cython.ulonglong,
) -> cython.ulonglong:
    """Gives the CRC-32 of some bytes, going on from `seed`."""
    if size == 0:
        return seed
    if cython.compiled:
        if _direct != cython.NULL:
            return _direct(
                cython.cast(cython.uint, seed),
                cython.address(data[position]),
                cython.cast(cython.size_t, size),
            )
    crc: cython.ulonglong = crc32(take_bytes(data, position, size), seed)
    return crc
