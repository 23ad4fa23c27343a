"""The fields of a row of a deadline queue in memory, in numbers; see `deadline_memory.py`.

Never compiled: for the compiled kernels the same numbers are in `deadline_fields.pxd`.
"""

from __future__ import annotations

# Numbers of a row, and which is which; those before are the key and the next row of its slot. The
# time is that of the enqueue; of a mark, when it was given out.
ROW = 8
STATE = 3
TIME = 4
REQUEUE = 5
COUNT = 6
# States.
ITEM = 1
TOMBSTONE = 2
MARK = 4
