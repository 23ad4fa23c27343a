"""Encodes runs of version 2: sorted entries in checked blocks. Page: docs/formats/deadline.md.

Returns bytes to append, from entries, from rows in memory, or from blocks that the caller filled.
`runs.py` reads them. No I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import groupby
from typing import Protocol

from forebay.errors import InvalidOption
from forebay.formats.deadline.blocks import (
    BLOCK_BYTES_MAX,
    COMPRESSIONS,
    Footer,
    Header,
    Identity,
    Places,
    encode_block,
    encode_id_index,
    encode_index,
)
from forebay.formats.deadline.items import NO_KEY, Entry, Key, Tombstone, check_entry
from forebay.kernels import deadline as kernel
from forebay.kernels.buffers import crc32
from forebay.kernels.deadline import ROW_NUMBERS, BlockBuilder, BlockStream, can_stream

BLOCK_BYTES = 32 * 1024
# How many bytes of blocks are made at a time without the GIL.
_STREAM_BYTES = 4 << 20
_STREAM_ROWS_MIN = 1_000


class Rows(Protocol):
    """Entries that are held as numbered rows, and put into blocks."""

    def fill(self, rows: memoryview, at: int, builder: BlockBuilder) -> int:
        """Puts rows into a block, from `at` on; returns the first that did not fit."""

    def fill_stream(self, rows: memoryview, at: int, output: BlockStream) -> int:
        """Makes whole blocks of rows, from `at` on; returns the first that is in none."""


class RunEncoder:
    """Encodes a run, front to back. One thread at a time may use it.

    `block_bytes` is the approximate size of a block before compression: smaller blocks have more
    overhead, larger ones cost more at each lookup. A larger value gets its own block. `id_index`
    adds about four bytes per entry, and lets `find_id` read a single block. With `identity` the run
    has version 3 and states which run of which queue it is. A caller whose entries are not objects
    puts them into `builder`, and calls `end_block` when the next one does not fit.
    """

    def __init__(
        self,
        salt: bytes,
        *,
        compression: str = "none",
        block_bytes: int = BLOCK_BYTES,
        id_index: bool = False,
        identity: Identity | None = None,
    ) -> None:
        if len(salt) != 8:
            raise ValueError(f"salt {salt!r}: must have 8 bytes")
        if compression not in COMPRESSIONS:
            raise InvalidOption(f"compression {compression!r}: must be one of {COMPRESSIONS}")
        if not 1 <= block_bytes <= BLOCK_BYTES_MAX:
            raise InvalidOption(f"block_bytes {block_bytes}: must be 1 to {BLOCK_BYTES_MAX}")
        self._header = Header(salt, compression, identity)
        self._block_bytes = block_bytes
        self.builder = BlockBuilder(block_bytes)
        self._done: list[bytes | memoryview] = [self._header.encode()]
        # The buffer in which many blocks are made at once; reused after they were taken.
        self._stream: BlockStream | None = None
        self._position = self._header.size
        self._taken = 0
        self._places = Places()
        self._ids: array[int] | None = array("Q") if id_index else None
        self._counts = [0, 0, 0]
        self._last: Key | None = None
        self._id_bounds: tuple[int, int] | None = None

    def encode(self, entries: Iterable[Entry]) -> bytes:
        """Returns the next bytes of the run; keys must not decrease."""
        for entry in entries:
            check_entry(entry)
            if self._last is not None and entry.key < self._last:
                raise ValueError(f"{entry.key} after {self._last}: a run must be sorted")
            self._add(entry)
            self._last = entry.key
        return self.take()

    def finish(self) -> bytes:
        """Returns the end of the run: the last block, the index, the footer."""
        return b"".join(self.finish_parts())

    def finish_parts(self) -> list[bytes | memoryview]:
        """Returns the same in a few parts."""
        if self._stream is not None:
            self._take_stream(self._stream)
        self._end_builder()
        index = encode_index(self._places)
        min_id, max_id = self._id_bounds or (0, 0)
        id_index: bytes | bytearray = b""
        id_index_position = 0
        if self._ids is not None:
            id_index = encode_id_index(self._ids, self._places.counts, min_id, max_id)
            self._ids = None
            id_index_position = self._position + len(index)
        seed = crc32(self._header.salt)
        pending_count, tombstone_count, buried_count = self._counts
        footer = Footer(
            pending_count=pending_count,
            tombstone_count=tombstone_count,
            buried_count=buried_count,
            first_key=self._places[0].key if self._places else NO_KEY,
            last_key=self._last or NO_KEY,
            min_id=min_id,
            max_id=max_id,
            block_count=len(self._places),
            index_position=self._position,
            id_index_position=id_index_position,
            index_check=crc32(index, seed),
            id_index_check=crc32(id_index, seed) if id_index else 0,
            salt=self._header.salt,
            identity=self._header.identity,
        )
        # A view is not joined with the rest: the ids of a large run take a lot of memory.
        self._done += [index, memoryview(id_index), footer.encode()]
        return self.take_parts()

    def encode_rows(self, memory: Rows, rows: memoryview, at: int) -> int:
        """Encodes rows in memory, in key order, starting with `at`; returns the first not encoded.

        The remaining ones go into `builder`; if one does not fit, call `end_block`.
        """
        # The header may still be waiting to be taken.
        is_taken = self.waiting <= self._header.size and not self.builder.count
        stream = self.stream if is_taken and len(rows) - at >= _STREAM_ROWS_MIN else None
        if stream is not None:
            at = memory.fill_stream(rows, at, stream)
            self._take_stream(stream)
        return memory.fill(rows, at, self.builder)

    @property
    def stream(self) -> BlockStream | None:
        """Makes many blocks at once from `builder`; None if they are made one by one.

        When it is full, call `end_block`, and then `take_parts`.
        """
        if self._header.compression != "none" or not can_stream():
            return None
        if self._stream is None:
            self._stream = BlockStream(
                self.builder,
                seed=crc32(self._header.salt),
                room=_STREAM_BYTES,
                blocks_max=_STREAM_BYTES // self._block_bytes + 1,
                with_ids=self._ids is not None,
            )
            self._stream.start(len(self._places))
        return self._stream

    @property
    def is_streaming(self) -> bool:
        """Returns whether many blocks are made at once: `take_parts` must then be called."""
        return self._stream is not None

    def _take_stream(self, stream: BlockStream) -> None:
        """Takes over the blocks that are in the stream."""
        start, width, table = self._position, ROW_NUMBERS, memoryview(stream.table)
        for row in range(0, stream.blocks * width, width):
            count, deadline_ms, id, end, *ids, tombstones, buried = table[row : row + width]
            kinds = (count - tombstones - buried, tombstones, buried)
            self._note(Key(deadline_ms, id), kinds, (ids[0], ids[1]))
            self._position = start + end
        if self._ids is not None:
            self._ids.frombytes(memoryview(stream.ids)[: stream.id_count].cast("B"))
        if stream.size:
            self._done.append(memoryview(stream.out)[: stream.size])
        stream.start(len(self._places))

    @property
    def waiting(self) -> int:
        """Returns how many bytes `take` would return."""
        return self._position - self._taken

    @property
    def counts(self) -> tuple[int, int, int]:
        """Returns how many pending items, tombstones and buried items are in finished blocks."""
        pending, tombstones, buried = self._counts
        return pending, tombstones, buried

    @property
    def is_empty(self) -> bool:
        """Returns whether it has no entry yet."""
        is_streaming = self._stream is not None and self._stream.blocks
        return not self._places and not self.builder.count and not is_streaming

    def end_block(self) -> None:
        """Ends the blocks in the stream, or else the one in `builder`, if there are any.

        `take` returns their bytes.
        """
        if self._stream is not None and self._stream.blocks:
            self._take_stream(self._stream)
        else:
            self._end_builder()

    def _end_builder(self) -> None:
        count = self.builder.count
        if count == 0:
            return
        self._last = Key(*self.builder.last_key())
        if self._ids is not None:
            self._ids.frombytes(self.builder.ids())
        number = len(self._places)
        key, kinds = Key(*self.builder.first_key()), self.builder.counts()
        self._note(key, kinds, self.builder.id_bounds())
        block = encode_block(self.builder.take(), number, count, self._header)
        self._done.append(block)
        self._position += len(block)
        if self._stream is not None:
            self._stream.start(len(self._places))

    def _note(self, key: Key, kinds: tuple[int, int, int], ids: tuple[int, int]) -> None:
        """Records a block: its first key, its entries by kind, its lowest and highest id."""
        number = len(self._places)
        self._places.append(number, key.deadline_ms, key.id, self._position, sum(kinds))
        low, high = self._id_bounds or ids
        self._id_bounds = min(low, ids[0]), max(high, ids[1])
        for kind, count in enumerate(kinds):
            self._counts[kind] += count

    def take(self) -> bytes:
        """Returns the bytes of the blocks that were finished since the last call."""
        return b"".join(self.take_parts())

    def take_parts(self) -> list[bytes | memoryview]:
        """Returns the same in a few parts, which are valid until more rows are encoded."""
        parts: list[bytes | memoryview] = []
        for is_view, group in groupby(self._done, lambda part: isinstance(part, memoryview)):
            found = list(group)
            parts += found if is_view else [b"".join(found)]
        self._done.clear()
        self._taken = self._position
        return parts

    def _add(self, entry: Entry) -> None:
        key = (entry.key.deadline_ms, entry.key.id)
        if isinstance(entry, Tombstone):
            reason, value, numbers = b"", b"", (0, 0, 0, kernel.IS_TOMBSTONE)
        else:
            reason, value, stats = entry.reason, entry.value, entry.stats
            attributes = kernel.IS_BURIED if entry.buried else 0
            numbers = (stats.enqueue_ms, stats.requeue_ms, stats.dequeue_count, attributes)
        if not self.builder.fits(len(reason) + len(value)):
            self.end_block()
        self.builder.add(*key, *numbers, reason, value)
