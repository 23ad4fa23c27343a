# What other compiled kernels use of deadline_keys.py, without a Python call in between.
cdef class KeyHeap:
    cdef readonly Py_ssize_t count
    cdef readonly unsigned long long deadline
    cdef readonly unsigned long long id
    cdef readonly unsigned long long tag
    cdef unsigned long long[::1] _cells
    cpdef void push(
        self, unsigned long long deadline, unsigned long long id, unsigned long long tag
    )
    cpdef void pop(self) noexcept nogil
    cdef void replace(
        self, unsigned long long deadline, unsigned long long id, unsigned long long tag
    ) noexcept nogil
    cdef bint _is_below(
        self, unsigned long long deadline, unsigned long long id, Py_ssize_t at
    ) noexcept nogil
    cdef void _put(
        self,
        Py_ssize_t at,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long tag,
    ) noexcept nogil
    cdef void _move(self, Py_ssize_t source, Py_ssize_t target) noexcept nogil
    cdef void _show(self) noexcept nogil
    cdef object _grow(self)


cdef class KeyTable:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t used
    cdef unsigned long long[::1] _rows
    cdef unsigned long long[::1] _heads
    cdef Py_ssize_t _free
    cdef bint _dense
    cdef int _shift
    cdef unsigned long long _spread
    cdef Py_ssize_t _slot(self, unsigned long long id) noexcept
    cdef object _use_shift(self, int shift)
    cpdef Py_ssize_t find(self, unsigned long long deadline, unsigned long long id)
    cpdef Py_ssize_t insert(
        self, unsigned long long deadline, unsigned long long id, unsigned long long state
    )
    cpdef void remove(self, Py_ssize_t row)
    cdef void _link(self, Py_ssize_t row) noexcept
    cdef object _grow_rows(self)


cdef object grown(unsigned long long[::1] numbers, Py_ssize_t count)
