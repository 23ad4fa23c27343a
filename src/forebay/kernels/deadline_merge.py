"""Merges runs of a deadline queue by key, without the interpreter's lock.

What a merge leaves is told by `deadline_view.merge`, which does the same where this is not
compiled. Entries are copied from block to block, without an object for any of them.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels import deadline_columns as columns
    from cython.cimports.forebay.kernels.deadline_block import Block
    from cython.cimports.forebay.kernels.deadline_keys import KeyHeap
    from cython.cimports.forebay.kernels.deadline_source import Sources
else:
    from forebay.kernels import deadline_columns as columns
    from forebay.kernels.deadline_block import Block
    from forebay.kernels.deadline_keys import KeyHeap
    from forebay.kernels.deadline_source import Sources

# What `run` gives: all is done; `source` has no more blocks, or one that is not plain; the block
# of `kind` is full, and there is no room to make another.
DONE, HUNGRY, FULL = 0, 1, 2
_DONE = cython.declare(cython.int, 0)
_HUNGRY = cython.declare(cython.int, 1)
_FULL = cython.declare(cython.int, 2)
_NO_ROOM = cython.declare(cython.int, 3)
# Kinds of runs, as in deadline_view.py.
_ITEMS = cython.declare(cython.Py_ssize_t, 1)
_TOMBSTONES = cython.declare(cython.Py_ssize_t, 2)
_MARKS = cython.declare(cython.Py_ssize_t, 3)


@cython.cclass
class Merger:
    """A merge of sources of some kinds, which are fed when they are hungry; at first all are.

    `builders` take in items, tombstones and marks. `streams` make blocks of what is in them; if
    those are None, each block is full at once. `seeds` are the checksums of the salts. So far,
    `passed` keys were merged.
    """

    def __init__(
        self, full: cython.bint, kinds: list, seeds: list, builders: list, streams: list
    ) -> None:
        self._full = full
        self._items, self._tombstones, self._marks = builders
        self._item_stream, self._tombstone_stream, self._mark_stream = streams
        self._has_streams = None not in streams
        self._sources = Sources(seeds)
        self._heap = KeyHeap()
        count: cython.Py_ssize_t = len(kinds)
        self._kinds = memoryview(bytearray(8 * count + 8)).cast("Q")
        self._hungry = memoryview(bytearray(8 * count + 8)).cast("Q")
        self._hungry_count = count
        at: cython.Py_ssize_t
        for at in range(count):
            self._kinds[at] = kinds[at]
            self._hungry[at] = cython.cast(cython.ulonglong, at)
        self._met = False
        self.source = self.kind = self.passed = 0

    @property
    def block(self) -> int:
        """Which of the blocks that the hungry source was fed with is the next one."""
        return self._sources.next_block(self.source)

    def feed(self, data: bytes, table: object) -> None:
        """Gives the hungry source its next blocks.

        A row of the table is where a block begins, its number and its entries; a last one says
        where they end.
        """
        if self._sources.feed(self.source, data, table):
            self._take_in()

    def forget(self) -> None:
        """Lets go of the blocks that the hungry source was fed with."""
        self._sources.forget(self.source)

    def feed_block(self, block: Block) -> None:
        """Gives the hungry source the next of its blocks, as it was read elsewhere."""
        self._sources.feed_block(self.source, block)
        self._take_in()

    def skip_block(self) -> None:
        """Has the hungry source leave out the next of its blocks."""
        if self._sources.skip_block(self.source):
            self._take_in()

    def end_source(self) -> None:
        """Says that the hungry source has no more blocks."""
        self._hungry_count -= 1

    @cython.cfunc
    def _take_in(self) -> object:
        """Has the hungry source take part again."""
        self._hungry_count -= 1
        self._heap.push(
            self._sources.number(self.source, columns.DEADLINE),
            self._sources.number(self.source, columns.ID),
            cython.cast(cython.ulonglong, self.source),
        )

    def run(self) -> cython.int:
        """Goes on until something is needed; gives what."""
        needed: cython.int = _NO_ROOM
        while needed == _NO_ROOM:
            with cython.nogil:
                needed = self._run()
            if needed == _NO_ROOM:
                # Tombstones and marks need room only for numbers.
                self._items.reserve(self._reason_size, self._value_size)
                self._tombstones.reserve(0, 0)
                self._marks.reserve(0, 0)
        return needed

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _run(self) -> cython.int:
        """Goes from key to key."""
        needed: cython.int
        while True:
            if not self._met:
                if self._hungry_count > 0:
                    self.source = cython.cast(
                        cython.Py_ssize_t, self._hungry[self._hungry_count - 1]
                    )
                    return _HUNGRY
                if self._heap.count == 0:
                    return _DONE
                self._meet()
            needed = self._put()
            if needed != _DONE:
                return needed
            self._met = False
            self.passed += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _meet(self) -> cython.void:
        """Takes note of all entries of the lowest key, and passes them."""
        self._met = True
        self._deadline = self._heap.deadline
        self._id = self._heap.id
        self._has_item = self._dead = False
        self._count = self._time_ms = 0
        source: cython.Py_ssize_t
        while (
            self._heap.count > 0
            and self._heap.deadline == self._deadline
            and self._heap.id == self._id
        ):
            source = cython.cast(cython.Py_ssize_t, self._heap.tag)
            self._note(source)
            if self._sources.advance(source):
                self._heap.replace(
                    self._sources.number(source, columns.DEADLINE),
                    self._sources.number(source, columns.ID),
                    self._heap.tag,
                )
            else:
                self._heap.pop()
                self._hungry[self._hungry_count] = cython.cast(cython.ulonglong, source)
                self._hungry_count += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _note(self, source: cython.Py_ssize_t) -> cython.void:
        """Takes note of the next entry of a source."""
        kind: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._kinds[source])
        if kind == _TOMBSTONES:
            self._dead = True
            return
        count: cython.ulonglong = self._sources.number(source, columns.COUNT)
        time_ms: cython.ulonglong = self._sources.number(source, columns.ENQUEUE)
        if count >= self._count:
            self._count = count
            self._time_ms = time_ms
        if kind == _ITEMS:
            self._has_item = True
            self._enqueue_ms = time_ms
            self._requeue_ms = self._sources.requeue_ms(source)
            self._attributes = self._sources.number(source, columns.ATTRIBUTES)
            self._reason_at = self._sources.reason_at(source)
            self._reason_size = self._sources.number(source, columns.REASON)
            self._value_at = self._sources.value_at(source)
            self._value_size = self._sources.number(source, columns.VALUE)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(self) -> cython.int:
        """Puts what is left of the key into its block; gives what is needed for it, or 0."""
        taken: cython.int = 0
        while True:
            if self._dead:
                if self._has_item or self._full:
                    return _DONE
                self.kind = _TOMBSTONES
                taken = self._tombstones.add_raw(self._deadline, self._id, 0, 0, 0, 1, 0, 0, 0, 0)
            elif self._has_item:
                self.kind = _ITEMS
                taken = self._items.add_raw(
                    self._deadline,
                    self._id,
                    self._enqueue_ms,
                    self._requeue_ms,
                    self._count,
                    self._attributes,
                    self._reason_at,
                    self._reason_size,
                    self._value_at,
                    self._value_size,
                )
            elif self._full:
                return _DONE
            else:
                self.kind = _MARKS
                taken = self._marks.add_raw(
                    self._deadline, self._id, self._time_ms, 0, self._count, 0, 0, 0, 0, 0
                )
            if taken > 0:
                return _DONE
            if taken < 0:
                return _NO_ROOM
            if not self._has_streams or not self._end_block():
                return _FULL

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _end_block(self) -> cython.bint:
        """Makes a block of what is in the builder of the kind; False if there is no room."""
        if self.kind == _ITEMS:
            return self._item_stream.end_block()
        if self.kind == _TOMBSTONES:
            return self._tombstone_stream.end_block()
        return self._mark_stream.end_block()
