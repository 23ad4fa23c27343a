"""Frames without a check, `u32 size | blob`, big-endian: versions 0 and 1 of fflg."""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython


def encode_plain(
    values: list, first: cython.Py_ssize_t, count: cython.Py_ssize_t, buffer: object
) -> cython.Py_ssize_t:
    """Writes the frames of `count` values to the start of `buffer`; gives their size."""
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


def scan_plain(
    data: bytes, position: cython.Py_ssize_t, limit: cython.Py_ssize_t, zero_size_ends: cython.bint
) -> tuple:
    """Takes whole frames from `position` on; gives their values and where it stopped."""
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
