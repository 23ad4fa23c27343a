# What other compiled kernels use of deadline_build.py, without a Python call in between.
cdef class BlockBuilder:
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t _block_bytes
    cdef Py_ssize_t _values_end
    cdef Py_ssize_t _reasons_end
    cdef unsigned long long[::1] _numbers
    cdef unsigned char[::1] _values
    cdef unsigned char[::1] _reasons
    cpdef bint fits(self, Py_ssize_t size)
    cpdef void add(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long enqueue,
        unsigned long long requeue,
        unsigned long long dequeued,
        unsigned long long attributes,
        bytes reason,
        bytes value,
    )
    cdef Py_ssize_t _put_column(
        self,
        unsigned char[::1] out,
        Py_ssize_t body,
        Py_ssize_t position,
        Py_ssize_t column,
    ) noexcept nogil
    cdef bint _fits(self, Py_ssize_t size) noexcept nogil
    cdef int add_raw(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long enqueue,
        unsigned long long requeue,
        unsigned long long dequeued,
        unsigned long long attributes,
        unsigned long long reason,
        Py_ssize_t length,
        unsigned long long value,
        Py_ssize_t size,
    ) noexcept nogil
    cdef object reserve(self, Py_ssize_t length, Py_ssize_t size)
    cdef Py_ssize_t size_max(self) noexcept nogil
    cdef void describe(self, unsigned long long[::1] table, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t emit(
        self,
        unsigned char[::1] out,
        Py_ssize_t start,
        unsigned long long number,
        unsigned long long seed,
    ) noexcept nogil
    cdef void copy_ids(self, unsigned long long[::1] out, Py_ssize_t start) noexcept nogil
    cdef void clear(self) noexcept nogil
