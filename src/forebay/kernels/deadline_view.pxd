# What other compiled kernels use of deadline_view.py, without a Python call in between.
from forebay.kernels.deadline_block cimport Block
from forebay.kernels.deadline_keys cimport KeyHeap


cdef class Cursor:
    cdef readonly Py_ssize_t kind
    cdef readonly unsigned long long deadline
    cdef readonly unsigned long long id
    cdef readonly Block block
    cdef readonly Py_ssize_t at
    cdef object _load
    cpdef bint advance(self)
    cdef object _settle(self)
    cdef object _next_block(self)


cdef class RunView:
    cdef readonly list cursors
    cdef readonly bint met
    cdef readonly bint dead
    cdef readonly bint marked
    cdef readonly Py_ssize_t passed
    cdef readonly Cursor item
    cdef readonly unsigned long long deadline
    cdef readonly unsigned long long id
    cdef readonly unsigned long long count
    cdef readonly unsigned long long time_ms
    cdef KeyHeap _heap
    cdef list _same
    cpdef bint meet(self)
    cpdef bint go_on(self)
    cdef object _part(self)
    cdef object _push(self, Py_ssize_t at)
