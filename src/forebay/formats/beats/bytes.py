"""The logical bytes of a Beats segment: decrypted, and decompressed where a stream holds them.

A codec scans these as if they were the file. Their positions are those of `state.dat`: the header
counts, the initialization vector does not, and compression does not matter. The module reads
nothing itself: it calls the `RawBytes` that it is given, and holds one block and one chunk of them.

A block of a stream that cannot be decoded is replaced by 0xff bytes, as many as it takes in the
file. No frame starts with them; a scan skips them like any other damage. What follows is intact,
but its logical positions are then not those that the writer counted.

Segments use LZ4 as a block per event, or as a stream of blocks per segment. This module owns the
limits: no event and no block grows beyond them, no matter what the bytes claim. A block of the
seed's version 3 does not contain its original size, so the buffer grows until it fits. The blocks
of a stream do not depend on one another, so each can be read without those before it. Page:
docs/formats/beats.md.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from forebay.errors import UnsupportedVersion, WrongKey
from forebay.extras import optional
from forebay.formats.beats.crypto import IV_BYTES, Key, Keystream
from forebay.formats.beats.versions import Header
from forebay.kernels import beats as kernel

if TYPE_CHECKING:
    from lz4 import block as lz4_block
    from lz4 import frame as lz4_frame
else:
    lz4_block = optional("lz4.block", "beats")
    lz4_frame = optional("lz4.frame", "beats")

Stored = TypeVar("Stored", bytes, memoryview)

EVENT_BYTES_MAX = 64 << 20
BLOCK_BYTES_MAX = 4 << 20
MAGIC = b"\x04\x22\x4d\x18"
# What Beats writes: independent blocks of at most 4 MiB, and a checksum of the content at the end.
#   magic 4 | flags 0x64 | block size 0x70 | check of the two 0xb9
DESCRIPTOR = MAGIC + b"\x64\x70\xb9"
DESCRIPTOR_BYTES_MAX = 19
# No LZ4 sequence expands a byte to more than 255.
_RATIO_MAX = 255
# The buffer sizes to try, as ratios: most events shrink less than tenfold.
_RATIOS = (10, 60, _RATIO_MAX)
_UNCOMPRESSED = 1 << 31
_BLOCK_HEAD = struct.Struct("<I")


def compress_block(data: bytes) -> bytes:
    """Compresses an event to a raw block, with the fast compressor and without the size."""
    return bytes(lz4_block.compress(data, mode="fast", store_size=False))


def decompress_block(data: bytes | memoryview, size_max: int = EVENT_BYTES_MAX) -> bytes | None:
    """Decompresses a raw block; None if it is not one, or yields more than `size_max` bytes."""
    tried = 0
    for ratio in _RATIOS:
        size = min(ratio * len(data) + 64, size_max)
        if size == tried:
            break
        tried = size
        try:
            return bytes(lz4_block.decompress(data, uncompressed_size=size))
        except lz4_block.LZ4BlockError:
            # The library does not report whether the block is bad or the buffer too small.
            continue
    return None


def compressed_size_max(size: int) -> int:
    """Returns the most that a block of `size` bytes can take."""
    return size + size // 255 + 16


class StreamCompressor:
    """Builds the stream of one segment; every batch ends a block, as every sync of Beats does."""

    def __init__(self) -> None:
        self._compressor = lz4_frame.LZ4FrameCompressor(
            block_size=lz4_frame.BLOCKSIZE_MAX4MB,
            block_linked=False,
            content_checksum=True,
            auto_flush=True,
        )
        self._begun = False

    def compress(self, data: bytes) -> bytes:
        """Returns the blocks of a batch, preceded by the descriptor if it is the first."""
        return self._start() + bytes(self._compressor.compress(data))

    def finish(self) -> bytes:
        """Returns the end mark and the checksum of the content."""
        return self._start() + bytes(self._compressor.flush())

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return bytes(self._compressor.begin())


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block of a stream is: its head, and the stored bytes after it."""

    position: int
    size: int
    compressed: bool

    @property
    def end(self) -> int:
        """Returns where the next one starts."""
        return self.position + _BLOCK_HEAD.size + self.size


def descriptor_size(data: bytes, path: str) -> int | None:
    """Returns the length of the descriptor at the start of a stream; None if it is damaged.

    Rejects streams with features that Beats never writes.
    """
    try:
        facts = lz4_frame.get_frame_info(data[:DESCRIPTOR_BYTES_MAX])
    except RuntimeError:
        return None
    if facts["block_linked"] or facts["block_checksum"] or facts["content_size"]:
        raise UnsupportedVersion(f"{path}: an LZ4 stream with features that Beats does not write")
    return len(DESCRIPTOR)


def decode_block_head(data: bytes | memoryview, position: int) -> Block | None:
    """Reads the head of a block at a position of the stream; None for the end mark."""
    (word,) = _BLOCK_HEAD.unpack(data)
    if word == 0:
        return None
    return Block(position, word & ~_UNCOMPRESSED, not word & _UNCOMPRESSED)


def decode_block(stored: Stored, block: Block) -> Stored | bytes | None:
    """Returns the content of a block from its stored bytes; None if they are damaged."""
    if not block.compressed:
        return stored if len(stored) <= BLOCK_BYTES_MAX else None
    return decompress_block(stored, BLOCK_BYTES_MAX)


_CHUNK_BYTES = 256 << 10
_HEAD_BYTES = 4
_SEARCH_BYTES = 2 * BLOCK_BYTES_MAX
# The most bytes that a search decodes: bytes crafted to decode everywhere must not stall it.
_SEARCHED_MIN = 256 << 20
_SEARCHED_RATIO = 4
_FILLER = b"\xff"


class RawBytes(Protocol):
    """The part of a file's interface that reading needs."""

    def pread(self, size: int, position: int) -> bytes:
        """Returns up to `size` bytes from a position; fewer only at the end."""
        ...

    def size(self) -> int:
        """Returns how many bytes there are."""
        ...


class LogicalBytes(RawBytes, Protocol):
    """The same for the logical bytes.

    `gave_up` is set if a search for the next block stopped before it had seen everything.
    """

    gave_up: bool

    def file_position(self, position: int) -> int:
        """Returns where in the file a logical position is, for messages."""
        ...

    def look_again(self) -> None:
        """Notes that the file may have grown."""
        ...


def open_bytes(raw: RawBytes, header: Header, key: Key | None, path: str) -> LogicalBytes:
    """Returns the logical bytes of a segment; raises WrongKey if it needs a key that is missing."""
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
    """The bytes exactly as in the file."""

    gave_up = False

    def __init__(self, raw: RawBytes) -> None:
        self.pread = raw.pread
        self.size = raw.size

    def file_position(self, position: int) -> int:
        """Returns the position itself."""
        return position

    def look_again(self) -> None:
        """Does nothing: every read goes to the file."""


class DecryptedBytes:
    """The bytes of an encrypted segment, decrypted and without the vector."""

    gave_up = False

    def __init__(self, raw: RawBytes, keystream: Keystream, header_bytes: int) -> None:
        self._raw = raw
        self._keystream = keystream
        self._header_bytes = header_bytes

    def pread(self, size: int, position: int) -> bytes:
        """Reads and decrypts a part; the header is never encrypted."""
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
        """Returns where in the file the byte at a position is."""
        return position if position < self._header_bytes else position + IV_BYTES

    def look_again(self) -> None:
        """Does nothing: every read goes to the file."""


class StreamBytes:
    """The content of an LZ4 stream, block by block, from any position on.

    The blocks are located front to back, once; after that a block is decoded when it is needed.
    """

    def __init__(self, source: LogicalBytes, start: int, path: str) -> None:
        self.gave_up = False
        self._source = source
        self._path = path
        self._source_size = source.size()
        self._header = source.pread(start, 0)
        self._chunk = b""
        self._chunk_position = 0
        # For each block: where its content starts, where its head is, and whether it is good.
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
        """Returns the size of the content, for which it decodes every block once."""
        while self._next is not None:
            self._extend(self._next)
        return self._end

    def file_position(self, position: int) -> int:
        """Returns where the block that holds a position starts in the file."""
        number = bisect_right(self._starts, position) - 1
        return self._source.file_position(self._positions[number] if number >= 0 else position)

    def look_again(self) -> None:
        """Continues after the last block, if the blocks ended with the file."""
        self._source_size = self._source.size()
        self._chunk, self._chunk_position = b"", 0
        if self._resume is not None:
            self._next, self._resume = self._resume, None
        if self._next == len(self._header):
            self._skip_descriptor(self._next)

    def _extend(self, position: int) -> None:
        """Adds the block whose head is at a position, or the damage there."""
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
        """Returns where the blocks continue after a bad one; None if none does."""
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
            # A block that is cut off by the end of this part is whole in the next one.
            position += _SEARCH_BYTES - BLOCK_BYTES_MAX - _HEAD_BYTES
        return None

    def _find_block_with_frame(self, data: bytes) -> int:
        position = kernel.find_block(data, 0, BLOCK_BYTES_MAX)
        # Candidates claim megabytes: the view avoids a copy of each.
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
        # For a stream that ends inside its descriptor the size is negative.
        if size <= 0:
            return
        self._starts.append(self._end)
        self._positions.append(position)
        self._good.append(good)
        self._end += size

    def _add_damage(self, position: int, end: int) -> None:
        self._add(position, end - position, good=False)

    def _part(self, number: int, first: int, stop: int) -> bytes:
        """Returns a part of the content of a located block, or the same number of filler bytes."""
        last = number + 1 == len(self._starts)
        size = (self._end if last else self._starts[number + 1]) - self._starts[number]
        content = self._content(number) if self._good[number] else None
        # A file that changes while it is read must not shift what follows.
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
    """Returns whether a frame verifies in what may be the content of a block.

    Any bytes pass for an uncompressed block, so only its first frame counts: a search through
    megabytes for every candidate would take too long.
    """
    if block.compressed:
        return kernel.find(content, 0) >= 0
    return bool(kernel.scan(content, 0, 1)[0])
