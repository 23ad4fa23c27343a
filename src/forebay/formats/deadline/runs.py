"""Reads runs of version 2: sorted entries in checked blocks. Page: docs/formats/deadline.md.

Reads bytes by position; `run_encoder.py` writes them, and the parts are in `blocks.py`. Promises
that an entry is returned only if the check of its block matches, and that a bad block costs its own
entries and no others. A run whose header, footer or index is lost is opened by walking its blocks:
every block that verifies is included, and what is missing between them is damage. No I/O.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import sub

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline.blocks import (
    BLOCK_HEAD_BYTES,
    FOOTER_BYTES_MAX,
    HEADER_BYTES_MAX,
    INDEX_BYTES,
    MARK,
    Footer,
    Head,
    Header,
    IdIndex,
    Places,
    decode_block,
    decode_footer,
    decode_head,
    decode_header,
    decode_index,
    encode_index,
)
from forebay.formats.deadline.items import NO_KEY, Entry, Item, Key, Stats, Tombstone
from forebay.kernels import deadline as kernel
from forebay.kernels.buffers import crc32
from forebay.kernels.deadline import Block

Read = Callable[[int, int], bytes]
# Returns why the bytes at a position and of a size could not be read; None if they could.
Trouble = Callable[[int, int], str | None]


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
        places: Places,
        damage: list[Damage],
        trouble: Trouble | None = None,
    ) -> None:
        self.path = path
        self.footer = footer
        self.places = places
        self.damage = damage
        self._read = read
        self._trouble = trouble
        self._size = size
        self._ends = places.positions[1:]
        self._ends.append(footer.index_position)
        self._offsets = array("Q", accumulate(places.counts, initial=0))
        self._id_index: IdIndex | None = None
        # Lookups by key come in the order of deadlines, so the next one is usually in this block.
        self._kept: tuple[int, kernel.Block] | None = None

    @staticmethod
    def open(read: Read, size: int, path: str, trouble: Trouble | None = None) -> Run:
        """Opens a run of `size` bytes by its header, footer and index; raises Damaged.

        `rebuild_run` opens one whose header, footer or index is lost.
        """
        header = decode_header(read(0, min(size, HEADER_BYTES_MAX)), path)
        footer = read_footer(read, size, path)
        if header.identity != footer.identity:
            raise Damaged(Damage(path, 0, size, "header and footer belong to different runs"))
        places = read_index(read, footer, path)
        return Run(read, size, path, footer, places, [], trouble)

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
        """Returns the number of the first block that may hold this key or a later one."""
        return max(self.places.row_of(key) - 1, 0)

    def count_below(self, key: Key) -> int:
        """Returns how many entries have a key below this one, from one block.

        If the block with the key is bad, none of its entries are counted.
        """
        row = self.places.row_of(key) - 1
        if row < 0:
            return 0
        block = self.load(row)
        within = 0 if isinstance(block, Damage) else block.search(key.deadline_ms, key.id)
        return self._offsets[row] + within

    def find(self, key: Key) -> Entry | None:
        """Returns the entry with a key, from one block; None if there is none. Raises Damaged."""
        row = self.places.row_of(key)
        if row == len(self.places) or self.places[row].key != key:
            row -= 1
        if row < 0:
            return None
        block = self._sound_block(row)
        at = block.search(key.deadline_ms, key.id)
        if at == block.count or (block.deadline(at), block.id(at)) != (key.deadline_ms, key.id):
            return None
        return decode_row(block.row(at))

    def find_id(self, id: int) -> list[Entry]:
        """Returns all entries with an id, by key; reads everything if there is no id index.

        Raises Damaged.
        """
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
            data = self._read(position, self._size - self.footer.size - position)
            reason = "the check of the id index does not match"
            if crc32(data, crc32(self.footer.salt)) == self.footer.id_index_check:
                try:
                    self._id_index = IdIndex(data, self.footer.count)
                except ValueError as error:
                    reason = str(error)
            if self._id_index is None:
                # The id index only saves time: the blocks contain the same.
                self.damage.append(Damage(self.path, position, len(data), reason, count=0))
                self.footer = replace(self.footer, id_index_position=0)
                return range(len(self.places))
        return [row for row in self._id_index.blocks(id) if row < len(self.places)]

    def _sound_block(self, row: int) -> kernel.Block:
        block = self.load(row)
        if isinstance(block, Damage):
            raise Damaged(block)
        return block

    def load(self, row: int) -> kernel.Block | Damage:
        """Reads and returns a block, or what is wrong with it."""
        if self._kept is not None and self._kept[0] == row:
            return self._kept[1]
        block = self.decode(row, self.read(row, row + 1))
        if not isinstance(block, Damage):
            self._kept = row, block
        return block

    def read(self, first: int, stop: int) -> bytes:
        """Returns the bytes of some consecutive blocks."""
        start = self.places.positions[first]
        return self._read(start, self._ends[stop - 1] - start)

    def table(self, first: int, stop: int) -> array[int]:
        """Returns where blocks start in the result of `read`, their numbers and entries; the end.

        There are three numbers for each block, in the form that a merge expects.
        """
        places, rows = self.places, array("Q")
        start = places.positions[first]
        for row in range(first, stop):
            rows.extend((places.positions[row] - start, places.numbers[row], places.counts[row]))
        rows.extend((self._ends[stop - 1] - start, 0, 0))
        return rows

    def rows_within(self, first: int, size: int) -> int:
        """Returns the end of the blocks from `first` on that fit in `size` bytes; at least one."""
        return max(bisect_right(self._ends, self.places.positions[first] + size), first + 1)

    def block_size(self, row: int) -> int:
        """Returns how many bytes a block takes."""
        return self._ends[row] - self.places.positions[row]

    def decode(self, row: int, data: bytes) -> kernel.Block | Damage:
        """Decodes a block from its bytes, or returns what is wrong with it."""
        place, size = self.places[row], self.block_size(row)
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
            if self._trouble is not None:
                block = self._trouble(place.position, size) or block
            return Damage(self.path, place.position, size, block, False, offset, place.count)
        return block


def read_footer(read: Read, size: int, path: str) -> Footer:
    """Reads the footer of a run; raises Damaged."""
    position = max(size - FOOTER_BYTES_MAX, 0)
    return decode_footer(read(position, size - position), size, path)


def read_index(read: Read, footer: Footer, path: str) -> Places:
    """Reads the index of a run; raises Damaged."""
    index = read(footer.index_position, footer.block_count * INDEX_BYTES)
    reason: str | None = "the check of the index does not match"
    places = Places()
    if crc32(index, crc32(footer.salt)) == footer.index_check:
        places = decode_index(index)
        reason = _misfit(footer, places)
    if reason is not None:
        raise Damaged(Damage(path, footer.index_position, len(index), reason))
    return places


def decode_row(row: kernel.Row) -> Entry:
    """Makes an entry from a row of the kernel."""
    deadline_ms, id, attributes, enqueue_ms, requeue_ms, count, reason, value = row
    key = Key(deadline_ms, id)
    if attributes & kernel.IS_TOMBSTONE:
        return Tombstone(key)
    stats = Stats(enqueue_ms, requeue_ms, count)
    return Item(key, value, stats, bool(attributes & kernel.IS_BURIED), reason)


def _misfit(footer: Footer, places: Places) -> str | None:
    """Returns what is impossible in an index; None if nothing."""
    positions = places.positions
    if len(positions) and positions[0] != footer.header_size:
        return f"the first block at {positions[0]}"
    # An open checks each block of all runs: these loops run in C.
    ends = [*positions[1:], footer.index_position]
    if min(map(sub, ends, positions), default=BLOCK_HEAD_BYTES) < BLOCK_HEAD_BYTES:
        return "blocks that overlap"
    if not places.is_sorted():
        return "keys that fall"
    counted = sum(places.counts)
    return None if counted == footer.count else f"{counted} entries, not {footer.count}"


_CHUNK_BYTES = 1 << 20


def rebuild_run(
    read: Read,
    size: int,
    path: str,
    *,
    expected: int | None = None,
    trouble: Trouble | None = None,
) -> Run:
    """Opens a run of `size` bytes by its blocks; its `damage` lists what is lost.

    Header and footer both hold the salt that the checks need. Raises Damaged, or NotAQueue, if
    neither can be read. `expected` is how many entries it should have, if known.
    """
    damage: list[Damage] = []
    footer: Footer | None = None
    try:
        footer = read_footer(read, size, path)
        read_index(read, footer, path)
    except Damaged as error:
        # The index only says where the blocks are: walking them finds what is missing.
        damage.append(replace(error.damage, count=0))
    try:
        header = decode_header(read(0, min(size, HEADER_BYTES_MAX)), path)
    except (Damaged, NotAQueue) as error:
        if footer is None:
            raise
        header = Header(footer.salt, identity=footer.identity)
        reason = error.damage.reason if isinstance(error, Damaged) else str(error)
        damage.append(Damage(path, 0, min(size, header.size), reason, count=0))
    walk = _Walk(read, footer.index_position if footer is not None else size, path, header)
    walk.run(footer_is_known=footer is not None)
    if footer is None:
        # The id index is not searched for: the blocks contain the same.
        footer = walk.footer()
    else:
        footer = replace(footer, id_index_position=0)
        expected = footer.count
    if expected is not None:
        walk.count_missing(expected)
    if trouble is not None:
        walk.damage = [
            replace(each, reason=trouble(each.position, each.length) or each.reason)
            for each in walk.damage
        ]
    return Run(read, size, path, footer, walk.places, damage + walk.damage, trouble)


@dataclass(slots=True)
class _Found:
    """A block that verifies."""

    position: int
    head: Head
    block: Block


class _Walk:
    """Walks the blocks of a run, from its header to `end`."""

    def __init__(self, read: Read, end: int, path: str, header: Header) -> None:
        self.places = Places()
        self.damage: list[Damage] = []
        self._read = read
        self._end = end
        self._path = path
        self._header = header
        self._position = header.size
        self._counts = [0, 0, 0]
        self._id_bounds: tuple[int, int] | None = None
        self._last = NO_KEY

    def run(self, footer_is_known: bool) -> None:
        """Adds every good block, and records what lies between them."""
        while self._position < self._end:
            found = self._load(self._position)
            if isinstance(found, str) or not self._fits(found):
                reason = found if isinstance(found, str) else "a block out of its turn"
                following = self._search(self._position + 1)
                if following is None:
                    self._note_the_end(reason, footer_is_known)
                    return
                length = following.position - self._position
                self.damage.append(Damage(self._path, self._position, length, reason))
                found = following
            self._take(found)

    def footer(self) -> Footer:
        """Returns a footer for the blocks that were found."""
        pending_count, tombstone_count, buried_count = self._counts
        min_id, max_id = self._id_bounds or (0, 0)
        return Footer(
            pending_count=pending_count,
            tombstone_count=tombstone_count,
            buried_count=buried_count,
            first_key=self.places[0].key if self.places else NO_KEY,
            last_key=self._last,
            min_id=min_id,
            max_id=max_id,
            block_count=len(self.places),
            index_position=self._position,
            salt=self._header.salt,
            identity=self._header.identity,
        )

    def count_missing(self, expected: int) -> None:
        """Notes how many entries are missing, if they can only be in one gap."""
        missing = max(expected - sum(self.places.counts), 0)
        if not missing:
            # No block is missing there: it is the end of a run that was cut before its index.
            self.damage = [replace(each, count=0) for each in self.damage]
        elif len(self.damage) == 1:
            self.damage[0] = replace(self.damage[0], count=missing)
        elif not self.damage:
            reason = "the run ends before its last block"
            self.damage.append(Damage(self._path, self._end, 0, reason, count=missing))

    def _fits(self, found: _Found) -> bool:
        return found.head.number > (self.places[-1].number if self.places else -1)

    def _take(self, found: _Found) -> None:
        block = found.block
        key = block.deadline(0), block.id(0)
        self.places.append(found.head.number, *key, found.position, block.count)
        ids = [block.id(at) for at in range(block.count)]
        low, high = self._id_bounds or (ids[0], ids[0])
        self._id_bounds = min(low, *ids), max(high, *ids)
        for at in range(block.count):
            self._counts[block.attributes(at)] += 1
        self._last = Key(block.deadline(block.count - 1), ids[-1])
        self._position = found.position + BLOCK_HEAD_BYTES + found.head.size

    def _note_the_end(self, reason: str, footer_is_known: bool) -> None:
        """Records what follows the last good block, unless it is the index of all of them."""
        index = encode_index(self.places)
        if not footer_is_known and self._read(self._position, len(index)) == index:
            return
        length = self._end - self._position
        torn = not footer_is_known
        self.damage.append(Damage(self._path, self._position, length, reason, torn))

    def _load(self, position: int) -> _Found | str:
        room = self._end - position
        head = decode_head(self._read(position, min(BLOCK_HEAD_BYTES, room)), room)
        if isinstance(head, str):
            return head
        block = decode_block(
            self._read(position, BLOCK_HEAD_BYTES + head.size), head, self._header.salt
        )
        return block if isinstance(block, str) else _Found(position, head, block)

    def _search(self, position: int) -> _Found | None:
        for found in self._marks(position):
            loaded = self._load(found)
            if not isinstance(loaded, str) and self._fits(loaded):
                return loaded
        return None

    def _marks(self, position: int) -> Iterator[int]:
        """Yields the positions of block marks, from a position on."""
        while position < self._end:
            chunk = self._read(position, min(_CHUNK_BYTES + len(MARK) - 1, self._end - position))
            at = chunk.find(MARK)
            while at >= 0:
                yield position + at
                at = chunk.find(MARK, at + 1)
            position += _CHUNK_BYTES
