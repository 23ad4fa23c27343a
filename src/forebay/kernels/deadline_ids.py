"""The id index of a deadline run: sorts the ids of a run with the numbers of their blocks.

In place, and without the interpreter's lock: a run may have millions of ids.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.deadline_block import put_bits
else:
    from forebay.kernels.deadline_block import put_bits


def pack_ids(
    ids: object,
    counts: list,
    base: cython.ulonglong,
    id_width: cython.Py_ssize_t,
    block_width: cython.Py_ssize_t,
) -> bytearray:
    """Gives the bits of the ids, rising, each minus `base`, and behind them those of the blocks.

    `ids` are those of one block after the other, `counts` how many each block has; they are spoiled
    by it. The two widths together are at most 64.
    """
    cells: cython.ulonglong[::1] = memoryview(ids)
    count: cython.Py_ssize_t = len(cells)
    block: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = 0
    for block in range(len(counts)):
        end += counts[block]
        while at < end:
            cells[at] = ((cells[at] - base) << block_width) | cython.cast(cython.ulonglong, block)
            at += 1
    if cython.compiled:
        with cython.nogil:
            _sort(cells, count)
    else:
        for at, cell in enumerate(sorted(cells)):
            cells[at] = cell
    start: cython.Py_ssize_t = (count * id_width + 7) >> 3
    buffer: object = bytearray(start + ((count * block_width + 7) >> 3))
    out: cython.uchar[::1] = memoryview(buffer)
    mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << block_width) - 1
    for at in range(count):
        put_bits(out, 0, at * id_width, id_width, cells[at] >> block_width)
        put_bits(out, start, at * block_width, block_width, cells[at] & mask)
    return buffer


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sort(cells: cython.ulonglong[::1], count: cython.Py_ssize_t) -> cython.void:
    """Sorts by a heap."""
    at: cython.Py_ssize_t = count >> 1
    while at > 0:
        at -= 1
        _sink(cells, at, count)
    last: cython.ulonglong
    at = count
    while at > 1:
        at -= 1
        last = cells[at]
        cells[at] = cells[0]
        cells[0] = last
        _sink(cells, 0, at)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sink(
    cells: cython.ulonglong[::1], at: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> cython.void:
    """Lets a cell sink to where it belongs."""
    cell: cython.ulonglong = cells[at]
    down: cython.Py_ssize_t = 2 * at + 1
    while down < count:
        if down + 1 < count and cells[down + 1] > cells[down]:
            down += 1
        if cells[down] <= cell:
            break
        cells[at] = cells[down]
        at = down
        down = 2 * at + 1
    cells[at] = cell
