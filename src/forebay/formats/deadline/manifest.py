"""The manifest of a deadline queue: which files count. Page: docs/formats/deadline.md.

Source of truth for the sets of runs, the ids that may have been assigned and the oldest log that
counts. Small, replaced whole, with one check over all of it. No I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from forebay.damage import Damage
from forebay.errors import Damaged, UnsupportedVersion
from forebay.formats.deadline.items import NEXT_ID_MAX, NO_KEY, FileKind, Key
from forebay.kernels.buffers import crc32

NAME = "deadline-manifest"
MAGIC = b"FBDM"

# | field        | bytes | meaning                                            |
# | magic        | 4     | `FBDM`                                             |
# | version      | 2     | 1 or 2                                             |
# | reserved     | 2     | 0                                                  |
# | queue id     | 16    | random                                             |
# | next id      | 8     | no id from here on was ever assigned               |
# | floor        | 8     | the highest deadline that was delivered            |
# | oldest log   | 8     | logs with lower numbers are in the runs            |
# | sets         | 4     | rows that follow, oldest first                     |
# | generation   | 8     | how often it was replaced; from version 2 on       |
# | logs         | 4     | rows after those of the sets; from version 2 on    |
_HEAD = struct.Struct("<4sHH16sQQQI")
_MORE = struct.Struct("<QI")
# | number 8 | files 1: 1 items, 2 tombstones, 4 dequeued | low-water deadline 8, id 8 |
_ROW = struct.Struct("<QBQQ")
# | pending 8 | buried 8 | tombstones 8 | dequeued 8: entries of the files, from version 2 on |
_COUNTS = struct.Struct("<QQQQ")
# | number 8 | salt 8 | end 8 | first id 8 | end id 8 | copied items 8 |
_LOG = struct.Struct("<Q8sQQQQ")
_CRC = struct.Struct("<I")
assert (_HEAD.size, _MORE.size, _ROW.size, _COUNTS.size, _LOG.size) == (52, 12, 25, 32, 48)
_UNKNOWN = 2**64 - 1
_NUMBER_MAX = 2**63
# The files of a set, and the bit for each.
FILE_BITS = {
    FileKind.PENDING_RUN: 1,
    FileKind.TOMBSTONE_RUN: 2,
    FileKind.DEQUEUED_RUN: 4,
}


@dataclass(frozen=True, slots=True)
class SetCounts:
    """How many entries the files of a set have."""

    pending: int = 0
    buried: int = 0
    tombstones: int = 0
    dequeued: int = 0


@dataclass(frozen=True, slots=True)
class SetRow:
    """A set of runs: what one log was frozen into, or the result of a merge.

    All items below `low_water` are gone, and their tombstones are durable. `counts` is None if
    unknown, as in version 1.
    """

    number: int
    kinds: frozenset[FileKind]
    low_water: Key = NO_KEY
    counts: SetCounts | None = None


@dataclass(frozen=True, slots=True)
class LogRow:
    """A log that must exist.

    `end` is where it ends, or 0 if it was still being written. The ids from `first_id` up to
    `end_id` were assigned in it, and it starts with `copied` items of other logs. With the salt its
    batches can be read without its header.
    """

    number: int
    salt: bytes
    end: int = 0
    first_id: int = 0
    end_id: int = 0
    copied: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which files of a directory count. The sets are in order of age."""

    queue_id: bytes
    next_id: int = 1
    floor_ms: int = 0
    oldest_wal: int = 0
    sets: tuple[SetRow, ...] = ()
    generation: int = 0
    logs: tuple[LogRow, ...] = ()

    def encode(self) -> bytes:
        """Returns the bytes of the manifest."""
        numbers = (self.next_id, self.floor_ms, self.oldest_wal, len(self.sets))
        parts = [
            _HEAD.pack(MAGIC, 2, 0, self.queue_id, *numbers),
            _MORE.pack(self.generation, len(self.logs)),
        ]
        for row in self.sets:
            bits = sum(FILE_BITS[kind] for kind in row.kinds)
            parts.append(_ROW.pack(row.number, bits, row.low_water.deadline_ms, row.low_water.id))
            counts = row.counts
            if counts is None:
                parts.append(_COUNTS.pack(*[_UNKNOWN] * 4))
            else:
                numbers = (counts.pending, counts.buried, counts.tombstones, counts.dequeued)
                parts.append(_COUNTS.pack(*numbers))
        for log in self.logs:
            numbers = (log.end, log.first_id, log.end_id, log.copied)
            parts.append(_LOG.pack(log.number, log.salt, *numbers))
        data = b"".join(parts)
        return data + _CRC.pack(crc32(data))


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Reads a manifest; raises Damaged."""
    reason = None
    if len(data) < _HEAD.size + _CRC.size or data[:4] != MAGIC:
        reason = "not a manifest of a deadline queue"
    elif (found := crc32(data[:-4])) != (stored := _CRC.unpack(data[-4:])[0]):
        reason = f"checksum {stored:#010x} expected, {found:#010x} found"
    if reason is not None:
        raise Damaged(Damage(path, 0, len(data), reason))
    _, version, reserved, queue_id, *numbers, count = _HEAD.unpack_from(data)
    if version not in (1, 2) or reserved:
        raise UnsupportedVersion(f"{path}: manifest version {version}; this program reads 1 and 2")
    position, row_bytes, generation, log_count = _HEAD.size, _ROW.size, 0, 0
    if version == 2 and len(data) >= _HEAD.size + _MORE.size + _CRC.size:
        generation, log_count = _MORE.unpack_from(data, position)
        position += _MORE.size
        row_bytes += _COUNTS.size
    logs_at = position + count * row_bytes
    if len(data) != logs_at + log_count * _LOG.size + _CRC.size:
        raise Damaged(Damage(path, 0, len(data), f"{count} sets do not fill {len(data)} bytes"))
    sets = tuple(
        _decode_row(data[at : at + row_bytes]) for at in range(position, logs_at, row_bytes)
    )
    logs = tuple(LogRow(*row) for row in _LOG.iter_unpack(data[logs_at : -_CRC.size]))
    next_id, floor_ms, oldest_wal = numbers
    manifest = Manifest(queue_id, next_id, floor_ms, oldest_wal, sets, generation, logs)
    if not _is_sound(manifest):
        raise Damaged(Damage(path, 0, len(data), "a number in it is out of range"))
    return manifest


def _is_sound(manifest: Manifest) -> bool:
    """Returns whether all numbers are in range, except keys and ids of logs."""
    numbers = [manifest.floor_ms, manifest.oldest_wal, manifest.generation]
    for row in manifest.sets:
        numbers.append(row.number)
        if row.counts is not None:
            counts = row.counts
            numbers += [counts.pending, counts.buried, counts.tombstones, counts.dequeued]
    for log in manifest.logs:
        numbers += [log.number, log.end, log.copied]
    return max(numbers) <= _NUMBER_MAX and manifest.next_id <= NEXT_ID_MAX


def _decode_row(data: bytes) -> SetRow:
    number, bits, deadline_ms, id = _ROW.unpack_from(data)
    counts = None
    if len(data) > _ROW.size:
        numbers = _COUNTS.unpack_from(data, _ROW.size)
        counts = None if _UNKNOWN in numbers else SetCounts(*numbers)
    return SetRow(number, _kinds_of(bits), Key(deadline_ms, id), counts)


def _kinds_of(bits: int) -> frozenset[FileKind]:
    return frozenset(kind for kind, bit in FILE_BITS.items() if bits & bit)
