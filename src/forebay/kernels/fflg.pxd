# What other compiled kernels call of fflg.py, without a Python call in between.
cdef unsigned long long get32(const unsigned char[::1] data, Py_ssize_t position)
cdef unsigned long long claimed(
    const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t size, unsigned long long seed
)
cdef void put_frame(
    unsigned char[::1] out,
    Py_ssize_t position,
    bytes value,
    Py_ssize_t size,
    unsigned long long index,
    unsigned long long seed,
    unsigned long long ms,
)
cdef void put_check(
    unsigned char[::1] out,
    Py_ssize_t position,
    Py_ssize_t size,
    unsigned long long index,
    unsigned long long seed,
    unsigned long long ms,
)
