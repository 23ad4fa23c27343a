"""The frames of a Beats segment: what storage needs from a codec. Page: docs/formats/beats.md.

Works on the *logical* bytes of a segment, decrypted and decompressed as a stream (`bytes.py`):
positions are those of `state.dat`. Promises that a payload is returned only if the CRC that covers
it matches. No I/O, no clock; the loops are in `forebay.kernels.beats`, the rows of the versions in
`versions.py`, events in `events.py`.
"""

from __future__ import annotations

from forebay.errors import RecordTooLarge
from forebay.formats.beats.bytes import (
    EVENT_BYTES_MAX,
    StreamCompressor,
    compress_block,
    compressed_size_max,
    decompress_block,
)
from forebay.formats.beats.crypto import Key, Keystream
from forebay.formats.beats.versions import Header
from forebay.kernels import beats as kernel
from forebay.kernels.buffers import fit, measure

FRAME_BYTES = kernel.FRAME_BYTES


class Frames:
    """The frames of one segment, for one header.

    A frame does not contain its index: `index`, `limit` and `times` are here because storage passes
    them to every codec.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.layout = header.layout
        self._in_blocks = header.layout.compression == "block"
        # Whether the last `find` gave up, and whether the index that it returned is exact.
        self.gave_up = False
        self.exact = True

    def scan(
        self, data: bytes, position: int, index: int, limit: int, times: list[int] | None
    ) -> tuple[list[bytes], int]:
        """Reads whole, good frames from `position` on; returns the events and where it stopped."""
        values, stop = kernel.scan(data, position, limit)
        return self._decompress(values, position, stop) if self._in_blocks else (values, stop)

    def frame_size(self, data: bytes, position: int) -> int | None:
        """Returns the claimed size of the frame at `position`; None if it cannot be read."""
        if len(data) - position < 4:
            return None
        size = int.from_bytes(data[position : position + 4], "little")
        return size if size > FRAME_BYTES else None

    def find(self, data: bytes, position: int, index: int, limit: int) -> tuple[int, int] | None:
        """Searches for the next good frame from `position` on; returns its position and index.

        The index is exact if the sizes of the bad frames lead to that position. Otherwise the
        number of lost frames is unknown, and the index is one more than `index`: at least one frame
        was lost.
        """
        self.gave_up = False
        if limit <= index:
            return None
        found = kernel.find(data, position)
        while found >= 0 and not self.scan(data, found, 0, 1, None)[0]:
            found = kernel.find(data, found + 1)
        if found < 0:
            self.gave_up = found == kernel.GAVE_UP
            return None
        passed = kernel.hop(data, position, found)
        self.exact = passed >= 0
        return found, min(index + (passed if passed >= 0 else 1), limit)

    def _decompress(self, values: list[bytes], position: int, stop: int) -> tuple[list[bytes], int]:
        """Returns the events if each is compressed; stops at the first bad block."""
        events: list[bytes] = []
        for value in values:
            event = decompress_block(value)
            if not event:
                return events, position
            events.append(event)
            position += len(value) + FRAME_BYTES
        return events, stop


class SegmentEncoder:
    """Encodes one new segment, front to back.

    Bytes that it has returned count as written. After a failed write it must not be used again,
    because the checksum of a stream already includes them and a keystream must never cover two
    contents; the queue then starts a new segment. One thread at a time may use it.
    """

    def __init__(self, header: Header, key: Key | None = None) -> None:
        """`key` is required if the version is encrypted."""
        self.header = header
        self.count = 0
        self.position = header.layout.header_bytes
        self._in_blocks = header.layout.compression == "block"
        self._stream = StreamCompressor() if header.layout.compression == "stream" else None
        self._keystream: Keystream | None = None
        self._body_size = 0
        if header.layout.encrypted:
            if key is None:
                raise TypeError(f"{header.layout.name} is written with a key")
            self._keystream = key.keystream(header.iv)

    def fit(self, values: list[bytes], first: int, room: int) -> tuple[int, int]:
        """Returns how many of the events from `first` on fit in `room` bytes, and their size.

        If events are compressed, it is the largest size that they can have.
        """
        if not self._in_blocks:
            return fit(values, first, room, FRAME_BYTES)
        total = 0
        for number in range(first, len(values)):
            size = total + compressed_size_max(len(values[number])) + FRAME_BYTES
            if size > room:
                return number - first, total
            total = size
        return len(values) - first, total

    def encode(self, values: list[bytes], first: int, count: int) -> bytes:
        """Returns the next bytes of the segment; rejects an event that is too large."""
        chosen = values[first : first + count]
        _, largest, smallest = measure(chosen)
        if chosen and (smallest == 0 or largest > EVENT_BYTES_MAX):
            raise RecordTooLarge(
                f"an event of {largest if smallest else 0} bytes; "
                f"an event has 1 to {EVENT_BYTES_MAX} bytes"
            )
        if self._in_blocks:
            chosen = [compress_block(value) for value in chosen]
        buffer = bytearray(fit(chosen, 0, 2**62, FRAME_BYTES)[1])
        kernel.encode(chosen, 0, len(chosen), buffer)
        self.count += len(chosen)
        self.position += len(buffer)
        data = bytes(buffer)
        if self._stream is not None and data:
            data = self._stream.compress(data)
        return self._encrypt(data)

    def finish(self) -> bytes:
        """Returns the end of the segment, if its version has one."""
        return self._encrypt(self._stream.finish()) if self._stream is not None else b""

    def _encrypt(self, data: bytes) -> bytes:
        if self._keystream is None:
            return data
        data = self._keystream.apply(data, self._body_size)
        self._body_size += len(data)
        return data
