# What other compiled modules use from deadline.py, without a Python call in between.
cdef void put_key(
    unsigned char[::1] out,
    Py_ssize_t position,
    unsigned long long kind,
    unsigned long long deadline,
    unsigned long long id,
)
cdef Py_ssize_t seal_batch_at(
    unsigned char[::1] out,
    Py_ssize_t start,
    Py_ssize_t size,
    unsigned long long number,
    unsigned long long seed,
)
cpdef Py_ssize_t sort(
    unsigned long long[::1] cells, Py_ssize_t count, Py_ssize_t size, Py_ssize_t words
)
cdef object grown(unsigned long long[::1] numbers, Py_ssize_t count)


cdef class Block:
    cdef readonly Py_ssize_t count
    cdef const unsigned char[::1] data
    cdef unsigned long long[::1] _bases
    cdef long long[::1] _widths
    cdef long long[::1] _starts
    cdef long long[::1] _ends
    cdef unsigned long long _number(self, Py_ssize_t column, Py_ssize_t at)
    cpdef unsigned long long deadline(self, Py_ssize_t at)
    cpdef unsigned long long id(self, Py_ssize_t at)
    cpdef unsigned long long attributes(self, Py_ssize_t at)
    cpdef unsigned long long enqueue_ms(self, Py_ssize_t at)
    cpdef unsigned long long requeue_ms(self, Py_ssize_t at)
    cpdef unsigned long long dequeue_count(self, Py_ssize_t at)
    cpdef bytes reason(self, Py_ssize_t at)
    cpdef bytes value(self, Py_ssize_t at)


cdef class BlockBuilder:
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t _block_bytes
    cdef Py_ssize_t _values_end
    cdef Py_ssize_t _reasons_end
    cdef unsigned long long[::1] _numbers
    cdef unsigned char[::1] _values
    cdef unsigned char[::1] _reasons
    cpdef bint fits(self, Py_ssize_t size)
    cpdef void add(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long enqueue,
        unsigned long long requeue,
        unsigned long long dequeued,
        unsigned long long attributes,
        bytes reason,
        bytes value,
    )
    cdef Py_ssize_t _put_column(
        self,
        unsigned char[::1] out,
        Py_ssize_t body,
        Py_ssize_t position,
        Py_ssize_t column,
    ) noexcept nogil
    cdef bint _fits(self, Py_ssize_t size) noexcept nogil
    cdef int add_raw(
        self,
        unsigned long long deadline,
        unsigned long long id,
        unsigned long long enqueue,
        unsigned long long requeue,
        unsigned long long dequeued,
        unsigned long long attributes,
        unsigned long long reason,
        Py_ssize_t length,
        unsigned long long value,
        Py_ssize_t size,
    ) noexcept nogil
    cdef object reserve(self, Py_ssize_t length, Py_ssize_t size)
    cdef Py_ssize_t size_max(self) noexcept nogil
    cdef void describe(self, unsigned long long[::1] table, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t emit(
        self,
        unsigned char[::1] out,
        Py_ssize_t start,
        unsigned long long number,
        unsigned long long seed,
    ) noexcept nogil
    cdef void copy_ids(self, unsigned long long[::1] out, Py_ssize_t start) noexcept nogil
    cdef void clear(self) noexcept nogil


cdef class BlockStream:
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t blocks
    cdef readonly Py_ssize_t id_count
    cdef readonly unsigned char[::1] out
    cdef readonly unsigned long long[::1] table
    cdef readonly unsigned long long[::1] ids
    cdef BlockBuilder builder
    cdef bint _with_ids
    cdef unsigned long long _number
    cdef unsigned long long _seed
    cpdef object start(self, unsigned long long number)
    cdef bint end_block(self) noexcept nogil


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


cdef class Cursor:
    cdef readonly Py_ssize_t kind
    cdef readonly unsigned long long deadline
    cdef readonly unsigned long long id
    cdef readonly Block block
    cdef readonly Py_ssize_t at
    cdef readonly object load
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
