"""LZ4 as the Beats segments use it: a block per event, or a stream of blocks per segment.

Owns the caps: no event and no block grows beyond them, whatever the bytes claim. A block of the
seed's version 3 does not tell its original size, so the buffer grows until it fits. The blocks of a
stream do not depend on one another, so each can be read without those before it.
Page: docs/formats/beats.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeVar

import lz4.block
import lz4.frame

from forebay.errors import UnsupportedVersion

Stored = TypeVar("Stored", bytes, memoryview)

EVENT_BYTES_MAX = 64 << 20
BLOCK_BYTES_MAX = 4 << 20
MAGIC = b"\x04\x22\x4d\x18"
# What Beats writes: independent blocks of at most 4 MiB, a checksum of the content at the end.
#   magic 4 | flags 0x64 | block size 0x70 | check of the two 0xb9
DESCRIPTOR = MAGIC + b"\x64\x70\xb9"
DESCRIPTOR_BYTES_MAX = 19
# No LZ4 sequence gives more than 255 bytes for a byte that it takes.
_RATIO_MAX = 255
# How often the buffer is tried larger: most events shrink less than ten times.
_RATIOS = (10, 60, _RATIO_MAX)
_UNCOMPRESSED = 1 << 31
_BLOCK_HEAD = struct.Struct("<I")


def compress_block(data: bytes) -> bytes:
    """Compresses an event to a raw block, with the fast compressor and without its size."""
    return bytes(lz4.block.compress(data, mode="fast", store_size=False))


def decompress_block(data: bytes | memoryview, size_max: int = EVENT_BYTES_MAX) -> bytes | None:
    """Decompresses a raw block; None if it is none, or gives more than `size_max` bytes."""
    tried = 0
    for ratio in _RATIOS:
        size = min(ratio * len(data) + 64, size_max)
        if size == tried:
            break
        tried = size
        try:
            return bytes(lz4.block.decompress(data, uncompressed_size=size))
        except lz4.block.LZ4BlockError:
            # The library does not say whether the block is bad or the buffer too small.
            continue
    return None


def compressed_size_max(size: int) -> int:
    """Returns what a block of `size` bytes takes at most."""
    return size + size // 255 + 16


class StreamCompressor:
    """Makes the stream of one segment; every batch ends a block, as every sync of Beats does."""

    def __init__(self) -> None:
        self._compressor = lz4.frame.LZ4FrameCompressor(
            block_size=lz4.frame.BLOCKSIZE_MAX4MB,
            block_linked=False,
            content_checksum=True,
            auto_flush=True,
        )
        self._begun = False

    def compress(self, data: bytes) -> bytes:
        """Returns the blocks of a batch, before the first one the descriptor."""
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
    """Where a block of a stream lies: its head, and the stored bytes behind it."""

    position: int
    size: int
    compressed: bool

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.position + _BLOCK_HEAD.size + self.size


def descriptor_size(data: bytes, path: str) -> int | None:
    """Returns how long the descriptor at the start of a stream is; None if it is damaged.

    Refuses streams with features that Beats never writes.
    """
    try:
        facts = lz4.frame.get_frame_info(data[:DESCRIPTOR_BYTES_MAX])
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
