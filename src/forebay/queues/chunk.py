"""The records that wait in the staging buffer: one chunk, the next entries of the open segment.

Called with the queue's lock held, except that any thread may call `put`. A chunk that was stopped
keeps its records until `done`: what was acknowledged is only given up once it is in the segment.
"""

from __future__ import annotations

import threading

from forebay.clock import Clock, SystemClock
from forebay.formats.fflg import Frames
from forebay.kernels.appender import Appender
from forebay.storage.filesystem import Directory
from forebay.storage.staging import HEADER_BYTES, Staging


class Chunk:
    """A staging buffer and the kernel that appends to it."""

    def __init__(self, directory: Directory, size: int, lock: threading.Lock, clock: Clock) -> None:
        """Opens or creates the buffer; what was in it is void on return."""
        self._staging = Staging(directory, size)
        # The machine's own clock is read in C, which saves a Python call an append.
        now_ms = None if type(clock) is SystemClock else clock.now_ms
        self._appender = Appender(self._staging.buffer, lock, now_ms)
        self._first = 0
        self._end = 0
        self._base = 0
        self.waiting = False
        self.put = self._appender.append

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._base + self._appender.index

    @property
    def last_ms(self) -> int:
        """The time of the last record."""
        return self._appender.last_ms

    def has_room(self, size: int) -> bool:
        """Says whether a frame of `size` bytes still goes into the chunk."""
        return self.waiting and size <= self._end - self._appender.position

    def begin(self, frames: Frames, index: int, room: int, last_ms: int) -> None:
        """Opens `room` bytes for the entries of a segment from `index` on."""
        header = frames.header
        self._first, self._base = index, header.base_offset
        self._end = HEADER_BYTES + room
        self._staging.begin(header.encode(), index)
        # After a step back of the clock, times go on from the epoch: 0 would be no frame.
        self._appender.last_ms = max(last_ms, header.epoch_ms + 1)
        self._appender.begin(
            HEADER_BYTES, self._end, header.base_offset, index, frames.seed, header.epoch_ms
        )
        self.waiting = True

    def stop(self) -> int:
        """Takes no more records; gives how many wait."""
        self._appender.finish()
        return self._appender.index - self._first if self.waiting else 0

    def frames(self) -> memoryview:
        """Returns the bytes of those that wait; to be released before `close`."""
        return self._staging.chunk(self._appender.position)

    def done(self) -> None:
        """Returns the space free: the records are in the segment."""
        self.waiting = False

    def close(self) -> None:
        """Unmaps and closes the buffer."""
        self._appender.release_buffer()
        self._staging.close()
