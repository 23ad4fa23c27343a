# The C type of zlib-ng's CRC-32 function: plain Python has no word for it.
ctypedef unsigned int (*crc_function)(unsigned int, const unsigned char *, size_t) noexcept nogil
