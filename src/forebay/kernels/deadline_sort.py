"""Sorts cells of numbers digit by digit, without the interpreter's lock.

A freeze sorts what memory holds, and each run the ids of its items: both in the time of a few
copies, however many there are.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

_DIGIT = cython.declare(cython.Py_ssize_t, 11)
_DIGITS = cython.declare(cython.Py_ssize_t, 1 << 11)
_MASK = cython.declare(cython.ulonglong, (1 << 11) - 1)
_BITS = cython.declare(cython.Py_ssize_t, 64)


def sort(
    cells: cython.ulonglong[::1],
    count: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    words: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Sorts `count` cells of `size` numbers by the first `words` of them; gives where they begin.

    The array has room for twice as many: the cells, and behind them a place to work in. They end up
    in one half or the other.
    """
    ends: cython.ulonglong[::1] = memoryview(bytearray(8 * _DIGITS)).cast("Q")
    source: cython.Py_ssize_t = 0
    target: cython.Py_ssize_t = count * size
    word: cython.Py_ssize_t = words
    shift: cython.Py_ssize_t
    differing: cython.ulonglong
    with cython.nogil:
        while word > 0:
            word -= 1
            differing = _differing(cells, source + word, count, size)
            shift = 0
            while shift < _BITS and differing >> shift > 0:
                # A digit that all have in common moves none of them.
                if (differing >> shift) & _MASK > 0:
                    _move(cells, ends, source, target, count, size, word, shift)
                    source, target = target, source
                shift += _DIGIT
    return source


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _differing(
    cells: cython.ulonglong[::1],
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.ulonglong:
    """Gives the bits in which a word is not the same in all cells."""
    differing: cython.ulonglong = 0
    at: cython.Py_ssize_t
    for at in range(count):
        differing |= cells[start + at * size] ^ cells[start]
    return differing


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _move(
    cells: cython.ulonglong[::1],
    ends: cython.ulonglong[::1],
    source: cython.Py_ssize_t,
    target: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    word: cython.Py_ssize_t,
    shift: cython.Py_ssize_t,
) -> cython.void:
    """Moves cells by one digit; those that have the same stay in their order."""
    at: cython.Py_ssize_t
    to: cython.Py_ssize_t
    part: cython.Py_ssize_t
    digit: cython.Py_ssize_t
    sum: cython.ulonglong = 0
    here: cython.ulonglong
    for digit in range(_DIGITS):
        ends[digit] = 0
    for at in range(count):
        digit = cython.cast(cython.Py_ssize_t, (cells[source + at * size + word] >> shift) & _MASK)
        ends[digit] += 1
    for digit in range(_DIGITS):
        here = ends[digit]
        ends[digit] = sum
        sum += here
    for at in range(count):
        digit = cython.cast(cython.Py_ssize_t, (cells[source + at * size + word] >> shift) & _MASK)
        to = target + size * cython.cast(cython.Py_ssize_t, ends[digit])
        ends[digit] += 1
        for part in range(size):
            cells[to + part] = cells[source + at * size + part]
