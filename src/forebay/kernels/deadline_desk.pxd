# The fields of deadline_desk.py.
from forebay.kernels.deadline_item cimport DeadlineItem
from forebay.kernels.deadline_leases cimport Leases
from forebay.kernels.deadline_view cimport RunView


cdef class Desk:
    cdef readonly Leases leases
    cdef public RunView view
    cdef readonly list memories
    cdef readonly list damage
    cdef public long long total
    cdef public long long buried
    cdef public long long floor_ms
    cdef public unsigned long long next_id
    cdef public unsigned long long ids_end
    cdef readonly unsigned long long deadline
    cdef readonly unsigned long long id
    cdef readonly DeadlineItem worn
    cdef public unsigned long long attempts_max
    cdef public Py_ssize_t items_max
    cdef readonly Py_ssize_t position
    cdef readonly unsigned long long number
    cdef Py_ssize_t _source
    cdef Py_ssize_t _end
    cdef unsigned long long _seed
    cdef unsigned char[::1] _log
    cdef object _acquire
    cdef object _release
    cdef object _now_ms
    cdef object _find
    cdef object _tell
    cdef long long _ahead_ms
    cdef long long _now(self)
    cdef long long _enqueue(self, bytes value, double seconds, long long wanted)
    cdef list _dequeue(self, Py_ssize_t count, long long lease_ms)
    cdef bint _release_all(self, list items)
    cpdef list choose(self, Py_ssize_t count, long long now, long long lease_ms)
    cpdef bint mark(self, list items, long long now)
    cpdef bint give_back(self, list items)
    cpdef bint kill(self, unsigned long long deadline, unsigned long long id)
    cpdef bint head(self)
    cdef void _offer(
        self, Py_ssize_t source, unsigned long long deadline, unsigned long long id
    ) noexcept
    cdef bint _passes(
        self, unsigned long long deadline, unsigned long long id, Py_ssize_t before
    )
    cpdef DeadlineItem load(self)
    cdef void _seal(self, Py_ssize_t size)
