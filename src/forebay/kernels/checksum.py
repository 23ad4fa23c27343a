"""CRC-32 (the polynomial of zlib, of Ethernet and of the seeds), from the fastest library there is.

`zlib-ng` is four times the standard library on short records. Its Python call costs more than its
work on 278 bytes, so the compiled kernels call its C function directly where the library exports
it: `direct_address` finds it, checks it on a known value, and gives 0 where it cannot be had.
"""

from __future__ import annotations

import sys
import zlib

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.direct import crc_function
    from cython.cimports.posix.dlfcn import RTLD_LAZY, dlopen, dlsym

try:
    from zlib_ng import zlib_ng as _library

    LIBRARY = "zlib-ng"
except ImportError:
    _library = zlib
    LIBRARY = "zlib"

crc32 = _library.crc32


def direct_address() -> int:
    """Gives the address of the library's C function, or 0."""
    if not cython.compiled or LIBRARY != "zlib-ng":
        return 0
    # Without the interpreter's lock, who relies on it for being atomic must take a lock of its own.
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0
    path: bytes = _library.__file__.encode()
    handle: cython.p_void = dlopen(path, RTLD_LAZY)
    if handle == cython.NULL:
        return 0
    found: cython.p_void = dlsym(handle, b"zng_crc32_z")
    if found == cython.NULL:
        return 0
    function: crc_function = cython.cast(crc_function, found)
    sample: cython.p_char = b"123456789"
    if (
        function(0, cython.cast(cython.pointer(cython.const[cython.uchar]), sample), 9)
        != 0xCBF43926
    ):
        return 0
    return cython.cast(cython.size_t, found)
