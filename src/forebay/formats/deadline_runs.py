"""Runs of version 2: sorted entries in checked blocks. Page: docs/formats/deadline.md.

Owns the encoder, which gives bytes to append, and the reader, which asks for bytes by position. The
parts are in `deadline_blocks.py`. Promises that an entry is given out only if the check of its
block fits, and that a bad block costs its own entries and no others. No I/O.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from forebay.errors import Damaged, InvalidOption
from forebay.formats.deadline import NO_KEY, Entry, Item, Key, Stats, Tombstone, check_entry
from forebay.formats.deadline_blocks import (
    BLOCK_BYTES_MAX,
    BLOCK_HEAD_BYTES,
    COMPRESSIONS,
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_BYTES,
    Footer,
    Header,
    IdIndex,
    Place,
    decode_block,
    decode_footer,
    decode_head,
    decode_header,
    decode_index,
    encode_block,
    encode_id_index,
    encode_index,
)
from forebay.frames import Damage
from forebay.kernels import deadline_block as kernel
from forebay.kernels import deadline_stream as stream
from forebay.kernels.checksum import crc32
from forebay.kernels.deadline_build import BlockBuilder
from forebay.kernels.deadline_memory import Memory

BLOCK_BYTES = 32 * 1024
# So many bytes of blocks are made at a time of what is in memory.
_STREAM_BYTES = 4 << 20

Read = Callable[[int, int], bytes]


class RunEncoder:
    """Makes the bytes of a run, front to back. One thread at a time may use it.

    `block_bytes` is about what a block takes before compression: smaller ones cost more beside the
    entries, larger ones more at each lookup. A value that is larger has a block of its own.
    `id_index` adds about four bytes an entry, and makes `find_id` read one block. Who has entries
    that are no objects puts them into `builder` and calls `end_block` when the next does not fit.
    """

    def __init__(
        self,
        salt: bytes,
        *,
        compression: str = "none",
        block_bytes: int = BLOCK_BYTES,
        id_index: bool = False,
    ) -> None:
        if len(salt) != 8:
            raise ValueError(f"salt {salt!r}: it has 8 bytes")
        if compression not in COMPRESSIONS:
            raise InvalidOption(f"compression {compression!r}: one of {COMPRESSIONS}")
        if not 1 <= block_bytes <= BLOCK_BYTES_MAX:
            raise InvalidOption(f"block_bytes {block_bytes}: 1 to {BLOCK_BYTES_MAX}")
        self._header = Header(salt, compression)
        self._block_bytes = block_bytes
        self.builder = BlockBuilder(block_bytes)
        self._done: list[bytes] = [self._header.encode()]
        self._position = HEADER_BYTES
        self._taken = 0
        self._places: list[Place] = []
        self._ids: array[int] | None = array("Q") if id_index else None
        self._counts = [0, 0, 0]
        self._last: Key | None = None
        self._id_bounds: tuple[int, int] | None = None

    def encode(self, entries: Iterable[Entry]) -> bytes:
        """Gives the bytes that go behind those before; the keys must not fall."""
        for entry in entries:
            check_entry(entry)
            if self._last is not None and entry.key < self._last:
                raise ValueError(f"{entry.key} after {self._last}: a run is sorted")
            self._add(entry)
            self._last = entry.key
        return self.take()

    def finish(self) -> bytes:
        """Gives what ends the run: the last block, the index, the footer."""
        self.end_block()
        index = encode_index(self._places)
        min_id, max_id = self._id_bounds or (0, 0)
        id_index = b""
        id_index_position = 0
        if self._ids is not None:
            counts = [place.count for place in self._places]
            id_index = encode_id_index(self._ids, counts, min_id, max_id)
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
        )
        self._done += [index, id_index, footer.encode()]
        return self.take()

    def encode_rows(self, memory: Memory, rows: memoryview, at: int) -> int:
        """Takes in rows of what is in memory, by key, from one on; gives the first that it did not.

        What is left over goes into `builder`, or does not fit into it: then `end_block` is due.
        """
        if self._header.compression == "none" and not self.builder.count:
            at = self._stream(memory, rows, at)
        return memory.fill(rows, at, self.builder)

    def _stream(self, memory: Memory, rows: memoryview, at: int) -> int:
        """Takes in rows that fill whole blocks, many at a time."""
        out = bytearray(_STREAM_BYTES)
        width = stream.ROW_NUMBERS
        table = array("Q", bytes(8 * width * (_STREAM_BYTES // self._block_bytes + 1)))
        seed, number, first = crc32(self._header.salt), len(self._places), at
        at, size, blocks = stream.stream(memory, rows, at, self.builder, number, seed, out, table)
        start = self._position
        for row in range(0, blocks * width, width):
            count, deadline_ms, id, end, *ids, tombstones, buried = table[row : row + width]
            kinds = (count - tombstones - buried, tombstones, buried)
            self._note(Key(deadline_ms, id), kinds, (ids[0], ids[1]))
            self._position = start + end
        if self._ids is not None:
            self._ids.frombytes(memory.ids_of(rows, first, at))
        self._done.append(bytes(memoryview(out)[:size]))
        return at

    @property
    def waiting(self) -> int:
        """How many bytes `take` would give."""
        return self._position - self._taken

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry yet."""
        return not self._places and not self.builder.count

    def end_block(self) -> None:
        """Ends the block that is in `builder`, if there is one; `take` gives its bytes."""
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

    def _note(self, key: Key, kinds: tuple[int, int, int], ids: tuple[int, int]) -> None:
        """Takes note of a block: its first key, its entries by kind, its lowest and highest id."""
        self._places.append(Place(len(self._places), key, self._position, sum(kinds)))
        low, high = self._id_bounds or ids
        self._id_bounds = min(low, ids[0]), max(high, ids[1])
        for kind, count in enumerate(kinds):
            self._counts[kind] += count

    def take(self) -> bytes:
        """Gives the bytes of the blocks that have ended since it was called last."""
        data = b"".join(self._done)
        self._done.clear()
        self._taken = self._position
        return data

    def _add(self, entry: Entry) -> None:
        key = (entry.key.deadline_ms, entry.key.id)
        if isinstance(entry, Tombstone):
            reason, value, numbers = b"", b"", (0, 0, 0, kernel.TOMBSTONE)
        else:
            reason, value, stats = entry.reason, entry.value, entry.stats
            attributes = kernel.BURIED if entry.buried else 0
            numbers = (stats.enqueue_ms, stats.requeue_ms, stats.dequeue_count, attributes)
        if not self.builder.fits(len(reason) + len(value)):
            self.end_block()
        self.builder.add(*key, *numbers, reason, value)


class Run:
    """A run that is read through `read(position, size)`. One thread at a time may use it.

    `damage` lists what was wrong with header, index and footer when it was opened.
    """

    def __init__(
        self,
        read: Read,
        size: int,
        path: str,
        footer: Footer,
        places: list[Place],
        damage: list[Damage],
    ) -> None:
        self.path = path
        self.footer = footer
        self.places = places
        self.damage = damage
        self._read = read
        self._size = size
        self._keys = [place.key for place in places]
        self._ends = [place.position for place in places[1:]] + [footer.index_position]
        self._offsets = [0, *accumulate(place.count for place in places)]
        self._id_index: IdIndex | None = None
        # Lookups by key come in the order of deadlines, so the next one is mostly in this block.
        self._kept: tuple[int, kernel.Block] | None = None

    @staticmethod
    def open(read: Read, size: int, path: str) -> Run:
        """Opens a run of `size` bytes by its header, footer and index; raises Damaged.

        `rebuild_run` opens one whose header, footer or index is lost.
        """
        decode_header(read(0, min(size, HEADER_BYTES)), path)
        footer = read_footer(read, size, path)
        places = read_index(read, footer, path)
        return Run(read, size, path, footer, places, [])

    def scan(self, start: Key | None = None) -> Iterator[Entry | Damage]:
        """Yields the entries in order, from a key on; a bad block as one Damage."""
        first = 0 if start is None else self.row_of(start)
        for row in range(first, len(self.places)):
            block = self.load(row)
            if isinstance(block, Damage):
                yield block
                continue
            at = 0 if start is None else block.search(start.deadline_ms, start.id)
            for index in range(at, block.count):
                yield decode_row(block.row(index))

    def row_of(self, key: Key) -> int:
        """Gives the number of the first block that may hold keys from this one on."""
        return max(bisect_left(self._keys, key) - 1, 0)

    def count_below(self, key: Key) -> int:
        """Gives how many entries have a key below this one, from one block.

        Of a bad block that the key lies in, none are counted.
        """
        row = bisect_left(self._keys, key) - 1
        if row < 0:
            return 0
        block = self.load(row)
        within = 0 if isinstance(block, Damage) else block.search(key.deadline_ms, key.id)
        return self._offsets[row] + within

    def find(self, key: Key) -> Entry | None:
        """Gives an entry of a key, from one block; None if there is none. Raises Damaged."""
        row = bisect_left(self._keys, key)
        if row == len(self._keys) or self._keys[row] != key:
            row -= 1
        if row < 0:
            return None
        block = self._sound_block(row)
        at = block.search(key.deadline_ms, key.id)
        if at == block.count or (block.deadline(at), block.id(at)) != (key.deadline_ms, key.id):
            return None
        return decode_row(block.row(at))

    def find_id(self, id: int) -> list[Entry]:
        """Gives all entries of an id, by key; raises Damaged. Without an id index, reads all."""
        if not self.footer.min_id <= id <= self.footer.max_id:
            return []
        found = []
        for row in self._rows_of(id):
            block = self._sound_block(row)
            at = block.find_id(id, 0)
            while at >= 0:
                found.append(decode_row(block.row(at)))
                at = block.find_id(id, at + 1)
        return found

    def _rows_of(self, id: int) -> Iterable[int]:
        position = self.footer.id_index_position
        if position == 0:
            return range(len(self.places))
        if self._id_index is None:
            data = self._read(position, self._size - FOOTER_BYTES - position)
            reason = "the check of the id index does not match"
            if crc32(data, crc32(self.footer.salt)) == self.footer.id_index_check:
                try:
                    self._id_index = IdIndex(data, self.footer.count)
                except ValueError as error:
                    reason = str(error)
            if self._id_index is None:
                # It only saves time: what it says is in the blocks.
                self.damage.append(Damage(self.path, position, len(data), reason))
                self.footer = replace(self.footer, id_index_position=0)
                return range(len(self.places))
        return [row for row in self._id_index.blocks(id) if row < len(self.places)]

    def _sound_block(self, row: int) -> kernel.Block:
        block = self.load(row)
        if isinstance(block, Damage):
            raise Damaged(block)
        return block

    def load(self, row: int) -> kernel.Block | Damage:
        """Gives a block, or what is wrong with it."""
        if self._kept is not None and self._kept[0] == row:
            return self._kept[1]
        place = self.places[row]
        size = self._ends[row] - place.position
        data = self._read(place.position, size)
        head = decode_head(data, size)
        block: kernel.Block | str
        if isinstance(head, str):
            block = head
        elif (head.number, head.count) != (place.number, place.count):
            block = f"block {head.number} of {head.count} entries, where {place.number} belongs"
        else:
            block = decode_block(data, head, self.footer.salt)
        if isinstance(block, str):
            offset = self._offsets[row]
            return Damage(self.path, place.position, size, block, False, offset, place.count)
        self._kept = row, block
        return block


def read_footer(read: Read, size: int, path: str) -> Footer:
    """Reads the footer of a run; raises Damaged."""
    position = max(size - FOOTER_BYTES, 0)
    return decode_footer(read(position, size - position), size, path)


def read_index(read: Read, footer: Footer, path: str) -> list[Place]:
    """Reads the index of a run; raises Damaged."""
    index = read(footer.index_position, footer.block_count * INDEX_BYTES)
    reason: str | None = "the check of the index does not match"
    places: list[Place] = []
    if crc32(index, crc32(footer.salt)) == footer.index_check:
        places = decode_index(index)
        reason = _misfit(footer, places)
    if reason is not None:
        raise Damaged(Damage(path, footer.index_position, len(index), reason))
    return places


def decode_row(row: kernel.Row) -> Entry:
    """Makes an entry of what the kernel gives."""
    deadline_ms, id, attributes, enqueue_ms, requeue_ms, count, reason, value = row
    key = Key(deadline_ms, id)
    if attributes & kernel.TOMBSTONE:
        return Tombstone(key)
    stats = Stats(enqueue_ms, requeue_ms, count)
    return Item(key, value, stats, bool(attributes & kernel.BURIED), reason)


def _misfit(footer: Footer, places: list[Place]) -> str | None:
    """Says what of an index cannot be; None if nothing."""
    positions = [place.position for place in places]
    if positions[:1] != ([HEADER_BYTES] if places else []):
        return f"the first block at {positions[:1]}"
    if any(
        end - start < BLOCK_HEAD_BYTES
        for start, end in pairwise([*positions, footer.index_position])
    ):
        return "blocks that overlap"
    if any(after.key < before.key for before, after in pairwise(places)):
        return "keys that fall"
    counted = sum(place.count for place in places)
    return None if counted == footer.count else f"{counted} entries, not {footer.count}"
