"""The logical bytes of a Beats segment: decrypted, and decompressed where a stream holds them.

A codec scans these as if they were the file. Their positions are those of `state.dat`: the header
counts, the initialization vector does not, compression does not show. Reads nothing by itself: it
asks the `RawBytes` that it is given, and holds one block and one chunk of them.

A block of a stream that cannot be decoded stands as bytes 0xff, as many as it takes in the file. No
frame begins so; a scan goes round them as round any other damage. What lies behind is whole, but
its logical positions are then not those that the writer counted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Protocol

from forebay.errors import WrongKey
from forebay.formats.beats_crypto import IV_BYTES, Key, Keystream
from forebay.formats.beats_lz4 import (
    BLOCK_BYTES_MAX,
    DESCRIPTOR,
    DESCRIPTOR_BYTES_MAX,
    Block,
    decode_block,
    decode_block_head,
    descriptor_size,
)
from forebay.formats.beats_versions import Header
from forebay.kernels import beats as kernel

_CHUNK_BYTES = 256 << 10
_HEAD_BYTES = 4
_SEARCH_BYTES = 2 * BLOCK_BYTES_MAX
# How many bytes a search decodes at most: bytes that were made to decode everywhere must not hold
# it up.
_SEARCHED_MIN = 256 << 20
_SEARCHED_RATIO = 4
_FILLER = b"\xff"


class RawBytes(Protocol):
    """As much of a file as reading needs."""

    def pread(self, size: int, position: int) -> bytes:
        """Gives up to `size` bytes from a position; fewer only at the end."""
        ...

    def size(self) -> int:
        """Returns how many bytes there are."""
        ...


class LogicalBytes(RawBytes, Protocol):
    """The same, of the logical bytes.

    `gave_up` says that a search for the next block was ended before it had seen everything.
    """

    gave_up: bool

    def file_position(self, position: int) -> int:
        """Returns where in the file a logical position lies: for messages."""
        ...

    def look_again(self) -> None:
        """Takes note that the file may have grown."""
        ...


def open_bytes(raw: RawBytes, header: Header, key: Key | None, path: str) -> LogicalBytes:
    """Returns the logical bytes of a segment; raises WrongKey where a key is needed and missing."""
    layout = header.layout
    source: LogicalBytes = PlainBytes(raw)
    if layout.encrypted:
        if key is None:
            raise WrongKey(f"{path}: the segment is encrypted ({layout.name}) and no key was given")
        source = DecryptedBytes(raw, key.keystream(header.iv), layout.header_bytes)
    if layout.compression == "stream":
        return StreamBytes(source, layout.header_bytes, path)
    return source


class PlainBytes:
    """The bytes as they lie in the file."""

    gave_up = False

    def __init__(self, raw: RawBytes) -> None:
        self.pread = raw.pread
        self.size = raw.size

    def file_position(self, position: int) -> int:
        """Returns the position itself."""
        return position

    def look_again(self) -> None:
        """Does nothing: it asks the file each time."""


class DecryptedBytes:
    """The bytes of an encrypted segment, in clear and without the vector."""

    gave_up = False

    def __init__(self, raw: RawBytes, keystream: Keystream, header_bytes: int) -> None:
        self._raw = raw
        self._keystream = keystream
        self._header_bytes = header_bytes

    def pread(self, size: int, position: int) -> bytes:
        """Decrypts a part; the header was never encrypted."""
        if position < self._header_bytes:
            head = self._raw.pread(min(size, self._header_bytes - position), position)
            rest = size - len(head)
            return head + (self.pread(rest, self._header_bytes) if rest > 0 else b"")
        data = self._raw.pread(size, position + IV_BYTES)
        return self._keystream.apply(data, position - self._header_bytes)

    def size(self) -> int:
        """Returns the size without the vector."""
        return self._raw.size() - IV_BYTES

    def file_position(self, position: int) -> int:
        """Returns where the byte lies in the file."""
        return position if position < self._header_bytes else position + IV_BYTES

    def look_again(self) -> None:
        """Does nothing: it asks the file each time."""


class StreamBytes:
    """The content of an LZ4 stream, block by block, from any position on.

    The blocks are found front to back, once; then a block is decoded when it is asked for.
    """

    def __init__(self, source: LogicalBytes, start: int, path: str) -> None:
        self.gave_up = False
        self._source = source
        self._path = path
        self._source_size = source.size()
        self._header = source.pread(start, 0)
        self._chunk = b""
        self._chunk_position = 0
        # Of each block: where its content begins, where its head lies, whether it is good.
        self._starts = array("q")
        self._positions = array("q")
        self._good = bytearray()
        self._end = start
        self._cached = (-1, b"")
        self._next: int | None = start
        self._search_left = _SEARCHED_MIN + _SEARCHED_RATIO * self._source_size
        self._resume: int | None = None
        self._skip_descriptor(start)

    def _skip_descriptor(self, start: int) -> None:
        if self._source_size > start:
            head = self._read(DESCRIPTOR_BYTES_MAX, start)
            # A damaged descriptor costs nothing: Beats writes only this one.
            self._next = start + (descriptor_size(head, self._path) or len(DESCRIPTOR))

    def pread(self, size: int, position: int) -> bytes:
        """Decodes a part of the content."""
        end = position + size
        while self._next is not None and self._end < end:
            self._extend(self._next)
        parts = [self._header[position:end]]
        position = max(position, len(self._header))
        number = bisect_right(self._starts, position) - 1
        while 0 <= number < len(self._starts) and self._starts[number] < end:
            first = max(position, self._starts[number]) - self._starts[number]
            parts.append(self._part(number, first, end - self._starts[number]))
            number += 1
        return b"".join(parts)

    def size(self) -> int:
        """Returns the size of the content; decodes every block once to know it."""
        while self._next is not None:
            self._extend(self._next)
        return self._end

    def file_position(self, position: int) -> int:
        """Returns where the block that holds a position begins in the file."""
        number = bisect_right(self._starts, position) - 1
        return self._source.file_position(self._positions[number] if number >= 0 else position)

    def look_again(self) -> None:
        """Goes on behind the last block, if the blocks ended with the file."""
        self._source_size = self._source.size()
        self._chunk, self._chunk_position = b"", 0
        if self._resume is not None:
            self._next, self._resume = self._resume, None
        if self._next == len(self._header):
            self._skip_descriptor(self._next)

    def _extend(self, position: int) -> None:
        """Takes in the block whose head lies at a position, or the damage there."""
        head = self._read(_HEAD_BYTES, position)
        self._resume = position if position == self._source_size else None
        if len(head) < _HEAD_BYTES:
            self._add_damage(position, self._source_size)
            self._next = None
            return
        block = decode_block_head(head, position)
        if block is None:
            self._end_mark(position)
            return
        content = self._decode(block)
        if content is not None:
            self._cached = (len(self._starts), content)
            self._add(position, len(content), good=True)
            self._next = block.end
            return
        self._next = self._after(block)
        self._add_damage(position, self._next or self._source_size)

    def _end_mark(self, position: int) -> None:
        """Ends the stream, unless more than the checksum follows: then the mark is damage."""
        self._next = None
        if self._has_content(position + 2 * _HEAD_BYTES):
            self._next = self._search(position + 1)
            self._add_damage(position, self._next or self._source_size)

    def _has_content(self, position: int) -> bool:
        while position < self._source_size:
            chunk = self._read(_CHUNK_BYTES, position)
            if chunk.strip(b"\0"):
                return True
            position += len(chunk)
        return False

    def _after(self, block: Block) -> int | None:
        """Returns where the blocks go on behind a bad one; None if none does."""
        if block.size <= BLOCK_BYTES_MAX and block.end < self._source_size:
            head = self._read(_HEAD_BYTES, block.end)
            following = decode_block_head(head.ljust(_HEAD_BYTES, b"\0"), block.end)
            if following is None or self._decode(following) is not None:
                return block.end
        return self._search(block.position + 1)

    def _search(self, position: int) -> int | None:
        """Searches byte by byte for a block that decodes to frames, one of which verifies."""
        while position < self._source_size:
            data = self._source.pread(_SEARCH_BYTES, position)
            found = self._find_block_with_frame(data)
            if found >= 0:
                return position + found
            if self._search_left <= 0:
                self.gave_up = True
                break
            if len(data) < _SEARCH_BYTES:
                break
            # A block that is cut by the end of this part is whole in the next one.
            position += _SEARCH_BYTES - BLOCK_BYTES_MAX - _HEAD_BYTES
        return None

    def _find_block_with_frame(self, data: bytes) -> int:
        position = kernel.find_block(data, 0, BLOCK_BYTES_MAX)
        # Candidates claim megabytes: a view spares a copy of each.
        view = memoryview(data)
        while position >= 0 and self._search_left > 0:
            block = decode_block_head(view[position : position + _HEAD_BYTES], position)
            if block is not None:
                content = decode_block(view[position + _HEAD_BYTES : block.end], block)
                if content and _holds_frame(content, block):
                    return position
                if content and block.compressed:
                    self._search_left -= len(content)
            position = kernel.find_block(data, position + 1, BLOCK_BYTES_MAX)
        return -1

    def _decode(self, block: Block) -> bytes | None:
        if not 0 < block.size <= BLOCK_BYTES_MAX or block.end > self._source_size:
            return None
        return decode_block(self._read(block.size, block.position + _HEAD_BYTES), block)

    def _add(self, position: int, size: int, *, good: bool) -> None:
        # A stream that ends within its descriptor has less than nothing behind it.
        if size <= 0:
            return
        self._starts.append(self._end)
        self._positions.append(position)
        self._good.append(good)
        self._end += size

    def _add_damage(self, position: int, end: int) -> None:
        self._add(position, end - position, good=False)

    def _part(self, number: int, first: int, stop: int) -> bytes:
        """Returns a part of the content of a block that was found, or as much filler."""
        last = number + 1 == len(self._starts)
        size = (self._end if last else self._starts[number + 1]) - self._starts[number]
        content = self._content(number) if self._good[number] else None
        # A file that changed under the reader must not shift what lies behind.
        if content is None or len(content) != size:
            return _FILLER * (min(stop, size) - first)
        return content[first:stop]

    def _content(self, number: int) -> bytes | None:
        if self._cached[0] != number:
            position = self._positions[number]
            block = decode_block_head(self._read(_HEAD_BYTES, position), position)
            content = self._decode(block) if block is not None else None
            if content is None:
                return None
            self._cached = (number, content)
        return self._cached[1]

    def _read(self, size: int, position: int) -> bytes:
        offset = position - self._chunk_position
        if offset < 0 or offset + size > len(self._chunk):
            self._chunk = self._source.pread(max(size, _CHUNK_BYTES), position)
            self._chunk_position, offset = position, 0
        return self._chunk[offset : offset + size]


def _holds_frame(content: bytes | memoryview, block: Block) -> bool:
    """Says whether a frame verifies in what may be the content of a block.

    Any bytes pass for a block that is not compressed, so there only the first frame counts: a
    search through megabytes at every byte would not end.
    """
    if block.compressed:
        return kernel.find(content, 0) >= 0
    return bool(kernel.scan(content, 0, 1)[0])
