"""Chooses what a deadline queue gives out next: from memory, from its runs, of what came back."""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.deadline_item import DeadlineItem, make_item
    from cython.cimports.forebay.kernels.deadline_leases import Leases
    from cython.cimports.forebay.kernels.deadline_memory import Memory
    from cython.cimports.forebay.kernels.deadline_view import RunView
else:
    from forebay.kernels.deadline_item import DeadlineItem, make_item
    from forebay.kernels.deadline_leases import Leases
    from forebay.kernels.deadline_memory import Memory
    from forebay.kernels.deadline_view import RunView

_NOWHERE = cython.declare(cython.Py_ssize_t, -3)
_RETURNED = cython.declare(cython.Py_ssize_t, -2)
_RUNS = cython.declare(cython.Py_ssize_t, -1)
_BURIED_BIT = cython.declare(cython.ulonglong, 1 << 47)
_TOMBSTONE_STATE = cython.declare(cython.ulonglong, 2)


@cython.cclass
class Desk:
    """What is in memory, what the runs hold, what is given out. Called with the queue's lock held.

    `memories` are the segments in memory, the newest first. `total` counts pending items and those
    given out, `buried` the others.
    """

    def __init__(self, find: object, tell: object) -> None:
        """`find` gives the item of a key that came back. `tell` raises what is in `damage`."""
        self._find = find
        self._tell = tell
        self.damage = []
        self.leases = Leases()
        self.view = RunView()
        self.memories = []
        self.total = self.buried = 0
        self.floor_ms = 0
        self.deadline = self.id = 0
        self._source = _NOWHERE
        self.worn = None
        self.attempts_max = 0

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
            # It did not raise, and may have taken away what was found.
            return self.head()
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
            if memory.may_know(deadline, id) and memory.state(deadline, id) == _TOMBSTONE_STATE:
                return True
        return False

    @cython.ccall
    def load(self) -> DeadlineItem:
        """Gives the item that `head` has just found, and how often it was given out by now."""
        if self._source == _RETURNED:
            return self._find(self.deadline, self.id)
        memory: Memory
        view: RunView = self.view
        dequeued: cython.ulonglong = 0
        at: cython.Py_ssize_t
        # What is newer than the item may tell more than it does itself.
        for at in range(self._source if self._source != _RUNS else len(self.memories)):
            memory = self.memories[at]
            if memory.may_know(self.deadline, self.id):
                dequeued = max(dequeued, memory.dequeue_count(self.deadline, self.id))
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
