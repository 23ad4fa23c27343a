# What other compiled kernels use of deadline_desk.py, without a Python call in between.
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
    cdef readonly unsigned long long deadline
    cdef readonly unsigned long long id
    cdef readonly DeadlineItem worn
    cdef public unsigned long long attempts_max
    cdef Py_ssize_t _source
    cdef object _find
    cdef object _tell
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
