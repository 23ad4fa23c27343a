"""The write-ahead log of a deadline queue. Page: docs/formats/deadline.md.

Owns the header and the records; the loops over batches are in `kernels/deadline.py`. Promises that
a record is returned only if the check of its batch matches, and that check is valid at one place in
one file only. A tail of zeros ends a log; a bad end is torn, bad bytes before a good batch are
damage. No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue, RecordTooLarge, UnsupportedVersion
from forebay.formats.deadline.items import (
    DEQUEUE_COUNT_MAX,
    ID_MAX,
    TIME_MS_MAX,
    VALUE_BYTES_MAX,
    Item,
    Key,
    Stats,
    Tombstone,
    check_entry,
)
from forebay.kernels import deadline as kernel
from forebay.kernels.buffers import crc32

MAGIC = b"FBDW"
BURIED = 2
BATCH_BYTES_MAX = 2**32 - 1
# How many batches of records are held at once when a log is read.
_BATCHES_AT_ONCE = 64

# | field    | bytes | meaning                                  |
# | magic    | 4     | `FBDW`                                   |
# | version  | 2     | 1 or 2                                   |
# | reserved | 2     | 0                                        |
# | number   | 8     | the one in the file's name               |
# | salt     | 8     | random; every check in the file has it   |
# | queue id | 16    | of the queue; only in version 2          |
# | check    | 4     | CRC-32 of all before                     |
_HEADERS = {1: struct.Struct("<4sHHQ8sI"), 2: struct.Struct("<4sHHQ8s16sI")}
assert {version: layout.size for version, layout in _HEADERS.items()} == {1: 28, 2: 44}
# Common to every version: magic, version, reserved, number.
_KNOWN_BYTES = 16
# kind 1 | deadline 6 | id 8 | enqueue 6 | requeue 6 | dequeue_count 4 | attributes 1 | reason 2
# | value 4; the times have 48 bits, for which struct has no letter.
_ITEM = struct.Struct("<B6sQ6s6sIBHI")
_TOMBSTONE = struct.Struct("<B6sQ")
_DEQUEUED = struct.Struct("<B6sQI6s")
# A program that does not know these kinds skips them. The first two were written by version 0.1 and
# are now only read.
# kind 1 | length 4 | position 8
_DURABLE_KIND = kernel.PASSED_OVER
# kind 1 | length 4 | number 8 | position 8
_AFTER_KIND = kernel.PASSED_OVER + 1
# kind 1 | length 4 | flags 1 | log before 8 | its end 8 | first id 8 | copied items 8
_ORIGIN = struct.Struct("<BIBQQQQ")
_ORIGIN_KIND = kernel.PASSED_OVER + 2
_BEFORE_NOT_DURABLE = 1
# kind 1 | length 4
_COPIED = struct.Struct("<BI")
_COPIED_KIND = kernel.PASSED_OVER + 3
COPIED = _COPIED.pack(_COPIED_KIND, 0)
assert (_ITEM.size, _TOMBSTONE.size, _DEQUEUED.size) == (
    kernel.ITEM_BYTES,
    kernel.TOMBSTONE_BYTES,
    kernel.DEQUEUED_BYTES,
)


@dataclass(frozen=True, slots=True)
class Dequeued:
    """States that an item was delivered, how often so far, and when."""

    key: Key
    dequeue_count: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Durable:
    """States that the bytes of the log before a position were durable when this was written.

    A bad batch before it is damage; one after the last of these may never have been whole.
    """

    position: int


@dataclass(frozen=True, slots=True)
class After:
    """States, first in a log, which log it continues, and at which position that one had ended.

    It is present if that log was not durable yet: if a power cut took the end of that log, this log
    is lost too.
    """

    number: int
    position: int


@dataclass(frozen=True, slots=True)
class Origin:
    """States, first in a log, what it continues, so that missing items can be counted.

    `before` is the number of the previous log, 0 if there is none, and `end` is where it had ended;
    `durable` is whether it was durable by then. Ids from `first_id` on are assigned in this log. It
    starts with `copied` items, which were copied from other logs when the queue was opened.
    """

    before: int = 0
    end: int = 0
    durable: bool = True
    first_id: int = 0
    copied: int = 0


@dataclass(frozen=True, slots=True)
class Copied:
    """States that the items of its batch were copied from another log."""


Record = Item | Tombstone | Dequeued
Note = Durable | After | Origin | Copied


@dataclass(frozen=True, slots=True)
class Header:
    """The start of a log; `queue_id` is None in version 1."""

    number: int
    salt: bytes
    queue_id: bytes | None = None

    @property
    def size(self) -> int:
        """Returns its size: the first batch starts there."""
        return _HEADERS[1 if self.queue_id is None else 2].size

    @property
    def seed(self) -> int:
        """Returns the value that the checks of its batches start from."""
        return crc32(self.salt)

    def encode(self) -> bytes:
        """Returns the bytes of the header."""
        rest = () if self.queue_id is None else (self.queue_id,)
        version = 1 if self.queue_id is None else 2
        fields = (MAGIC, version, 0, self.number, self.salt, *rest)
        layout = _HEADERS[version]
        return layout.pack(*fields, crc32(layout.pack(*fields, 0)[:-4]))


HEADER_BYTES_MAX = _HEADERS[2].size


def decode_header(data: bytes, path: str) -> Header:
    """Reads the start of a log."""
    if data[:4] != MAGIC[: len(data)]:
        raise NotAQueue(f"{path}: not a log: starts with {data[:4]!r}, not with {MAGIC!r}")
    version = int.from_bytes(data[4:6], "little")
    sizes = [_HEADERS[version].size] if version in _HEADERS else [28, 44]
    if len(data) < sizes[0]:
        raise Damaged(Damage(path, 0, len(data), "the file ends within its header", torn=True))
    checks = [(crc32(data[: size - 4]), data[size - 4 : size]) for size in sizes]
    if all(found.to_bytes(4, "little") != stored for found, stored in checks):
        found, stored = checks[0]
        expected = int.from_bytes(stored, "little")
        reason = f"header checksum {expected:#010x} expected, {found:#010x} found"
        raise Damaged(Damage(path, 0, sizes[0], reason))
    reserved = int.from_bytes(data[6:8], "little")
    if version not in _HEADERS or reserved:
        raise UnsupportedVersion(
            f"{path}: log version {version}.{reserved}; this program reads 1 and 2"
        )
    _, _, _, number, salt, *rest, _ = _HEADERS[version].unpack_from(data)
    return Header(number, salt, *rest)


def repair_header(data: bytes, number: int) -> Header | None:
    """Finds the one flipped bit in a header, if that is what happened.

    Without the repair a single bad bit would cost every record of the log. The number is in the
    file's name.
    """
    for version, layout in _HEADERS.items():
        fields = (MAGIC, version, 0, number, b"", *([b""] * (version - 1)), 0)
        known = layout.pack(*fields)[:_KNOWN_BYTES]
        if len(data) < layout.size:
            continue
        guess = known + data[len(known) : layout.size]
        # Bit -1 stands for none: the flipped bit is in the fields that are known.
        for bit in range(-1, (layout.size - len(known)) * 8):
            fixed = bytearray(guess)
            if bit >= 0:
                fixed[len(known) + bit // 8] ^= 1 << bit % 8
            if crc32(fixed[:-4]) == int.from_bytes(fixed[-4:], "little"):
                return decode_header(bytes(fixed), "")
    return None


class Batches:
    """The batches of one log, for one header. It has no state: the caller counts the batches."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.seed = header.seed

    def fresh_size(self, values: Sequence[bytes]) -> int:
        """Returns the size of a batch of these values as new items."""
        return kernel.BATCH_BYTES + len(values) * kernel.FRESH_BYTES + sum(map(len, values))

    def encode_fresh(
        self,
        values: list[bytes],
        deadlines: list[int],
        buffer: bytearray | memoryview,
        id: int,
        enqueue_ms: int,
        number: int,
    ) -> int:
        """Writes a batch of new items to the start of `buffer`; returns its size.

        Each has its own deadline; the first has the id `id`, the others have the ids after it.
        """
        size = self.fresh_size(values)
        count = len(values)
        _check_batch(size, count)
        if size > VALUE_BYTES_MAX and max(map(len, values)) > VALUE_BYTES_MAX:
            raise RecordTooLarge(f"a value of more than {VALUE_BYTES_MAX} bytes")
        if len(deadlines) != count or size > len(buffer):
            raise ValueError(f"{count} values, {len(deadlines)} deadlines, {len(buffer)} bytes")
        _check_times(deadlines)
        if not (0 <= enqueue_ms <= TIME_MS_MAX and 0 <= id <= ID_MAX + 1 - count):
            raise ValueError("a time has 48 bits and an id 64")
        return kernel.encode_fresh(
            values, deadlines, 0, count, buffer, id, enqueue_ms, number, self.seed
        )

    def encode_tombstones(self, deadlines: list[int], ids: list[int], number: int) -> bytes:
        """Returns the bytes of a batch of tombstones."""
        _check_times(deadlines)
        _check_ids(ids)
        buffer = self._buffer(len(deadlines), kernel.TOMBSTONE_BYTES, len(ids))
        kernel.encode_tombstones(deadlines, ids, buffer, number, self.seed)
        return bytes(buffer)

    def encode_dequeued(
        self, deadlines: list[int], ids: list[int], counts: list[int], time_ms: int, number: int
    ) -> bytes:
        """Returns the bytes of a batch that records how often items have been delivered so far."""
        _check_times([*deadlines, time_ms])
        _check_ids(ids)
        if counts and not 0 <= min(counts) <= max(counts) <= DEQUEUE_COUNT_MAX:
            raise ValueError("a dequeue count has 32 bits")
        buffer = self._buffer(len(deadlines), kernel.DEQUEUED_BYTES, len(ids), len(counts))
        kernel.encode_dequeued(deadlines, ids, counts, time_ms, buffer, number, self.seed)
        return bytes(buffer)

    def encode(self, records: Sequence[Record], number: int) -> bytes:
        """Returns the bytes of a batch of arbitrary records."""
        body = b"".join(map(encode_record, records))
        _check_batch(len(body), len(records))
        return self._encode_body(body, number)

    def encode_origin(self, origin: Origin) -> bytes:
        """Returns the bytes of the first batch of a log."""
        flags = 0 if origin.durable else _BEFORE_NOT_DURABLE
        fields = (flags, origin.before, origin.end, origin.first_id, origin.copied)
        return self._encode_body(_ORIGIN.pack(_ORIGIN_KIND, _ORIGIN.size - 5, *fields), 0)

    def _encode_body(self, body: bytes, number: int) -> bytes:
        buffer = bytearray(kernel.BATCH_BYTES) + body
        kernel.seal_batch(buffer, len(body), number, self.seed)
        return bytes(buffer)

    def _buffer(self, count: int, record_bytes: int, *others: int) -> bytearray:
        if any(other != count for other in others):
            raise ValueError(f"columns of {count} and {others} rows")
        _check_batch(count * record_bytes, count)
        return bytearray(kernel.BATCH_BYTES + count * record_bytes)


def encode_record(record: Record) -> bytes:
    """Returns the bytes of one record."""
    key = record.key
    if isinstance(record, Dequeued):
        check_entry(Item(key, b"", Stats(record.time_ms, 0, record.dequeue_count)))
        deadline, time = _six(key.deadline_ms), _six(record.time_ms)
        return _DEQUEUED.pack(kernel.DEQUEUED, deadline, key.id, record.dequeue_count, time)
    check_entry(record)
    deadline = _six(key.deadline_ms)
    if isinstance(record, Tombstone):
        return _TOMBSTONE.pack(kernel.TOMBSTONE, deadline, key.id)
    stats = record.stats
    times = _six(stats.enqueue_ms), _six(stats.requeue_ms)
    attributes = BURIED if record.buried else 0
    sizes = len(record.reason), len(record.value)
    head = _ITEM.pack(
        kernel.ITEM, deadline, key.id, *times, stats.dequeue_count, attributes, *sizes
    )
    return head + record.reason + record.value


def scan_wal(data: bytes, path: str, header: Header | None = None) -> Iterator[Record | Damage]:
    """Yields the records of a log in the order in which they were written, and the damage.

    `header` is as in `scan_all`.
    """
    for item in scan_all(data, path, header):
        if not isinstance(item, Note):
            yield item


def scan_all(
    data: bytes, path: str, header: Header | None = None
) -> Iterator[Record | Note | Damage]:
    """Yields the records, notes and damage of a log, in the order in which they were written.

    `header` is as in `scan_rows`.
    """
    for part, _ in scan_rows(data, path, header):
        if isinstance(part, list):
            yield from map(decode_record, part)
        else:
            yield part


def scan_rows(
    data: bytes, path: str, header: Header | None = None, at_once: int = _BATCHES_AT_ONCE
) -> Iterator[tuple[list[kernel.Record] | Note | Damage, int]]:
    """Yields what `scan_all` yields, several records at a time, in the form of the kernel.

    Each comes with a position that is after it and before anything that does not verify. `header`
    is the repaired header of a file whose own does not verify; if it is None, the header is read,
    and Damaged is raised if that fails. `at_once` is how many batches may come together.
    """
    header = header or decode_header(data, path)
    seed = header.seed
    end = len(data.rstrip(b"\0"))
    position, number = header.size, 0
    while position < end:
        rows: list[kernel.Record] = []
        stop, number = kernel.scan_batches(data, position, number, seed, at_once, rows)
        notes = [row for row in rows if row[0] >= kernel.PASSED_OVER]
        for note in map(decode_note, notes):
            if note is not None:
                yield note, stop
        known = [row for row in rows if row[0] < kernel.PASSED_OVER] if notes else rows
        if known:
            yield known, stop
        if stop == position:
            damage, number = _judge(data, position, number, seed, path)
            stop += damage.length
            yield damage, stop
        position = stop


def decode_note(row: kernel.Record) -> Note | None:
    """Makes a note from a row of the kernel; None if it is a record or from a later program."""
    kind, content = row[0], row[8]
    if kind == _DURABLE_KIND and len(content) == 8:
        return Durable(int.from_bytes(content, "little"))
    if kind == _AFTER_KIND and len(content) == 16:
        return After(*struct.unpack("<QQ", content))
    if kind == _ORIGIN_KIND and len(content) == _ORIGIN.size - 5:
        flags, before, end, first_id, copied = struct.unpack("<BQQQQ", content)
        return Origin(before, end, not flags & _BEFORE_NOT_DURABLE, first_id, copied)
    if kind == _COPIED_KIND:
        return Copied()
    return None


def whole_bytes(data: bytes, number: int, header: Header, *, holes: bool = False) -> int:
    """Returns where the batches that verify end, starting with a number.

    With `holes` it is where the last of them ends, even if bad bytes lie between.
    """
    end = position = 0
    while True:
        stop, number = kernel.scan_batches(data, position, number, header.seed, 2**62, [])
        end = max(end, stop)
        if not holes or not data[stop : stop + kernel.BATCH_BYTES].strip(b"\0"):
            return end
        position, number = kernel.find_batch(data, stop + 1, number, header.seed, 1)
        if position < 0:
            return end


def _judge(data: bytes, position: int, number: int, seed: int, path: str) -> tuple[Damage, int]:
    """Returns what is wrong with the batch at a position, and the batch number after the damage."""
    size = int.from_bytes(data[position : position + 4], "little")
    if kernel.batch_verifies(data, position, number, seed):
        reason = f"batch {number} holds a record that this program does not know"
        return Damage(path, position, kernel.BATCH_BYTES + size, reason), number + 1
    room = len(data) - position - kernel.BATCH_BYTES
    if size > room:
        reason = f"batch {number} is cut off: {size} bytes, but {max(room, 0)} are left"
    else:
        reason = f"the check of batch {number} does not match"
    found, due = kernel.find_batch(data, position + 1, number, seed, 1)
    if found < 0:
        return Damage(path, position, len(data) - position, reason, torn=True), number
    return Damage(path, position, found - position, reason), due


def decode_record(row: kernel.Record) -> Record:
    """Makes a record from a row of the kernel."""
    kind, deadline_ms, id, time_ms, requeue_ms, count, attributes, reason, value = row
    key = Key(deadline_ms, id)
    if kind == kernel.TOMBSTONE:
        return Tombstone(key)
    if kind == kernel.DEQUEUED:
        return Dequeued(key, count, time_ms)
    stats = Stats(time_ms, requeue_ms, count)
    return Item(key, value, stats, bool(attributes & BURIED), reason)


def _six(number: int) -> bytes:
    return number.to_bytes(6, "little")


def _check_batch(size: int, count: int) -> None:
    if count == 0:
        raise ValueError("a batch needs at least one record: a size of 0 ends the log")
    if size > BATCH_BYTES_MAX:
        raise RecordTooLarge(f"a batch of {size} bytes; at most {BATCH_BYTES_MAX}")


def _check_times(times: list[int]) -> None:
    if times and not 0 <= min(times) <= max(times) <= TIME_MS_MAX:
        raise ValueError("a time has 48 bits")


def _check_ids(ids: list[int]) -> None:
    if ids and not 0 <= min(ids) <= max(ids) <= ID_MAX:
        raise ValueError("an id has 64 bits")
