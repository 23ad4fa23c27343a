# What other compiled kernels use of deadline_block.py, without a Python call in between.
cdef void put_bits(
    unsigned char[::1] out,
    Py_ssize_t start,
    Py_ssize_t bit,
    Py_ssize_t width,
    unsigned long long code,
) noexcept nogil
cdef unsigned long long get_bits(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t bit, Py_ssize_t width
)
cdef Py_ssize_t width_of(unsigned long long number) noexcept nogil


cdef class Block:
    cdef readonly Py_ssize_t count
    cdef const unsigned char[::1] data
    cdef unsigned long long[::1] _bases
    cdef long long[::1] _widths
    cdef long long[::1] _starts
    cdef long long[::1] _ends
    cdef unsigned long long _number(self, Py_ssize_t column, Py_ssize_t at)
    cpdef unsigned long long deadline(self, Py_ssize_t at)
    cpdef unsigned long long id(self, Py_ssize_t at)
    cpdef unsigned long long attributes(self, Py_ssize_t at)
    cpdef unsigned long long enqueue_ms(self, Py_ssize_t at)
    cpdef unsigned long long requeue_ms(self, Py_ssize_t at)
    cpdef unsigned long long dequeue_count(self, Py_ssize_t at)
    cpdef bytes reason(self, Py_ssize_t at)
    cpdef bytes value(self, Py_ssize_t at)
