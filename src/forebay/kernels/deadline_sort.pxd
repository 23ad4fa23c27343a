# What other compiled kernels use of deadline_sort.py, without a Python call in between.
cpdef Py_ssize_t sort(
    unsigned long long[::1] cells, Py_ssize_t count, Py_ssize_t size, Py_ssize_t words
)
