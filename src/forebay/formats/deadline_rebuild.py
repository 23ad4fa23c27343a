"""Opens a version 2 run whose header, footer or index is lost, by walking its blocks.

Promises that every block that verifies is in the run, and that what is missing between them is told
as damage. Page: docs/formats/deadline.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline import NO_KEY, Key
from forebay.formats.deadline_blocks import (
    BLOCK_HEAD_BYTES,
    HEADER_BYTES_MAX,
    MARK,
    Footer,
    Head,
    Header,
    Places,
    decode_block,
    decode_head,
    decode_header,
    encode_index,
)
from forebay.formats.deadline_runs import Read, Run, Trouble, read_footer, read_index
from forebay.frames import Damage
from forebay.kernels.deadline_block import Block

_CHUNK_BYTES = 1 << 20


def rebuild_run(
    read: Read,
    size: int,
    path: str,
    *,
    expected: int | None = None,
    trouble: Trouble | None = None,
) -> Run:
    """Opens a run of `size` bytes by its blocks; its `damage` says what is lost.

    Header and footer both hold the salt that the checks need. Raises Damaged, or NotAQueue, where
    neither can be read. `expected` is how many entries it should have, if somebody knows.
    """
    damage: list[Damage] = []
    footer: Footer | None = None
    try:
        footer = read_footer(read, size, path)
        read_index(read, footer, path)
    except Damaged as error:
        # It only says where the blocks are: what they have lost, the walk over them tells.
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
        # The id index is not searched for: what it says is in the blocks.
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
    """Goes over the blocks of a run, from its header to `end`."""

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
        """Takes every good block, and notes what lies between them."""
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
        """Returns the footer of what was found."""
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
        """Tells how many entries are missing, where there is one gap that they were in."""
        missing = max(expected - sum(self.places.counts), 0)
        if not missing:
            # What lies there is no block: the end of a run that was cut before its index.
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
        """Says what lies behind the last good block, unless it is the index of all of them."""
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
        """Yields where marks of blocks are, from a position on."""
        while position < self._end:
            chunk = self._read(position, min(_CHUNK_BYTES + len(MARK) - 1, self._end - position))
            at = chunk.find(MARK)
            while at >= 0:
                yield position + at
                at = chunk.find(MARK, at + 1)
            position += _CHUNK_BYTES
