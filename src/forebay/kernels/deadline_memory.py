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
    from cython.cimports.forebay.kernels.deadline_build import BlockBuilder
    from cython.cimports.forebay.kernels.deadline_item import DeadlineItem, make_item
    from cython.cimports.forebay.kernels.deadline_keys import KeyHeap, KeyTable, grown
    from cython.cimports.forebay.kernels.little import put_bytes, put_number
else:
    from forebay.kernels.deadline_build import BlockBuilder
    from forebay.kernels.deadline_item import DeadlineItem, make_item
    from forebay.kernels.deadline_keys import KeyHeap, KeyTable
    from forebay.kernels.little import put_bytes, put_number

ITEM, TOMBSTONE, MARK = 1, 2, 4
_ITEM = cython.declare(cython.ulonglong, 1)
_TOMBSTONE = cython.declare(cython.ulonglong, 2)
_MARK = cython.declare(cython.ulonglong, 4)
_ROW = cython.declare(cython.Py_ssize_t, 8)
_STATE = cython.declare(cython.Py_ssize_t, 3)
# When it was enqueued; of a mark, when it was given out.
_TIME = cython.declare(cython.Py_ssize_t, 4)
_REQUEUE = cython.declare(cython.Py_ssize_t, 5)
_COUNT = cython.declare(cython.Py_ssize_t, 6)
# The bit of a deadline that says that an item is buried.
_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)
_BURIED = cython.declare(cython.ulonglong, 2)
# What an item is reckoned to take in memory beside its value.
_ITEM_BYTES = cython.declare(cython.Py_ssize_t, 64)
# What records of a log take beside reason and value.
_LOG_ITEM = cython.declare(cython.Py_ssize_t, 38)
_LOG_TOMBSTONE = cython.declare(cython.Py_ssize_t, 15)
_LOG_DEQUEUED = cython.declare(cython.Py_ssize_t, 25)


@cython.cclass
class Memory(KeyTable):
    """Items, tombstones and marks by key. Called with the queue's lock held.

    `order` holds the keys of items that may be given out, and more. `pending` and `buried` are what
    it adds to those numbers of the queue; tombstones of items elsewhere take away.
    """

    def __init__(self) -> None:
        KeyTable.__init__(self)
        self.order = KeyHeap()
        self._values = []
        # Where the bytes of each value are, and how many; only compiled.
        self._places = memoryview(bytearray(1024)).cast("Q")
        self._reasons = {}
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
            row = self.insert(deadline, id, _ITEM)
        elif self._rows[_ROW * row + _STATE] == _MARK:
            dequeued = max(dequeued, self._rows[_ROW * row + _COUNT])
            self._rows[_ROW * row + _STATE] = _ITEM
        else:
            return -1
        self._rows[_ROW * row + _TIME] = enqueue
        self._rows[_ROW * row + _REQUEUE] = requeue
        self._rows[_ROW * row + _COUNT] = dequeued
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
            self._places[2 * row + 1] = cython.cast(cython.ulonglong, len(value))
        if len(reason) > 0:
            self._reasons[row] = reason
        self.bytes += len(value) + len(reason) + _ITEM_BYTES
        self._count(deadline, 1)
        return row

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
        row: cython.Py_ssize_t
        deadline: cython.ulonglong
        for at in range(len(values)):
            deadline = deadlines[at]
            row = self.add(deadline, id, now, 0, 0, b"", values[at])
            if shown:
                self.order.push(deadline, id, cython.cast(cython.ulonglong, row))
            id += 1

    def show(self, deadline: cython.ulonglong, id: cython.ulonglong) -> None:
        """Lets an item be given out."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if deadline < _BURIED_BIT and row >= 0 and self._rows[_ROW * row + _STATE] == _ITEM:
            self.order.push(deadline, id, cython.cast(cython.ulonglong, row))

    def show_all(self) -> None:
        """Lets all items be given out, of which none was shown."""
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[_ROW * row + _STATE] == _ITEM:
                self.show(self._rows[_ROW * row], self._rows[_ROW * row + 1])

    def kill(self, deadline: cython.ulonglong, id: cython.ulonglong) -> None:
        """Takes an item away, wherever it is."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            self.insert(deadline, id, _TOMBSTONE)
        elif self._rows[_ROW * row + _STATE] == _MARK:
            self._rows[_ROW * row + _STATE] = _TOMBSTONE
        elif self._rows[_ROW * row + _STATE] == _TOMBSTONE:
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
            row = self.insert(deadline, id, _MARK)
            self._rows[_ROW * row + _COUNT] = 0
        state: cython.ulonglong = self._rows[_ROW * row + _STATE]
        if state == _TOMBSTONE or self._rows[_ROW * row + _COUNT] >= dequeued:
            return
        self._rows[_ROW * row + _COUNT] = dequeued
        if state == _MARK:
            self._rows[_ROW * row + _TIME] = time_ms

    def state(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.ulonglong:
        """Gives what is known of a key: ITEM, TOMBSTONE, MARK, or 0."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        return self._rows[_ROW * row + _STATE] if row >= 0 else 0

    def dequeue_count(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.ulonglong:
        """Gives how often an item was given out, as far as it is known here."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0 or self._rows[_ROW * row + _STATE] == _TOMBSTONE:
            return 0
        return self._rows[_ROW * row + _COUNT]

    def row(self, at: cython.Py_ssize_t) -> tuple:
        """Gives an item as a block does: deadline, id, attributes, times, count, reason, value."""
        base: cython.Py_ssize_t = _ROW * at
        deadline: cython.ulonglong = self._rows[base]
        attributes: cython.ulonglong = _BURIED if deadline >= _BURIED_BIT else 0
        numbers: tuple = (deadline, self._rows[base + 1], attributes)
        times: tuple = (self._rows[base + _TIME], self._rows[base + _REQUEUE])
        count: cython.ulonglong = self._rows[base + _COUNT]
        return (*numbers, *times, count, self._reasons.get(at, b""), self._values[at])

    @cython.ccall
    def item(self, at: cython.Py_ssize_t, dequeued: cython.ulonglong) -> DeadlineItem:
        """Gives an item that is not buried, as users get it."""
        base: cython.Py_ssize_t = _ROW * at
        return make_item(
            self._rows[base],
            self._rows[base + 1],
            self._rows[base + _TIME],
            self._rows[base + _REQUEUE],
            dequeued,
            self._values[at],
        )

    def keys_of(self, id: cython.ulonglong) -> list:
        """Gives the keys of the items of an id."""
        keys: list = []
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._heads[self._slot(id)])
        while at > 0:
            at -= 1
            if self._rows[_ROW * at + 1] == id and self._rows[_ROW * at + _STATE] == _ITEM:
                keys.append((self._rows[_ROW * at], id))
            at = cython.cast(cython.Py_ssize_t, self._rows[_ROW * at + 2])
        return keys

    def settle(self) -> cython.bint:
        """Drops keys off `order` whose items are gone; says whether one is left."""
        at: cython.Py_ssize_t
        order: KeyHeap = self.order
        while order.count > 0:
            at = _ROW * cython.cast(cython.Py_ssize_t, order.tag)
            if (
                self._rows[at + _STATE] == _ITEM
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
            if self._rows[_ROW * row] <= now_ms:
                if self._rows[_ROW * row + _STATE] == _ITEM:
                    count += 1
                elif self._rows[_ROW * row + _STATE] == _TOMBSTONE:
                    count -= 1
        return count

    def sorted(self, state: cython.ulonglong):
        """Gives the rows of a state by key, as an array of numbers."""
        heap: KeyHeap = KeyHeap()
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[_ROW * row + _STATE] == state:
                heap.push(
                    self._rows[_ROW * row],
                    self._rows[_ROW * row + 1],
                    cython.cast(cython.ulonglong, row),
                )
        found: object = memoryview(bytearray(8 * heap.count)).cast("Q")
        if heap.count > 0:
            _drain(heap, found)
        return found

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
            base = _ROW * row
            state = self._rows[base + _STATE]
            deadline = self._rows[base]
            attributes = 0
            if state == _ITEM:
                value = self._values[row]
                reason = self._reasons.get(row, b"")
                attributes = _BURIED if deadline >= _BURIED_BIT else 0
            elif state == _TOMBSTONE:
                attributes = 1
            if not builder.fits(len(value) + len(reason)):
                break
            builder.add(
                deadline,
                self._rows[base + 1],
                0 if state == _TOMBSTONE else self._rows[base + _TIME],
                self._rows[base + _REQUEUE] if state == _ITEM else 0,
                0 if state == _TOMBSTONE else self._rows[base + _COUNT],
                attributes,
                reason,
                value,
            )
            at += 1
        return at

    def ids_of(
        self, rows: cython.ulonglong[::1], first: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> bytearray:
        """Gives the ids of rows, as numbers of 8 bytes in the machine's order."""
        found: object = bytearray(8 * (stop - first))
        out: cython.ulonglong[::1] = memoryview(found).cast("Q")
        at: cython.Py_ssize_t
        for at in range(stop - first):
            out[at] = self._rows[_ROW * cython.cast(cython.Py_ssize_t, rows[first + at]) + 1]
        return found

    def put_records(self, row: cython.Py_ssize_t, buffer: object, end: cython.Py_ssize_t) -> tuple:
        """Writes rows from one on as records of a log; gives the row behind them, and the size.

        They go behind the head of a batch, up to `end`; the first one is written in any case.
        """
        out: cython.uchar[::1] = memoryview(buffer)
        position: cython.Py_ssize_t = 8
        size: cython.Py_ssize_t
        while row < self.used:
            if self._rows[_ROW * row + _STATE] != 0:
                size = self.record_size(row)
                if position + size > end and position > 8:
                    break
                self._put_record(out, position, row)
                position += size
            row += 1
        return row, position - 8

    def record_size(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Gives what a row takes as a record of a log."""
        state: cython.ulonglong = self._rows[_ROW * row + _STATE]
        if state == _TOMBSTONE:
            return _LOG_TOMBSTONE
        if state == _MARK:
            return _LOG_DEQUEUED
        if state == 0:
            return 0
        return _LOG_ITEM + len(self._reasons.get(row, b"")) + len(self._values[row])

    @cython.cfunc
    def _put_record(
        self, out: cython.uchar[::1], position: cython.Py_ssize_t, row: cython.Py_ssize_t
    ) -> object:
        at: cython.Py_ssize_t = _ROW * row
        state: cython.ulonglong = self._rows[at + _STATE]
        deadline: cython.ulonglong = self._rows[at]
        put_number(out, position + 1, deadline, 6)
        put_number(out, position + 7, self._rows[at + 1], 8)
        if state == _TOMBSTONE:
            put_number(out, position, 3, 1)
            return
        if state == _MARK:
            put_number(out, position, 4, 1)
            put_number(out, position + 15, self._rows[at + _COUNT], 4)
            put_number(out, position + 19, self._rows[at + _TIME], 6)
            return
        reason: bytes = self._reasons.get(row, b"")
        value: bytes = self._values[row]
        put_number(out, position, 2, 1)
        put_number(out, position + 15, self._rows[at + _TIME], 6)
        put_number(out, position + 21, self._rows[at + _REQUEUE], 6)
        put_number(out, position + 27, self._rows[at + _COUNT], 4)
        put_number(out, position + 31, _BURIED if deadline >= _BURIED_BIT else 0, 1)
        put_number(out, position + 32, cython.cast(cython.ulonglong, len(reason)), 2)
        put_number(out, position + 34, cython.cast(cython.ulonglong, len(value)), 4)
        put_bytes(out, position + _LOG_ITEM, reason, len(reason))
        put_bytes(out, position + _LOG_ITEM + len(reason), value, len(value))

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _count(self, deadline: cython.ulonglong, step: cython.longlong) -> cython.void:
        if deadline >= _BURIED_BIT:
            self.buried += step
        else:
            self.pending += step


@cython.cfunc
def _drain(heap: KeyHeap, rows: cython.ulonglong[::1]) -> object:
    """Takes all keys off a heap, without the interpreter's lock; gives their tags in order."""
    at: cython.Py_ssize_t
    with cython.nogil:
        for at in range(len(rows)):
            rows[at] = heap.tag
            heap.pop()
