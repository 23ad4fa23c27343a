"""Records that durable appends have encoded and nobody has written yet.

Whoever leads a commit writes them out for all: many threads share one write as they share one
sync. Nothing in it is acknowledged. Called with the queue's lock held.
"""

from __future__ import annotations

from forebay.formats.fflg import Frames

_BYTES = 1 << 20


class Pending:
    """A buffer of frames, the next entries of the open segment."""

    def __init__(self) -> None:
        # Made at the first record: many a log is opened only to be read.
        self._buffer = memoryview(bytearray())
        self.size = 0
        self.count = 0

    def add(self, frames: Frames, value: bytes, index: int, ms: int, room: int) -> bool:
        """Encodes a record behind the others; False if `room` or the buffer has none for it."""
        start = self.size
        end = start + len(value) + frames.layout.frame_bytes
        if end > room or end > _BYTES:
            return False
        if not self._buffer:
            self._buffer = memoryview(bytearray(_BYTES))
        frames.encode([value], 0, 1, self._buffer[start:], index, ms)
        self.size = end
        self.count += 1
        return True

    def take(self) -> tuple[memoryview, int]:
        """Empties it; gives the frames, valid until the next `add`, and how many they are."""
        data, count = self._buffer[: self.size], self.count
        self.size = self.count = 0
        return data, count
