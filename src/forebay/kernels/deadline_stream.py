"""Makes many blocks of what is in memory at once, without the interpreter's lock.

A freeze that took that lock for each block would keep those who enqueue waiting, and wait for them.
Compiled only, and only for items without reasons: otherwise nothing is done, and each block goes
the usual way (`Memory.fill`, `BlockBuilder.take`).
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.deadline_build import BlockBuilder
    from cython.cimports.forebay.kernels.deadline_memory import Memory
    from cython.cimports.forebay.kernels.little import direct
else:
    from forebay.kernels.deadline_build import BlockBuilder
    from forebay.kernels.deadline_memory import Memory

# What a row of the table tells of a block: how many entries, first deadline, first id, where it
# ends, smallest and largest id, how many tombstones, how many buried items.
ROW_NUMBERS = 8
_NUMBERS = cython.declare(cython.Py_ssize_t, 8)
_ROW = cython.declare(cython.Py_ssize_t, 8)
_STATE = cython.declare(cython.Py_ssize_t, 3)
_TIME = cython.declare(cython.Py_ssize_t, 4)
_REQUEUE = cython.declare(cython.Py_ssize_t, 5)
_COUNT = cython.declare(cython.Py_ssize_t, 6)
_ITEM = cython.declare(cython.ulonglong, 1)
_TOMBSTONE = cython.declare(cython.ulonglong, 2)
_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)


def stream(
    memory: Memory,
    rows: cython.ulonglong[::1],
    at: cython.Py_ssize_t,
    builder: BlockBuilder,
    number: cython.ulonglong,
    seed: cython.ulonglong,
    out: cython.uchar[::1],
    table: cython.ulonglong[::1],
) -> tuple:
    """Writes whole blocks of rows, from one on, to the start of `out`, a row for each to `table`.

    Gives the first row that is in none, the bytes and the blocks. The last block of all is left to
    the usual way, and so is a row that needs more room than there is. `builder` is empty, before
    and after.
    """
    position: cython.Py_ssize_t = 0
    blocks: cython.Py_ssize_t = 0
    if not cython.compiled or len(memory._reasons) > 0 or len(rows) == 0:
        return at, position, blocks
    if direct == cython.NULL:
        return at, position, blocks
    stop: cython.Py_ssize_t
    with cython.nogil:
        while _NUMBERS * (blocks + 1) <= len(table):
            stop = _gather(memory, rows, at, builder)
            if stop == len(rows) or builder.count == 0 or position + builder.size_max() > len(out):
                break
            builder.describe(table, _NUMBERS * blocks)
            position = builder.emit(out, position, number, seed)
            table[_NUMBERS * blocks + 3] = cython.cast(cython.ulonglong, position)
            builder.clear()
            at = stop
            number += 1
            blocks += 1
        builder.clear()
    return at, position, blocks


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _gather(
    memory: Memory,
    rows: cython.ulonglong[::1],
    at: cython.Py_ssize_t,
    builder: BlockBuilder,
) -> cython.Py_ssize_t:
    """Puts rows into a block until one does not fit; gives that."""
    row: cython.Py_ssize_t
    base: cython.Py_ssize_t
    state: cython.ulonglong
    address: cython.ulonglong
    size: cython.Py_ssize_t
    attributes: cython.ulonglong
    while at < len(rows):
        row = cython.cast(cython.Py_ssize_t, rows[at])
        base = _ROW * row
        state = memory._rows[base + _STATE]
        address = 0
        size = 0
        attributes = 1 if state == _TOMBSTONE else 0
        if state == _ITEM:
            address = memory._places[2 * row]
            size = cython.cast(cython.Py_ssize_t, memory._places[2 * row + 1])
            attributes = 2 if memory._rows[base] >= _BURIED_BIT else 0
        if not builder.add_raw(
            memory._rows[base],
            memory._rows[base + 1],
            0 if state == _TOMBSTONE else memory._rows[base + _TIME],
            memory._rows[base + _REQUEUE] if state == _ITEM else 0,
            0 if state == _TOMBSTONE else memory._rows[base + _COUNT],
            attributes,
            address,
            size,
        ):
            return at
        at += 1
    return at
