"""The parts of a version 2 run as bytes: header, blocks, index, id index, footer.

Owns their layouts and checks; `runs.py` joins them into runs, and the columns inside a block are
in `kernels/deadline.py`. Lengths are checked before anything is allocated. No I/O.
Page: docs/formats/deadline.md.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, starmap
from operator import le
from typing import TYPE_CHECKING

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue, UnsupportedVersion
from forebay.extras import optional
from forebay.formats.deadline.items import NO_KEY, REASON_BYTES_MAX, VALUE_BYTES_MAX, Key, KeyTuple
from forebay.kernels.buffers import crc32
from forebay.kernels.deadline import HEAD_BYTES, Block, pack, pack_ids, search_packed, unpack

if TYPE_CHECKING:
    from lz4 import block as lz4
else:
    lz4 = optional("lz4.block", "lz4")

MAGIC = b"FBDR"
MARK = b"FBDB"
END_MAGICS = {2: b"FBDE", 3: b"FBDF"}
COMPRESSIONS = ("none", "lz4")
BLOCK_ENTRIES_MAX = 2**16
BODY_BYTES_MAX = 2**31 - 1
# A block may be filled up to this size; the columns still fit, even for the most entries allowed.
BLOCK_BYTES_MAX = 2**30
_COLUMNS_BYTES_MAX = HEAD_BYTES + 64 * BLOCK_ENTRIES_MAX
assert max(BLOCK_BYTES_MAX, VALUE_BYTES_MAX) + REASON_BYTES_MAX + _COLUMNS_BYTES_MAX < 2**31
# No LZ4 sequence expands a byte to more than 255.
_RATIO_MAX = 255

# | field       | bytes | meaning                                      |
# | magic       | 4     | `FBDR`                                       |
# | version     | 2     | 2 or 3                                       |
# | compression | 1     | 0 none, 1 LZ4                                |
# | flags       | 1     | 0                                            |
# | salt        | 8     | random; every check in the file has it       |
# | identity    | 28    | see below; only in version 3                 |
# | check       | 4     | CRC-32 of all before                         |
_HEADERS = {2: struct.Struct("<4sHBB8sI"), 3: struct.Struct("<4sHBB8s28sI")}
# | number 8 | queue id 16 | kind 1: the letter in the file's name | 0 3 |
_IDENTITY = struct.Struct("<Q16s1s3x")
assert _IDENTITY.size == 28
# | mark        | 4     | `FBDB`, which salvage searches for           |
# | number      | 4     | of the block in its file, from 0             |
# | count       | 4     | entries                                      |
# | size        | 4     | bytes that follow the head                   |
# | body size   | 4     | of them, decompressed; equal if they are not |
# | check       | 4     | CRC-32 of salt, the 20 bytes before, bytes   |
_HEAD = struct.Struct("<4sIIIII")
# | deadline 6 | id 8 | position 8 | count 4: the block's first key, where it is, its entries |
_INDEX = struct.Struct("<6sQQI")
# The same, the deadline as its lower 32 bits and its upper 16.
_INDEX_WORDS = struct.Struct("<IHQQI")
assert _INDEX.size == _INDEX_WORDS.size
# | id base 8 | id width 1 | block width 1, then the bits of the ids, then those of the blocks |
_ID_INDEX = struct.Struct("<QBB")
# | pending, tombstones, buried 24 | first key 14 | last key 14 | smallest and largest id 16
# | blocks 4 | position of index and id index 16 | their checks 8 | salt 8
# | identity 28, only in version 3 | `FBDE`, in version 3 `FBDF` 4 | check 4
_FOOTERS = {
    2: struct.Struct("<QQQ6sQ6sQQQIQQII8s4sI"),
    3: struct.Struct("<QQQ6sQ6sQQQIQQII8s28s4sI"),
}
BLOCK_HEAD_BYTES, INDEX_BYTES = _HEAD.size, _INDEX.size
HEADER_BYTES = {version: layout.size for version, layout in _HEADERS.items()}
FOOTER_BYTES = {version: layout.size for version, layout in _FOOTERS.items()}
HEADER_BYTES_MAX, FOOTER_BYTES_MAX = HEADER_BYTES[3], FOOTER_BYTES[3]
assert (HEADER_BYTES, FOOTER_BYTES) == ({2: 20, 3: 48}, {2: 112, 3: 140})
assert (BLOCK_HEAD_BYTES, INDEX_BYTES) == (24, 26)
assert _ID_INDEX.size == 10


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run of which queue a file is; `kind` is the letter in its name."""

    number: int
    queue_id: bytes
    kind: str

    def encode(self) -> bytes:
        """Returns its bytes."""
        return _IDENTITY.pack(self.number, self.queue_id, self.kind.encode())

    @classmethod
    def decode(cls, data: bytes) -> Identity:
        """Reads the result of `encode`."""
        number, queue_id, kind = _IDENTITY.unpack(data)
        return cls(number, queue_id, kind.decode("latin-1"))


@dataclass(frozen=True, slots=True)
class Header:
    """The start of a run; `identity` is None in version 2."""

    salt: bytes
    compression: str = "none"
    identity: Identity | None = None

    @property
    def size(self) -> int:
        """Returns its size: the first block starts there."""
        return HEADER_BYTES[2 if self.identity is None else 3]

    def encode(self) -> bytes:
        """Returns the bytes of the header."""
        version = 2 if self.identity is None else 3
        rest = () if self.identity is None else (self.identity.encode(),)
        fields = (MAGIC, version, COMPRESSIONS.index(self.compression), 0, self.salt, *rest)
        layout = _HEADERS[version]
        return layout.pack(*fields, crc32(layout.pack(*fields, 0)[:-4]))


@dataclass(frozen=True, slots=True)
class Head:
    """What precedes the bytes of a block."""

    number: int
    count: int
    size: int
    body_size: int
    check: int


@dataclass(frozen=True, slots=True)
class Place:
    """A row of the index: a block's first key, where it is, and how many entries it has.

    The row number is the number of the block.
    """

    number: int
    key: Key
    position: int
    count: int


class Places:
    """The rows of an index, kept as numbers because a large run has very many."""

    def __init__(self) -> None:
        self.numbers = array("Q")
        self.deadlines = array("Q")
        self.ids = array("Q")
        self.positions = array("Q")
        self.counts = array("Q")

    def append(self, number: int, deadline_ms: int, id: int, position: int, count: int) -> None:
        """Adds a row."""
        self.numbers.append(number)
        self.deadlines.append(deadline_ms)
        self.ids.append(id)
        self.positions.append(position)
        self.counts.append(count)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: int) -> Place:
        key = Key(self.deadlines[row], self.ids[row])
        return Place(self.numbers[row], key, self.positions[row], self.counts[row])

    def __iter__(self) -> Iterator[Place]:
        return map(self.__getitem__, range(len(self)))

    def row_of(self, key: Key) -> int:
        """Returns the first row whose key is not below the given one."""
        return bisect_left(range(len(self)), (key.deadline_ms, key.id), key=self._key)

    def is_sorted(self) -> bool:
        """Returns whether no key is below the one before."""
        keys = zip(self.deadlines, self.ids, strict=True)
        return all(starmap(le, pairwise(keys)))

    def _key(self, row: int) -> KeyTuple:
        return self.deadlines[row], self.ids[row]


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a run. `id_index_position` 0 means that there is no id index."""

    pending_count: int = 0
    tombstone_count: int = 0
    buried_count: int = 0
    first_key: Key = NO_KEY
    last_key: Key = NO_KEY
    min_id: int = 0
    max_id: int = 0
    block_count: int = 0
    index_position: int = HEADER_BYTES[2]
    id_index_position: int = 0
    index_check: int = 0
    id_index_check: int = 0
    salt: bytes = bytes(8)
    identity: Identity | None = None

    @property
    def version(self) -> int:
        """Returns the version of the run."""
        return 2 if self.identity is None else 3

    @property
    def size(self) -> int:
        """Returns its size in bytes."""
        return FOOTER_BYTES[self.version]

    @property
    def header_size(self) -> int:
        """Returns the size of the run's header in bytes."""
        return HEADER_BYTES[self.version]

    @property
    def count(self) -> int:
        """Returns how many entries there are."""
        return self.pending_count + self.tombstone_count + self.buried_count

    @property
    def index_end(self) -> int:
        """Returns where the index ends: the id index or the footer starts there."""
        return self.index_position + self.block_count * INDEX_BYTES

    def encode(self) -> bytes:
        """Returns the bytes of the footer."""
        fields = (
            *(self.pending_count, self.tombstone_count, self.buried_count),
            *(_six(self.first_key.deadline_ms), self.first_key.id),
            *(_six(self.last_key.deadline_ms), self.last_key.id),
            *(self.min_id, self.max_id, self.block_count),
            *(self.index_position, self.id_index_position),
            *(self.index_check, self.id_index_check, self.salt),
            *(() if self.identity is None else (self.identity.encode(),)),
            END_MAGICS[self.version],
        )
        layout = _FOOTERS[self.version]
        return layout.pack(*fields, crc32(layout.pack(*fields, 0)[:-4]))


def decode_header(data: bytes, path: str) -> Header:
    """Reads the start of a run."""
    if data[:4] != MAGIC[: len(data)]:
        raise NotAQueue(f"{path}: not a run: starts with {data[:4]!r}, not with {MAGIC!r}")
    version = int.from_bytes(data[4:6], "little")
    size = HEADER_BYTES.get(version, HEADER_BYTES[2])
    if len(data) < size:
        raise Damaged(Damage(path, 0, len(data), "the file ends within its header", torn=True))
    found, stored = crc32(data[: size - 4]), int.from_bytes(data[size - 4 : size], "little")
    if found != stored:
        reason = f"header checksum {stored:#010x} expected, {found:#010x} found"
        raise Damaged(Damage(path, 0, size, reason))
    compression, flags = data[6], data[7]
    if version not in HEADER_BYTES or flags or compression >= len(COMPRESSIONS):
        what = f"version {version}, compression {compression}, flags {flags:#x}"
        raise UnsupportedVersion(f"{path}: a run of {what}; this program reads versions 2 and 3")
    identity = Identity.decode(data[16:44]) if version == 3 else None
    return Header(data[8:16], COMPRESSIONS[compression], identity)


def decode_footer(data: bytes, size: int, path: str) -> Footer:
    """Reads the last bytes of a run of `size` bytes: `FOOTER_BYTES_MAX`, or all there are."""
    versions = {magic: version for version, magic in END_MAGICS.items()}
    version = versions.get(data[-8:-4])
    if version is None or len(data) < FOOTER_BYTES[version]:
        length = min(len(data), FOOTER_BYTES[2])
        raise Damaged(Damage(path, size - length, length, "no footer at the end", torn=True))
    data = data[-FOOTER_BYTES[version] :]
    position = size - len(data)
    *counts, first, first_id, last, last_id = (fields := _FOOTERS[version].unpack(data))[:7]
    found, stored = crc32(data[:-4]), fields[-1]
    if found != stored:
        reason = f"footer checksum {stored:#010x} expected, {found:#010x} found"
        raise Damaged(Damage(path, position, len(data), reason))
    keys = (
        Key(int.from_bytes(first, "little"), first_id),
        Key(int.from_bytes(last, "little"), last_id),
    )
    rest = list(fields[7:-2])
    if version == 3:
        rest[-1] = Identity.decode(rest[-1])
    footer = Footer(counts[0], counts[1], counts[2], *keys, *rest)
    # The index ends where the footer starts, or where the id index starts, which extends to the
    # footer.
    if footer.index_end != (footer.id_index_position or position) or footer.index_end > position:
        reason = f"the index ends at {footer.index_end}, but the footer is at {position}"
        raise Damaged(Damage(path, position, footer.size, reason))
    return footer


def encode_block(body: bytes, number: int, count: int, header: Header) -> bytes:
    """Returns a block with its head; it is compressed if the run is and that makes it smaller."""
    stored = body
    if header.compression == "lz4":
        compressed = bytes(lz4.compress(body, mode="fast", store_size=False))
        stored = compressed if len(compressed) < len(body) else body
    head = _HEAD.pack(MARK, number, count, len(stored), len(body), 0)[:-4]
    check = crc32(stored, crc32(head, crc32(header.salt)))
    return head + check.to_bytes(4, "little") + stored


def decode_head(data: bytes, room: int) -> Head | str:
    """Reads the head of a block that has `room` bytes, or returns why it is not valid."""
    if len(data) < BLOCK_HEAD_BYTES:
        return "the head of a block is cut off"
    mark, *fields = _HEAD.unpack_from(data)
    head = Head(*fields)
    if mark != MARK:
        return f"no block begins with {mark!r}"
    if head.size > room - BLOCK_HEAD_BYTES:
        return f"a block of {head.size} bytes, but {room - BLOCK_HEAD_BYTES} are left"
    if not 0 < head.count <= BLOCK_ENTRIES_MAX:
        return f"a block of {head.count} entries"
    if not head.size <= head.body_size <= min(BODY_BYTES_MAX, head.size * _RATIO_MAX + 64):
        return f"{head.size} bytes that claim to hold {head.body_size}"
    return head


def decode_block(data: bytes, head: Head, salt: bytes) -> Block | str:
    """Verifies and opens a block, head included, or returns what is wrong with it."""
    stored = data[BLOCK_HEAD_BYTES : BLOCK_HEAD_BYTES + head.size]
    if crc32(stored, crc32(data[: BLOCK_HEAD_BYTES - 4], crc32(salt))) != head.check:
        return f"the check of block {head.number} does not match"
    try:
        if head.body_size != head.size:
            stored = _decompress(stored, head.body_size)
        if len(stored) != head.body_size:
            return f"block {head.number} has {len(stored)} bytes, not {head.body_size}"
        return Block(stored, head.count)
    except ValueError as error:
        return f"block {head.number}: {error}"


def _decompress(stored: bytes, size: int) -> bytes:
    try:
        return bytes(lz4.decompress(stored, uncompressed_size=size))
    except lz4.LZ4BlockError as error:
        raise ValueError(error) from None


def encode_index(places: Places) -> bytes:
    """Returns the bytes of the index."""
    deadlines = map(_six, places.deadlines)
    return b"".join(map(_INDEX.pack, deadlines, places.ids, places.positions, places.counts))


def decode_index(data: bytes) -> Places:
    """Reads the bytes of an index."""
    places = Places()
    rows = list(_INDEX_WORDS.iter_unpack(data))
    if rows:
        low, high, *columns = zip(*rows, strict=True)
        places.numbers = array("Q", range(len(rows)))
        places.deadlines = array(
            "Q", [upper << 32 | lower for lower, upper in zip(low, high, strict=True)]
        )
        places.ids, places.positions, places.counts = (array("Q", each) for each in columns)
    return places


def encode_id_index(
    ids: array[int], counts: array[int], base: int, largest: int
) -> bytes | bytearray:
    """Returns the bytes of the id index of a run: its ids in order, and the entries of each block.

    `base` is the smallest id.
    """
    id_width = (largest - base).bit_length()
    block_width = max(len(counts) - 1, 0).bit_length()
    head = _ID_INDEX.pack(base, id_width, block_width)
    if id_width + block_width <= 64:
        packed = pack_ids(ids, counts, base, id_width, block_width)
        # In place, because it may be large.
        packed[:0] = head
        return packed
    blocks = (block for block, count in enumerate(counts) for _ in range(count))
    pairs = sorted(zip(ids, blocks, strict=True))
    sorted_ids = pack([id for id, _ in pairs], base, id_width)
    return head + sorted_ids + pack([block for _, block in pairs], 0, block_width)


class IdIndex:
    """The id index of a run: which blocks hold an id. Raises ValueError if the size is wrong."""

    def __init__(self, data: bytes, count: int) -> None:
        if len(data) < _ID_INDEX.size:
            raise ValueError(f"an id index of {len(data)} bytes")
        self._data = data
        self._count = count
        self._base, self._id_width, self._block_width = _ID_INDEX.unpack_from(data)
        self._blocks = _ID_INDEX.size + (count * self._id_width + 7) // 8
        end = self._blocks + (count * self._block_width + 7) // 8
        if len(data) != end or max(self._id_width, self._block_width) > 64:
            raise ValueError(f"an id index of {len(data)} bytes, but its columns end at {end}")

    def blocks(self, id: int) -> list[int]:
        """Returns the numbers of the blocks that hold an id, ascending, each once."""
        start, base, width = _ID_INDEX.size, self._base, self._id_width
        found: list[int] = []
        at = search_packed(self._data, start, self._count, base, width, id)
        while at < self._count and unpack(self._data, start, at, base, width) == id:
            block = unpack(self._data, self._blocks, at, 0, self._block_width)
            if block not in found:
                found.append(block)
            at += 1
        return found


def _six(number: int) -> bytes:
    return number.to_bytes(6, "little")
