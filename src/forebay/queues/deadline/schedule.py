"""What a deadline queue has in memory, compiled: items, leases, and which item is next.

A key is a deadline and an id; it is used for one item, once. So the order of its records does not
matter: an item exists if it was written and no tombstone was, and it was dequeued as often as the
highest count says. Keys are rows of numbers in arrays: an item needs no object for its key.

`Memory` is the content of one write-ahead log. `Leases` is what is leased. `Schedule` chooses the
next item and owns all changes: each is a batch that it encodes into the log's buffer, and the
matching change in memory. `replay` reads a log into memory, and `put_records` writes memory to one.
"""

from __future__ import annotations

import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from enum import Enum
from numbers import Real

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

from forebay.errors import InvalidOption, LeaseLost, RecordTooLarge
from forebay.formats.deadline.items import REASON_BYTES_MAX, VALUE_BYTES_MAX
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
        Block,
        BlockBuilder,
        BlockStream,
        Cursor,
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
        Block,
        BlockBuilder,
        BlockStream,
        Cursor,
        KeyHeap,
        RunView,
        grown,
        put_key,
        seal_batch_at,
        sort,
    )

ITEM, TOMBSTONE, MARK = 1, 2, 4
# The states of a row of memory: an item; or for an item elsewhere, a tombstone, or a mark of how
# often it was dequeued.
_ITEM = cython.declare(cython.ulonglong, ITEM)
_TOMBSTONE = cython.declare(cython.ulonglong, TOMBSTONE)
_MARK = cython.declare(cython.ulonglong, MARK)
# The numbers of a row: deadline, id, the next row of the same slot plus 1, state, and four more.
# For an item these are the time of the enqueue and of the requeue, how often it was dequeued, and
# the number of the log. For a mark, the first is when it was dequeued. For a lease: when it ends,
# and the dequeue count that it belongs to.
_ROW = cython.declare(cython.Py_ssize_t, 8)
_NEXT = cython.declare(cython.Py_ssize_t, 2)
_STATE = cython.declare(cython.Py_ssize_t, 3)
_TIME = cython.declare(cython.Py_ssize_t, 4)
_REQUEUE = cython.declare(cython.Py_ssize_t, 5)
_COUNT = cython.declare(cython.Py_ssize_t, 6)
_LOG = cython.declare(cython.Py_ssize_t, 7)
_LEASE_UNTIL = cython.declare(cython.Py_ssize_t, 4)
_LEASE_COUNT = cython.declare(cython.Py_ssize_t, 5)
_FIRST_ROWS = cython.declare(cython.Py_ssize_t, 64)
_SPREAD = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
# A cell of the sort: deadline, id, row.
_SORT_CELL = cython.declare(cython.Py_ssize_t, 3)
# The bit of a deadline that marks a buried item, and the attribute for the same.
_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)
_BURIED = cython.declare(cython.ulonglong, IS_BURIED)
# The memory that an item is assumed to take besides its value.
_ITEM_COST = cython.declare(cython.Py_ssize_t, 64)
# How many rows ahead values are prefetched, and how much of each; rows are twice as far ahead.
_AHEAD = cython.declare(cython.Py_ssize_t, 4)
_FETCHED_BYTES = cython.declare(cython.ulonglong, 512)

# The states of a lease.
_WORKING = cython.declare(cython.ulonglong, 1)
_RETURNED = cython.declare(cython.ulonglong, 2)
# How many ends of past leases may be in the heap, beyond twice the number of leases.
_STALE_MAX = cython.declare(cython.Py_ssize_t, 1024)
# Greater than every key.
_LAST = cython.declare(cython.ulonglong, 1 << 48)

# The sizes of a batch's head and of a log's records, without reason and value.
_BATCH_SIZE = cython.declare(cython.Py_ssize_t, BATCH_BYTES)
_FRESH_SIZE = cython.declare(cython.Py_ssize_t, FRESH_BYTES)
_ITEM_SIZE = cython.declare(cython.Py_ssize_t, ITEM_BYTES)
_TOMBSTONE_SIZE = cython.declare(cython.Py_ssize_t, TOMBSTONE_BYTES)
_DEQUEUED_SIZE = cython.declare(cython.Py_ssize_t, DEQUEUED_BYTES)

# The source of the next item; otherwise the index of a memory.
_FROM_NOWHERE = cython.declare(cython.Py_ssize_t, -3)
_FROM_RETURNED = cython.declare(cython.Py_ssize_t, -2)
_FROM_RUNS = cython.declare(cython.Py_ssize_t, -1)
_SECONDS_MAX = cython.declare(cython.double, 1e11)
# The years 2001 to 2286 in seconds, which are January to April 1970 in milliseconds.
_SECONDS_FROM = cython.declare(cython.longlong, 1_000_000_000)
_SECONDS_TO = cython.declare(cython.longlong, 10_000_000_000)
# What `_wanted` returns if neither a delay nor a deadline is given. A delay is below it.
_NOW = cython.declare(cython.longlong, -1)
_VALUE_MAX = cython.declare(cython.Py_ssize_t, VALUE_BYTES_MAX)
# The largest size that a batch can record.
_BATCH_MAX = cython.declare(cython.Py_ssize_t, 0xFFFFFFFF)
# How many items are lent in one batch.
LENT_MAX = 1 << 14
_LENT_MAX = cython.declare(cython.Py_ssize_t, LENT_MAX)
_NO_BOUND = cython.declare(cython.Py_ssize_t, 1 << 62)
# The reason for burying an item that was dequeued too often.
TOO_MANY_ATTEMPTS = "max_attempts"


class Sentinel(Enum):
    """Returned by a change that was not made."""

    FULL = "the buffer has no room for it"


FULL = Sentinel.FULL


@cython.final
@cython.cclass
class DeadlineItem:
    """An item. A dequeued one belongs to its caller until the lease ends.

    `token` identifies one lease of an item: the id, and how often the item was dequeued.
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
        """The id, and how often the item was dequeued."""
        return self.id, self.dequeue_count

    @property
    def key(self):
        """The key under which the queue has it."""
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
    """Rows by key, found through a hash of the id. A state of 0 marks a free row.

    `dense` says that most ids are consecutive: then neighbours are kept close together.
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
        """Uses 64 bits less `shift` for a slot: the lowest bits of an id, or a mixture of all."""
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

    Holds several logs when they are read one after the other: `number` is then set before each.
    `order` has the keys of items that may be lent, and stale ones. `pending` and `buried` are what
    it adds to those numbers of the queue; tombstones of items elsewhere subtract.
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
        # The address and the size of each value; only when compiled.
        self._places = memoryview(bytearray(1024)).cast("Q")
        self._reasons = {}
        # The highest key of an item elsewhere for which it has a tombstone or a mark.
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
        """Adds an item and returns its row; `show` makes it available. -1: it is already known."""
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
        """Adds an item with an id that was never used; `shown`: it is available at once."""
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
        self._rows[_ROW * row + _LOG] = self.number
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

    @cython.ccall
    def show(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        """Makes an item available to `dequeue`."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if deadline < _BURIED_BIT and row >= 0 and self._rows[_ROW * row + _STATE] == _ITEM:
            self.order.push(deadline, id, cython.cast(cython.ulonglong, row))

    def show_all(self) -> None:
        """Makes all items available; none was shown before."""
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[_ROW * row + _STATE] == _ITEM:
                self.show(self._rows[_ROW * row], self._rows[_ROW * row + 1])

    @cython.ccall
    def kill(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        """Removes an item, wherever it is."""
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
        """Records how often an item has been dequeued by now."""
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

    @cython.ccall
    def unmark(
        self, deadline: cython.ulonglong, id: cython.ulonglong, dequeued: cython.ulonglong
    ) -> cython.void:
        """Sets the dequeue count of an item back to a lower value."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            return
        self._rows[_ROW * row + _COUNT] = dequeued
        if dequeued == 0 and self._rows[_ROW * row + _STATE] == _MARK:
            self.remove(row)

    @cython.ccall
    def recall(self, deadline: cython.ulonglong, id: cython.ulonglong) -> object:
        """Returns what is known of a key, for `restore`; None if nothing is."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            return None
        base: cython.Py_ssize_t = _ROW * row
        state: cython.ulonglong = self._rows[base + _STATE]
        numbers: tuple = (self._rows[base + _TIME], self._rows[base + _REQUEUE])
        value: object = self._values[row] if state == _ITEM else None
        return state, *numbers, self._rows[base + _COUNT], self._reasons.get(row, b""), value

    @cython.ccall
    def restore(
        self, deadline: cython.ulonglong, id: cython.ulonglong, known: object
    ) -> cython.bint:
        """Restores the recalled state of a key; an item is not shown."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row >= 0 and self._rows[_ROW * row + _STATE] == _ITEM:
            self.kill(deadline, id)
        elif row >= 0:
            if self._rows[_ROW * row + _STATE] == _TOMBSTONE:
                self._count(deadline, 1)
            self.remove(row)
        if known is None:
            return True
        state, time, requeue, count, reason, value = known
        row = self.insert(deadline, id, state)
        if state == _ITEM:
            self._keep(row, time, requeue, count, reason, value)
        else:
            self._rows[_ROW * row + _TIME] = time
            self._rows[_ROW * row + _COUNT] = count
            if state == _TOMBSTONE:
                self._count(deadline, -1)
        return True

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

        Items are lent in the order of their keys, so those that are next are mostly above all that
        it knows, and no lookup in the table is needed.
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
        """Returns how often an item was dequeued, as far as it is known here."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0 or self._rows[_ROW * row + _STATE] == _TOMBSTONE:
            return 0
        return self._rows[_ROW * row + _COUNT]

    def key(self, at: cython.Py_ssize_t) -> tuple:
        """Returns the key of a row."""
        return self._rows[_ROW * at], self._rows[_ROW * at + 1]

    @cython.ccall
    def row(self, at: cython.Py_ssize_t) -> tuple:
        """Returns an item as in blocks: deadline, id, attributes, times, count, reason, value."""
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
        """Returns the keys of the items with an id."""
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
        """Removes keys from `order` whose items are gone; says whether one is left."""
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
        """Returns how many items are due, less those elsewhere that its tombstones remove."""
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
        """Returns the rows with a state, sorted by key, as an array of numbers."""
        row: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        for row in range(self.used):
            if self._rows[_ROW * row + _STATE] == state:
                count += 1
        found: object = memoryview(bytearray(8 * count)).cast("Q")
        if count > 0:
            # Twice the size: the sort needs working space.
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
        """Copies rows of `sorted` to a block, from `at` on; returns the first that did not fit."""
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
        """Makes whole blocks from rows of `sorted`, from `at` on; returns the first one left over.

        The last block of all is left to `fill`, as are a row that needs more room than there is,
        and all rows if any has a reason. The builder is empty before and after. Runs without the
        interpreter's lock, and only when compiled.
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
        """Adds rows to a block until one does not fit; returns that one."""
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
    """Leases by key: until when, for which dequeue count. Called with the queue's lock held.

    `working` leases have not ended. An item whose lease has ended is in `returned` until it is
    lent again; its row stays, so that no iteration over the items yields it twice.
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
        """Lends an item that is not lent."""
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
        """Sets another end for a lease."""
        self._until(self.find(deadline, id), until_ms)

    @cython.ccall
    def give_back(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        """Makes a lent item available again."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        self._rows[_ROW * row + _STATE] = _RETURNED
        self.working -= 1
        self.returned.push(deadline, id, cython.cast(cython.ulonglong, row))

    @cython.ccall
    def put_back(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        """Makes an item available that was pending when it was taken."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            row = self.insert(deadline, id, _RETURNED)
        self._rows[_ROW * row + _STATE] = _RETURNED
        self.returned.push(deadline, id, cython.cast(cython.ulonglong, row))

    @cython.ccall
    def recall(self, deadline: cython.ulonglong, id: cython.ulonglong) -> object:
        """Returns the lease of an item, for `restore`; None if it has none."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            return None
        at: cython.Py_ssize_t = _ROW * row
        return self._rows[at + _STATE], self._rows[at + _LEASE_COUNT], self._rows[at + _LEASE_UNTIL]

    @cython.ccall
    def restore(
        self, deadline: cython.ulonglong, id: cython.ulonglong, known: object
    ) -> cython.bint:
        """Restores the recalled lease of an item."""
        self.end(deadline, id)
        if known is None:
            return True
        state, count, until = known
        if state == _WORKING:
            self.lend(deadline, id, count, until)
        else:
            self.put_back(deadline, id)
        return True

    @cython.ccall
    def end(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.void:
        """Forgets an item that is gone, if it was ever lent."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row >= 0:
            if self._rows[_ROW * row + _STATE] == _WORKING:
                self.working -= 1
            self.remove(row)

    @cython.ccall
    def holds(
        self, deadline: cython.ulonglong, id: cython.ulonglong, dequeued: cython.ulonglong
    ) -> cython.bint:
        """Says whether an item is lent under that dequeue count."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        return (
            row >= 0
            and self._rows[_ROW * row + _STATE] == _WORKING
            and self._rows[_ROW * row + _LEASE_COUNT] == dequeued
        )

    @cython.ccall
    def expire(self, now_ms: cython.ulonglong) -> cython.void:
        """Takes back all items whose leases have ended."""
        at: cython.Py_ssize_t
        ends: KeyHeap = self._ends
        # This heap has the end of a lease in place of a deadline.
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
        """Returns how many of the lent items have a deadline up to a time."""
        count: cython.longlong = 0
        at: cython.Py_ssize_t
        for at in range(0, _ROW * self.used, _ROW):
            if self._rows[at + _STATE] == _WORKING and self._rows[at] <= now_ms:
                count += 1
        return count

    def next_end(self):
        """Returns when the next lease may end; None if nothing is lent."""
        return self._ends.deadline if self._ends.count > 0 else None

    @cython.ccall
    def settle(self) -> cython.bint:
        """Removes keys from `returned` that are lent or gone; says whether one is left."""
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
        """Returns the lowest key of all leases, including ended ones."""
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
        """Makes a new heap from the existing leases: most end before their time."""
        self._ends = KeyHeap()
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[_ROW * row + _STATE] == _WORKING:
                self._ends.push(
                    self._rows[_ROW * row + _LEASE_UNTIL],
                    self._rows[_ROW * row + 1],
                    cython.cast(cython.ulonglong, row),
                )


def replay(memory: Memory, records: list) -> tuple:
    """Reads records of a log into memory, as `scan_batches` returns them, in order of writing.

    Returns the highest id, and the highest deadline that was dequeued.
    """
    highest: cython.ulonglong = 0
    floor: cython.ulonglong = 0
    deadline: cython.ulonglong
    id: cython.ulonglong
    record: tuple
    for record in records:
        kind: cython.longlong = record[0]
        deadline = record[1]
        id = record[2]
        highest = max(highest, id)
        if kind == 3:
            memory.kill(deadline, id)
        elif kind == 4:
            memory.mark(deadline, id, record[5], record[3])
            floor = max(floor, deadline)
        elif kind < 3:
            memory.add(deadline, id, record[3], record[4], record[5], record[7], record[8])
    return highest, floor


def put_records(
    memory: Memory, row: cython.Py_ssize_t, buffer: object, end: cython.Py_ssize_t
) -> tuple:
    """Writes rows as records of a log, from one on; returns the row after them, and the size.

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
    """Returns the size of a row as a record of a log."""
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


@cython.final
@cython.cclass
class _MemoryCursor:
    """The items of a memory by key. The key is that of the next one, or above all keys at the end.

    Nothing may change meanwhile.
    """

    memory: Memory
    row: cython.Py_ssize_t
    deadline: cython.ulonglong
    id: cython.ulonglong
    _sorted: cython.ulonglong[::1]
    _at: cython.Py_ssize_t

    def __init__(self, memory: Memory, deadline: cython.ulonglong, id: cython.ulonglong) -> None:
        """Moves to the first item whose key is not below the given one."""
        self.memory = memory
        self._sorted = memory.sorted(ITEM)
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = len(self._sorted)
        while low < high:
            self._at = (low + high) >> 1
            self._settle()
            if self.deadline < deadline or (self.deadline == deadline and self.id < id):
                low = self._at + 1
            else:
                high = self._at
        self._at = low
        self._settle()

    @cython.cfunc
    def advance(self) -> cython.void:
        """Moves to the next item."""
        self._at += 1
        self._settle()

    @cython.cfunc
    @cython.inline
    def _settle(self) -> cython.void:
        if self._at < len(self._sorted):
            self.row = cython.cast(cython.Py_ssize_t, self._sorted[self._at])
            self.deadline = self.memory._rows[_ROW * self.row]
            self.id = self.memory._rows[_ROW * self.row + 1]
        else:
            self.deadline = _LAST
            self.id = 0


@cython.cclass
class LiveItems:
    """The live items in runs and memories, by key. Nothing may change meanwhile.

    Those from a key up to another, including lent and buried ones. A batch of them ends at a bad
    block, which goes to `damage`: everything in the batch comes before it.
    """

    _view: RunView
    _cursors: list
    _damage: list
    _end_deadline: cython.ulonglong
    _end_id: cython.ulonglong
    _deadline: cython.ulonglong
    _id: cython.ulonglong
    _count: cython.ulonglong
    # Where the item with the lowest key is: in a memory, in the runs, or nowhere.
    _found: _MemoryCursor
    _in_runs: cython.bint
    _block: object
    _place: tuple

    def __init__(
        self, view: RunView, memories: list, start: tuple, end: tuple, damage: list
    ) -> None:
        """`view` has cursors that stand at or after `start`."""
        self._view = view
        self._cursors = [_MemoryCursor(memory, *start) for memory in memories]
        self._damage = damage
        self._end_deadline, self._end_id = end
        self._found = None
        self._in_runs = False
        self._deadline = self._id = self._count = 0
        self._block = None
        self._place = ()

    def items(self, count: cython.Py_ssize_t) -> list:
        """Returns the next items as users get them, up to `count`; none at the end or at damage."""
        found: list = []
        known: cython.Py_ssize_t = len(self._damage)
        while len(found) < count and self._next(known):
            found.append(self._item())
            self._go_on()
        return found

    def rows(self, count: cython.Py_ssize_t, names: dict) -> list:
        """Returns the next items as `items` does, but as rows of blocks, with their places.

        A place is the name of the file, and the position of the block in a run or None in a log.
        `names` has the names of the logs by their numbers.
        """
        found: list = []
        known: cython.Py_ssize_t = len(self._damage)
        while len(found) < count and self._next(known):
            found.append(self._row(names))
            self._go_on()
        return found

    @cython.cfunc
    def _next(self, known: cython.Py_ssize_t) -> cython.bint:
        """Finds the next live item; False at the end, or if there is new damage."""
        while len(self._damage) == known and self._lowest():
            if (self._in_runs or self._found is not None) and not self._is_dead():
                return True
            self._go_on()
        return False

    @cython.cfunc
    def _lowest(self) -> cython.bint:
        """Finds the lowest key, and where its item is; False at the end."""
        view: RunView = self._view
        self._found = None
        self._in_runs = False
        self._deadline = _LAST
        self._id = self._count = 0
        if view.meet():
            self._deadline = view.deadline
            self._id = view.id
            self._count = view.count
            self._in_runs = view.item is not None and not view.dead
        cursor: _MemoryCursor
        for cursor in self._cursors:
            if cursor.deadline < self._deadline or (
                cursor.deadline == self._deadline and cursor.id <= self._id
            ):
                if cursor.deadline != self._deadline or cursor.id != self._id:
                    self._count = 0
                self._deadline = cursor.deadline
                self._id = cursor.id
                self._found = cursor
                self._in_runs = False
        return self._deadline < self._end_deadline or (
            self._deadline == self._end_deadline and self._id < self._end_id
        )

    @cython.cfunc
    def _is_dead(self) -> cython.bint:
        """Says whether a memory has a tombstone of the item; finds how often it was dequeued."""
        cursor: _MemoryCursor
        memory: Memory
        row: cython.Py_ssize_t
        for cursor in self._cursors:
            memory = cursor.memory
            if cursor is self._found:
                row = cursor.row
            elif memory.may_know(self._deadline, self._id):
                row = memory.find(self._deadline, self._id)
            else:
                continue
            if row < 0:
                continue
            if memory._rows[_ROW * row + _STATE] == _TOMBSTONE:
                return True
            self._count = max(self._count, memory._rows[_ROW * row + _COUNT])
        return False

    @cython.cfunc
    def _go_on(self) -> object:
        """Moves past the lowest key."""
        view: RunView = self._view
        if view.met and view.deadline == self._deadline and view.id == self._id:
            view.go_on()
        if self._found is not None:
            self._found.advance()

    @cython.cfunc
    def _item(self) -> DeadlineItem:
        item: DeadlineItem
        reason: bytes
        if self._in_runs:
            cursor: Cursor = self._view.item
            reason = cursor.block.reason(cursor.at)
            item = make_item(
                self._deadline,
                self._id,
                cursor.block.enqueue_ms(cursor.at),
                cursor.block.requeue_ms(cursor.at),
                self._count,
                cursor.block.value(cursor.at),
            )
        else:
            reason = self._found.memory._reasons.get(self._found.row, b"")
            item = self._found.memory.item(self._found.row, self._count)
        if self._deadline >= _BURIED_BIT:
            item.deadline_ms = self._deadline & ~_BURIED_BIT
            item.buried = True
            item.reason = reason.decode(errors="replace")
        return item

    @cython.cfunc
    def _row(self, names: dict) -> tuple:
        if self._in_runs:
            cursor: Cursor = self._view.item
            block: Block = cursor.block
            if block is not self._block:
                self._block = block
                self._place = cursor.load.place
            return (
                self._deadline,
                self._id,
                block.attributes(cursor.at),
                block.enqueue_ms(cursor.at),
                block.requeue_ms(cursor.at),
                self._count,
                block.reason(cursor.at),
                block.value(cursor.at),
                self._place[0],
                self._place[1],
            )
        memory: Memory = self._found.memory
        at: cython.Py_ssize_t = _ROW * self._found.row
        return (
            self._deadline,
            self._id,
            _BURIED if self._deadline >= _BURIED_BIT else 0,
            memory._rows[at + _TIME],
            memory._rows[at + _REQUEUE],
            self._count,
            memory._reasons.get(self._found.row, b""),
            memory._values[self._found.row],
            names[memory._rows[at + _LOG]],
            None,
        )


@cython.cclass
class Schedule:
    """What is in the queue, what is next, and all changes. Called with the queue's lock held.

    The most frequent changes, `enqueue`, `dequeue`, `release` and `requeue`, take the lock
    themselves unless `held` says that the caller has it.

    `lock` is the queue's. `memories` are the segments in memory, the newest first. `total` counts
    the pending and the lent items, `buried` the others.

    A change returns `FULL`, and nothing has happened, if the buffer has no room for it: then
    `needed` is the number of bytes that it takes, and `needed_ids` the number of ids. New items may
    go up to `fresh_end` in the buffer; ids from `next_id` up to `ids_end` may be used; the newest
    memory may have up to `items_max` rows.

    Where changes are not acknowledged before they are durable (`hides`), no item is lent before
    `show` says that it is durable. Where they are not acknowledged in the buffer, `undo` takes back
    all that are in it; `takes` says that some of them remove or lend items.
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
    hides = cython.declare(cython.bint, visibility="readonly")
    next_id = cython.declare(cython.ulonglong, visibility="readonly")
    ids_end = cython.declare(cython.ulonglong, visibility="public")
    items_max = cython.declare(cython.Py_ssize_t, visibility="public")
    fresh_end = cython.declare(cython.Py_ssize_t, visibility="public")
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    number = cython.declare(cython.ulonglong, visibility="readonly")
    needed = cython.declare(cython.Py_ssize_t, visibility="readonly")
    needed_ids = cython.declare(cython.Py_ssize_t, visibility="readonly")
    takes = cython.declare(cython.bint, visibility="readonly")
    _attempts_max: cython.ulonglong
    _exhausted: DeadlineItem
    _source: cython.Py_ssize_t
    lock = cython.declare(object, visibility="readonly")
    _acquire: object
    _let_go: object
    _find: object
    _tell: object
    _now_ms: object
    _ahead_ms: cython.longlong
    _log: cython.uchar[::1]
    _end: cython.Py_ssize_t
    _seed: cython.ulonglong
    _stored: cython.longlong
    _start: cython.Py_ssize_t
    _first_id: cython.ulonglong
    _revocable: cython.bint
    _stopped: cython.bint
    _hidden: object
    _deadlines: list
    _undo: list

    def __init__(
        self,
        memory: Memory,
        view: RunView,
        damage: list,
        find: object,
        tell: object,
        *,
        floor_ms: cython.longlong = 0,
        pending: cython.longlong = 0,
        buried: cython.longlong = 0,
        next_id: cython.ulonglong = 0,
        items_max: cython.Py_ssize_t = _NO_BOUND,
        attempts_max: cython.ulonglong = 0,
        hides: cython.bint = False,
        now_ms: object = None,
        ahead_ms: cython.longlong = 0,
    ) -> None:
        """`find` returns the item of a key that came back. `tell` raises what is in `damage`.

        An item that was dequeued `attempts_max` times is buried when it comes back; 0: never.
        `now_ms` None means the boot clock of the machine; wall time is `ahead_ms` ahead of it.
        """
        self.use_lock(threading.Lock())
        self._find = find
        self._tell = tell
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self.damage = damage
        self.leases = Leases()
        self.view = view
        self.memories = [memory]
        self.total = pending
        self.buried = buried
        self.floor_ms = floor_ms
        self.deadline = self.id = 0
        self._source = _FROM_NOWHERE
        self._exhausted = None
        self._attempts_max = attempts_max
        self.next_id = next_id
        self.ids_end = self._first_id = 0
        self.items_max = items_max
        self.fresh_end = _NO_BOUND
        self._log = memoryview(bytearray(1))
        self.position = self._end = 0
        self.number = self._seed = 0
        self._stored = self._start = 0
        self.needed = self.needed_ids = 0
        self.hides = hides
        self._revocable = self._stopped = self.takes = False
        # Items that are not durable yet: the end that must be durable, the first id, the deadlines.
        self._hidden = deque()
        self._deadlines = []
        # For each change in the buffer, how to undo it: what was known of a key, or a list of items
        # that were lent.
        self._undo = []

    def use_lock(self, lock: object) -> None:
        """Uses another lock, as in the child of a fork, where the old one may never be released."""
        self.lock = lock
        self._acquire = lock.acquire
        self._let_go = lock.release

    def open(
        self,
        buffer: object,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        number: cython.ulonglong,
        seed: cython.ulonglong,
        stored: cython.longlong,
        revocable: cython.bint,
    ) -> None:
        """Opens a buffer for batches from a number on, from `start` to `end`.

        `stored` is the end of what is in the logs. `revocable`: the buffer acknowledges nothing.
        """
        self._log = memoryview(buffer)
        self.position = start
        self._end = end
        self.number = number
        self._seed = seed
        self._stored = stored
        self._start = start
        self._first_id = self.next_id
        self._revocable = revocable
        self.takes = False
        self._undo = []

    def close(self) -> None:
        """Closes and releases the buffer: its content is in the log."""
        self._end = 0
        self._log = memoryview(bytearray(1))
        self._undo = []

    def stop(self) -> None:
        """Makes every later change return `FULL`: the handle has ended."""
        self._stopped = True
        self.close()

    def undo(self) -> None:
        """Takes back all changes in the buffer, which could not be written, in reverse order."""
        memory: Memory = self.memories[0]
        while self._undo:
            entry = self._undo.pop()
            if type(entry) is list:
                self._take_back(entry)
                continue
            deadline, id, known, lease, step = entry
            memory.restore(deadline, id, known)
            self.leases.restore(deadline, id, lease)
            self._count(deadline, -step)
            pending = step < 0 and lease is None and deadline < _BURIED_BIT
            if pending and not self._is_hidden(deadline, id):
                # The cursors of the runs and the order of the memory may be past it.
                self.leases.put_back(deadline, id)
        hidden: cython.Py_ssize_t = len(self._hidden)
        while hidden > 0 and self._hidden[hidden - 1][0] > self._stored:
            self._hidden.pop()
            hidden -= 1
        self.next_id = self._first_id

    @cython.cfunc
    def _take_back(self, items: list) -> object:
        """Makes items pending that were lent in a batch, as if they had not been dequeued."""
        item: DeadlineItem
        memory: Memory = self.memories[0]
        self.give_back(items)
        for item in items:
            memory.unmark(item.deadline_ms, item.id, item.dequeue_count - 1)

    def show(self, durable: cython.longlong) -> None:
        """Makes items available whose changes end at or below `durable`."""
        memory: Memory = self.memories[0]
        while self._hidden and self._hidden[0][0] <= durable:
            _, id, deadlines = self._hidden.popleft()
            for deadline in deadlines:
                memory.show(deadline, id)
                id += 1

    def enqueue(
        self,
        value: object,
        delay: object,
        deadline: object,
        deadline_ms: object,
        held: cython.bint = False,
    ):
        """Adds an item and returns its id."""
        wanted: cython.longlong = self._wanted(delay, deadline, deadline_ms)
        data: bytes = cython.cast(bytes, value) if type(value) is bytes else as_bytes(value)
        _check_size(len(data))
        if not held:
            self._acquire()
        try:
            return self._enqueue(data, wanted)
        finally:
            if not held:
                self._let_go()

    @cython.cfunc
    def _enqueue(self, data: bytes, wanted: cython.longlong) -> object:
        size: cython.Py_ssize_t = _FRESH_SIZE + len(data)
        if not self._has_room_for_fresh(size, 1):
            return FULL
        now: cython.longlong = self._now()
        id: cython.ulonglong = self.next_id
        self._put_fresh(self.position + _BATCH_SIZE, data, wanted, now)
        self._seal(size)
        if self.hides:
            self._hide(id)
        return id

    def enqueue_many(self, values: list, delay: object, deadline: object, deadline_ms: object):
        """Adds items in one batch and returns their ids.

        No other thread may change the lists meanwhile. A list of deadlines has one for each item.
        """
        count: cython.Py_ssize_t = len(values)
        size: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t
        for at in range(count):
            value = values[at]
            if type(value) is not bytes:
                value = values[at] = as_bytes(value)
            _check_size(len(cython.cast(bytes, value)))
            size += _FRESH_SIZE + len(cython.cast(bytes, value))
        wanted: cython.longlong = _NOW
        several: list = self._wanted_all(count, delay, deadline, deadline_ms)
        if several is None:
            wanted = self._wanted(delay, deadline, deadline_ms)
        if size > _BATCH_MAX:
            raise RecordTooLarge(f"a batch of {size} bytes; at most {_BATCH_MAX}")
        if not self._has_room_for_fresh(size, count):
            return FULL
        now: cython.longlong = self._now()
        first: cython.ulonglong = self.next_id
        place: cython.Py_ssize_t = self.position + _BATCH_SIZE
        for at in range(count):
            if several is not None:
                wanted = several[at]
            self._put_fresh(place, values[at], wanted, now)
            place += _FRESH_SIZE + len(cython.cast(bytes, values[at]))
        self._seal(size)
        if self.hides:
            self._hide(first)
        return list(range(first, self.next_id))

    def dequeue(
        self, count: cython.Py_ssize_t, lease_ms: cython.longlong, held: cython.bint = False
    ):
        """Lends items that are due, in the order of their keys: up to `count`, and `_LENT_MAX`.

        One that was already dequeued too often is buried instead.
        """
        if not held:
            self._acquire()
        try:
            return self._dequeue(count, lease_ms)
        finally:
            if not held:
                self._let_go()

    def is_idle(self) -> bool:
        """Says whether nothing is due; takes the lock. False if the handle has ended."""
        self._acquire()
        try:
            now: cython.longlong = self._now()
            self.leases.expire(cython.cast(cython.ulonglong, now))
            return not self._stopped and not self._is_due(now)
        finally:
            self._let_go()

    @cython.cfunc
    def _dequeue(self, count: cython.Py_ssize_t, lease_ms: cython.longlong) -> object:
        if self._stopped:
            return FULL
        now: cython.longlong = self._now()
        self.leases.expire(cython.cast(cython.ulonglong, now))
        items: list = []
        if not self._is_due(now):
            return items
        count = min(count, _LENT_MAX)
        size: cython.Py_ssize_t = _DEQUEUED_SIZE * count
        if not self._has_room(size):
            return FULL
        try:
            while self._choose(items, count, now, lease_ms):
                # It came back without a requeue: its lease ended, or its consumer died.
                if not self._bury(
                    self._exhausted, self._exhausted.value, TOO_MANY_ATTEMPTS, now, size
                ):
                    self.give_back(items)
                    return FULL
                if not self._is_due(now):
                    break
        except BaseException:
            self.give_back(items)
            raise
        if len(items) > 0:
            self._write_lent(items, now)
        return items

    def release(self, items: list, held: cython.bint = False):
        """Removes items for good that the caller holds; raises `LeaseLost`."""
        if not held:
            self._acquire()
        try:
            return self._release(items)
        finally:
            if not held:
                self._let_go()

    @cython.cfunc
    def _release(self, items: list) -> object:
        if not self._has_room(_TOMBSTONE_SIZE * len(items)):
            return FULL
        self._check_leases(items)
        item: DeadlineItem
        at: cython.Py_ssize_t = self.position + _BATCH_SIZE
        for item in items:
            # An item that the list has twice is gone by now.
            if self.leases.holds(item.deadline_ms, item.id, item.dequeue_count):
                put_key(self._log, at, 3, item.deadline_ms, item.id)
                at += _TOMBSTONE_SIZE
                self._kill(item.deadline_ms, item.id)
        self._seal(at - self.position - _BATCH_SIZE)
        self.takes = True
        return None

    def remove(self, deadline: cython.ulonglong, id: cython.ulonglong):
        """Removes an item for good, even if it is lent."""
        if not self._has_room(_TOMBSTONE_SIZE):
            return FULL
        put_key(self._log, self.position + _BATCH_SIZE, 3, deadline, id)
        self._kill(deadline, id)
        self._seal(_TOMBSTONE_SIZE)
        self.takes = True
        return None

    def forget(self, keys: list):
        """Writes tombstones to the log for items that memory no longer has."""
        if not self._has_room(_TOMBSTONE_SIZE * len(keys)):
            return FULL
        at: cython.Py_ssize_t = self.position + _BATCH_SIZE
        for deadline, id in keys:
            put_key(self._log, at, 3, deadline, id)
            at += _TOMBSTONE_SIZE
        self._seal(_TOMBSTONE_SIZE * len(keys))
        return None

    def requeue(
        self,
        item: DeadlineItem,
        value: object,
        delay: object,
        deadline: object,
        deadline_ms: object,
        reason: str,
        held: cython.bint = False,
    ):
        """Puts an item back under a later deadline, with another value if one is given.

        One that was dequeued too often is buried instead, for the reason. Raises `LeaseLost`.
        """
        wanted: cython.longlong = self._wanted(delay, deadline, deadline_ms)
        stored: bytes = item.value if value is None else as_bytes(value)
        _check_size(len(stored))
        if not held:
            self._acquire()
        try:
            return self._requeue(item, stored, wanted, reason)
        finally:
            if not held:
                self._let_go()

    @cython.cfunc
    def _requeue(
        self, item: DeadlineItem, stored: bytes, wanted: cython.longlong, reason: str
    ) -> object:
        if self._stopped:
            return FULL
        now: cython.longlong = self._now()
        self._check_leases([item])
        if self._attempts_max > 0 and item.dequeue_count >= self._attempts_max:
            return None if self._bury(item, stored, reason, now, 0) else FULL
        later: cython.ulonglong = max(self._deadline(wanted, now), item.deadline_ms + 1)
        return None if self._replace(item, later, item.dequeue_count, b"", stored, now, 0) else FULL

    def bury(self, item: DeadlineItem, reason: str):
        """Buries an item that the caller holds; raises `LeaseLost`."""
        self._check_leases([item])
        return None if self._bury(item, item.value, reason, self._now(), 0) else FULL

    def kick(self, item: DeadlineItem):
        """Makes a buried item pending again, now, with all its attempts."""
        now: cython.longlong = self._now()
        later: cython.ulonglong = max(self._deadline(now, now), item.deadline_ms + 1)
        return None if self._replace(item, later, 0, b"", item.value, now, 0) else FULL

    def touch(self, item: DeadlineItem, lease_ms: cython.longlong) -> None:
        """Restarts the lease of an item; raises `LeaseLost`."""
        self._check_leases([item])
        until: cython.longlong = self._now() + lease_ms
        self.leases.extend(item.deadline_ms, item.id, cython.cast(cython.ulonglong, until))

    def reclaim(self, item: DeadlineItem, lease_ms: cython.longlong) -> None:
        """Lends an item again to its former holder, if it is not lent; this needs no record."""
        now: cython.longlong = self._now()
        self.leases.expire(cython.cast(cython.ulonglong, now))
        if not self.leases.holds(item.deadline_ms, item.id, item.dequeue_count):
            until: cython.ulonglong = cython.cast(cython.ulonglong, now + lease_ms)
            self.leases.lend(item.deadline_ms, item.id, item.dequeue_count, until)

    @cython.ccall
    def give_back(self, items: list) -> cython.bint:
        """Makes items available again that were lent but not delivered."""
        item: DeadlineItem
        for item in items:
            if self.leases.holds(item.deadline_ms, item.id, item.dequeue_count):
                self.leases.give_back(item.deadline_ms, item.id)
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
            # It did not raise, and may have removed what was found.
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
        """Says whether an item is lent, has come back, or has a newer tombstone."""
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
        """Returns the item that `head` has just found, with its current dequeue count."""
        if self._source == _FROM_RETURNED:
            return self._find(self.deadline, self.id)
        memory: Memory
        view: RunView = self.view
        dequeued: cython.ulonglong = 0
        at: cython.Py_ssize_t
        # Newer memories may have a higher count than the item itself.
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

    @cython.cfunc
    @cython.inline
    def _now(self) -> cython.longlong:
        if self._now_ms is None:
            return boot_ms() + self._ahead_ms
        return self._now_ms()

    @cython.cfunc
    def _is_due(self, now: cython.longlong) -> cython.bint:
        return self.head() and self.deadline <= cython.cast(cython.ulonglong, now)

    @cython.cfunc
    def _choose(
        self, items: list, count: cython.Py_ssize_t, now: cython.longlong, lease_ms: cython.longlong
    ) -> cython.bint:
        """Lends items that are due, up to `count` in all, of which the first was just found.

        Returns True if one of them has no attempts left; it is in `_exhausted`.
        """
        item: DeadlineItem
        while True:
            item = self.load()
            if self._attempts_max > 0 and item.dequeue_count >= self._attempts_max:
                self._exhausted = item
                return True
            item.dequeue_count += 1
            self.leases.lend(
                item.deadline_ms,
                item.id,
                item.dequeue_count,
                cython.cast(cython.ulonglong, now + lease_ms),
            )
            items.append(item)
            if len(items) == count or not self._is_due(now):
                return False

    @cython.cfunc
    def _write_lent(self, items: list, now: cython.longlong) -> object:
        """Writes that items were lent, in the log and in memory."""
        item: DeadlineItem
        memory: Memory = self.memories[0]
        at: cython.Py_ssize_t = self.position + _BATCH_SIZE
        time: cython.ulonglong = cython.cast(cython.ulonglong, now)
        for item in items:
            put_key(self._log, at, 4, item.deadline_ms, item.id)
            put_number(self._log, at + 15, item.dequeue_count, 4)
            put_number(self._log, at + 19, time, 6)
            at += _DEQUEUED_SIZE
            memory.mark(item.deadline_ms, item.id, item.dequeue_count, time)
            self.floor_ms = max(self.floor_ms, cython.cast(cython.longlong, item.deadline_ms))
        self._seal(_DEQUEUED_SIZE * len(items))
        self.takes = True
        if self._revocable:
            self._undo.append(items)

    @cython.cfunc
    def _bury(
        self,
        item: DeadlineItem,
        value: bytes,
        reason: str,
        now: cython.longlong,
        besides: cython.Py_ssize_t,
    ) -> cython.bint:
        """Buries an item; False if there is no room for that and for `besides`."""
        later: cython.ulonglong = max(now, item.deadline_ms + 1) | _BURIED_BIT
        text: bytes = reason.encode(errors="replace")[:REASON_BYTES_MAX]
        return self._replace(item, later, item.dequeue_count, text, value, now, besides)

    @cython.cfunc
    def _replace(
        self,
        item: DeadlineItem,
        deadline: cython.ulonglong,
        dequeued: cython.ulonglong,
        reason: bytes,
        value: bytes,
        now: cython.longlong,
        besides: cython.Py_ssize_t,
    ) -> cython.bint:
        """Writes a copy of an item and the tombstone of the old one in one batch.

        After a crash both are there or neither. The copy has a later key, so that the tombstone
        does not apply to it. False if there is no room for that and for a batch of `besides` bytes.
        """
        size: cython.Py_ssize_t = _TOMBSTONE_SIZE + _ITEM_SIZE + len(reason) + len(value)
        if not self._has_room(size + (_BATCH_SIZE + besides if besides > 0 else 0)):
            return False
        gone: cython.ulonglong = item.deadline_ms | (_BURIED_BIT if item.buried else 0)
        time: cython.ulonglong = cython.cast(cython.ulonglong, now)
        at: cython.Py_ssize_t = self.position + _BATCH_SIZE
        put_key(self._log, at, 3, gone, item.id)
        at += _TOMBSTONE_SIZE
        put_key(self._log, at, 2, deadline, item.id)
        put_number(self._log, at + 15, item.enqueue_ms, 6)
        put_number(self._log, at + 21, time, 6)
        put_number(self._log, at + 27, dequeued, 4)
        put_number(self._log, at + 31, _BURIED if deadline >= _BURIED_BIT else 0, 1)
        put_number(self._log, at + 32, cython.cast(cython.ulonglong, len(reason)), 2)
        put_number(self._log, at + 34, cython.cast(cython.ulonglong, len(value)), 4)
        put_bytes(self._log, at + _ITEM_SIZE, reason, len(reason))
        put_bytes(self._log, at + _ITEM_SIZE + len(reason), value, len(value))
        self._kill(gone, item.id)
        if self._revocable:
            self._note(deadline, item.id, 1)
        memory: Memory = self.memories[0]
        memory.add(deadline, item.id, item.enqueue_ms, time, dequeued, reason, value)
        self._count(deadline, 1)
        self._seal(size)
        if self.hides:
            self._deadlines.append(deadline)
            self._hide(item.id)
        else:
            memory.show(deadline, item.id)
        return True

    @cython.cfunc
    @cython.inline
    def _put_fresh(
        self,
        place: cython.Py_ssize_t,
        value: bytes,
        wanted: cython.longlong,
        now: cython.longlong,
    ) -> object:
        """Writes the record of a new item to its place in the log, and adds the item to memory."""
        deadline: cython.ulonglong = self._deadline(wanted, now)
        size: cython.Py_ssize_t = len(value)
        put_key(self._log, place, 1, deadline, self.next_id)
        put_number(self._log, place + 15, cython.cast(cython.ulonglong, now), 6)
        put_number(self._log, place + 21, cython.cast(cython.ulonglong, size), 4)
        put_bytes(self._log, place + _FRESH_SIZE, value, size)
        if self._revocable:
            self._undo.append((deadline, self.next_id, None, None, 1))
        memory: Memory = self.memories[0]
        time: cython.ulonglong = cython.cast(cython.ulonglong, now)
        memory.add_new(deadline, self.next_id, time, value, not self.hides)
        if self.hides:
            self._deadlines.append(deadline)
        self.next_id += 1
        self.total += 1

    @cython.cfunc
    @cython.inline
    def _seal(self, size: cython.Py_ssize_t) -> cython.void:
        """Ends a batch whose records are in place."""
        self.position = seal_batch_at(self._log, self.position, size, self.number, self._seed)
        self.number += 1

    @cython.cfunc
    def _kill(self, deadline: cython.ulonglong, id: cython.ulonglong) -> object:
        """Removes an item whose tombstone is in the log."""
        if self._revocable:
            self._note(deadline, id, -1)
        memory: Memory = self.memories[0]
        memory.kill(deadline, id)
        self.leases.end(deadline, id)
        self._count(deadline, -1)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _count(self, deadline: cython.ulonglong, step: cython.longlong) -> cython.void:
        if deadline >= _BURIED_BIT:
            self.buried += step
        else:
            self.total += step

    @cython.cfunc
    def _note(
        self, deadline: cython.ulonglong, id: cython.ulonglong, step: cython.longlong
    ) -> object:
        """Remembers what is known of a key; `step`: how the change alters the number of items."""
        memory: Memory = self.memories[0]
        known: object = memory.recall(deadline, id)
        self._undo.append((deadline, id, known, self.leases.recall(deadline, id), step))

    @cython.cfunc
    def _hide(self, id: cython.ulonglong) -> object:
        """Hides the items of the batch that was sealed last until it is durable.

        The first has the id, the others those that follow.
        """
        self._hidden.append((self._stored + self.position - self._start, id, self._deadlines))
        self._deadlines = []

    @cython.cfunc
    def _is_hidden(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.bint:
        for _, first, deadlines in self._hidden:
            if first <= id < first + len(deadlines) and deadlines[id - first] == deadline:
                return True
        return False

    @cython.cfunc
    @cython.inline
    def _has_room(self, size: cython.Py_ssize_t) -> cython.bint:
        self.needed = _BATCH_SIZE + size
        self.needed_ids = 0
        return self.needed <= self._end - self.position

    @cython.cfunc
    @cython.inline
    def _has_room_for_fresh(self, size: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.bint:
        memory: Memory = self.memories[0]
        has_room: cython.bint = self._has_room(size)
        self.needed_ids = count
        return (
            has_room
            and self.position + self.needed <= self.fresh_end
            and self.next_id + cython.cast(cython.ulonglong, count) <= self.ids_end
            and memory.count + count <= self.items_max
        )

    @cython.cfunc
    def _check_leases(self, items: list) -> object:
        item: DeadlineItem
        self.leases.expire(cython.cast(cython.ulonglong, self._now()))
        for item in items:
            if not self.leases.holds(item.deadline_ms, item.id, item.dequeue_count):
                raise lease_lost(item.id, item.dequeue_count)

    @cython.cfunc
    def _wanted(self, delay: object, deadline: object, deadline_ms: object) -> cython.longlong:
        """Returns the wanted deadline in ms; -1 means now, and lower values are -3 less a delay.

        Refuses a number that looks like a present time in seconds: as milliseconds it would be due
        at once.
        """
        if deadline_ms is not None or deadline is not None:
            if delay is not None or (deadline_ms is not None and deadline is not None):
                raise InvalidOption("delay, deadline, deadline_ms: give one of them")
            return _as_ms(deadline, deadline_ms)
        if delay is None:
            return _NOW
        if type(delay) is not float and type(delay) is not int:
            delay = _as_number(delay)
        seconds: cython.double = -1.0
        if -1 < delay < _SECONDS_MAX:
            seconds = delay
        if not seconds >= 0:
            raise InvalidOption(
                f"delay = {delay!r}: must be a number of seconds from 0, or a timedelta"
            )
        if not cython.compiled:
            return -3 - int(seconds * 1000 + 0.5)
        return -3 - cython.cast(cython.longlong, seconds * 1000 + 0.5)

    @cython.cfunc
    def _wanted_all(
        self, count: cython.Py_ssize_t, delay: object, deadline: object, deadline_ms: object
    ) -> list:
        """Returns the deadlines of `count` items; None if one is given for all of them."""
        if type(deadline) is not list and type(deadline_ms) is not list:
            return None
        if delay is not None or (deadline is not None and deadline_ms is not None):
            raise InvalidOption("delay, deadline, deadline_ms: give one of them")
        given: list = deadline_ms if deadline is None else deadline
        if len(given) != count:
            name: str = "deadline_ms" if deadline is None else "deadline"
            raise InvalidOption(f"{name}: {len(given)} of them for {count} values")
        if deadline is None:
            return [_as_ms(None, each) for each in given]
        return [_as_ms(each, None) for each in given]

    @cython.cfunc
    @cython.inline
    def _deadline(self, wanted: cython.longlong, now: cython.longlong) -> cython.ulonglong:
        """Returns the deadline that `_wanted` stands for, never before one that was dequeued.

        It is earlier only if the clock itself went back.
        """
        if wanted < 0:
            wanted = now if wanted == _NOW else now - 3 - wanted
        return cython.cast(cython.ulonglong, max(wanted, min(now, self.floor_ms)))


@cython.cfunc
def _as_ms(deadline: object, deadline_ms: object) -> cython.longlong:
    """Returns a deadline in milliseconds since 1970, from whichever argument is given."""
    wanted: cython.longlong
    if deadline is not None:
        if not isinstance(deadline, datetime):
            raise InvalidOption(
                f"deadline = {deadline!r}: must be a datetime with a time zone; deadline_ms takes "
                "milliseconds since 1970"
            )
        if deadline.tzinfo is None:
            raise InvalidOption(f"deadline = {deadline!r}: must have a time zone")
        wanted = round(deadline.timestamp() * 1000)
    else:
        if type(deadline_ms) is not int:
            raise InvalidOption(
                f"deadline_ms = {deadline_ms!r}: must be a whole number of milliseconds since 1970"
            )
        try:
            wanted = deadline_ms
        except OverflowError:
            wanted = cython.cast(cython.longlong, _BURIED_BIT) if deadline_ms > 0 else 0
        if _SECONDS_FROM <= wanted < _SECONDS_TO:
            raise InvalidOption(
                f"deadline_ms = {deadline_ms}: looks like seconds; must be milliseconds since 1970"
            )
    if wanted >= cython.cast(cython.longlong, _BURIED_BIT):
        name: str = "deadline_ms" if deadline is None else "deadline"
        given: object = deadline_ms if deadline is None else deadline
        raise InvalidOption(f"{name} = {given!r}: must be below {_BURIED_BIT} ms since 1970")
    return max(wanted, 0)


@cython.cfunc
def _as_number(delay: object) -> object:
    """Returns a delay in seconds that is not a plain number; -1 if it is no delay at all."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, Real):
        raise InvalidOption(
            f"delay = {delay!r}: must be a number of seconds from 0, or a timedelta"
        )
    return float(delay)


@cython.ccall
def as_bytes(value: object) -> bytes:
    """Returns the bytes of a value."""
    if type(value) is bytes:
        return value
    try:
        return bytes(memoryview(value))
    except TypeError:
        raise TypeError(f"an item is bytes, not {type(value).__name__}") from None


@cython.cfunc
@cython.inline
def _check_size(size: cython.Py_ssize_t) -> object:
    if size > _VALUE_MAX:
        raise RecordTooLarge(f"a value of {size} bytes; at most {_VALUE_MAX}")


def lease_lost(id: object, dequeue_count: object) -> LeaseLost:
    """Returns the error for a caller that no longer holds its item."""
    return LeaseLost(
        f"item {id} (delivery {dequeue_count}) is no longer leased: "
        "it was delivered again, set aside or removed"
    )
