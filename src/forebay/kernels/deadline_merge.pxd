# The fields of what deadline_merge.py has: plain Python has no place for their types.
from forebay.kernels.deadline_build cimport BlockBuilder
from forebay.kernels.deadline_keys cimport KeyHeap
from forebay.kernels.deadline_source cimport Sources
from forebay.kernels.deadline_stream cimport BlockStream


cdef class Merger:
    cdef readonly Py_ssize_t source
    cdef readonly Py_ssize_t kind
    cdef readonly Py_ssize_t passed
    cdef bint _full
    cdef BlockBuilder _items
    cdef BlockBuilder _tombstones
    cdef BlockBuilder _marks
    cdef BlockStream _item_stream
    cdef BlockStream _tombstone_stream
    cdef BlockStream _mark_stream
    cdef bint _has_streams
    cdef Sources _sources
    cdef KeyHeap _heap
    cdef unsigned long long[::1] _kinds
    cdef unsigned long long[::1] _hungry
    cdef Py_ssize_t _hungry_count
    # The key that was met, and what is left of it.
    cdef bint _met
    cdef bint _has_item
    cdef bint _dead
    cdef unsigned long long _deadline
    cdef unsigned long long _id
    cdef unsigned long long _count
    cdef unsigned long long _time_ms
    cdef unsigned long long _enqueue_ms
    cdef unsigned long long _requeue_ms
    cdef unsigned long long _attributes
    cdef unsigned long long _reason_at
    cdef Py_ssize_t _reason_size
    cdef unsigned long long _value_at
    cdef Py_ssize_t _value_size
    cdef object _take_in(self)
    cdef int _run(self) noexcept nogil
    cdef void _meet(self) noexcept nogil
    cdef void _note(self, Py_ssize_t source) noexcept nogil
    cdef int _put(self) noexcept nogil
    cdef bint _end_block(self) noexcept nogil
