"""The calls that users of a deadline queue make most, under the weak policies.

`enqueue`, `dequeue`, `release` and `requeue` write their batches to the log's buffer in memory, if
one is open and has room, and do nothing otherwise: then the queue goes the longer way.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.boot_clock import boot_ms
    from cython.cimports.forebay.kernels.deadline_desk import Desk
    from cython.cimports.forebay.kernels.deadline_item import DeadlineItem
    from cython.cimports.forebay.kernels.deadline_leases import Leases
    from cython.cimports.forebay.kernels.deadline_memory import Memory
    from cython.cimports.forebay.kernels.deadline_wal import put_key, seal_at
    from cython.cimports.forebay.kernels.little import put_bytes, put_number
else:
    from forebay.kernels.boot_clock import boot_ms
    from forebay.kernels.deadline_desk import Desk
    from forebay.kernels.deadline_item import DeadlineItem
    from forebay.kernels.deadline_leases import Leases
    from forebay.kernels.deadline_memory import Memory
    from forebay.kernels.deadline_wal import put_key, seal_at
    from forebay.kernels.little import put_bytes, put_number

_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)
_BATCH = cython.declare(cython.Py_ssize_t, 8)
_FRESH = cython.declare(cython.Py_ssize_t, 25)
_ITEM = cython.declare(cython.Py_ssize_t, 38)
_TOMBSTONE = cython.declare(cython.Py_ssize_t, 15)
_DEQUEUED = cython.declare(cython.Py_ssize_t, 25)
_SECONDS_MAX = cython.declare(cython.double, 1e11)
_SECONDS_FROM = cython.declare(cython.longlong, 1_000_000_000)
_SECONDS_TO = cython.declare(cython.longlong, 10_000_000_000)
# What `_wanted` gives for a deadline or a delay that takes the longer way, to an error as a rule.
_ODD = cython.declare(cython.longlong, -2)
_NOW = cython.declare(cython.longlong, -1)


@cython.cclass
class Clerk(Desk):
    """A desk that writes to the log itself.

    Any thread may call `enqueue`, `dequeue`, `release` and `requeue`; all else needs the queue's
    lock. Ids from `next_id` up to `ids_end` may be given; so many rows as `items_max` may be in the
    newest memory.
    """

    def __init__(
        self, lock: object, now_ms: object, ahead_ms: cython.longlong, find: object, tell: object
    ) -> None:
        """`now_ms` None means the boot clock of the machine, which wall time is ahead of."""
        Desk.__init__(self, find, tell)
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
        """Gives a deadline in ms, or -1 and below: now, odd, or less the delay in ms."""
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
        """Gives the deadline that `_wanted` stands for: never before what was given out."""
        if wanted < 0:
            wanted = now if wanted == _NOW else now - 3 - wanted
        return max(wanted, min(now, self.floor_ms))

    def enqueue(self, value: object, delay: object, deadline_ms: object):
        """Takes in an item and gives its id; -1 if it takes the longer way."""
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
            size > self._end - start - _BATCH - _FRESH
            or self.next_id >= self.ids_end
            or memory.count >= self.items_max
        ):
            return -1
        now: cython.longlong = self._now()
        id: cython.ulonglong = self.next_id
        self._put_fresh(memory, start + _BATCH, value, wanted, now)
        self._seal(_FRESH + size)
        return cython.cast(cython.longlong, id)

    def enqueue_many(self, values: list, delay: object, deadlines: object):
        """Takes in items in one batch and gives their ids; None if it takes the longer way.

        Nobody else may hold the lists. `deadlines` is one for all if it is no list.
        """
        size: cython.Py_ssize_t = 0
        for value in values:
            if type(value) is not bytes:
                return None
            size += _FRESH + len(cython.cast(bytes, value))
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
            or size > self._end - self.position - _BATCH
            or first + cython.cast(cython.ulonglong, count) > self.ids_end
            or memory.count + count > self.items_max
        ):
            return None
        now: cython.longlong = self._now()
        place: cython.Py_ssize_t = self.position + _BATCH
        at: cython.Py_ssize_t
        several: cython.bint = type(deadlines) is list
        for at in range(count):
            if several:
                wanted = cython.cast(list, deadlines)[at]
            self._put_fresh(memory, place, values[at], wanted, now)
            place += _FRESH + len(cython.cast(bytes, values[at]))
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
        put_bytes(self._log, place + _FRESH, value, size)
        memory.add_new(deadline, self.next_id, cython.cast(cython.ulonglong, now), value, True)
        self.next_id += 1
        self.total += 1

    def dequeue(self, count: cython.Py_ssize_t, lease_ms: cython.longlong):
        """Gives out up to `count` items that are due; None if it takes the longer way."""
        self._acquire()
        try:
            if self._end - self.position < _BATCH + _DEQUEUED * count:
                return None
            return self._dequeue(count, lease_ms)
        finally:
            self._let_go()

    @cython.cfunc
    def _dequeue(self, count: cython.Py_ssize_t, lease_ms: cython.longlong) -> list:
        now: cython.longlong = self._now()
        items: list = self.choose(count, now, lease_ms)
        if self.worn is not None:
            # It is to be buried, and those before it are given out when that is done.
            self.give_back(items)
            return None
        item: DeadlineItem
        at: cython.Py_ssize_t = self.position + _BATCH
        for item in items:
            put_key(self._log, at, 4, item.deadline_ms, item.id)
            put_number(self._log, at + 15, item.dequeue_count, 4)
            put_number(self._log, at + 19, cython.cast(cython.ulonglong, now), 6)
            at += _DEQUEUED
        if len(items) > 0:
            self.mark(items, now)
            self._seal(_DEQUEUED * len(items))
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
        if self._end - self.position < _BATCH + _TOMBSTONE * len(items):
            return False
        leases: Leases = self.leases
        leases.expire(cython.cast(cython.ulonglong, self._now()))
        item: DeadlineItem
        for item in items:
            if not leases.holds(item.deadline_ms, item.id, item.dequeue_count):
                return False
        at: cython.Py_ssize_t = self.position + _BATCH
        for item in items:
            # One that was given twice is gone by now.
            if leases.holds(item.deadline_ms, item.id, item.dequeue_count):
                put_key(self._log, at, 3, item.deadline_ms, item.id)
                at += _TOMBSTONE
                self.kill(item.deadline_ms, item.id)
        self._seal(at - self.position - _BATCH)
        return True

    def requeue(
        self, item: DeadlineItem, value: object, delay: object, deadline_ms: object
    ) -> bool:
        """Gives an item back under a later deadline; False if it takes the longer way."""
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
        size: cython.Py_ssize_t = _ITEM + len(value) + _TOMBSTONE
        memory: Memory = self.memories[0]
        leases: Leases = self.leases
        now: cython.longlong = self._now()
        leases.expire(cython.cast(cython.ulonglong, now))
        if (
            size > self._end - self.position - _BATCH
            or memory.count >= self.items_max
            or (self.attempts_max > 0 and item.dequeue_count >= self.attempts_max)
            or not leases.holds(item.deadline_ms, item.id, item.dequeue_count)
        ):
            return False
        deadline: cython.ulonglong = cython.cast(cython.ulonglong, self._deadline(wanted, now))
        deadline = max(deadline, item.deadline_ms + 1)
        at: cython.Py_ssize_t = self.position + _BATCH
        put_key(self._log, at, 3, item.deadline_ms, item.id)
        at += _TOMBSTONE
        put_key(self._log, at, 2, deadline, item.id)
        put_number(self._log, at + 15, item.enqueue_ms, 6)
        put_number(self._log, at + 21, cython.cast(cython.ulonglong, now), 6)
        put_number(self._log, at + 27, item.dequeue_count, 4)
        put_number(self._log, at + 31, 0, 3)
        put_number(self._log, at + 34, cython.cast(cython.ulonglong, len(value)), 4)
        put_bytes(self._log, at + _ITEM, value, len(value))
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
        self.position = seal_at(self._log, self.position, size, self.number, self._seed)
        self.number += 1
