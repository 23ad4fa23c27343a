"""What of a deadline queue is given out: by key, until when, for which time.

An item whose lease has ended is in `returned` until it is given out again; its row stays, so that
who goes over the items does not meet it twice.
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
    from cython.cimports.forebay.kernels.deadline_keys import KeyHeap, KeyTable
else:
    from forebay.kernels import deadline_fields as fields
    from forebay.kernels.deadline_keys import KeyHeap, KeyTable

_WORKING = cython.declare(cython.ulonglong, 1)
_RETURNED = cython.declare(cython.ulonglong, 2)
_UNTIL = cython.declare(cython.Py_ssize_t, 4)
_COUNT = cython.declare(cython.Py_ssize_t, 5)
# So many ends of leases that are over may be in the heap, and as many again as there are leases.
_STALE_MAX = cython.declare(cython.Py_ssize_t, 1024)
# No key is above it.
_LAST = cython.declare(cython.ulonglong, 1 << 48)


@cython.cclass
class Leases(KeyTable):
    """The leases of one queue, `working` of them not ended. Called with the queue's lock held."""

    def __init__(self) -> None:
        KeyTable.__init__(self)
        self.returned = KeyHeap()
        self._ends = KeyHeap()
        self.working = 0

    def lend(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        dequeued: cython.ulonglong,
        until_ms: cython.ulonglong,
    ) -> None:
        """Gives an item out that is not given out."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row < 0:
            row = self.insert(deadline, id, _WORKING)
        self._rows[fields.ROW * row + fields.STATE] = _WORKING
        self._rows[fields.ROW * row + _COUNT] = dequeued
        self._until(row, until_ms)
        self.working += 1

    def extend(
        self, deadline: cython.ulonglong, id: cython.ulonglong, until_ms: cython.ulonglong
    ) -> None:
        """Lets a lease end at another time."""
        self._until(self.find(deadline, id), until_ms)

    def give_back(self, deadline: cython.ulonglong, id: cython.ulonglong) -> None:
        """Lets an item be given out again."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        self._rows[fields.ROW * row + fields.STATE] = _RETURNED
        self.working -= 1
        self.returned.push(deadline, id, cython.cast(cython.ulonglong, row))

    def end(self, deadline: cython.ulonglong, id: cython.ulonglong) -> None:
        """Forgets an item that is gone, if it was given out at all."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        if row >= 0:
            if self._rows[fields.ROW * row + fields.STATE] == _WORKING:
                self.working -= 1
            self.remove(row)

    def holds(
        self, deadline: cython.ulonglong, id: cython.ulonglong, dequeued: cython.ulonglong
    ) -> cython.bint:
        """Says whether an item is given out for that time."""
        row: cython.Py_ssize_t = self.find(deadline, id)
        return (
            row >= 0
            and self._rows[fields.ROW * row + fields.STATE] == _WORKING
            and self._rows[fields.ROW * row + _COUNT] == dequeued
        )

    def expire(self, now_ms: cython.ulonglong) -> None:
        """Gives back all items whose leases have ended."""
        at: cython.Py_ssize_t
        ends: KeyHeap = self._ends
        # The end of a lease stands where a deadline would.
        while ends.count > 0 and ends.deadline <= now_ms:
            at = fields.ROW * cython.cast(cython.Py_ssize_t, ends.tag)
            if (
                self._rows[at + fields.STATE] == _WORKING
                and self._rows[at + 1] == ends.id
                and self._rows[at + _UNTIL] == ends.deadline
            ):
                self.give_back(self._rows[at], ends.id)
            ends.pop()

    def due(self, now_ms: cython.ulonglong) -> cython.longlong:
        """Gives how many items that are given out have a deadline up to a time."""
        count: cython.longlong = 0
        at: cython.Py_ssize_t
        for at in range(0, fields.ROW * self.used, fields.ROW):
            if self._rows[at + fields.STATE] == _WORKING and self._rows[at] <= now_ms:
                count += 1
        return count

    def next_end(self):
        """Gives when the next lease may end; None if nothing is given out."""
        return self._ends.deadline if self._ends.count > 0 else None

    def settle(self) -> cython.bint:
        """Drops keys off `returned` that are no longer back; says whether one is left."""
        at: cython.Py_ssize_t
        returned: KeyHeap = self.returned
        while returned.count > 0:
            at = fields.ROW * cython.cast(cython.Py_ssize_t, returned.tag)
            if (
                self._rows[at + fields.STATE] == _RETURNED
                and self._rows[at + 1] == returned.id
                and self._rows[at] == returned.deadline
            ):
                return True
            returned.pop()
        return False

    def lowest(self) -> tuple:
        """Gives the lowest key of all leases, ended ones too."""
        deadline: cython.ulonglong = _LAST
        id: cython.ulonglong = 0
        at: cython.Py_ssize_t
        for at in range(0, fields.ROW * self.used, fields.ROW):
            if self._rows[at + fields.STATE] != 0 and (
                self._rows[at] < deadline
                or (self._rows[at] == deadline and self._rows[at + 1] < id)
            ):
                deadline = self._rows[at]
                id = self._rows[at + 1]
        return deadline, id

    @cython.cfunc
    def _until(self, row: cython.Py_ssize_t, until_ms: cython.ulonglong) -> cython.void:
        self._rows[fields.ROW * row + _UNTIL] = until_ms
        if self._ends.count > 2 * self.count + _STALE_MAX:
            self._drop_stale()
        self._ends.push(
            until_ms, self._rows[fields.ROW * row + 1], cython.cast(cython.ulonglong, row)
        )

    @cython.cfunc
    def _drop_stale(self) -> object:
        """Makes the heap anew of the leases that there are: most end before their time."""
        self._ends = KeyHeap()
        row: cython.Py_ssize_t
        for row in range(self.used):
            if self._rows[fields.ROW * row + fields.STATE] == _WORKING:
                self._ends.push(
                    self._rows[fields.ROW * row + _UNTIL],
                    self._rows[fields.ROW * row + 1],
                    cython.cast(cython.ulonglong, row),
                )
