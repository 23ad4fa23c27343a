"""Brings what a write-ahead log says into memory."""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.deadline_memory import Memory
else:
    from forebay.kernels.deadline_memory import Memory


def replay(memory: Memory, records: list) -> None:
    """Takes in records of a log as `deadline_wal.scan` gives them, in the order of writing."""
    record: tuple
    for record in records:
        kind = record[0]
        if kind == 3:
            memory.kill(record[1], record[2])
        elif kind == 4:
            memory.mark(record[1], record[2], record[5], record[3])
        elif kind < 3:
            memory.add(record[1], record[2], record[3], record[4], record[5], record[7], record[8])
