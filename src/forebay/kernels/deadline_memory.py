"""The part of a deadline queue that is in memory: what one write-ahead log says.

A key is used for one item, once, so what happened to it needs no order: an item is there if it was
written and no tombstone was, and it was given out as often as the highest count says. A row of the
table is an item, or what became of one that is elsewhere: a tombstone, or a mark of how often it
was given out. Items and their tombstones that meet here are both gone.
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
    from cython.cimports.forebay.kernels.deadline_item import DeadlineItem, make_item
    from cython.cimports.forebay.kernels.deadline_keys import KeyHeap, KeyTable, grown
    from cython.cimports.forebay.kernels.deadline_sort import sort
else:
    from forebay.kernels import deadline_fields as fields
    from forebay.kernels.deadline_build import BlockBuilder
    from forebay.kernels.deadline_item import DeadlineItem, make_item
    from forebay.kernels.deadline_keys import KeyHeap, KeyTable
    from forebay.kernels.deadline_sort import sort

ITEM, TOMBSTONE, MARK = 1, 2, 4
# What is sorted: deadline, id, row.
_CELL = cython.declare(cython.Py_ssize_t, 3)
# The bit of a deadline that says that an item is buried.
_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)
_BURIED = cython.declare(cython.ulonglong, 2)
# What an item is reckoned to take in memory beside its value.
_ITEM_BYTES = cython.declare(cython.Py_ssize_t, 64)


@cython.final
@cython.cclass
class Memory(KeyTable):
    """Items, tombstones and marks by key: of the log of a number. The queue's lock is held.

    `order` holds the keys of items that may be given out, and more. `pending` and `buried` are what
    it adds to those numbers of the queue; tombstones of items elsewhere take away.
    """

    def __init__(self, number: cython.ulonglong = 0) -> None:
        KeyTable.__init__(self, True)
        self.number = number
        self.order = KeyHeap()
        self._values = []
        # Where the bytes of each value are, and how many; only compiled.
        self._places = memoryview(bytearray(1024)).cast("Q")
        self._reasons = {}
        # The highest key of an item elsewhere that it knows something of.
        self._far_deadline = self._far_id = 0
        self.bytes = 0
        self.pending = self.buried = 0

    def add(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        enqueue: cython.ulonglong,
        requeue: cython.ulonglong,
        dequeued: cython.ulonglong,
        reason: bytes,
        value: bytes,
    ) -> cython.Py_ssize_t:
        """Takes an item in and gives its row; `show` lets it be given out. -1: it is known."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            row = self.insert(deadline, id, fields.ITEM)
        elif self._rows[fields.ROW * row + fields.STATE] == fields.MARK:
            dequeued = max(dequeued, self._rows[fields.ROW * row + fields.COUNT])
            self._rows[fields.ROW * row + fields.STATE] = fields.ITEM
        else:
            return -1
        self._keep(row, enqueue, requeue, dequeued, reason, value)
        return row

    def add_new(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        enqueue: cython.ulonglong,
        value: bytes,
        shown: cython.bint,
    ) -> None:
        """Takes in an item of an id that nobody had before; `shown`: it may be given out."""
        row: cython.Py_ssize_t = self.insert(deadline, id, fields.ITEM)
        self._keep(row, enqueue, 0, 0, b"", value)
        if shown:
            self.order.push(deadline, id, cython.cast(cython.ulonglong, row))

    @cython.cfunc
    @cython.inline
    def _keep(
        self,
        row: cython.Py_ssize_t,
        enqueue: cython.ulonglong,
        requeue: cython.ulonglong,
        dequeued: cython.ulonglong,
        reason: object,
        value: object,
    ) -> object:
        """Fills the row of an item and counts it."""
        self._rows[fields.ROW * row + fields.TIME] = enqueue
        self._rows[fields.ROW * row + fields.REQUEUE] = requeue
        self._rows[fields.ROW * row + fields.COUNT] = dequeued
        if row < len(self._values):
            self._values[row] = value
        else:
            while len(self._values) < row:
                self._values.append(None)
            self._values.append(value)
        if cython.compiled:
            if 2 * row >= len(self._places):
                self._places = grown(self._places, max(2 * len(self._places), 2 * row + 2))
            self._places[2 * row] = cython.cast(
                cython.ulonglong, cython.cast(cython.size_t, cython.cast(cython.p_char, value))
            )
            self._places[2 * row + 1] = cython.cast(
                cython.ulonglong, len(cython.cast(bytes, value))
            )
        if len(cython.cast(bytes, reason)) > 0:
            self._reasons[row] = reason
        self.bytes += len(cython.cast(bytes, value)) + len(cython.cast(bytes, reason)) + _ITEM_BYTES
        self._count(self._rows[fields.ROW * row], 1)

    def add_fresh(
        self,
        values: list,
        deadlines: list,
        id: cython.ulonglong,
        now: cython.ulonglong,
        shown: cython.bint,
    ) -> None:
        """Takes new items in, the first with the id, the others with those that follow."""
        at: cython.Py_ssize_t
        for at in range(len(values)):
            self.add_new(deadlines[at], id, now, values[at], shown)
            id += 1

    def show(self, deadline: cython.ulonglong, id: cython.ulonglong) -> None:
        """Lets an item be given out."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if (
            deadline < _BURIED_BIT
            and row >= 0
            and self._rows[fields.ROW * row + fields.STATE] == fields.ITEM
        ):
            self.order.push(deadline, id, cython.cast(cython.ulonglong, row))

    def show_all(self) -> None:
        """Lets all items be given out, of which none was shown."""
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[fields.ROW * row + fields.STATE] == fields.ITEM:
                self.show(self._rows[fields.ROW * row], self._rows[fields.ROW * row + 1])

    def kill(self, deadline: cython.ulonglong, id: cython.ulonglong) -> None:
        """Takes an item away, wherever it is."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            self.insert(deadline, id, fields.TOMBSTONE)
            self._note_far(deadline, id)
        elif self._rows[fields.ROW * row + fields.STATE] == fields.MARK:
            self._rows[fields.ROW * row + fields.STATE] = fields.TOMBSTONE
        elif self._rows[fields.ROW * row + fields.STATE] == fields.TOMBSTONE:
            return
        else:
            self.bytes -= len(cython.cast(bytes, self._values[row])) + _ITEM_BYTES
            if self._reasons and row in self._reasons:
                self.bytes -= len(self._reasons.pop(row))
            self._values[row] = None
            self.remove(row)
        self._count(deadline, -1)

    def mark(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        dequeued: cython.ulonglong,
        time_ms: cython.ulonglong,
    ) -> None:
        """Notes that an item was given out, so many times by now."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            row = self.insert(deadline, id, fields.MARK)
            self._rows[fields.ROW * row + fields.COUNT] = 0
            self._note_far(deadline, id)
        state: cython.ulonglong = self._rows[fields.ROW * row + fields.STATE]
        if state == fields.TOMBSTONE or self._rows[fields.ROW * row + fields.COUNT] >= dequeued:
            return
        self._rows[fields.ROW * row + fields.COUNT] = dequeued
        if state == fields.MARK:
            self._rows[fields.ROW * row + fields.TIME] = time_ms

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _note_far(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        if not self.may_know(deadline, id):
            self._far_deadline = deadline
            self._far_id = id

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def may_know(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.bint:
        """Says whether there may be a tombstone or a mark of an item that is elsewhere.

        Items are given out by key, so those that are next are mostly above all that it knows, and a
        look into the table is spared.
        """
        return deadline < self._far_deadline or (
            deadline == self._far_deadline and id <= self._far_id
        )

    def state(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.ulonglong:
        """Gives what is known of a key: ITEM, TOMBSTONE, MARK, or 0."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        return self._rows[fields.ROW * row + fields.STATE] if row >= 0 else 0

    def dequeue_count(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.ulonglong:
        """Gives how often an item was given out, as far as it is known here."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0 or self._rows[fields.ROW * row + fields.STATE] == fields.TOMBSTONE:
            return 0
        return self._rows[fields.ROW * row + fields.COUNT]

    def key(self, at: cython.Py_ssize_t) -> tuple:
        """Returns the key of a row."""
        return self._rows[fields.ROW * at], self._rows[fields.ROW * at + 1]

    def row(self, at: cython.Py_ssize_t) -> tuple:
        """Gives an item as a block does: deadline, id, attributes, times, count, reason, value."""
        base: cython.Py_ssize_t = fields.ROW * at
        deadline: cython.ulonglong = self._rows[base]
        attributes: cython.ulonglong = _BURIED if deadline >= _BURIED_BIT else 0
        numbers: tuple = (deadline, self._rows[base + 1], attributes)
        times: tuple = (self._rows[base + fields.TIME], self._rows[base + fields.REQUEUE])
        count: cython.ulonglong = self._rows[base + fields.COUNT]
        return (*numbers, *times, count, self._reasons.get(at, b""), self._values[at])

    @cython.ccall
    def item(self, at: cython.Py_ssize_t, dequeued: cython.ulonglong) -> DeadlineItem:
        """Gives an item that is not buried, as users get it, with the higher of two counts."""
        base: cython.Py_ssize_t = fields.ROW * at
        return make_item(
            self._rows[base],
            self._rows[base + 1],
            self._rows[base + fields.TIME],
            self._rows[base + fields.REQUEUE],
            max(dequeued, self._rows[base + fields.COUNT]),
            self._values[at],
        )

    def keys_of(self, id: cython.ulonglong) -> list:
        """Gives the keys of the items of an id."""
        keys: list = []
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._heads[self._slot(id)])
        while at > 0:
            at -= 1
            if (
                self._rows[fields.ROW * at + 1] == id
                and self._rows[fields.ROW * at + fields.STATE] == fields.ITEM
            ):
                keys.append((self._rows[fields.ROW * at], id))
            at = cython.cast(cython.Py_ssize_t, self._rows[fields.ROW * at + 2])
        return keys

    def settle(self) -> cython.bint:
        """Drops keys off `order` whose items are gone; says whether one is left."""
        at: cython.Py_ssize_t
        order: KeyHeap = self.order
        while order.count > 0:
            at = fields.ROW * cython.cast(cython.Py_ssize_t, order.tag)
            if (
                self._rows[at + fields.STATE] == fields.ITEM
                and self._rows[at + 1] == order.id
                and self._rows[at] == order.deadline
            ):
                return True
            order.pop()
        return False

    def due(self, now_ms: cython.ulonglong) -> cython.longlong:
        """Gives how many items are due, less those elsewhere that its tombstones take away."""
        count: cython.longlong = 0
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[fields.ROW * row] <= now_ms:
                if self._rows[fields.ROW * row + fields.STATE] == fields.ITEM:
                    count += 1
                elif self._rows[fields.ROW * row + fields.STATE] == fields.TOMBSTONE:
                    count -= 1
        return count

    def sorted(self, state: cython.ulonglong):
        """Gives the rows of a state by key, as an array of numbers."""
        row: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        for row in range(self.used):
            if self._rows[fields.ROW * row + fields.STATE] == state:
                count += 1
        found: object = memoryview(bytearray(8 * count)).cast("Q")
        if count > 0:
            # Twice: the sort needs a place to work in.
            self._sort(state, count, memoryview(bytearray(2 * 8 * _CELL * count)).cast("Q"), found)
        return found

    @cython.cfunc
    def _sort(
        self,
        state: cython.ulonglong,
        count: cython.Py_ssize_t,
        cells: cython.ulonglong[::1],
        found: cython.ulonglong[::1],
    ) -> object:
        at: cython.Py_ssize_t = 0
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[fields.ROW * row + fields.STATE] == state:
                cells[at] = self._rows[fields.ROW * row]
                cells[at + 1] = self._rows[fields.ROW * row + 1]
                cells[at + 2] = cython.cast(cython.ulonglong, row)
                at += _CELL
        at = sort(cells, count, _CELL, 2)
        for row in range(count):
            found[row] = cells[at + _CELL * row + 2]

    def fill(
        self, rows: cython.ulonglong[::1], at: cython.Py_ssize_t, builder: BlockBuilder
    ) -> cython.Py_ssize_t:
        """Moves rows of `sorted` into a block, from one on; gives the first that did not fit."""
        row: cython.Py_ssize_t
        base: cython.Py_ssize_t
        state: cython.ulonglong
        deadline: cython.ulonglong
        reason: bytes = b""
        value: bytes = b""
        attributes: cython.ulonglong
        while at < len(rows):
            row = cython.cast(cython.Py_ssize_t, rows[at])
            base = fields.ROW * row
            state = self._rows[base + fields.STATE]
            deadline = self._rows[base]
            attributes = 0
            if state == fields.ITEM:
                value = self._values[row]
                reason = self._reasons.get(row, b"")
                attributes = _BURIED if deadline >= _BURIED_BIT else 0
            elif state == fields.TOMBSTONE:
                attributes = 1
            if not builder.fits(len(value) + len(reason)):
                break
            builder.add(
                deadline,
                self._rows[base + 1],
                0 if state == fields.TOMBSTONE else self._rows[base + fields.TIME],
                self._rows[base + fields.REQUEUE] if state == fields.ITEM else 0,
                0 if state == fields.TOMBSTONE else self._rows[base + fields.COUNT],
                attributes,
                reason,
                value,
            )
            at += 1
        return at

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _count(self, deadline: cython.ulonglong, step: cython.longlong) -> cython.void:
        if deadline >= _BURIED_BIT:
            self.buried += step
        else:
            self.pending += step
