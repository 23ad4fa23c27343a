# What other compiled modules call in entry.py, without a Python call in between.
cdef unsigned long long get_ttl(const unsigned char[::1] data, Py_ssize_t position)
cdef unsigned long long get_id(const unsigned char[::1] data, Py_ssize_t position)
cdef void put_entry(
    unsigned char[::1] out,
    Py_ssize_t position,
    bytes value,
    Py_ssize_t size,
    unsigned long long ttl,
    unsigned long long entry_id,
    bytes version,
)
cdef Py_ssize_t entry_size(
    const unsigned char[::1] data,
    Py_ssize_t position,
    Py_ssize_t end,
    unsigned long long number,
    unsigned long long last_id,
    bytes version,
)
cdef long long next_ms(unsigned long long number, long long now_ms, long long last_ms)
