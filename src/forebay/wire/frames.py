"""Frames: messages cut out of a stream of bytes. No I/O.

A frame is its size, 4 bytes little-endian, then as many bytes. A size is compared with the limit
before a byte of the frame is kept.
"""

from __future__ import annotations

import struct

from forebay.errors import ProtocolError

_SIZE = struct.Struct("<I")
# The most that a frame may hold. A batch of more is refused by the side that would send it.
FRAME_BYTES_MAX = 64 << 20


def frame(body: bytes | bytearray) -> bytes:
    """Returns a message as a frame; raises `ProtocolError` if it is too large."""
    if len(body) > FRAME_BYTES_MAX:
        raise ProtocolError(f"a message of {len(body)} bytes: at most {FRAME_BYTES_MAX}")
    return _SIZE.pack(len(body)) + body


class FrameReader:
    """Collects what a socket returns, and cuts it into frames. One thread at a time may use it."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._data = bytearray()
        self._start = 0

    @property
    def size(self) -> int:
        """How much was received and is not cut off yet."""
        return len(self._data) - self._start

    @property
    def is_inside(self) -> bool:
        """Whether the stream is in the middle of a frame."""
        return len(self._data) > self._start

    def feed(self, data: bytes) -> None:
        """Adds what was received."""
        if self._start:
            del self._data[: self._start]
            self._start = 0
        self._data += data

    def next(self) -> bytes | None:
        """Returns the next frame; None if it is not complete. Raises `ProtocolError`."""
        start = self._start + _SIZE.size
        if len(self._data) < start:
            return None
        (size,) = _SIZE.unpack_from(self._data, self._start)
        if size > self.bytes_max:
            raise ProtocolError(f"a message of {size} bytes: at most {self.bytes_max}")
        end = start + size
        if len(self._data) < end:
            return None
        self._start = end
        return bytes(memoryview(self._data)[start:end])
