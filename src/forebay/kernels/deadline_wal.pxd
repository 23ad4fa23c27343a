# What other compiled kernels use of deadline_wal.py, without a Python call in between.
cdef void put_key(
    unsigned char[::1] out,
    Py_ssize_t position,
    unsigned long long kind,
    unsigned long long deadline,
    unsigned long long id,
)
cdef Py_ssize_t seal_at(
    unsigned char[::1] out,
    Py_ssize_t start,
    Py_ssize_t size,
    unsigned long long number,
    unsigned long long seed,
)
