# The fields of deadline_clerk.py.
from forebay.kernels.deadline_desk cimport Desk
from forebay.kernels.deadline_item cimport DeadlineItem
from forebay.kernels.deadline_memory cimport Memory


cdef class Clerk(Desk):
    cdef public unsigned long long next_id
    cdef public unsigned long long ids_end
    cdef public Py_ssize_t items_max
    cdef readonly Py_ssize_t position
    cdef readonly unsigned long long number
    cdef Py_ssize_t _end
    cdef unsigned long long _seed
    cdef unsigned char[::1] _log
    cdef object _acquire
    cdef object _let_go
    cdef object _now_ms
    cdef long long _ahead_ms
    cdef long long _now(self)
    cdef long long _wanted(self, object delay, object deadline_ms)
    cdef long long _deadline(self, long long wanted, long long now)
    cdef long long _enqueue(self, bytes value, long long wanted)
    cdef object _enqueue_many(
        self, list values, object deadlines, long long wanted, Py_ssize_t size
    )
    cdef object _put_fresh(
        self,
        Memory memory,
        Py_ssize_t place,
        bytes value,
        long long wanted,
        long long now,
    )
    cdef list _dequeue(self, Py_ssize_t count, long long lease_ms)
    cdef bint _release_all(self, list items)
    cdef bint _requeue(self, DeadlineItem item, bytes value, long long wanted)
    cdef void _seal(self, Py_ssize_t size)
