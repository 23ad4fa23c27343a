"""Segments: files of frames. Append, roll, seal; read, and scan past damage.

This module knows no format: it uses one through the protocol `FrameCodec`. A segment that is being
written is preallocated if its format allows it, so its tail is zeros; a sealed one ends at its last
frame. Entries of a segment at or beyond the base of the next one do not count: recovery may have
written them again there.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from forebay.damage import Damage
from forebay.errors import NotAQueue
from forebay.storage.filesystem import Buffer, Directory, write_all
from forebay.storage.readable import Content, Readable

CHUNK_BYTES = 1 << 20
_ALLOCATE_BYTES = 8 << 20
# How much of a segment is held in memory to search it for the next good frame. If its format
# compresses, a file of a few megabytes may decode to gigabytes. Frames of up to half this size are
# found wherever they are.
_WINDOW_BYTES = 128 << 20
# No file has room for so many entries.
_INDEX_MAX = 2**62
# In every format, a frame starts with its size.
_SIZE_BYTES = 4


class FrameCodec(Protocol):
    """What storage needs from a format to walk over the frames of one segment."""

    def scan(
        self, data: bytes, position: int, index: int, limit: int, times: list[int] | None
    ) -> tuple[list[bytes], int]:
        """Reads whole, good frames; returns their values and where it stopped."""
        ...

    def frame_size(self, data: bytes, position: int) -> int | None:
        """Returns the claimed size of the frame at a position; None if it cannot be read."""
        ...

    def find(self, data: bytes, position: int, index: int, limit: int) -> tuple[int, int] | None:
        """Searches for the next good frame below an index; returns its position and index."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive good frames: values, and times if the format has them."""

    index: int
    position: int
    end_position: int
    values: list[bytes]
    times: list[int]


class SegmentWriter:
    """The one segment that is being written.

    Call it with the queue's lock held, except `sync`. Bytes survive the process once `append` has
    returned for them; `sync` makes them survive a power cut.
    """

    def __init__(
        self,
        directory: Directory,
        name: str,
        header: bytes,
        *,
        allocate_bytes: int,
        size_max: int = 2**62,
    ) -> None:
        """Creates the file with its header; the caller syncs the directory.

        Space is allocated `allocate_bytes` at a time, never beyond `size_max`.
        """
        self._file = directory.create(name)
        self._size_max = size_max
        self._allocate_bytes = min(allocate_bytes, _ALLOCATE_BYTES)
        self._allocated = 0
        self.name = name
        self.end = 0
        self.broken = False
        try:
            # Before any space is allocated: a file of only zeros could not be identified.
            write_all(self._file, header, 0)
        except OSError:
            self._file.close()
            directory.unlink(name)
            raise
        self.end = self._allocated = self._header_bytes = len(header)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was appended."""
        return self.end == self._header_bytes

    def append(self, data: Buffer) -> None:
        """Writes at the end; on an error nothing of it is left, or `broken` is set."""
        end = self.end + len(data)
        if end > self._allocated and self._allocate_bytes:
            self._reserve(end)
        try:
            write_all(self._file, data, self.end)
        except OSError:
            self._cut_back()
            raise
        self.end = end

    def patch(self, data: Buffer, position: int) -> None:
        """Overwrites existing bytes; on an error `broken` is set."""
        try:
            write_all(self._file, data, position)
        except OSError:
            self.broken = True
            raise

    def sync(self) -> None:
        """Makes everything that was appended durable."""
        self._file.sync()

    def seal(self) -> None:
        """Frees preallocated space; the caller syncs."""
        if self._allocated > self.end:
            self._file.truncate(self.end)
            self._allocated = self.end

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _reserve(self, end: int) -> None:
        start = max(self._allocated, self.end)
        stop = max(min(start + self._allocate_bytes, self._size_max), end)
        try:
            self._file.allocate(start, stop - start)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EOPNOTSUPP):
                raise
            # The little space that is left may still suffice for the record: its write decides.
            self._cut_back()
        else:
            self._allocated = stop

    def _cut_back(self) -> None:
        try:
            self._file.truncate(self.end)
        except OSError:
            self.broken = True
        self._allocated = self.end


class SegmentList:
    """The segments of a queue, in the order of their base offsets; sizes where they are known."""

    def __init__(self, named: dict[int, str]) -> None:
        self.bases = sorted(named)
        self.names = dict(named)
        self.sizes: dict[int, int] = {}
        # The offset from which on records must exist; None if that is not on record.
        self.begin: int | None = None

    def add(self, base: int, name: str) -> None:
        """Adds a segment after the last."""
        self.bases.append(base)
        self.names[base] = name

    def copy(self) -> SegmentList:
        """Returns a snapshot, for a reader that walks over it while segments come and go."""
        snapshot = SegmentList(self.names)
        snapshot.begin = self.begin
        return snapshot

    def drop_last(self) -> None:
        """Removes the last one from the list."""
        self.sizes.pop(self.bases[-1], None)
        del self.names[self.bases.pop()]

    def drop_first(self, count: int) -> None:
        """Removes the first ones from the list."""
        for base in self.bases[:count]:
            del self.names[base]
            self.sizes.pop(base, None)
        del self.bases[:count]

    def containing(self, offset: int) -> int | None:
        """Returns the base of the segment that an offset is in, if it is in any."""
        number = bisect_right(self.bases, offset) - 1
        return self.bases[number] if number >= 0 else None

    def after(self, base: int) -> int | None:
        """Returns the base of the segment after the given one."""
        number = bisect_right(self.bases, base)
        return self.bases[number] if number < len(self.bases) else None


def scan_segment(
    content: Content,
    path: str,
    codec: FrameCodec,
    *,
    position: int,
    index: int = 0,
    expected: int = 0,
    limit: int = _INDEX_MAX,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[Batch | Damage]:
    """Walks over a segment from a frame on, past all damage.

    `expected` entries must exist: a shortfall is damage, never a torn end. Entries from `limit` on
    do not count. `chunk_bytes` is how much is read for a batch. What the disk cannot return is also
    damage.
    """
    file = content if isinstance(content, Readable) else Readable(content)
    size = file.size()
    limit = min(limit, _INDEX_MAX)
    # The file may have been cut below the position up to which it was read before.
    position = min(position, size)
    while index < limit:
        batch = _next_batch(file, codec, size, position, index, limit, chunk_bytes)
        if batch is not None:
            yield batch
            position, index = batch.end_position, index + len(batch.values)
            continue
        found = _judge(file, path, codec, size, position, index, expected, limit)
        if found is None:
            return
        damage, position, index = found
        yield damage


def _next_batch(
    file: Readable,
    codec: FrameCodec,
    size: int,
    position: int,
    index: int,
    limit: int,
    chunk_bytes: int,
) -> Batch | None:
    room = size - position
    data = file.pread(min(room, chunk_bytes), position)
    hole = file.hole(position, position + len(data))
    if hole is not None:
        # A format without checks would take the zeros there for entries.
        data = data[: max(0, hole.start - position)]
    times: list[int] = []
    values, stop = codec.scan(data, 0, index, limit - index, times)
    if not values:
        wanted = codec.frame_size(data, 0)
        if wanted is None or not len(data) < wanted <= room:
            return None
        data = file.pread(wanted, position)
        if file.hole(position, position + wanted) is not None:
            return None
        values, stop = codec.scan(data, 0, index, 1, times)
        if not values:
            return None
    return Batch(index, position, position + stop, values, times)


def _judge(
    file: Readable,
    path: str,
    codec: FrameCodec,
    size: int,
    position: int,
    index: int,
    expected: int,
    limit: int,
) -> tuple[Damage, int, int] | None:
    """Classifies the bytes at `position`, which are not a good frame of this index.

    Returns the damage, and position and index of the next good frame; None if the segment simply
    ends here.
    """
    rest = size - position
    used = 0
    for start, length in _windows(rest):
        data = file.pread(length, position + start)
        filled = len(data.rstrip(b"\0"))
        if filled:
            used = start + filled
        elif index >= expected:
            continue
        claimed = _claimed_size(file, codec, data, position) if start == 0 else None
        found = _next_good(codec, data, rest, index, expected, limit, claimed, first=start == 0)
        if found is not None:
            passed, next_index, reason = start + found[0], found[1], found[2]
            reason = _why(file, position, passed) or reason
            damage = Damage(path, position, passed, reason, False, index, next_index - index)
            return damage, position + passed, next_index
    unreadable = _why(file, position, rest)
    if index < expected:
        reason = unreadable or f"{expected - index} entries are missing"
        damage = Damage(path, position, rest, reason, False, index, expected - index)
        return damage, size, limit
    if unreadable is not None:
        # It is unknown whether entries were there.
        return Damage(path, position, rest, unreadable, False, index, None), size, limit
    if used == 0:
        return None
    return Damage(path, position, used, "unfinished entry", True, index, None), size, limit


def _why(file: Readable, position: int, length: int) -> str | None:
    """Returns why a range cannot be read, if that is the problem."""
    hole = file.hole(position, position + length)
    return None if hole is None else hole.reason


def _claimed_size(file: Readable, codec: FrameCodec, data: bytes, position: int) -> int | None:
    """Returns the claimed size of the bad frame at a position, if it is plausible."""
    if file.hole(position, position + _SIZE_BYTES) is not None:
        return None
    claimed = codec.frame_size(data, 0)
    if claimed is None:
        return None
    behind = position + claimed
    return None if file.hole(behind, behind + _SIZE_BYTES) is not None else claimed


def _windows(rest: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of the rest of a segment to search, in order: start and length.

    Damage is usually short: more is read only if the next chunk holds no good frame.
    """
    yield 0, min(CHUNK_BYTES, rest)
    start = 0
    while rest > CHUNK_BYTES:
        yield start, min(_WINDOW_BYTES, rest - start)
        if start + _WINDOW_BYTES >= rest:
            return
        start += _WINDOW_BYTES // 2


def _next_good(
    codec: FrameCodec,
    data: bytes,
    rest: int,
    index: int,
    expected: int,
    limit: int,
    claimed: int | None,
    *,
    first: bool,
) -> tuple[int, int, str] | None:
    """Finds the good frame after a bad one: its distance, its index, and what is wrong here.

    `first` means that the bad frame is at the start of the data; `claimed` is its claimed size.
    """
    if claimed is not None and claimed <= len(data):
        # A damaged blob leaves the size intact: the next frame is where it points.
        behind, _ = codec.scan(data, claimed, index + 1, 1, None)
        if behind or (claimed == rest and index + 1 == expected):
            return claimed, index + 1, "checksum does not match"
    found = codec.find(data, 0, index, limit)
    if first and found is not None and found[0] == 0:
        # It verifies only with zeros in place of what cannot be read.
        found = codec.find(data, 1, index + 1, limit)
    return None if found is None else (*found, "no frame verifies here")


def check_base(found: int, base: int, path: str) -> None:
    """Rejects a segment whose header has another base offset than its name."""
    if found != base:
        raise NotAQueue(f"{path}: the header has base offset {found}, the name has {base}")
