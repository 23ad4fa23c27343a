# What compiled modules share, inline or without a Python call in between. The plain functions are
# in buffers.py.
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy

# Plain Python cannot prefetch memory; if the compiler cannot either, this does nothing. `keep_order`
# stays between the stores before it and those after it: a kill finds them in this order.
# `show_stores` shows the stores before it to other processes before the loads after it are made.
cdef extern from *:
    """
    #include <stdatomic.h>
    #if defined(__GNUC__)
    #define forebay_prefetch(address) __builtin_prefetch((const void *)(size_t)(address))
    #else
    #define forebay_prefetch(address) ((void)0)
    #endif
    #define forebay_keep_order() atomic_signal_fence(memory_order_seq_cst)
    #define forebay_show_stores() atomic_thread_fence(memory_order_seq_cst)
    """
    void prefetch "forebay_prefetch" (unsigned long long address) noexcept nogil
    void keep_order "forebay_keep_order" () noexcept nogil
    void show_stores "forebay_show_stores" () noexcept nogil

ctypedef unsigned int (*crc_function)(unsigned int, const unsigned char *, size_t) noexcept nogil

# The C function for CRC-32, or NULL if it is not available; then the Python one is used.
cdef crc_function direct
cdef object python_crc32


cdef inline unsigned long long get32(
    const unsigned char[::1] data, Py_ssize_t position
) noexcept nogil:
    return (
        <unsigned long long>data[position]
        | (<unsigned long long>data[position + 1] << 8)
        | (<unsigned long long>data[position + 2] << 16)
        | (<unsigned long long>data[position + 3] << 24)
    )


cdef inline void put32(
    unsigned char[::1] out, Py_ssize_t position, unsigned long long value
) noexcept nogil:
    out[position] = value & 255
    out[position + 1] = (value >> 8) & 255
    out[position + 2] = (value >> 16) & 255
    out[position + 3] = (value >> 24) & 255


cdef inline unsigned long long get_number(
    const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t size
) noexcept nogil:
    cdef unsigned long long number = 0
    cdef Py_ssize_t at
    for at in range(size):
        number |= <unsigned long long>data[position + at] << (8 * at)
    return number


cdef inline void put_number(
    unsigned char[::1] out, Py_ssize_t position, unsigned long long number, Py_ssize_t size
) noexcept nogil:
    cdef Py_ssize_t at
    for at in range(size):
        out[position + at] = (number >> (8 * at)) & 255


cdef inline bytes take_bytes(
    const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t size
):
    if size == 0:
        # There may be no byte at the position.
        return b""
    return PyBytes_FromStringAndSize(<char *>&data[position], size)


cdef inline void put_bytes(
    unsigned char[::1] out, Py_ssize_t position, bytes value, Py_ssize_t size
) noexcept:
    if size > 0:
        memcpy(&out[position], <char *>value, size)


cdef inline void copy_bytes(
    unsigned char[::1] out,
    Py_ssize_t to,
    const unsigned char[::1] data,
    Py_ssize_t position,
    Py_ssize_t size,
) noexcept nogil:
    if size > 0:
        memcpy(&out[to], &data[position], size)


cdef inline unsigned long long sum_bytes(
    const unsigned char[::1] data,
    Py_ssize_t position,
    Py_ssize_t size,
    unsigned long long seed,
) except? -1:
    if size == 0:
        return seed
    if direct != NULL:
        return direct(<unsigned int>seed, &data[position], <size_t>size)
    return python_crc32(take_bytes(data, position, size), seed)


cdef long long boot_ms()


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
