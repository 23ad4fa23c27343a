# What other compiled kernels use of deadline_memory.py, without a Python call in between.
from forebay.kernels.deadline_build cimport BlockBuilder
from forebay.kernels.deadline_item cimport DeadlineItem
from forebay.kernels.deadline_keys cimport KeyHeap, KeyTable


cdef class Memory(KeyTable):
    cdef readonly KeyHeap order
    cdef readonly long long bytes
    cdef readonly long long pending
    cdef readonly long long buried
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
    cpdef void show(self, unsigned long long deadline, unsigned long long id)
    cpdef void kill(self, unsigned long long deadline, unsigned long long id)
    cpdef void mark(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long dequeued,
        unsigned long long time_ms,
    )
    cpdef unsigned long long state(self, unsigned long long deadline, unsigned long long id)
    cpdef unsigned long long dequeue_count(
        self, unsigned long long deadline, unsigned long long id
    )
    cpdef tuple row(self, Py_ssize_t at)
    cpdef DeadlineItem item(self, Py_ssize_t at, unsigned long long dequeued)
    cpdef bint settle(self)
    cpdef Py_ssize_t record_size(self, Py_ssize_t row)
    cdef object _put_record(self, unsigned char[::1] out, Py_ssize_t position, Py_ssize_t row)
    cdef void _count(self, unsigned long long deadline, long long step) noexcept
