"""What a deadline queue has in memory, compiled: items, leases, and what is given out next.

A key is a deadline and an id; it is used for one item, once. So what happened to it needs no order:
an item is there if it was written and no tombstone was, and it was given out as often as the
highest count says. Keys are rows of numbers in arrays: an item costs no object for its key.

`Memory` is what one write-ahead log says. `Leases` is what is given out. `Schedule` chooses what is
next, and `LoggedSchedule` has the calls that users make most: they write their batches to the log's
buffer in memory, if one is open and has room, and do nothing otherwise; then the queue goes the
longer way. `replay` brings a log into memory, and `put_records` memory into a log.
"""

from __future__ import annotations

from datetime import UTC, datetime

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

from forebay.kernels.deadline import (
    BATCH_BYTES,
    DEQUEUED_BYTES,
    FRESH_BYTES,
    IS_BURIED,
    ITEM_BYTES,
    TOMBSTONE_BYTES,
)

if cython.compiled:
    from cython.cimports.forebay.kernels.buffers import boot_ms, prefetch, put_bytes, put_number
    from cython.cimports.forebay.kernels.deadline import (
        BlockBuilder,
        BlockStream,
        KeyHeap,
        RunView,
        grown,
        put_key,
        seal_batch_at,
        sort,
    )
else:
    from forebay.kernels.buffers import boot_ms, put_bytes, put_number
    from forebay.kernels.deadline import (
        BlockBuilder,
        BlockStream,
        KeyHeap,
        RunView,
        grown,
        put_key,
        seal_batch_at,
        sort,
    )

ITEM, TOMBSTONE, MARK = 1, 2, 4
# The states of a row of memory: an item, or what became of one that is elsewhere: a tombstone, or a
# mark of how often it was given out.
_ITEM = cython.declare(cython.ulonglong, ITEM)
_TOMBSTONE = cython.declare(cython.ulonglong, TOMBSTONE)
_MARK = cython.declare(cython.ulonglong, MARK)
# The numbers of a row: deadline, id, the next row of the same slot plus 1, state, and four more. Of
# an item these are the time of the enqueue and of the requeue and how often it was given out; of a
# mark, when it was given out stands first. Of a lease: until when it is, and for which time.
_ROW = cython.declare(cython.Py_ssize_t, 8)
_NEXT = cython.declare(cython.Py_ssize_t, 2)
_STATE = cython.declare(cython.Py_ssize_t, 3)
_TIME = cython.declare(cython.Py_ssize_t, 4)
_REQUEUE = cython.declare(cython.Py_ssize_t, 5)
_COUNT = cython.declare(cython.Py_ssize_t, 6)
_LEASE_UNTIL = cython.declare(cython.Py_ssize_t, 4)
_LEASE_COUNT = cython.declare(cython.Py_ssize_t, 5)
_FIRST_ROWS = cython.declare(cython.Py_ssize_t, 64)
_SPREAD = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
# What is sorted: deadline, id, row.
_SORT_CELL = cython.declare(cython.Py_ssize_t, 3)
# The bit of a deadline that says that an item is buried, and the attribute that says so.
_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)
_BURIED = cython.declare(cython.ulonglong, IS_BURIED)
# What an item is reckoned to take in memory beside its value.
_ITEM_COST = cython.declare(cython.Py_ssize_t, 64)
# So many rows ahead values are fetched, and so much of each; rows twice as many.
_AHEAD = cython.declare(cython.Py_ssize_t, 4)
_FETCHED_BYTES = cython.declare(cython.ulonglong, 512)

# The states of a lease.
_WORKING = cython.declare(cython.ulonglong, 1)
_RETURNED = cython.declare(cython.ulonglong, 2)
# So many ends of leases that are over may be in the heap, and as many again as there are leases.
_STALE_MAX = cython.declare(cython.Py_ssize_t, 1024)
# No key is above it.
_LAST = cython.declare(cython.ulonglong, 1 << 48)

# What records of a log take beside reason and value, and the head of a batch.
_BATCH_SIZE = cython.declare(cython.Py_ssize_t, BATCH_BYTES)
_FRESH_SIZE = cython.declare(cython.Py_ssize_t, FRESH_BYTES)
_ITEM_SIZE = cython.declare(cython.Py_ssize_t, ITEM_BYTES)
_TOMBSTONE_SIZE = cython.declare(cython.Py_ssize_t, TOMBSTONE_BYTES)
_DEQUEUED_SIZE = cython.declare(cython.Py_ssize_t, DEQUEUED_BYTES)

# Where the next item comes from; else it is the index of a memory.
_FROM_NOWHERE = cython.declare(cython.Py_ssize_t, -3)
_FROM_RETURNED = cython.declare(cython.Py_ssize_t, -2)
_FROM_RUNS = cython.declare(cython.Py_ssize_t, -1)
_SECONDS_MAX = cython.declare(cython.double, 1e11)
_SECONDS_FROM = cython.declare(cython.longlong, 1_000_000_000)
_SECONDS_TO = cython.declare(cython.longlong, 10_000_000_000)
# What `_wanted` returns for a deadline or a delay that takes the longer way, to an error as a rule.
_ODD = cython.declare(cython.longlong, -2)
_NOW = cython.declare(cython.longlong, -1)


@cython.final
@cython.cclass
class DeadlineItem:
    """An item. One that was dequeued belongs to its taker until the lease ends.

    `token` tells one taker from the next: the id, and how often the item was given out.
    """

    id = cython.declare(cython.ulonglong, visibility="readonly")
    value = cython.declare(bytes, visibility="readonly")
    deadline_ms = cython.declare(cython.ulonglong, visibility="readonly")
    enqueue_ms = cython.declare(cython.ulonglong, visibility="readonly")
    requeue_ms = cython.declare(cython.ulonglong, visibility="readonly")
    dequeue_count = cython.declare(cython.ulonglong, visibility="readonly")
    buried = cython.declare(cython.bint, visibility="readonly")
    reason = cython.declare(str, visibility="readonly")

    def __init__(
        self,
        id: int,
        value: bytes,
        deadline_ms: int,
        enqueue_ms: int,
        requeue_ms: int,
        dequeue_count: int,
        buried: bool = False,
        reason: str = "",
    ) -> None:
        self.id = id
        self.value = value
        self.deadline_ms = deadline_ms
        self.enqueue_ms = enqueue_ms
        self.requeue_ms = requeue_ms
        self.dequeue_count = dequeue_count
        self.buried = buried
        self.reason = reason

    @property
    def deadline(self):
        """When it is due, in UTC."""
        return datetime.fromtimestamp(self.deadline_ms / 1000.0, UTC)

    @property
    def token(self):
        """The id, and how often the item was given out."""
        return self.id, self.dequeue_count

    @property
    def key(self):
        """Where the queue has it."""
        return self.deadline_ms | (_BURIED_BIT if self.buried else 0), self.id

    def __repr__(self) -> str:
        names = ("id", "value", "deadline_ms", "enqueue_ms", "requeue_ms", "dequeue_count")
        parts = [f"{name}={getattr(self, name)!r}" for name in names]
        if self.buried:
            parts.append(f"buried=True, reason={self.reason!r}")
        return f"DeadlineItem({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeadlineItem):
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self.id, self.deadline_ms, self.dequeue_count))

    def __reduce__(self):
        times = (self.deadline_ms, self.enqueue_ms, self.requeue_ms)
        rest = (self.dequeue_count, bool(self.buried), self.reason)
        return DeadlineItem, (self.id, self.value, *times, *rest)


@cython.cfunc
def make_item(
    deadline: cython.ulonglong,
    id: cython.ulonglong,
    enqueue: cython.ulonglong,
    requeue: cython.ulonglong,
    dequeued: cython.ulonglong,
    value: bytes,
) -> DeadlineItem:
    """Makes an item that is not buried."""
    item: DeadlineItem = DeadlineItem.__new__(DeadlineItem)
    item.id = id
    item.value = value
    item.deadline_ms = deadline
    item.enqueue_ms = enqueue
    item.requeue_ms = requeue
    item.dequeue_count = dequeued
    item.buried = False
    item.reason = ""
    return item


@cython.cclass
class KeyTable:
    """Rows by key, found through a hash of the id. A state of 0 is a row that is free.

    `dense` says that most ids follow one another: then neighbours are kept close together.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    used = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _rows: cython.ulonglong[::1]
    _heads: cython.ulonglong[::1]
    _free: cython.Py_ssize_t
    _dense: cython.bint
    _shift: cython.int
    _spread: cython.ulonglong

    def __init__(self, dense: cython.bint = False) -> None:
        self._rows = memoryview(bytearray(8 * _ROW * _FIRST_ROWS)).cast("Q")
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

    @cython.ccall
    def find(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.Py_ssize_t:
        """Returns the row of a key; -1 if there is none."""
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._heads[self._slot(id)])
        while at > 0:
            at -= 1
            if self._rows[_ROW * at + 1] == id and self._rows[_ROW * at] == deadline:
                return at
            at = cython.cast(cython.Py_ssize_t, self._rows[_ROW * at + _NEXT])
        return -1

    @cython.ccall
    def insert(
        self, deadline: cython.ulonglong, id: cython.ulonglong, state: cython.ulonglong
    ) -> cython.Py_ssize_t:
        """Makes a row for a key that has none; returns it."""
        row: cython.Py_ssize_t
        if self._free > 0:
            row = self._free - 1
            self._free = cython.cast(cython.Py_ssize_t, self._rows[_ROW * row + _NEXT])
        else:
            if _ROW * self.used == len(self._rows):
                self._grow_rows()
            row = self.used
            self.used += 1
        self.count += 1
        self._rows[_ROW * row] = deadline
        self._rows[_ROW * row + 1] = id
        self._rows[_ROW * row + _STATE] = state
        self._link(row)
        return row

    @cython.ccall
    def remove(self, row: cython.Py_ssize_t) -> cython.void:
        """Frees a row."""
        slot: cython.Py_ssize_t = self._slot(self._rows[_ROW * row + 1])
        after: cython.ulonglong = self._rows[_ROW * row + _NEXT]
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._heads[slot]) - 1
        if at == row:
            self._heads[slot] = after
        else:
            while cython.cast(cython.Py_ssize_t, self._rows[_ROW * at + _NEXT]) - 1 != row:
                at = cython.cast(cython.Py_ssize_t, self._rows[_ROW * at + _NEXT]) - 1
            self._rows[_ROW * at + _NEXT] = after
        self._rows[_ROW * row + _STATE] = 0
        self._rows[_ROW * row + _NEXT] = cython.cast(cython.ulonglong, self._free)
        self._free = row + 1
        self.count -= 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _link(self, row: cython.Py_ssize_t) -> cython.void:
        slot: cython.Py_ssize_t = self._slot(self._rows[_ROW * row + 1])
        self._rows[_ROW * row + _NEXT] = self._heads[slot]
        self._heads[slot] = cython.cast(cython.ulonglong, row + 1)

    @cython.cfunc
    def _grow_rows(self) -> object:
        self._rows = grown(self._rows, 2 * len(self._rows))
        self._heads = memoryview(bytearray(16 * len(self._heads))).cast("Q")
        self._use_shift(self._shift - 1)
        row: cython.Py_ssize_t
        for row in range(self.used):
            self._link(row)


@cython.final
@cython.cclass
class Memory(KeyTable):
    """Items, tombstones and marks of one log, by key. Called with the queue's lock held.

    `order` holds the keys of items that may be given out, and more. `pending` and `buried` are what
    it adds to those numbers of the queue; tombstones of items elsewhere take away.
    """

    number = cython.declare(cython.ulonglong, visibility="public")
    order = cython.declare(KeyHeap, visibility="readonly")
    bytes = cython.declare(cython.longlong, visibility="readonly")
    pending = cython.declare(cython.longlong, visibility="readonly")
    buried = cython.declare(cython.longlong, visibility="readonly")
    _far_deadline: cython.ulonglong
    _far_id: cython.ulonglong
    _values: list
    _reasons: dict
    _places: cython.ulonglong[::1]

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

    @cython.ccall
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
        """Takes an item in and returns its row; `show` lets it be given out. -1: it is known."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            row = self.insert(deadline, id, _ITEM)
        elif self._rows[_ROW * row + _STATE] == _MARK:
            dequeued = max(dequeued, self._rows[_ROW * row + _COUNT])
            self._rows[_ROW * row + _STATE] = _ITEM
        else:
            return -1
        self._keep(row, enqueue, requeue, dequeued, reason, value)
        return row

    @cython.ccall
    def add_new(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        enqueue: cython.ulonglong,
        value: bytes,
        shown: cython.bint,
    ) -> cython.void:
        """Takes in an item of an id that nobody had before; `shown`: it may be given out."""
        row: cython.Py_ssize_t = self.insert(deadline, id, _ITEM)
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
            self._places[2 * row + 1] = cython.cast(
                cython.ulonglong, len(cython.cast(bytes, value))
            )
        if len(cython.cast(bytes, reason)) > 0:
            self._reasons[row] = reason
        self.bytes += len(cython.cast(bytes, value)) + len(cython.cast(bytes, reason)) + _ITEM_COST
        self._count(self._rows[_ROW * row], 1)

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

    @cython.ccall
    def show(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
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

    @cython.ccall
    def kill(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        """Takes an item away, wherever it is."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            self.insert(deadline, id, _TOMBSTONE)
            self._note_far(deadline, id)
        elif self._rows[_ROW * row + _STATE] == _MARK:
            self._rows[_ROW * row + _STATE] = _TOMBSTONE
        elif self._rows[_ROW * row + _STATE] == _TOMBSTONE:
            return
        else:
            self.bytes -= len(cython.cast(bytes, self._values[row])) + _ITEM_COST
            if self._reasons and row in self._reasons:
                self.bytes -= len(self._reasons.pop(row))
            self._values[row] = None
            self.remove(row)
        self._count(deadline, -1)

    @cython.ccall
    def mark(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        dequeued: cython.ulonglong,
        time_ms: cython.ulonglong,
    ) -> cython.void:
        """Notes that an item was given out, so many times by now."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            row = self.insert(deadline, id, _MARK)
            self._rows[_ROW * row + _COUNT] = 0
            self._note_far(deadline, id)
        state: cython.ulonglong = self._rows[_ROW * row + _STATE]
        if state == _TOMBSTONE or self._rows[_ROW * row + _COUNT] >= dequeued:
            return
        self._rows[_ROW * row + _COUNT] = dequeued
        if state == _MARK:
            self._rows[_ROW * row + _TIME] = time_ms

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

    @cython.ccall
    def state(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.ulonglong:
        """Returns what is known of a key: ITEM, TOMBSTONE, MARK, or 0."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        return self._rows[_ROW * row + _STATE] if row >= 0 else 0

    @cython.ccall
    def dequeue_count(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.ulonglong:
        """Returns how often an item was given out, as far as it is known here."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0 or self._rows[_ROW * row + _STATE] == _TOMBSTONE:
            return 0
        return self._rows[_ROW * row + _COUNT]

    def key(self, at: cython.Py_ssize_t) -> tuple:
        """Returns the key of a row."""
        return self._rows[_ROW * at], self._rows[_ROW * at + 1]

    @cython.ccall
    def row(self, at: cython.Py_ssize_t) -> tuple:
        """Returns an item as blocks do: deadline, id, attributes, times, count, reason, value."""
        base: cython.Py_ssize_t = _ROW * at
        deadline: cython.ulonglong = self._rows[base]
        attributes: cython.ulonglong = _BURIED if deadline >= _BURIED_BIT else 0
        numbers: tuple = (deadline, self._rows[base + 1], attributes)
        times: tuple = (self._rows[base + _TIME], self._rows[base + _REQUEUE])
        count: cython.ulonglong = self._rows[base + _COUNT]
        return (*numbers, *times, count, self._reasons.get(at, b""), self._values[at])

    @cython.ccall
    def item(self, at: cython.Py_ssize_t, dequeued: cython.ulonglong) -> DeadlineItem:
        """Returns an item that is not buried, as users get it, with the higher of two counts."""
        base: cython.Py_ssize_t = _ROW * at
        return make_item(
            self._rows[base],
            self._rows[base + 1],
            self._rows[base + _TIME],
            self._rows[base + _REQUEUE],
            max(dequeued, self._rows[base + _COUNT]),
            self._values[at],
        )

    def keys_of(self, id: cython.ulonglong) -> list:
        """Returns the keys of the items of an id."""
        keys: list = []
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._heads[self._slot(id)])
        while at > 0:
            at -= 1
            if self._rows[_ROW * at + 1] == id and self._rows[_ROW * at + _STATE] == _ITEM:
                keys.append((self._rows[_ROW * at], id))
            at = cython.cast(cython.Py_ssize_t, self._rows[_ROW * at + 2])
        return keys

    @cython.ccall
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
        """Returns how many items are due, less those elsewhere that its tombstones take away."""
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
        """Returns the rows of a state by key, as an array of numbers."""
        row: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        for row in range(self.used):
            if self._rows[_ROW * row + _STATE] == state:
                count += 1
        found: object = memoryview(bytearray(8 * count)).cast("Q")
        if count > 0:
            # Twice: the sort needs a place to work in.
            self._sort(
                state, count, memoryview(bytearray(2 * 8 * _SORT_CELL * count)).cast("Q"), found
            )
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
            if self._rows[_ROW * row + _STATE] == state:
                cells[at] = self._rows[_ROW * row]
                cells[at + 1] = self._rows[_ROW * row + 1]
                cells[at + 2] = cython.cast(cython.ulonglong, row)
                at += _SORT_CELL
        at = sort(cells, count, _SORT_CELL, 2)
        for row in range(count):
            found[row] = cells[at + _SORT_CELL * row + 2]

    def fill(
        self, rows: cython.ulonglong[::1], at: cython.Py_ssize_t, builder: BlockBuilder
    ) -> cython.Py_ssize_t:
        """Moves rows of `sorted` into a block, from one on; returns the first that did not fit."""
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

    def fill_stream(
        self, rows: cython.ulonglong[::1], at: cython.Py_ssize_t, output: BlockStream
    ) -> cython.Py_ssize_t:
        """Makes whole blocks of rows of `sorted`, from one on; returns the first that is in none.

        The last block of all is left to `fill`, and so is a row that needs more room than there is,
        and all of them if there are reasons. The builder is empty, before and after. Without the
        interpreter's lock, and compiled only.
        """
        if not cython.compiled or len(self._reasons) > 0 or len(rows) == 0:
            return at
        stop: cython.Py_ssize_t
        with cython.nogil:
            while True:
                stop = self._gather(rows, at, output.builder)
                if stop == len(rows) or output.builder.count == 0 or not output.end_block():
                    break
                at = stop
            output.builder.clear()
        return at

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _fetch_ahead(self, rows: cython.ulonglong[::1], at: cython.Py_ssize_t) -> cython.void:
        """Prefetches what the next rows need: they lie anywhere in memory."""
        row: cython.Py_ssize_t
        value: cython.ulonglong
        byte: cython.ulonglong
        if at + 2 * _AHEAD < len(rows):
            row = cython.cast(cython.Py_ssize_t, rows[at + 2 * _AHEAD])
            prefetch(cython.cast(cython.size_t, cython.address(self._rows[_ROW * row])))
            prefetch(cython.cast(cython.size_t, cython.address(self._places[2 * row])))
        if at + _AHEAD < len(rows):
            row = cython.cast(cython.Py_ssize_t, rows[at + _AHEAD])
            value = self._places[2 * row]
            for byte in range(0, min(self._places[2 * row + 1], _FETCHED_BYTES), 64):
                prefetch(value + byte)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _gather(
        self, rows: cython.ulonglong[::1], at: cython.Py_ssize_t, builder: BlockBuilder
    ) -> cython.Py_ssize_t:
        """Puts rows into a block until one does not fit; returns that."""
        row: cython.Py_ssize_t
        base: cython.Py_ssize_t
        state: cython.ulonglong
        address: cython.ulonglong
        size: cython.Py_ssize_t
        attributes: cython.ulonglong
        while at < len(rows):
            if cython.compiled:
                self._fetch_ahead(rows, at)
            row = cython.cast(cython.Py_ssize_t, rows[at])
            base = _ROW * row
            state = self._rows[base + _STATE]
            address = 0
            size = 0
            attributes = 1 if state == _TOMBSTONE else 0
            if state == _ITEM:
                address = self._places[2 * row]
                size = cython.cast(cython.Py_ssize_t, self._places[2 * row + 1])
                attributes = 2 if self._rows[base] >= _BURIED_BIT else 0
            if (
                builder.add_raw(
                    self._rows[base],
                    self._rows[base + 1],
                    0 if state == _TOMBSTONE else self._rows[base + _TIME],
                    self._rows[base + _REQUEUE] if state == _ITEM else 0,
                    0 if state == _TOMBSTONE else self._rows[base + _COUNT],
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

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _count(self, deadline: cython.ulonglong, step: cython.longlong) -> cython.void:
        if deadline >= _BURIED_BIT:
            self.buried += step
        else:
            self.pending += step


@cython.cclass
class Leases(KeyTable):
    """What is given out: by key, until when, for which time. Called with the queue's lock held.

    `working` leases have not ended. An item whose lease has ended is in `returned` until it is
    given out again; its row stays, so that nobody who goes over the items meets it twice.
    """

    returned = cython.declare(KeyHeap, visibility="readonly")
    working = cython.declare(cython.longlong, visibility="readonly")
    _ends: KeyHeap

    def __init__(self) -> None:
        KeyTable.__init__(self)
        self.returned = KeyHeap()
        self._ends = KeyHeap()
        self.working = 0

    @cython.ccall
    def lend(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        dequeued: cython.ulonglong,
        until_ms: cython.ulonglong,
    ) -> cython.void:
        """Returns an item out that is not given out."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            row = self.insert(deadline, id, _WORKING)
        self._rows[_ROW * row + _STATE] = _WORKING
        self._rows[_ROW * row + _LEASE_COUNT] = dequeued
        self._until(row, until_ms)
        self.working += 1

    @cython.ccall
    def extend(
        self, deadline: cython.ulonglong, id: cython.ulonglong, until_ms: cython.ulonglong
    ) -> cython.void:
        """Lets a lease end at another time."""
        self._until(self.find(deadline, id), until_ms)

    @cython.ccall
    def give_back(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        """Lets an item be given out again."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        self._rows[_ROW * row + _STATE] = _RETURNED
        self.working -= 1
        self.returned.push(deadline, id, cython.cast(cython.ulonglong, row))

    @cython.ccall
    def end(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        """Forgets an item that is gone, if it was given out at all."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row >= 0:
            if self._rows[_ROW * row + _STATE] == _WORKING:
                self.working -= 1
            self.remove(row)

    @cython.ccall
    def holds(
        self, deadline: cython.ulonglong, id: cython.ulonglong, dequeued: cython.ulonglong
    ) -> cython.bint:
        """Says whether an item is given out for that time."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        return (
            row >= 0
            and self._rows[_ROW * row + _STATE] == _WORKING
            and self._rows[_ROW * row + _LEASE_COUNT] == dequeued
        )

    @cython.ccall
    def expire(self, now_ms: cython.ulonglong) -> cython.void:
        """Returns back all items whose leases have ended."""
        at: cython.Py_ssize_t
        ends: KeyHeap = self._ends
        # The end of a lease stands where a deadline would.
        while ends.count > 0 and ends.deadline <= now_ms:
            at = _ROW * cython.cast(cython.Py_ssize_t, ends.tag)
            if (
                self._rows[at + _STATE] == _WORKING
                and self._rows[at + 1] == ends.id
                and self._rows[at + _LEASE_UNTIL] == ends.deadline
            ):
                self.give_back(self._rows[at], ends.id)
            ends.pop()

    def due(self, now_ms: cython.ulonglong) -> cython.longlong:
        """Returns how many items that are given out have a deadline up to a time."""
        count: cython.longlong = 0
        at: cython.Py_ssize_t
        for at in range(0, _ROW * self.used, _ROW):
            if self._rows[at + _STATE] == _WORKING and self._rows[at] <= now_ms:
                count += 1
        return count

    def next_end(self):
        """Returns when the next lease may end; None if nothing is given out."""
        return self._ends.deadline if self._ends.count > 0 else None

    @cython.ccall
    def settle(self) -> cython.bint:
        """Drops keys off `returned` that are no longer back; says whether one is left."""
        at: cython.Py_ssize_t
        returned: KeyHeap = self.returned
        while returned.count > 0:
            at = _ROW * cython.cast(cython.Py_ssize_t, returned.tag)
            if (
                self._rows[at + _STATE] == _RETURNED
                and self._rows[at + 1] == returned.id
                and self._rows[at] == returned.deadline
            ):
                return True
            returned.pop()
        return False

    def lowest(self) -> tuple:
        """Returns the lowest key of all leases, ended ones too."""
        deadline: cython.ulonglong = _LAST
        id: cython.ulonglong = 0
        at: cython.Py_ssize_t
        for at in range(0, _ROW * self.used, _ROW):
            if self._rows[at + _STATE] != 0 and (
                self._rows[at] < deadline
                or (self._rows[at] == deadline and self._rows[at + 1] < id)
            ):
                deadline = self._rows[at]
                id = self._rows[at + 1]
        return deadline, id

    @cython.cfunc
    def _until(self, row: cython.Py_ssize_t, until_ms: cython.ulonglong) -> cython.void:
        self._rows[_ROW * row + _LEASE_UNTIL] = until_ms
        if self._ends.count > 2 * self.count + _STALE_MAX:
            self._drop_stale()
        self._ends.push(until_ms, self._rows[_ROW * row + 1], cython.cast(cython.ulonglong, row))

    @cython.cfunc
    def _drop_stale(self) -> object:
        """Makes a new heap of the leases that there are: most end before their time."""
        self._ends = KeyHeap()
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[_ROW * row + _STATE] == _WORKING:
                self._ends.push(
                    self._rows[_ROW * row + _LEASE_UNTIL],
                    self._rows[_ROW * row + 1],
                    cython.cast(cython.ulonglong, row),
                )


def replay(memory: Memory, records: list) -> None:
    """Takes in records of a log as `scan_batches` returns them, in the order of writing."""
    record: tuple
    for record in records:
        kind = record[0]
        if kind == 3:
            memory.kill(record[1], record[2])
        elif kind == 4:
            memory.mark(record[1], record[2], record[5], record[3])
        elif kind < 3:
            memory.add(record[1], record[2], record[3], record[4], record[5], record[7], record[8])


def put_records(
    memory: Memory, row: cython.Py_ssize_t, buffer: object, end: cython.Py_ssize_t
) -> tuple:
    """Writes rows from one on as records of a log; returns the row after them, and the size.

    They go after the head of a batch, up to `end`; the first one is written in any case.
    """
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = 8
    size: cython.Py_ssize_t
    while row < memory.used:
        if memory._rows[_ROW * row + _STATE] != 0:
            size = record_size(memory, row)
            if position + size > end and position > 8:
                break
            if position + size > out.shape[0]:
                raise ValueError("a record is larger than the buffer")
            _put_record(memory, out, position, row)
            position += size
        row += 1
    return row, position - 8


@cython.ccall
def record_size(memory: Memory, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns what a row takes as a record of a log."""
    state: cython.ulonglong = memory._rows[_ROW * row + _STATE]
    if state == _TOMBSTONE:
        return _TOMBSTONE_SIZE
    if state == _MARK:
        return _DEQUEUED_SIZE
    if state == 0:
        return 0
    return _ITEM_SIZE + len(memory._reasons.get(row, b"")) + len(memory._values[row])


@cython.cfunc
def _put_record(
    memory: Memory,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> object:
    at: cython.Py_ssize_t = _ROW * row
    state: cython.ulonglong = memory._rows[at + _STATE]
    deadline: cython.ulonglong = memory._rows[at]
    put_number(out, position + 1, deadline, 6)
    put_number(out, position + 7, memory._rows[at + 1], 8)
    if state == _TOMBSTONE:
        put_number(out, position, 3, 1)
        return
    if state == _MARK:
        put_number(out, position, 4, 1)
        put_number(out, position + 15, memory._rows[at + _COUNT], 4)
        put_number(out, position + 19, memory._rows[at + _TIME], 6)
        return
    reason: bytes = memory._reasons.get(row, b"")
    value: bytes = memory._values[row]
    put_number(out, position, 2, 1)
    put_number(out, position + 15, memory._rows[at + _TIME], 6)
    put_number(out, position + 21, memory._rows[at + _REQUEUE], 6)
    put_number(out, position + 27, memory._rows[at + _COUNT], 4)
    put_number(out, position + 31, _BURIED if deadline >= _BURIED_BIT else 0, 1)
    put_number(out, position + 32, cython.cast(cython.ulonglong, len(reason)), 2)
    put_number(out, position + 34, cython.cast(cython.ulonglong, len(value)), 4)
    put_bytes(out, position + _ITEM_SIZE, reason, len(reason))
    put_bytes(out, position + _ITEM_SIZE + len(reason), value, len(value))


@cython.cclass
class Schedule:
    """What is next: of memory, of the runs, of what came back. Called with the queue's lock held.

    `memories` are the segments in memory, the newest first. `total` counts pending items and those
    given out, `buried` the others.
    """

    leases = cython.declare(Leases, visibility="readonly")
    view = cython.declare(RunView, visibility="public")
    memories = cython.declare(list, visibility="readonly")
    damage = cython.declare(list, visibility="readonly")
    total = cython.declare(cython.longlong, visibility="public")
    buried = cython.declare(cython.longlong, visibility="public")
    floor_ms = cython.declare(cython.longlong, visibility="public")
    deadline = cython.declare(cython.ulonglong, visibility="readonly")
    id = cython.declare(cython.ulonglong, visibility="readonly")
    exhausted = cython.declare(DeadlineItem, visibility="readonly")
    attempts_max = cython.declare(cython.ulonglong, visibility="public")
    _source: cython.Py_ssize_t
    _find: object
    _tell: object

    def __init__(self, find: object, tell: object) -> None:
        """`find` returns the item of a key that came back. `tell` raises what is in `damage`."""
        self._find = find
        self._tell = tell
        self.damage = []
        self.leases = Leases()
        self.view = RunView()
        self.memories = []
        self.total = self.buried = 0
        self.floor_ms = 0
        self.deadline = self.id = 0
        self._source = _FROM_NOWHERE
        self.exhausted = None
        self.attempts_max = 0

    @cython.ccall
    def choose(
        self, count: cython.Py_ssize_t, now: cython.longlong, lease_ms: cython.longlong
    ) -> list:
        """Lends out up to `count` items that are due; `mark` follows when the log says so.

        Stops at one that was given out too often already: that is `exhausted` then.
        """
        items: list = []
        item: DeadlineItem
        self.exhausted = None
        self.leases.expire(cython.cast(cython.ulonglong, now))
        try:
            while len(items) < count and self.head():
                if self.deadline > cython.cast(cython.ulonglong, now):
                    break
                item = self.load()
                if self.attempts_max > 0 and item.dequeue_count >= self.attempts_max:
                    self.exhausted = item
                    break
                item.dequeue_count += 1
                self.leases.lend(
                    item.deadline_ms,
                    item.id,
                    item.dequeue_count,
                    cython.cast(cython.ulonglong, now + lease_ms),
                )
                items.append(item)
        except BaseException:
            self.give_back(items)
            raise
        return items

    @cython.ccall
    def mark(self, items: list, now: cython.longlong) -> cython.bint:
        """Takes note that items were given out, which the log says."""
        item: DeadlineItem
        memory: Memory = self.memories[0]
        for item in items:
            memory.mark(
                item.deadline_ms,
                item.id,
                item.dequeue_count,
                cython.cast(cython.ulonglong, now),
            )
            self.floor_ms = max(self.floor_ms, cython.cast(cython.longlong, item.deadline_ms))
        return True

    @cython.ccall
    def give_back(self, items: list) -> cython.bint:
        """Lets items be given out again that nobody got."""
        item: DeadlineItem
        for item in items:
            self.leases.give_back(item.deadline_ms, item.id)
        return True

    @cython.ccall
    def kill(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.bint:
        """Takes an item away whose tombstone is in the log."""
        memory: Memory = self.memories[0]
        memory.kill(deadline, id)
        self.leases.end(deadline, id)
        if deadline >= _BURIED_BIT:
            self.buried -= 1
        else:
            self.total -= 1
        return True

    @cython.ccall
    def head(self) -> cython.bint:
        """Finds the first pending item, due or not: `deadline` and `id`; False if there is none."""
        self._source = _FROM_NOWHERE
        if self.leases.settle():
            self._offer(_FROM_RETURNED, self.leases.returned.deadline, self.leases.returned.id)
        memory: Memory
        at: cython.Py_ssize_t
        for at in range(len(self.memories)):
            memory = self.memories[at]
            while memory.settle():
                if not self._passes(memory.order.deadline, memory.order.id, at):
                    self._offer(at, memory.order.deadline, memory.order.id)
                    break
                memory.order.pop()
        view: RunView = self.view
        while view.meet() and view.deadline < _BURIED_BIT:
            if (
                view.item is not None
                and not view.dead
                and not self._passes(view.deadline, view.id, len(self.memories))
            ):
                self._offer(_FROM_RUNS, view.deadline, view.id)
                break
            view.go_on()
        if self.damage:
            self._tell()
            # It did not raise, and may have taken away what was found.
            return self.head()
        return self._source != _FROM_NOWHERE

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _offer(
        self, source: cython.Py_ssize_t, deadline: cython.ulonglong, id: cython.ulonglong
    ) -> cython.void:
        if (
            self._source == _FROM_NOWHERE
            or deadline < self.deadline
            or (deadline == self.deadline and id < self.id)
        ):
            self._source = source
            self.deadline = deadline
            self.id = id

    @cython.cfunc
    def _passes(
        self, deadline: cython.ulonglong, id: cython.ulonglong, before: cython.Py_ssize_t
    ) -> cython.bint:
        """Says whether an item is given out, has come back, or has a tombstone that is newer."""
        if self.leases.count > 0 and self.leases.find(deadline, id) >= 0:
            return True
        memory: Memory
        at: cython.Py_ssize_t
        for at in range(before):
            memory = self.memories[at]
            if memory.may_know(deadline, id) and memory.state(deadline, id) == _TOMBSTONE:
                return True
        return False

    @cython.ccall
    def load(self) -> DeadlineItem:
        """Returns the item that `head` has just found, and how often it was given out by now."""
        if self._source == _FROM_RETURNED:
            return self._find(self.deadline, self.id)
        memory: Memory
        view: RunView = self.view
        dequeued: cython.ulonglong = 0
        at: cython.Py_ssize_t
        # What is newer than the item may tell more than it does itself.
        for at in range(self._source if self._source != _FROM_RUNS else len(self.memories)):
            memory = self.memories[at]
            if memory.may_know(self.deadline, self.id):
                dequeued = max(dequeued, memory.dequeue_count(self.deadline, self.id))
        if self._source == _FROM_RUNS:
            at = view.item.at
            return make_item(
                self.deadline,
                self.id,
                view.item.block.enqueue_ms(at),
                view.item.block.requeue_ms(at),
                max(dequeued, view.count),
                view.item.block.value(at),
            )
        memory = self.memories[self._source]
        return memory.item(cython.cast(cython.Py_ssize_t, memory.order.tag), dequeued)


@cython.cclass
class LoggedSchedule(Schedule):
    """A schedule that writes to the log itself.

    Any thread may call `enqueue`, `dequeue`, `release` and `requeue`; all else needs the queue's
    lock. Ids from `next_id` up to `ids_end` may be given; so many rows as `items_max` may be in the
    newest memory.
    """

    next_id = cython.declare(cython.ulonglong, visibility="public")
    ids_end = cython.declare(cython.ulonglong, visibility="public")
    items_max = cython.declare(cython.Py_ssize_t, visibility="public")
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    number = cython.declare(cython.ulonglong, visibility="readonly")
    _end: cython.Py_ssize_t
    _seed: cython.ulonglong
    _log: cython.uchar[::1]
    _acquire: object
    _let_go: object
    _now_ms: object
    _ahead_ms: cython.longlong

    def __init__(
        self, lock: object, now_ms: object, ahead_ms: cython.longlong, find: object, tell: object
    ) -> None:
        """`now_ms` None means the boot clock of the machine, which wall time is ahead of."""
        Schedule.__init__(self, find, tell)
        self.use_lock(lock)
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self.next_id = self.ids_end = 0
        self.items_max = 0
        self._log = memoryview(bytearray(1))
        self.position = self._end = 0
        self.number = self._seed = 0

    def use_lock(self, lock: object) -> None:
        """Takes the queue's lock; in the child of a fork another one: nobody gives back the old."""
        self._acquire = lock.acquire
        self._let_go = lock.release

    def open(
        self,
        buffer: object,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        number: cython.ulonglong,
        seed: cython.ulonglong,
    ) -> None:
        """Lets batches from a number on be written into a buffer, from `start` to `end`."""
        self._log = memoryview(buffer)
        self.position = start
        self._end = end
        self.number = number
        self._seed = seed

    def close(self) -> None:
        """Closes the buffer and lets go of it."""
        self._end = 0
        self._log = memoryview(bytearray(1))

    def skip(self, size: cython.Py_ssize_t) -> None:
        """Takes note of a batch that somebody else has written into the buffer."""
        self.position += size
        self.number += 1

    @cython.cfunc
    @cython.inline
    def _now(self) -> cython.longlong:
        if self._now_ms is None:
            return boot_ms() + self._ahead_ms
        return self._now_ms()

    @cython.cfunc
    def _wanted(self, delay: object, deadline_ms: object) -> cython.longlong:
        """Returns a deadline in ms, or -1 and below: now, odd, or less the delay in ms."""
        if deadline_ms is not None:
            if delay is not None or type(deadline_ms) is not int:
                return _ODD
            try:
                wanted: cython.longlong = deadline_ms
            except OverflowError:
                return _ODD
            # What would be seconds of our time, and is early in 1970 as it stands, is a mistake.
            if wanted < 0 or _SECONDS_FROM <= wanted < _SECONDS_TO:
                return _ODD
            return wanted if wanted < cython.cast(cython.longlong, _BURIED_BIT) else _ODD
        if delay is None:
            return _NOW
        if type(delay) is not float and type(delay) is not int:
            return _ODD
        seconds: cython.double = delay
        if not (0 <= seconds < _SECONDS_MAX):
            return _ODD
        if not cython.compiled:
            return -3 - int(seconds * 1000 + 0.5)
        return -3 - cython.cast(cython.longlong, seconds * 1000 + 0.5)

    @cython.cfunc
    @cython.inline
    def _deadline(self, wanted: cython.longlong, now: cython.longlong) -> cython.longlong:
        """Returns the deadline that `_wanted` stands for: never before what was given out."""
        if wanted < 0:
            wanted = now if wanted == _NOW else now - 3 - wanted
        return max(wanted, min(now, self.floor_ms))

    def enqueue(self, value: object, delay: object, deadline_ms: object):
        """Takes in an item and returns its id; -1 if it takes the longer way."""
        wanted: cython.longlong = self._wanted(delay, deadline_ms)
        if type(value) is not bytes or wanted == _ODD:
            return -1
        self._acquire()
        try:
            return self._enqueue(value, wanted)
        finally:
            self._let_go()

    @cython.cfunc
    def _enqueue(self, value: bytes, wanted: cython.longlong) -> cython.longlong:
        size: cython.Py_ssize_t = len(value)
        start: cython.Py_ssize_t = self.position
        memory: Memory = self.memories[0]
        if (
            size > self._end - start - _BATCH_SIZE - _FRESH_SIZE
            or self.next_id >= self.ids_end
            or memory.count >= self.items_max
        ):
            return -1
        now: cython.longlong = self._now()
        id: cython.ulonglong = self.next_id
        self._put_fresh(memory, start + _BATCH_SIZE, value, wanted, now)
        self._seal(_FRESH_SIZE + size)
        return cython.cast(cython.longlong, id)

    def enqueue_many(self, values: list, delay: object, deadlines: object):
        """Takes in items in one batch and returns their ids; None if it takes the longer way.

        Nobody else may hold the lists. `deadlines` is one for all if it is no list.
        """
        size: cython.Py_ssize_t = 0
        for value in values:
            if type(value) is not bytes:
                return None
            size += _FRESH_SIZE + len(cython.cast(bytes, value))
        wanted: cython.longlong = _NOW
        if type(deadlines) is not list:
            wanted = self._wanted(delay, deadlines)
        elif delay is not None or len(cython.cast(list, deadlines)) != len(values):
            return None
        else:
            for each in cython.cast(list, deadlines):
                if self._wanted(None, each) < 0:
                    return None
        if wanted == _ODD:
            return None
        self._acquire()
        try:
            return self._enqueue_many(values, deadlines, wanted, size)
        finally:
            self._let_go()

    @cython.cfunc
    def _enqueue_many(
        self, values: list, deadlines: object, wanted: cython.longlong, size: cython.Py_ssize_t
    ) -> object:
        count: cython.Py_ssize_t = len(values)
        first: cython.ulonglong = self.next_id
        memory: Memory = self.memories[0]
        if (
            count == 0
            or size > self._end - self.position - _BATCH_SIZE
            or first + cython.cast(cython.ulonglong, count) > self.ids_end
            or memory.count + count > self.items_max
        ):
            return None
        now: cython.longlong = self._now()
        place: cython.Py_ssize_t = self.position + _BATCH_SIZE
        at: cython.Py_ssize_t
        several: cython.bint = type(deadlines) is list
        for at in range(count):
            if several:
                wanted = cython.cast(list, deadlines)[at]
            self._put_fresh(memory, place, values[at], wanted, now)
            place += _FRESH_SIZE + len(cython.cast(bytes, values[at]))
        self._seal(size)
        return list(range(first, self.next_id))

    @cython.cfunc
    @cython.inline
    def _put_fresh(
        self,
        memory: Memory,
        place: cython.Py_ssize_t,
        value: bytes,
        wanted: cython.longlong,
        now: cython.longlong,
    ) -> object:
        """Writes the record of a new item to its place in the log, and takes the item in."""
        deadline: cython.ulonglong = cython.cast(cython.ulonglong, self._deadline(wanted, now))
        size: cython.Py_ssize_t = len(value)
        put_key(self._log, place, 1, deadline, self.next_id)
        put_number(self._log, place + 15, cython.cast(cython.ulonglong, now), 6)
        put_number(self._log, place + 21, cython.cast(cython.ulonglong, size), 4)
        put_bytes(self._log, place + _FRESH_SIZE, value, size)
        memory.add_new(deadline, self.next_id, cython.cast(cython.ulonglong, now), value, True)
        self.next_id += 1
        self.total += 1

    def dequeue(self, count: cython.Py_ssize_t, lease_ms: cython.longlong):
        """Returns out up to `count` items that are due; None if it takes the longer way."""
        self._acquire()
        try:
            if self._end - self.position < _BATCH_SIZE + _DEQUEUED_SIZE * count:
                return None
            return self._dequeue(count, lease_ms)
        finally:
            self._let_go()

    @cython.cfunc
    def _dequeue(self, count: cython.Py_ssize_t, lease_ms: cython.longlong) -> list:
        now: cython.longlong = self._now()
        items: list = self.choose(count, now, lease_ms)
        if self.exhausted is not None:
            # It is to be buried, and those before it are given out when that is done.
            self.give_back(items)
            return None
        item: DeadlineItem
        at: cython.Py_ssize_t = self.position + _BATCH_SIZE
        for item in items:
            put_key(self._log, at, 4, item.deadline_ms, item.id)
            put_number(self._log, at + 15, item.dequeue_count, 4)
            put_number(self._log, at + 19, cython.cast(cython.ulonglong, now), 6)
            at += _DEQUEUED_SIZE
        if len(items) > 0:
            self.mark(items, now)
            self._seal(_DEQUEUED_SIZE * len(items))
        return items

    def release(self, items: list) -> bool:
        """Takes items away for good that their takers hold; False if it takes the longer way."""
        self._acquire()
        try:
            return self._release_all(items)
        finally:
            self._let_go()

    @cython.cfunc
    def _release_all(self, items: list) -> cython.bint:
        if self._end - self.position < _BATCH_SIZE + _TOMBSTONE_SIZE * len(items):
            return False
        leases: Leases = self.leases
        leases.expire(cython.cast(cython.ulonglong, self._now()))
        item: DeadlineItem
        for item in items:
            if not leases.holds(item.deadline_ms, item.id, item.dequeue_count):
                return False
        at: cython.Py_ssize_t = self.position + _BATCH_SIZE
        for item in items:
            # One that was given twice is gone by now.
            if leases.holds(item.deadline_ms, item.id, item.dequeue_count):
                put_key(self._log, at, 3, item.deadline_ms, item.id)
                at += _TOMBSTONE_SIZE
                self.kill(item.deadline_ms, item.id)
        self._seal(at - self.position - _BATCH_SIZE)
        return True

    def requeue(
        self, item: DeadlineItem, value: object, delay: object, deadline_ms: object
    ) -> bool:
        """Returns an item back under a later deadline; False if it takes the longer way."""
        wanted: cython.longlong = self._wanted(delay, deadline_ms)
        stored: object = item.value if value is None else value
        if type(stored) is not bytes or wanted == _ODD:
            return False
        self._acquire()
        try:
            return self._requeue(item, stored, wanted)
        finally:
            self._let_go()

    @cython.cfunc
    def _requeue(self, item: DeadlineItem, value: bytes, wanted: cython.longlong) -> cython.bint:
        size: cython.Py_ssize_t = _ITEM_SIZE + len(value) + _TOMBSTONE_SIZE
        memory: Memory = self.memories[0]
        leases: Leases = self.leases
        now: cython.longlong = self._now()
        leases.expire(cython.cast(cython.ulonglong, now))
        if (
            size > self._end - self.position - _BATCH_SIZE
            or memory.count >= self.items_max
            or (self.attempts_max > 0 and item.dequeue_count >= self.attempts_max)
            or not leases.holds(item.deadline_ms, item.id, item.dequeue_count)
        ):
            return False
        deadline: cython.ulonglong = cython.cast(cython.ulonglong, self._deadline(wanted, now))
        deadline = max(deadline, item.deadline_ms + 1)
        at: cython.Py_ssize_t = self.position + _BATCH_SIZE
        put_key(self._log, at, 3, item.deadline_ms, item.id)
        at += _TOMBSTONE_SIZE
        put_key(self._log, at, 2, deadline, item.id)
        put_number(self._log, at + 15, item.enqueue_ms, 6)
        put_number(self._log, at + 21, cython.cast(cython.ulonglong, now), 6)
        put_number(self._log, at + 27, item.dequeue_count, 4)
        put_number(self._log, at + 31, 0, 3)
        put_number(self._log, at + 34, cython.cast(cython.ulonglong, len(value)), 4)
        put_bytes(self._log, at + _ITEM_SIZE, value, len(value))
        self.kill(item.deadline_ms, item.id)
        row: cython.Py_ssize_t = memory.add(
            deadline,
            item.id,
            item.enqueue_ms,
            cython.cast(cython.ulonglong, now),
            item.dequeue_count,
            b"",
            value,
        )
        memory.order.push(deadline, item.id, cython.cast(cython.ulonglong, row))
        self.total += 1
        self._seal(size)
        return True

    @cython.cfunc
    @cython.inline
    def _seal(self, size: cython.Py_ssize_t) -> cython.void:
        """Ends a batch whose records are in their place."""
        self.position = seal_batch_at(self._log, self.position, size, self.number, self._seed)
        self.number += 1
