# What other compiled kernels use of deadline_item.py, without a Python call in between.
cdef class DeadlineItem:
    cdef readonly unsigned long long id
    cdef readonly bytes value
    cdef readonly unsigned long long deadline_ms
    cdef readonly unsigned long long enqueue_ms
    cdef readonly unsigned long long requeue_ms
    cdef readonly unsigned long long dequeue_count
    cdef readonly bint buried
    cdef readonly str reason


cdef DeadlineItem make_item(
    unsigned long long deadline,
    unsigned long long id,
    unsigned long long enqueue,
    unsigned long long requeue,
    unsigned long long dequeued,
    bytes value,
)
