# What other compiled modules call in fflg.py, without a Python call in between.
cdef void put_frame(
    unsigned char[::1] out,
    Py_ssize_t position,
    bytes value,
    Py_ssize_t size,
    unsigned long long index,
    unsigned long long seed,
    unsigned long long ms,
)
