# What other compiled kernels call of little.py, without a Python call in between.
cdef unsigned long long get_number(
    const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t size
)
cdef void put_number(
    unsigned char[::1] out, Py_ssize_t position, unsigned long long number, Py_ssize_t size
) noexcept nogil
cdef bytes take_bytes(const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t size)
cdef void put_bytes(unsigned char[::1] out, Py_ssize_t position, bytes value, Py_ssize_t size)
cdef void copy_bytes(
    unsigned char[::1] out,
    Py_ssize_t position,
    const unsigned char[::1] data,
    Py_ssize_t start,
    Py_ssize_t size,
)
cdef unsigned long long sum_bytes(
    const unsigned char[::1] data,
    Py_ssize_t position,
    Py_ssize_t size,
    unsigned long long seed,
)
