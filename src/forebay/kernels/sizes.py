"""What a batch of values takes, before it is encoded."""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython


def measure(values: list) -> tuple:
    """Gives the sum of the sizes, the largest and the smallest; refuses what is not bytes."""
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
    """Says how many values from `first` on fit into `room` bytes as frames, and their size."""
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
