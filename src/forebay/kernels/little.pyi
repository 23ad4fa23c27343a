# Only other kernels call what is in this one; compiled, it has no Python names.
