# What plain Python has no word for: the C type of zlib-ng's CRC-32 function, and fetching memory
# ahead of its use, which is nothing where the compiler cannot.
cdef extern from *:
    """
    #if defined(__GNUC__)
    #define forebay_prefetch(address) __builtin_prefetch((const void *)(size_t)(address))
    #else
    #define forebay_prefetch(address) ((void)0)
    #endif
    """
    void prefetch "forebay_prefetch" (unsigned long long address) noexcept nogil

ctypedef unsigned int (*crc_function)(unsigned int, const unsigned char *, size_t) noexcept nogil
