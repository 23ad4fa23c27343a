"""The id index of a deadline run: the ids of a run, sorted, with the numbers of their blocks.

Mostly without the interpreter's lock: a run may have millions of ids.
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
    from cython.cimports.forebay.kernels.deadline_sort import sort
else:
    from forebay.kernels.deadline_block import put_bits
    from forebay.kernels.deadline_sort import sort


_LARGEST = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
# So many ids are sorted at once, if they are spread evenly: that takes twice as many numbers.
_AT_ONCE = cython.declare(cython.Py_ssize_t, 1 << 20)


def pack_ids(
    ids: cython.ulonglong[::1],
    counts: cython.ulonglong[::1],
    base: cython.ulonglong,
    id_width: cython.Py_ssize_t,
    block_width: cython.Py_ssize_t,
) -> bytearray:
    """Gives the bits of the ids, rising, each minus `base`, and behind them those of the blocks.

    `ids` are those of one block after the other, `counts` how many each block has. The two widths
    together are at most 64.
    """
    count: cython.Py_ssize_t = len(ids)
    start: cython.Py_ssize_t = (count * id_width + 7) >> 3
    buffer: object = bytearray(start + ((count * block_width + 7) >> 3))
    out: cython.uchar[::1] = memoryview(buffer)
    most: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << id_width) - 1
    if id_width == 64:
        most = _LARGEST
    parts: cython.ulonglong = 1 + cython.cast(cython.ulonglong, count // _AT_ONCE)
    step: cython.ulonglong = most // parts
    low: cython.ulonglong = 0
    high: cython.ulonglong
    done: cython.Py_ssize_t = 0
    # Some ids at a time, the lowest first: a place for all of them would be large.
    while done < count:
        high = low + step if most - low > step else most
        cells: object = _gather(ids, counts, base, low, high, block_width)
        done += _put(cells, out, start, done, id_width, block_width)
        low = high + 1
    return buffer


@cython.cfunc
def _gather(
    ids: cython.ulonglong[::1],
    counts: cython.ulonglong[::1],
    base: cython.ulonglong,
    low: cython.ulonglong,
    high: cython.ulonglong,
    block_width: cython.Py_ssize_t,
) -> object:
    """Gives the ids between two, each in front of its block, and room for as many."""
    count: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    with cython.nogil:
        for at in range(len(ids)):
            if ids[at] - base >= low and ids[at] - base <= high:
                count += 1
    found: object = memoryview(bytearray(2 * 8 * max(count, 1))).cast("Q")
    cells: cython.ulonglong[::1] = found
    block: cython.Py_ssize_t
    end: cython.Py_ssize_t = 0
    id: cython.ulonglong
    with cython.nogil:
        at = count = 0
        for block in range(len(counts)):
            end += cython.cast(cython.Py_ssize_t, counts[block])
            while at < end:
                id = ids[at] - base
                if id >= low and id <= high:
                    cells[count] = (id << block_width) | cython.cast(cython.ulonglong, block)
                    count += 1
                at += 1
    return found[: 2 * count]


@cython.cfunc
def _put(
    found: object,
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    done: cython.Py_ssize_t,
    id_width: cython.Py_ssize_t,
    block_width: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Sorts the first half of an array, and writes it behind what is done; gives how many."""
    count: cython.Py_ssize_t = len(found) // 2
    if count == 0:
        return 0
    cells: cython.ulonglong[::1] = found
    first: cython.Py_ssize_t = sort(cells, count, 1, 1)
    mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << block_width) - 1
    at: cython.Py_ssize_t
    cell: cython.ulonglong
    with cython.nogil:
        for at in range(count):
            cell = cells[first + at]
            put_bits(out, 0, (done + at) * id_width, id_width, cell >> block_width)
            put_bits(out, start, (done + at) * block_width, block_width, cell & mask)
    return count
