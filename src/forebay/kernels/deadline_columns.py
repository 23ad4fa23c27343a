"""The layout of a block of a deadline run, in numbers; the page is docs/formats/deadline.md.

Never compiled: for the compiled kernels the same numbers are in `deadline_columns.pxd`.
"""

from __future__ import annotations

# Columns, bytes of their head, bytes before that, and the most entries.
COLUMNS = 8
HEAD = 72
BLOCK_HEAD = 24
ENTRIES_MAX = 65536
# Which column is which.
DEADLINE = 0
ID = 1
ENQUEUE = 2
REQUEUE = 3
COUNT = 4
ATTRIBUTES = 5
REASON = 6
VALUE = 7
# Attributes.
TOMBSTONE = 1
BURIED = 2
