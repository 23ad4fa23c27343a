# The buffers of rows.py, which the kernels that fill them reach without a Python call in between.
cdef class Rows:
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t used
    cdef readonly object payload
    cdef readonly object ends
    cdef readonly object micros
    cdef unsigned char[::1] _payload
    cdef int[::1] _ends
    cdef long long[::1] _micros
    cdef long long[::1] _positions
    cdef Py_ssize_t _room
    cdef Py_ssize_t _rows_max
    cdef bint _values
