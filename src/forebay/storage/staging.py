"""The staging buffer: a small, preallocated, warm mapped file in front of the segments.

A put there is a memory copy that survives `kill -9`. The buffer holds one chunk at a time: frames
that are, byte for byte, the next entries of the segment being written. It is drained by one
`pwrite`, and its space is reused only after that has returned. Source of truth for records that
were acknowledged under a weak sync policy and are not in the segments yet.

Chunk header, big-endian, 96 bytes, checked; the frames follow it:

| field | bytes | meaning |
| --- | --- | --- |
| magic | 4 | `FBST` |
| index | 8 | the index of the first frame in its segment |
| size | 2 | of the segment's header |
| header | 64 | the segment's header, so that the frames verify even if the segment is lost |
| crc32 | 4 | of all before |
| | 6 | |
| note | 8 | how many frames there are, and its complement, little-endian; zeros: not noted |

Frames of an older chunk that lie after the newest frame have other indexes or another salt and do
not verify. An owner blanks the header durably before it serves.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass

from forebay.errors import Damaged
from forebay.kernels.buffers import crc32
from forebay.storage import quarantine
from forebay.storage.filesystem import Directory, File, Mapping, unmap, write_all
from forebay.storage.readable import is_readable, open_readable

NAME = "staging"
HEADER_BYTES = 96
NOTE_BYTES = 8
_LOOKS_MAX = 100
_MAGIC = b"FBST"
_HEADER = struct.Struct(">4sQH64s")
_CRC = struct.Struct(">I")
_COUNT = struct.Struct("<II")
assert _HEADER.size + _CRC.size + NOTE_BYTES <= HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Staged:
    """A chunk that was found: a segment's header, the index of the first frame, the bytes."""

    header: bytes
    index: int
    frames: bytes
    # What precedes the frames: how many there are, and its complement.
    note: bytes = bytes(NOTE_BYTES)

    @property
    def count(self) -> int | None:
        """Returns how many frames were acknowledged; None if it is not noted.

        After a power cut the note may exist without the frames.
        """
        count, complement = _COUNT.unpack(self.note)
        return int(count) if count + complement == 0xFFFFFFFF else None


class Staging:
    """The open buffer. Call it with the queue's lock held.

    Where nothing in it is acknowledged, plain memory takes the place of the mapped file.
    """

    def __init__(self, directory: Directory, size: int, *, mapped: bool = True) -> None:
        """Opens or creates it, warms its pages, and blanks it durably, if it is mapped."""
        self.size = size
        self.buffer: Mapping = bytearray() if mapped else bytearray(size)
        self._file: File | None = None
        if not mapped:
            return
        made = True
        try:
            file = self._file = directory.create(NAME)
        except FileExistsError:
            made = False
            file = self._file = directory.open(NAME, write=True)
        try:
            # Allocated, not sparse: on a full disk a store to a hole would kill the process.
            file.allocate(0, size)
            self.buffer = file.map(size)
            self.buffer[:] = bytes(size)
            # Durably: an entry that a power cut took may otherwise be in the buffer still, verify
            # as the successor of a new one, and return after the next power cut. The name is not
            # synced: what is only in the buffer need not survive.
            file.sync()
        except BaseException:
            file.close()
            if made:
                # On a full disk it would occupy the little space that is left.
                directory.unlink(NAME)
            raise

    def begin(self, header: bytes, index: int) -> None:
        """Starts a chunk for the entries of a segment from `index` on; its note is blank."""
        head = _HEADER.pack(_MAGIC, index, len(header), header)
        head += _CRC.pack(crc32(head))
        self.buffer[:HEADER_BYTES] = head.ljust(HEADER_BYTES, b"\0")

    def close(self) -> None:
        """Unmaps and closes the file."""
        if self._file is not None:
            unmap(self.buffer)
            self._file.close()


def read_staged(directory: Directory) -> Staged | None:
    """Reads the chunk that is in the buffer now; None if there is none.

    Frames that a living owner is writing right now do not verify and end the chunk: they are not
    acknowledged yet. Unreadable bytes are replaced by zeros. Raises `Damaged` if it cannot be
    opened.
    """
    try:
        file = open_readable(directory, NAME)
    except FileNotFoundError:
        return None
    data = b""
    try:
        for _ in range(_LOOKS_MAX):
            data = file.pread(file.size(), 0)
            if file.pread(_HEADER.size, 0) == data[: _HEADER.size]:
                # The frames belong to the header: no other chunk was started meanwhile.
                break
    finally:
        file.close()
    if len(data) < HEADER_BYTES or data[:4] != _MAGIC:
        return None
    head = data[: _HEADER.size]
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc32(head):
        return None
    _, index, size, header = _HEADER.unpack(head)
    return Staged(
        header[:size], index, data[HEADER_BYTES:], data[HEADER_BYTES - NOTE_BYTES : HEADER_BYTES]
    )


def find_staged(directory: Directory) -> Staged | None:
    """Reads the chunk that is in the buffer now; None if there is none, or it cannot be opened."""
    try:
        return read_staged(directory)
    except Damaged:
        return None


def blank_staged(directory: Directory) -> None:
    """Makes the buffer void, durably; one that cannot be read and written is set aside."""
    file = None
    try:
        with contextlib.suppress(PermissionError):
            if is_readable(directory, NAME):
                file = directory.open(NAME, write=True)
    except FileNotFoundError:
        return
    if file is None:
        quarantine.keep_file(directory, NAME)
        return
    try:
        write_all(file, bytes(HEADER_BYTES), 0)
        file.sync()
    finally:
        file.close()
