"""The runs of a deadline queue by key: what of them is alive, and what a merge leaves.

All entries of a key are met together: an item, its tombstone, how often it was given out.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.deadline_block import Block
    from cython.cimports.forebay.kernels.deadline_build import BlockBuilder
    from cython.cimports.forebay.kernels.deadline_keys import KeyHeap
else:
    from forebay.kernels.deadline_block import Block
    from forebay.kernels.deadline_build import BlockBuilder
    from forebay.kernels.deadline_keys import KeyHeap

ITEMS, TOMBSTONES, MARKS = 1, 2, 3
_ITEMS = cython.declare(cython.Py_ssize_t, 1)
_TOMBSTONES = cython.declare(cython.Py_ssize_t, 2)
# No key is above it.
_LAST = cython.declare(cython.ulonglong, 1 << 48)


@cython.cclass
class Cursor:
    """A place in a run of a kind. The key is that of the next entry, or above all behind the last.

    `load` gives the next block, None behind the last; if it raises, the cursor stays.
    """

    def __init__(
        self,
        kind: cython.Py_ssize_t,
        load: object,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
    ) -> None:
        """Goes to the first entry whose key is not below the one given."""
        self.kind = kind
        self._load = load
        self.deadline = _LAST
        self.id = 0
        self.at = 0
        self.block = None
        self._next_block()
        if self.block is not None and (
            self.deadline < deadline or (self.deadline == deadline and self.id < id)
        ):
            self.at = self.block.search(deadline, id)
            self._settle()

    @cython.ccall
    def advance(self) -> cython.bint:
        """Goes on to the next entry."""
        self.at += 1
        try:
            self._settle()
        except BaseException:
            self.at -= 1
            raise
        return True

    @cython.cfunc
    def _settle(self) -> object:
        if self.block is not None and self.at < self.block.count:
            self.deadline = self.block.deadline(self.at)
            self.id = self.block.id(self.at)
        else:
            self._next_block()

    @cython.cfunc
    def _next_block(self) -> object:
        block: Block = self._load()
        self.block = block
        self.at = 0
        if block is None:
            self.deadline = _LAST
            self.id = 0
        else:
            self.deadline = block.deadline(0)
            self.id = block.id(0)


@cython.cclass
class RunView:
    """Cursors over runs. One thread at a time may use it.

    When they have met, `deadline` and `id` are the lowest key; `item` is the cursor of the item, if
    there is one, `dead` says that there is a tombstone, and `count` and `time_ms` how often the
    marks say that it was given out. `passed` keys were left behind.
    """

    def __init__(self) -> None:
        self.cursors = []
        self._heap = KeyHeap()
        self._same = []
        self.met = self.dead = self.marked = False
        self.passed = 0
        self.item = None
        self.deadline = self.id = self.count = self.time_ms = 0

    def add(self, cursor: Cursor) -> None:
        """Takes in a cursor."""
        self._part()
        self.cursors.append(cursor)
        self._push(len(self.cursors) - 1)

    @cython.ccall
    def meet(self) -> cython.bint:
        """Goes to the lowest key and stays there; says whether there is one."""
        if self.met:
            return True
        heap: KeyHeap = self._heap
        if heap.count == 0:
            return False
        self.deadline = heap.deadline
        self.id = heap.id
        self.dead = self.marked = False
        self.item = None
        self.count = self.time_ms = 0
        cursor: Cursor
        dequeued: cython.ulonglong
        while heap.count > 0 and heap.deadline == self.deadline and heap.id == self.id:
            cursor = self.cursors[cython.cast(cython.Py_ssize_t, heap.tag)]
            self._same.append(heap.tag)
            heap.pop()
            if cursor.kind == _TOMBSTONES:
                self.dead = True
                continue
            dequeued = cursor.block.dequeue_count(cursor.at)
            if cursor.kind == _ITEMS:
                self.item = cursor
            else:
                self.marked = True
            if dequeued >= self.count:
                self.count = dequeued
                self.time_ms = cursor.block.enqueue_ms(cursor.at)
        self.met = True
        return True

    @cython.ccall
    def go_on(self) -> cython.bint:
        """Leaves the lowest key.

        Items go first: if the disk fails, no tombstone has gone on without what it takes away.
        """
        cursor: Cursor
        tag: cython.Py_ssize_t
        try:
            for tag in self._same:
                cursor = self.cursors[tag]
                if cursor.kind == _ITEMS:
                    cursor.advance()
            for tag in self._same:
                cursor = self.cursors[tag]
                if cursor.kind != _ITEMS:
                    cursor.advance()
            self.passed += 1
        finally:
            self._part()
        return True

    @cython.cfunc
    def _part(self) -> object:
        """Puts the cursors that have met back, each where it is now."""
        tag: cython.Py_ssize_t
        self.met = False
        for tag in self._same:
            self._push(tag)
        self._same.clear()

    @cython.cfunc
    def _push(self, at: cython.Py_ssize_t) -> object:
        cursor: Cursor = self.cursors[at]
        if cursor.deadline < _LAST:
            self._heap.push(cursor.deadline, cursor.id, cython.cast(cython.ulonglong, at))


def merge(
    view: RunView,
    full: cython.bint,
    items: BlockBuilder,
    tombstones: BlockBuilder,
    marks: BlockBuilder,
    limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Moves what a merge leaves into blocks; gives the kind of the one that is full, 0 at the end.

    After `limit` keys it gives -1: there are more, though most may be gone.
    `full` says that no older run is left out: then tombstones and marks that meet no item are
    dropped. Otherwise they are kept, because an older run may hold that item.
    """
    block: Block
    at: cython.Py_ssize_t
    reason: bytes
    value: bytes
    while view.meet():
        if limit == 0:
            return -1
        limit -= 1
        if view.dead:
            if view.item is None and not full:
                if not tombstones.fits(0):
                    return 2
                tombstones.add(view.deadline, view.id, 0, 0, 0, 1, b"", b"")
        elif view.item is not None:
            block = view.item.block
            at = view.item.at
            reason = block.reason(at)
            value = block.value(at)
            if not items.fits(len(value) + len(reason)):
                return 1
            items.add(
                view.deadline,
                view.id,
                block.enqueue_ms(at),
                block.requeue_ms(at),
                view.count,
                block.attributes(at),
                reason,
                value,
            )
        elif not full:
            if not marks.fits(0):
                return 3
            marks.add(view.deadline, view.id, view.time_ms, 0, view.count, 0, b"", b"")
        view.go_on()
    return 0
