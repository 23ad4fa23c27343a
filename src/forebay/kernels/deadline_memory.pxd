# What other compiled kernels use of deadline_memory.py, without a Python call in between.
from forebay.kernels.deadline_build cimport BlockBuilder
from forebay.kernels.deadline_item cimport DeadlineItem
from forebay.kernels.deadline_keys cimport KeyHeap, KeyTable


cdef class Memory(KeyTable):
    cdef public unsigned long long number
    cdef readonly KeyHeap order
    cdef readonly long long bytes
    cdef readonly long long pending
    cdef readonly long long buried
    cdef unsigned long long _far_deadline
    cdef unsigned long long _far_id
    cdef list _values
    cdef dict _reasons
    cdef unsigned long long[::1] _places
    cpdef Py_ssize_t add(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long enqueue,
        unsigned long long requeue,
        unsigned long long dequeued,
        bytes reason,
        bytes value,
    )
    cpdef void add_new(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long enqueue,
        bytes value,
        bint shown,
    )
    cdef object _keep(
        self,
        Py_ssize_t row,
        unsigned long long enqueue,
        unsigned long long requeue,
        unsigned long long dequeued,
        object reason,
        object value,
    )
    cpdef void show(self, unsigned long long deadline, unsigned long long id)
    cpdef void kill(self, unsigned long long deadline, unsigned long long id)
    cpdef void mark(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long dequeued,
        unsigned long long time_ms,
    )
    cdef void _note_far(self, unsigned long long deadline, unsigned long long id) noexcept
    cdef bint may_know(self, unsigned long long deadline, unsigned long long id) noexcept
    cpdef unsigned long long state(self, unsigned long long deadline, unsigned long long id)
    cpdef unsigned long long dequeue_count(
        self, unsigned long long deadline, unsigned long long id
    )
    cpdef tuple row(self, Py_ssize_t at)
    cpdef DeadlineItem item(self, Py_ssize_t at, unsigned long long dequeued)
    cpdef bint settle(self)
    cdef object _sort(
        self,
        unsigned long long state,
        Py_ssize_t count,
        unsigned long long[::1] cells,
        unsigned long long[::1] found,
    )
    cdef void _count(self, unsigned long long deadline, long long step) noexcept
