# What other compiled kernels call of boot_clock.py, without a Python call in between.
cdef long long boot_ms()
