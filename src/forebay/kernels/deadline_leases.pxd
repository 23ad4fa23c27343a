# What other compiled kernels use of deadline_leases.py, without a Python call in between.
from forebay.kernels.deadline_keys cimport KeyHeap, KeyTable


cdef class Leases(KeyTable):
    cdef readonly KeyHeap returned
    cdef readonly long long working
    cdef KeyHeap _ends
    cpdef void lend(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long dequeued,
        unsigned long long until_ms,
    )
    cpdef void extend(
        self, unsigned long long deadline, unsigned long long id, unsigned long long until_ms
    )
    cpdef void give_back(self, unsigned long long deadline, unsigned long long id)
    cpdef void end(self, unsigned long long deadline, unsigned long long id)
    cpdef bint holds(
        self, unsigned long long deadline, unsigned long long id, unsigned long long dequeued
    )
    cpdef void expire(self, unsigned long long now_ms)
    cpdef bint settle(self)
    cdef void _until(self, Py_ssize_t row, unsigned long long until_ms)
    cdef object _drop_stale(self)
