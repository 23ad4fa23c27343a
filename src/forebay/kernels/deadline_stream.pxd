# What other compiled kernels use of deadline_stream.py, without a Python call in between.
from forebay.kernels.deadline_build cimport BlockBuilder


cdef class BlockStream:
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t blocks
    cdef readonly Py_ssize_t id_count
    cdef readonly unsigned char[::1] out
    cdef readonly unsigned long long[::1] table
    cdef readonly unsigned long long[::1] ids
    cdef BlockBuilder builder
    cdef bint _with_ids
    cdef unsigned long long _number
    cdef unsigned long long _seed
    cpdef object start(self, unsigned long long number)
    cdef bint end_block(self) noexcept nogil
