"""What a record of a part for a deadline queue is, as another process leaves it: deadline, value.

A module of its own: who writes parts needs nothing of what reads runs.
"""

from __future__ import annotations

import struct

# Before the value: the deadline in ms since 1970; below 0, the item is due at once.
PREFIX = struct.Struct("<q")
NOW = -1
