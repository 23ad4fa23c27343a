"""The clock that counts since the machine started, read without a Python call in between."""

from __future__ import annotations

import time

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.posix.time import CLOCK_BOOTTIME, clock_gettime, timespec


@cython.cfunc
@cython.inline
def boot_ms() -> cython.longlong:
    """Gives the milliseconds since the machine started, asleep or not."""
    if cython.compiled:
        now: timespec
        clock_gettime(CLOCK_BOOTTIME, cython.address(now))
        return cython.cast(cython.longlong, now.tv_sec) * 1000 + now.tv_nsec // 1_000_000
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
