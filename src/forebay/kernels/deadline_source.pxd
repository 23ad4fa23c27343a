# What other compiled kernels use of deadline_source.py, without a Python call in between.
from forebay.kernels.deadline_block cimport Block


cdef class Sources:
    cdef unsigned long long[::1] _cells
    cdef list _held
    cdef bint feed(self, Py_ssize_t source, bytes data, object table)
    cdef object forget(self, Py_ssize_t source)
    cdef object feed_block(self, Py_ssize_t source, Block block)
    cdef bint skip_block(self, Py_ssize_t source)
    cdef unsigned long long next_block(self, Py_ssize_t source)
    cdef bint advance(self, Py_ssize_t source) noexcept nogil
    cdef unsigned long long number(self, Py_ssize_t source, Py_ssize_t column) noexcept nogil
    cdef unsigned long long requeue_ms(self, Py_ssize_t source) noexcept nogil
    cdef unsigned long long reason_at(self, Py_ssize_t source) noexcept nogil
    cdef unsigned long long value_at(self, Py_ssize_t source) noexcept nogil
    cdef bint _enter(self, Py_ssize_t source) noexcept nogil
    cdef bint _open(
        self,
        Py_ssize_t source,
        unsigned long long body,
        unsigned long long size,
        unsigned long long count,
    ) noexcept nogil
    cdef unsigned long long _skip_sizes(
        self, Py_ssize_t source, Py_ssize_t column, unsigned long long position
    ) noexcept nogil
