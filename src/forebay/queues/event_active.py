"""The segment of an event queue that is being written: its file, its encoder, what is in it.

Called with the queue's lock held, except `sync`. A write that failed leaves the file as it was, or
sets `broken`. After it an encoder that carries a keystream or a checksum along must not go on: the
segment is `spent`, and the next one is started.
"""

from __future__ import annotations

from forebay.formats.beats import SegmentEncoder
from forebay.formats.beats_crypto import IV_BYTES, Key
from forebay.formats.beats_versions import (
    COUNT_POSITION,
    LAYOUTS,
    encode_count,
    new_header,
    segment_name,
)
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentWriter


class ActiveSegment:
    """A new segment and what was written to it."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        segment_id: int,
        layout_name: str,
        key: Key | None,
    ) -> None:
        """Creates the file with its header; the caller syncs it and the directory.

        If it raises, the file may be there.
        """
        # A fresh vector for every segment: two contents must never share a keystream.
        iv = filesystem.random_bytes(IV_BYTES) if LAYOUTS[layout_name].encrypted else b""
        self._header = new_header(layout_name, iv)
        self._key = key
        self._encoder = SegmentEncoder(self._header, key)
        self._stateful = self._header.layout.encrypted or (
            self._header.layout.compression == "stream"
        )
        self.id = segment_id
        self.name = segment_name(segment_id)
        self.count = 0
        self.position = self._header.layout.header_bytes
        self.spent = False
        self._writer = SegmentWriter(directory, self.name, self._header.encode(), allocate_bytes=0)

    @property
    def raw_size(self) -> int:
        """Where the file ends."""
        return self._writer.end

    @property
    def broken(self) -> bool:
        """Whether bytes of a failed write may be left in the file."""
        return self._writer.broken

    def fits(self, payload: bytes, segment_bytes: int) -> bool:
        """Says whether another event may go into it."""
        room = segment_bytes - self.position
        return not self.spent and self._encoder.fit([payload], 0, room)[0] == 1

    def append(self, payloads: list[bytes], segment_bytes: int) -> int:
        """Writes as many events as fit, at least one; gives how many."""
        room = segment_bytes - self.position
        count, _ = self._encoder.fit(payloads, 0, room)
        before = self._encoder.position
        try:
            self._writer.append(self._encoder.encode(payloads, 0, count))
        except OSError:
            self.spent = self._stateful
            self._encoder = SegmentEncoder(self._header, self._key)
            raise
        self.position += self._encoder.position - before
        self.count += count
        return count

    def finish(self) -> None:
        """Writes what ends the segment; the caller syncs."""
        ending = b"" if self.spent else self._encoder.finish()
        if ending:
            self._writer.append(ending)
        if self._header.layout.counted:
            self._writer.patch(encode_count(self.count), COUNT_POSITION)

    def sync(self) -> None:
        """Makes all that was written durable."""
        self._writer.sync()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()
