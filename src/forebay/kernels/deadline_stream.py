"""Blocks made many at a time, without the interpreter's lock, and of what is in memory.

A freeze or a merge that took that lock for each block would keep those who enqueue waiting, and
wait for them. Compiled only; the usual way is `Memory.fill` and `BlockBuilder.take`.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels import deadline_fields as fields
    from cython.cimports.forebay.kernels.deadline_build import BlockBuilder
    from cython.cimports.forebay.kernels.deadline_memory import Memory
    from cython.cimports.forebay.kernels.direct import prefetch
    from cython.cimports.forebay.kernels.little import direct
else:
    from forebay.kernels import deadline_fields as fields
    from forebay.kernels.deadline_build import BlockBuilder
    from forebay.kernels.deadline_memory import Memory

# What a row of the table tells of a block: how many entries, first deadline, first id, where it
# ends, smallest and largest id, how many tombstones, how many buried items.
ROW_NUMBERS = 8
_NUMBERS = cython.declare(cython.Py_ssize_t, 8)
_END = cython.declare(cython.Py_ssize_t, 3)
# As many as one block may have.
_IDS = cython.declare(cython.Py_ssize_t, 65536)
# So many rows ahead values are fetched, and so much of each; rows twice as many.
_AHEAD = cython.declare(cython.Py_ssize_t, 4)
_FETCHED_BYTES = cython.declare(cython.ulonglong, 512)
_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)


def can_stream() -> cython.bint:
    """Says whether blocks can be made here; otherwise they go the usual way."""
    if not cython.compiled:
        return False
    return direct != cython.NULL


@cython.cclass
class BlockStream:
    """Blocks that were made of what was in a builder: `size` bytes in `out`, not compressed.

    `table` has `blocks` rows of numbers, and `ids` the `id_count` ids of all entries, if they are
    wanted.
    """

    def __init__(
        self,
        builder: BlockBuilder,
        seed: cython.ulonglong,
        room: cython.Py_ssize_t,
        blocks_max: cython.Py_ssize_t,
        with_ids: cython.bint,
    ) -> None:
        self.builder = builder
        self._seed = seed
        self.out = memoryview(bytearray(room))
        self.table = memoryview(bytearray(8 * _NUMBERS * blocks_max)).cast("Q")
        self._with_ids = with_ids
        self.ids = memoryview(bytearray(8 * _IDS if with_ids else 8)).cast("Q")
        self.start(0)

    def start(self, number: cython.ulonglong) -> None:
        """Begins anew; the next block has this number."""
        self._number = number
        self.size = self.blocks = self.id_count = 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def end_block(self) -> cython.bint:
        """Makes a block of what is in the builder, and empties that; False if there is no room."""
        if (
            self.size + self.builder.size_max() > len(self.out)
            or _NUMBERS * (self.blocks + 1) > len(self.table)
            or (self._with_ids and self.id_count + self.builder.count > len(self.ids))
        ):
            return False
        self.builder.describe(self.table, _NUMBERS * self.blocks)
        if self._with_ids:
            self.builder.copy_ids(self.ids, self.id_count)
            self.id_count += self.builder.count
        self.size = self.builder.emit(self.out, self.size, self._number, self._seed)
        self.table[_NUMBERS * self.blocks + _END] = cython.cast(cython.ulonglong, self.size)
        self.builder.clear()
        self._number += 1
        self.blocks += 1
        return True


def fill_from_memory(
    output: BlockStream,
    memory: Memory,
    rows: cython.ulonglong[::1],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Makes whole blocks of rows in memory, from one on; gives the first that is in none.

    The last block of all is left to the usual way, and so is a row that needs more room than there
    is, and all of them if there are reasons. The builder is empty, before and after.
    """
    if not cython.compiled or len(memory._reasons) > 0 or len(rows) == 0:
        return at
    stop: cython.Py_ssize_t
    with cython.nogil:
        while True:
            stop = _gather(memory, rows, at, output.builder)
            if stop == len(rows) or output.builder.count == 0 or not output.end_block():
                break
            at = stop
        output.builder.clear()
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _fetch_ahead(memory: Memory, rows: cython.ulonglong[::1], at: cython.Py_ssize_t) -> cython.void:
    """Has the machine fetch what the next rows need: they lie anywhere in memory."""
    row: cython.Py_ssize_t
    value: cython.ulonglong
    byte: cython.ulonglong
    if at + 2 * _AHEAD < len(rows):
        row = cython.cast(cython.Py_ssize_t, rows[at + 2 * _AHEAD])
        prefetch(cython.cast(cython.size_t, cython.address(memory._rows[fields.ROW * row])))
        prefetch(cython.cast(cython.size_t, cython.address(memory._places[2 * row])))
    if at + _AHEAD < len(rows):
        row = cython.cast(cython.Py_ssize_t, rows[at + _AHEAD])
        value = memory._places[2 * row]
        for byte in range(0, min(memory._places[2 * row + 1], _FETCHED_BYTES), 64):
            prefetch(value + byte)


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
        if cython.compiled:
            _fetch_ahead(memory, rows, at)
        row = cython.cast(cython.Py_ssize_t, rows[at])
        base = fields.ROW * row
        state = memory._rows[base + fields.STATE]
        address = 0
        size = 0
        attributes = 1 if state == fields.TOMBSTONE else 0
        if state == fields.ITEM:
            address = memory._places[2 * row]
            size = cython.cast(cython.Py_ssize_t, memory._places[2 * row + 1])
            attributes = 2 if memory._rows[base] >= _BURIED_BIT else 0
        if (
            builder.add_raw(
                memory._rows[base],
                memory._rows[base + 1],
                0 if state == fields.TOMBSTONE else memory._rows[base + fields.TIME],
                memory._rows[base + fields.REQUEUE] if state == fields.ITEM else 0,
                0 if state == fields.TOMBSTONE else memory._rows[base + fields.COUNT],
                attributes,
                0,
                0,
                address,
                size,
            )
            != 1
        ):
            return at
        at += 1
    return at
