"""The manifest of a deadline queue: which files count. Page: docs/formats/deadline.md.

Source of truth for the sets of runs, the ids that may have been given out and the oldest log that
counts. Small, replaced whole, with one check over all of it. No I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from forebay.errors import Damaged, UnsupportedVersion
from forebay.formats.deadline import NO_KEY, FileKind, Key
from forebay.frames import Damage
from forebay.kernels.checksum import crc32

NAME = "deadline-manifest"
MAGIC = b"FBDM"
VERSION = 1

# | field        | bytes | meaning                                            |
# | magic        | 4     | `FBDM`                                             |
# | version      | 2     | 1                                                  |
# | reserved     | 2     | 0                                                  |
# | queue id     | 16    | random                                             |
# | next id      | 8     | no id from here on was ever given out              |
# | floor        | 8     | the highest deadline that was given out            |
# | oldest log   | 8     | logs with lower numbers are in the runs            |
# | sets         | 4     | rows that follow, the oldest first                 |
_HEAD = struct.Struct("<4sHH16sQQQI")
# | number 8 | files 1: 1 items, 2 tombstones, 4 dequeued | low-water deadline 8, id 8 |
_ROW = struct.Struct("<QBQQ")
_CRC = struct.Struct("<I")
assert (_HEAD.size, _ROW.size, _CRC.size) == (52, 25, 4)
# The files of a set, and the bit that says that there is one.
FILE_BITS = {
    FileKind.PENDING_RUN: 1,
    FileKind.TOMBSTONE_RUN: 2,
    FileKind.DEQUEUED_RUN: 4,
}


@dataclass(frozen=True, slots=True)
class SetRow:
    """A set of runs: what one log was frozen into, or what a merge left.

    All items below `low_water` are gone, and their tombstones are durable.
    """

    number: int
    kinds: frozenset[FileKind]
    low_water: Key = NO_KEY


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which files of a directory count. The sets are in the order of their age."""

    queue_id: bytes
    next_id: int = 1
    floor_ms: int = 0
    oldest_wal: int = 0
    sets: tuple[SetRow, ...] = ()

    def encode(self) -> bytes:
        """Gives the bytes of the manifest."""
        numbers = (self.next_id, self.floor_ms, self.oldest_wal, len(self.sets))
        parts = [_HEAD.pack(MAGIC, VERSION, 0, self.queue_id, *numbers)]
        for row in self.sets:
            bits = sum(FILE_BITS[kind] for kind in row.kinds)
            parts.append(_ROW.pack(row.number, bits, row.low_water.deadline_ms, row.low_water.id))
        data = b"".join(parts)
        return data + _CRC.pack(crc32(data))


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Reads a manifest; raises Damaged."""
    reason = None
    if len(data) < _HEAD.size + _CRC.size or data[:4] != MAGIC:
        reason = "no manifest of a deadline queue"
    elif (found := crc32(data[:-4])) != (stored := _CRC.unpack(data[-4:])[0]):
        reason = f"checksum {stored:#010x} expected, {found:#010x} found"
    if reason is not None:
        raise Damaged(Damage(path, 0, len(data), reason))
    _, version, reserved, queue_id, *numbers, count = _HEAD.unpack_from(data)
    if version != VERSION or reserved:
        raise UnsupportedVersion(f"{path}: manifest version {version}; this program reads 1")
    if len(data) != _HEAD.size + count * _ROW.size + _CRC.size:
        raise Damaged(Damage(path, 0, len(data), f"{count} sets do not fill {len(data)} bytes"))
    rows = _ROW.iter_unpack(data[_HEAD.size : -_CRC.size])
    sets = tuple(
        SetRow(number, _kinds_of(bits), Key(deadline_ms, id))
        for number, bits, deadline_ms, id in rows
    )
    next_id, floor_ms, oldest_wal = numbers
    return Manifest(queue_id, next_id, floor_ms, oldest_wal, sets)


def _kinds_of(bits: int) -> frozenset[FileKind]:
    return frozenset(kind for kind, bit in FILE_BITS.items() if bits & bit)
