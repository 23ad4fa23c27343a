"""`deadline-mark`: how far the logs of a deadline queue were durable, and how far written.

Source of truth for what is durable: a mark is written only after the bytes below its durable end
were synced, so an old mark is still true, but lower than it could be. It has two checked slots
(`storage/slots.py`), so it needs no space on a full disk. No I/O. Page: docs/formats/deadline.md.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from forebay.formats.deadline.items import NEXT_ID_MAX

NAME = "deadline-mark"
MAGIC = b"FBDK"

# | field      | bytes | meaning                                                          |
# | queue id   | 16    | as in the manifest                                               |
# | boot id    | 16    | of the machine's start in which it was written                   |
# | generation | 8     | of the manifest: an older one is not the newest                  |
# | salt       | 8     | of the log that the written end is in                            |
# | durable    | 5 x 8 | number of the log, position in it, batches before it, next id,   |
# |            |       | how many items there are                                         |
# | written    | 5 x 8 | the same for the end that survives the process                   |
# | flags      | 4     | 1: closed cleanly; 2: the staging buffer holds more              |
_PAYLOAD = struct.Struct("<16s16sQ8s5Q5QI")
assert _PAYLOAD.size == 132
PAYLOAD_BYTES = _PAYLOAD.size
CLEAN, STAGED = 1, 2
_NUMBER_MAX = 2**63
# Packs the fields above into a payload: a mark is written at every sync.
pack = _PAYLOAD.pack


class End(NamedTuple):
    """An end of the logs: which log, where in it, the next id, and how many items there are.

    Items are pending, leased or buried.
    """

    log: int = 0
    position: int = 0
    batches: int = 0
    next_id: int = 0
    live: int = 0


class Mark(NamedTuple):
    """The content of a mark."""

    queue_id: bytes
    boot_id: bytes
    generation: int
    salt: bytes
    durable: End
    written: End
    clean: bool = False
    staged: bool = False

    def encode(self) -> bytes:
        """Returns the payload of a slot."""
        flags = (CLEAN if self.clean else 0) | (STAGED if self.staged else 0)
        return pack(*self[:4], *self.durable, *self.written, flags)

    @classmethod
    def decode(cls, payload: bytes) -> Mark:
        """Reads the payload of a slot."""
        queue_id, boot_id, generation, salt, *ends, flags = _PAYLOAD.unpack(payload)
        return cls(
            queue_id,
            boot_id,
            generation,
            salt,
            End(*ends[:5]),
            End(*ends[5:]),
            bool(flags & CLEAN),
            bool(flags & STAGED),
        )


def is_sound(payload: bytes) -> bool:
    """Returns whether a mark is plausible: its numbers are in range."""
    mark = Mark.decode(payload)
    ends = [(end.log, end.position, end.batches, end.live) for end in (mark.durable, mark.written)]
    next_id = max(mark.durable.next_id, mark.written.next_id)
    return max(mark.generation, *ends[0], *ends[1]) <= _NUMBER_MAX and next_id <= NEXT_ID_MAX
