"""Gives out the items of a deadline queue, and takes them in: the calls that users make most.

A desk knows what is in memory, what the runs hold and what is given out. `enqueue`, `dequeue` and
`release` write their batches to the log's buffer in memory, if one is open and has room, and do
nothing otherwise: then the queue goes the longer way.
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
    from cython.cimports.forebay.kernels.deadline_item import DeadlineItem, make_item
    from cython.cimports.forebay.kernels.deadline_leases import Leases
    from cython.cimports.forebay.kernels.deadline_memory import Memory
    from cython.cimports.forebay.kernels.deadline_view import RunView
    from cython.cimports.forebay.kernels.deadline_wal import put_key, seal_at
    from cython.cimports.forebay.kernels.little import put_bytes, put_number
else:
    from forebay.kernels.boot_clock import boot_ms
    from forebay.kernels.deadline_item import DeadlineItem, make_item
    from forebay.kernels.deadline_leases import Leases
    from forebay.kernels.deadline_memory import Memory
    from forebay.kernels.deadline_view import RunView
    from forebay.kernels.deadline_wal import put_key, seal_at
    from forebay.kernels.little import put_bytes, put_number

_NOWHERE = cython.declare(cython.Py_ssize_t, -3)
_RETURNED = cython.declare(cython.Py_ssize_t, -2)
_RUNS = cython.declare(cython.Py_ssize_t, -1)
_ROW = cython.declare(cython.Py_ssize_t, 8)
_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)
_TOMBSTONE_STATE = cython.declare(cython.ulonglong, 2)
_BATCH = cython.declare(cython.Py_ssize_t, 8)
_FRESH = cython.declare(cython.Py_ssize_t, 25)
_TOMBSTONE = cython.declare(cython.Py_ssize_t, 15)
_DEQUEUED = cython.declare(cython.Py_ssize_t, 25)
_SECONDS_MAX = cython.declare(cython.double, 1e11)


@cython.cclass
class Desk:
    """What a queue gives out and takes in. Any thread may call `enqueue`, `dequeue` and `release`;
    all else needs the queue's lock.

    `memories` are the segments in memory, the newest first. `total` counts pending items and those
    given out, `buried` the others.
    """

    def __init__(
        self, lock: object, now_ms: object, ahead_ms: cython.longlong, find: object, tell: object
    ) -> None:
        """`now_ms` None means the boot clock of the machine, which wall time is ahead of.

        `find` gives the item of a key that came back. `tell` raises what is in `damage`.
        """
        self._acquire = lock.acquire
        self._release = lock.release
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self._find = find
        self._tell = tell
        self.damage = []
        self.leases = Leases()
        self.view = RunView()
        self.memories = []
        self.total = self.buried = 0
        self.floor_ms = self.next_id = self.ids_end = 0
        self.deadline = self.id = 0
        self._source = _NOWHERE
        self.worn = None
        self.attempts_max = 0
        self.items_max = 0
        self._log = memoryview(bytearray(1))
        self.position = self._end = 0
        self.number = self._seed = 0

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

    def enqueue(self, value: object, delay: object, deadline_ms: object):
        """Takes in an item and gives its id; -1 if it takes the longer way."""
        if type(value) is not bytes or (delay is not None and type(delay) is bool):
            return -1
        if deadline_ms is not None and (delay is not None or type(deadline_ms) is not int):
            return -1
        seconds: cython.double = 0
        if delay is not None:
            seconds = delay
            if not (0 <= seconds < _SECONDS_MAX):
                return -1
        wanted: cython.longlong = -1
        if deadline_ms is not None:
            if not 0 <= deadline_ms < _BURIED_BIT:
                return -1
            wanted = deadline_ms
        self._acquire()
        try:
            return self._enqueue(value, seconds, wanted)
        finally:
            self._release()

    @cython.cfunc
    def _enqueue(
        self, value: bytes, seconds: cython.double, wanted: cython.longlong
    ) -> cython.longlong:
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
        if wanted < 0:
            wanted = now + cython.cast(cython.longlong, seconds * 1000 + 0.5)
        wanted = max(wanted, min(now, self.floor_ms))
        deadline: cython.ulonglong = cython.cast(cython.ulonglong, wanted)
        id: cython.ulonglong = self.next_id
        put_key(self._log, start + _BATCH, 1, deadline, id)
        put_number(self._log, start + _BATCH + 15, cython.cast(cython.ulonglong, now), 6)
        put_number(self._log, start + _BATCH + 21, cython.cast(cython.ulonglong, size), 4)
        put_bytes(self._log, start + _BATCH + _FRESH, value, size)
        row: cython.Py_ssize_t = memory.add(
            deadline, id, cython.cast(cython.ulonglong, now), 0, 0, b"", value
        )
        memory.order.push(deadline, id, cython.cast(cython.ulonglong, row))
        self._seal(_FRESH + size)
        self.next_id += 1
        self.total += 1
        return cython.cast(cython.longlong, id)

    def dequeue(self, count: cython.Py_ssize_t, lease_ms: cython.longlong):
        """Gives out up to `count` items that are due; None if it takes the longer way."""
        self._acquire()
        try:
            if self._end - self.position < _BATCH + _DEQUEUED * count:
                return None
            return self._dequeue(count, lease_ms)
        finally:
            self._release()

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
            self._release()

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

    @cython.ccall
    def choose(
        self, count: cython.Py_ssize_t, now: cython.longlong, lease_ms: cython.longlong
    ) -> list:
        """Lends out up to `count` items that are due; `mark` follows when the log says so.

        Stops at one that was given out too often already: that is `worn` then.
        """
        items: list = []
        item: DeadlineItem
        self.worn = None
        self.leases.expire(cython.cast(cython.ulonglong, now))
        try:
            while len(items) < count and self.head():
                if self.deadline > cython.cast(cython.ulonglong, now):
                    break
                item = self.load()
                if self.attempts_max > 0 and item.dequeue_count >= self.attempts_max:
                    self.worn = item
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
        self._source = _NOWHERE
        if self.leases.settle():
            self._offer(_RETURNED, self.leases.returned.deadline, self.leases.returned.id)
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
                self._offer(_RUNS, view.deadline, view.id)
                break
            view.go_on()
        if self.damage:
            self._tell()
        return self._source != _NOWHERE

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _offer(
        self, source: cython.Py_ssize_t, deadline: cython.ulonglong, id: cython.ulonglong
    ) -> cython.void:
        if (
            self._source == _NOWHERE
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
            if memory.state(deadline, id) == _TOMBSTONE_STATE:
                return True
        return False

    @cython.ccall
    def load(self) -> DeadlineItem:
        """Gives the item that `head` has just found, and how often it was given out by now."""
        memory: Memory
        view: RunView = self.view
        dequeued: cython.ulonglong = 0
        at: cython.Py_ssize_t
        for at in range(len(self.memories)):
            memory = self.memories[at]
            dequeued = max(dequeued, memory.dequeue_count(self.deadline, self.id))
        if self._source == _RETURNED:
            return self._find(self.deadline, self.id)
        if self._source == _RUNS:
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
    def _seal(self, size: cython.Py_ssize_t) -> cython.void:
        """Ends a batch whose records are in their place."""
        self.position = seal_at(self._log, self.position, size, self.number, self._seed)
        self.number += 1
