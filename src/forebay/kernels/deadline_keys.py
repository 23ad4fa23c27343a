"""Keys of a deadline queue in memory: a heap of them, and a table of what is known of each.

A key is a deadline and an id. Both are arrays of numbers: an item costs no object for its key.
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
else:
    from forebay.kernels import deadline_fields as fields

_CELL = cython.declare(cython.Py_ssize_t, 3)
# deadline | id | the next row of the same slot, plus 1 | state | four numbers of the user's
_NEXT = cython.declare(cython.Py_ssize_t, 2)
_FIRST_ROWS = cython.declare(cython.Py_ssize_t, 64)
_SPREAD = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)


@cython.final
@cython.cclass
class KeyHeap:
    """Keys with a tag each; the lowest key is `deadline`, `id` and `tag`, if `count` is not 0."""

    def __init__(self) -> None:
        self._cells = memoryview(bytearray(8 * _CELL * _FIRST_ROWS)).cast("Q")
        self.count = 0
        self.deadline = self.id = self.tag = 0

    def push(self, deadline: cython.ulonglong, id: cython.ulonglong, tag: cython.ulonglong) -> None:
        """Takes in a key."""
        at: cython.Py_ssize_t = self.count
        if _CELL * at >= len(self._cells):
            self._grow()
        self.count = at + 1
        up: cython.Py_ssize_t
        while at > 0:
            up = (at - 1) >> 1
            if not self._is_below(deadline, id, up):
                break
            self._move(up, at)
            at = up
        self._put(at, deadline, id, tag)
        self._show()

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def pop(self) -> cython.void:
        """Drops the lowest key."""
        last: cython.Py_ssize_t = self.count - 1
        self.count = last
        if last > 0:
            self.replace(
                self._cells[_CELL * last],
                self._cells[_CELL * last + 1],
                self._cells[_CELL * last + 2],
            )

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def replace(
        self, deadline: cython.ulonglong, id: cython.ulonglong, tag: cython.ulonglong
    ) -> cython.void:
        """Takes in a key and drops the lowest one before it."""
        at: cython.Py_ssize_t = 0
        down: cython.Py_ssize_t = 1
        while down < self.count:
            if down + 1 < self.count and self._is_below(
                self._cells[_CELL * (down + 1)], self._cells[_CELL * (down + 1) + 1], down
            ):
                down += 1
            if self._is_below(deadline, id, down):
                break
            self._move(down, at)
            at = down
            down = 2 * at + 1
        self._put(at, deadline, id, tag)
        self._show()

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_below(
        self, deadline: cython.ulonglong, id: cython.ulonglong, at: cython.Py_ssize_t
    ) -> cython.bint:
        """Says whether a key is below the one in a cell."""
        other: cython.ulonglong = self._cells[_CELL * at]
        return deadline < other or (deadline == other and id < self._cells[_CELL * at + 1])

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(
        self,
        at: cython.Py_ssize_t,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        tag: cython.ulonglong,
    ) -> cython.void:
        self._cells[_CELL * at] = deadline
        self._cells[_CELL * at + 1] = id
        self._cells[_CELL * at + 2] = tag

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _move(self, source: cython.Py_ssize_t, target: cython.Py_ssize_t) -> cython.void:
        self._cells[_CELL * target] = self._cells[_CELL * source]
        self._cells[_CELL * target + 1] = self._cells[_CELL * source + 1]
        self._cells[_CELL * target + 2] = self._cells[_CELL * source + 2]

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _show(self) -> cython.void:
        self.deadline = self._cells[0]
        self.id = self._cells[1]
        self.tag = self._cells[2]

    @cython.cfunc
    def _grow(self) -> object:
        self._cells = grown(self._cells, 2 * len(self._cells))


@cython.cclass
class KeyTable:
    """Rows by key, found through a hash of the id. A state of 0 is a row that is free.

    `dense` says that most ids follow one another: then neighbours are kept close together.
    """

    def __init__(self, dense: cython.bint = False) -> None:
        self._rows = memoryview(bytearray(8 * fields.ROW * _FIRST_ROWS)).cast("Q")
        self._heads = memoryview(bytearray(16 * _FIRST_ROWS)).cast("Q")
        self._dense = dense
        self._use_shift(64 - 7)
        self._free = 0
        self.used = 0
        self.count = 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _slot(self, id: cython.ulonglong) -> cython.Py_ssize_t:
        return cython.cast(cython.Py_ssize_t, ((id * self._spread) & _MASK) >> self._shift)

    @cython.cfunc
    def _use_shift(self, shift: cython.int) -> object:
        """Takes 64 bits less so many for a slot: the lowest of an id, or a mixture of all."""
        self._shift = shift
        self._spread = cython.cast(cython.ulonglong, 1) << shift if self._dense else _SPREAD

    def find(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.Py_ssize_t:
        """Gives the row of a key; -1 if there is none."""
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._heads[self._slot(id)])
        while at > 0:
            at -= 1
            if self._rows[fields.ROW * at + 1] == id and self._rows[fields.ROW * at] == deadline:
                return at
            at = cython.cast(cython.Py_ssize_t, self._rows[fields.ROW * at + _NEXT])
        return -1

    def insert(
        self, deadline: cython.ulonglong, id: cython.ulonglong, state: cython.ulonglong
    ) -> cython.Py_ssize_t:
        """Makes a row for a key that has none; gives it."""
        row: cython.Py_ssize_t
        if self._free > 0:
            row = self._free - 1
            self._free = cython.cast(cython.Py_ssize_t, self._rows[fields.ROW * row + _NEXT])
        else:
            if fields.ROW * self.used == len(self._rows):
                self._grow_rows()
            row = self.used
            self.used += 1
        self.count += 1
        self._rows[fields.ROW * row] = deadline
        self._rows[fields.ROW * row + 1] = id
        self._rows[fields.ROW * row + fields.STATE] = state
        self._link(row)
        return row

    def remove(self, row: cython.Py_ssize_t) -> None:
        """Frees a row."""
        slot: cython.Py_ssize_t = self._slot(self._rows[fields.ROW * row + 1])
        after: cython.ulonglong = self._rows[fields.ROW * row + _NEXT]
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._heads[slot]) - 1
        if at == row:
            self._heads[slot] = after
        else:
            while cython.cast(cython.Py_ssize_t, self._rows[fields.ROW * at + _NEXT]) - 1 != row:
                at = cython.cast(cython.Py_ssize_t, self._rows[fields.ROW * at + _NEXT]) - 1
            self._rows[fields.ROW * at + _NEXT] = after
        self._rows[fields.ROW * row + fields.STATE] = 0
        self._rows[fields.ROW * row + _NEXT] = cython.cast(cython.ulonglong, self._free)
        self._free = row + 1
        self.count -= 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _link(self, row: cython.Py_ssize_t) -> cython.void:
        slot: cython.Py_ssize_t = self._slot(self._rows[fields.ROW * row + 1])
        self._rows[fields.ROW * row + _NEXT] = self._heads[slot]
        self._heads[slot] = cython.cast(cython.ulonglong, row + 1)

    @cython.cfunc
    def _grow_rows(self) -> object:
        self._rows = grown(self._rows, 2 * len(self._rows))
        self._heads = memoryview(bytearray(16 * len(self._heads))).cast("Q")
        self._use_shift(self._shift - 1)
        row: cython.Py_ssize_t
        for row in range(self.used):
            self._link(row)


@cython.cfunc
def grown(numbers: cython.ulonglong[::1], count: cython.Py_ssize_t) -> object:
    """Gives a larger array that begins with the same numbers; the rest is 0."""
    larger: cython.ulonglong[::1] = memoryview(bytearray(8 * count)).cast("Q")
    larger[: len(numbers)] = numbers
    return larger if not cython.compiled else larger.base
