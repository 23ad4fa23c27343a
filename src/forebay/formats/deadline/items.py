"""The terms of the deadline queue, and version 1 of its runs; see docs/formats/deadline.md.

Owns keys, items and tombstones, the names of all files, and the byte layout of the seed's runs.
Reads version 1 in both existing orders (ids signed, as the original program sorted them, and
unsigned) and writes the unsigned one. The format has no checksum, so impossible values are
rejected, with their position. No I/O.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from forebay.damage import Damage
from forebay.errors import Damaged, RecordTooLarge

TIME_MS_MAX = 2**48 - 1
ID_MAX = 2**64 - 1
# No queue reaches this, no matter how often it is opened. A higher next id is wrong, and ids above
# it must be left to assign.
NEXT_ID_MAX = ID_MAX - 2**40
DEQUEUE_COUNT_MAX = 2**32 - 1
VALUE_BYTES_MAX = 2**30
REASON_BYTES_MAX = 2**16 - 1
# Set in the deadline of a buried item's key: the item is never due, and its tombstone states that
# it removes the buried one.
BURIED_BIT = 1 << 47

# Every integer is little-endian; of the two words of 128 bits the upper comes first.
# | field | bytes | meaning                                         |
# | upper | 8     | 14 zero bits, deadline_ms (48), id >> 62 (2)    |
# | lower | 8     | id << 2 (64), type (2): 0 pending, 3 tombstone  |
_KEY = struct.Struct("<QQ")
# | upper | 8     | enqueue_ms (48), requeue_ms >> 32 (16)          |
# | lower | 8     | requeue_ms (32), dequeue_count (32)             |
# | size  | 4     | bytes of the value, which follows               |
_STATS = struct.Struct("<QQI")
# | pending_count 8 | tombstone_count 8 | last_key 16 | max_id 8    |
_FOOTER = struct.Struct("<QQQQQ")
assert (_KEY.size, _STATS.size, _FOOTER.size) == (16, 20, 40)
KEY_BYTES = _KEY.size
FOOTER_BYTES = _FOOTER.size
_MASK = 2**64 - 1
_PENDING = 0
_TOMBSTONE = 3

# Zero-padded to ten digits; a longer number has no leading zeros.
_HEX_NAME = re.compile(r"([0-9a-f]{10}|[1-9a-f][0-9a-f]{10,15})(\.wal|\.[ptcd]\.run)")
_DECIMAL_NAME = re.compile(
    r"([0-9]{10}|[1-9][0-9]{10,18})(\.log|\.closed-log|\.log_ro|\.[ptc]-idx|\.idx)"
)


class FileKind(StrEnum):
    """What a file of a deadline queue is, by the end of its name."""

    WAL = ".wal"
    PENDING_RUN = ".p.run"
    TOMBSTONE_RUN = ".t.run"
    COMBINED_RUN = ".c.run"
    DEQUEUED_RUN = ".d.run"
    # The kinds of the original program, and those that the seed's text calls by another name.
    LOG = ".log"
    CLOSED_LOG = ".closed-log"
    CLOSED_LOG_OF_SEED = ".log_ro"
    PENDING_RUN_1 = ".p-idx"
    TOMBSTONE_RUN_1 = ".t-idx"
    COMBINED_RUN_1 = ".c-idx"
    COMBINED_RUN_OF_SEED = ".idx"


_HEX_KINDS = frozenset(
    {
        *(FileKind.WAL, FileKind.PENDING_RUN, FileKind.TOMBSTONE_RUN),
        *(FileKind.COMBINED_RUN, FileKind.DEQUEUED_RUN),
    }
)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The sort key of a queue; both parts compare unsigned."""

    deadline_ms: int
    id: int


NO_KEY = Key(0, 0)
# The same as plain numbers, for large amounts.
KeyTuple = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stats:
    """The history of an item; a time of 0 means never."""

    enqueue_ms: int = 0
    requeue_ms: int = 0
    dequeue_count: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """A pending item. A buried one is kept but not delivered; `reason` says why, in UTF-8."""

    key: Key
    value: bytes
    stats: Stats = Stats()
    buried: bool = False
    reason: bytes = b""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Removes exactly one item: the one with its deadline and id."""

    key: Key


Entry = Item | Tombstone


@dataclass(frozen=True, slots=True)
class Footer:
    """The last 40 bytes of a version 1 run."""

    pending_count: int = 0
    tombstone_count: int = 0
    last_key: Key = NO_KEY
    last_is_tombstone: bool = False
    max_id: int = 0

    @property
    def count(self) -> int:
        """Returns how many entries there are."""
        return self.pending_count + self.tombstone_count

    def encode(self) -> bytes:
        """Returns the bytes of the footer."""
        key = _encode_key(self.last_key, self.last_is_tombstone)
        return _FOOTER.pack(self.pending_count, self.tombstone_count, *key, self.max_id)


# Without entries, the original program writes the smallest signed number as the largest id.
_EMPTY = (Footer(), Footer(max_id=2**63))


def file_name(number: int, kind: FileKind) -> str:
    """Returns the name of a file; the original program's file numbers are decimal."""
    return f"{number:010x}{kind}" if kind in _HEX_KINDS else f"{number:010d}{kind}"


def parse_file_name(name: str) -> tuple[int, FileKind] | None:
    """Returns number and kind of a file; None if it is not the name of a deadline queue's file."""
    match, base = _HEX_NAME.fullmatch(name), 16
    if match is None:
        match, base = _DECIMAL_NAME.fullmatch(name), 10
    return (int(match[1], base), FileKind(match[2])) if match is not None else None


def check_entry(entry: Entry) -> None:
    """Raises if an entry cannot be written in any format."""
    if not (0 <= entry.key.deadline_ms <= TIME_MS_MAX and 0 <= entry.key.id <= ID_MAX):
        raise ValueError(f"{entry.key}: a deadline has 48 bits and an id 64")
    if isinstance(entry, Tombstone):
        return
    stats = entry.stats
    if not (0 <= stats.enqueue_ms <= TIME_MS_MAX and 0 <= stats.requeue_ms <= TIME_MS_MAX):
        raise ValueError(f"{stats}: a time has 48 bits")
    if not 0 <= stats.dequeue_count <= DEQUEUE_COUNT_MAX:
        raise ValueError(f"{stats}: a dequeue count has 32 bits")
    if len(entry.value) > VALUE_BYTES_MAX:
        raise RecordTooLarge(f"a value of {len(entry.value)} bytes; at most {VALUE_BYTES_MAX}")
    if len(entry.reason) > REASON_BYTES_MAX:
        raise RecordTooLarge(f"a reason of {len(entry.reason)} bytes; at most {REASON_BYTES_MAX}")


class RunEncoder:
    """Encodes a version 1 run, front to back. One thread at a time may use it."""

    def __init__(self) -> None:
        self._pending_count = 0
        self._tombstone_count = 0
        self._last: Entry | None = None
        self._max_id = 0

    def encode(self, entries: Iterable[Entry]) -> bytes:
        """Returns the next bytes of the run; keys must not decrease."""
        parts = []
        for entry in entries:
            check_entry(entry)
            if self._last is not None and entry.key < self._last.key:
                raise ValueError(f"{entry.key} after {self._last.key}: a run must be sorted")
            parts.append(encode_entry(entry))
            if isinstance(entry, Tombstone):
                self._tombstone_count += 1
            else:
                self._pending_count += 1
            self._last = entry
            self._max_id = max(self._max_id, entry.key.id)
        return b"".join(parts)

    def finish(self) -> bytes:
        """Returns the footer, which ends the run."""
        if self._last is None:
            return Footer().encode()
        return Footer(
            self._pending_count,
            self._tombstone_count,
            self._last.key,
            isinstance(self._last, Tombstone),
            self._max_id,
        ).encode()


def encode_entry(entry: Entry) -> bytes:
    """Returns the bytes of an entry in version 1."""
    key = _KEY.pack(*_encode_key(entry.key, isinstance(entry, Tombstone)))
    if isinstance(entry, Tombstone):
        return key
    if entry.buried or entry.reason:
        raise ValueError(f"{entry.key}: version 1 cannot hold buried items or reasons")
    stats = entry.stats
    upper = stats.enqueue_ms << 16 | stats.requeue_ms >> 32
    lower = stats.requeue_ms << 32 & _MASK | stats.dequeue_count
    return key + _STATS.pack(upper, lower, len(entry.value)) + entry.value


def decode_entry(data: bytes | memoryview, position: int) -> tuple[Entry, int] | str:
    """Reads the entry at a position; returns it and where it ends, or what is wrong with it."""
    room = len(data) - position - _KEY.size
    if room < 0:
        return "the key is cut off"
    decoded = _decode_key(*_KEY.unpack_from(data, position))
    if isinstance(decoded, str):
        return decoded
    key, is_tombstone = decoded
    position += _KEY.size
    if is_tombstone:
        return Tombstone(key), position
    if room < _STATS.size:
        return "the stats are cut off"
    upper, lower, size = _STATS.unpack_from(data, position)
    if size > room - _STATS.size:
        return f"the value is cut off: {size} bytes, but {room - _STATS.size} are left"
    stats = Stats(upper >> 16, (upper & 0xFFFF) << 32 | lower >> 32, lower & 0xFFFFFFFF)
    position += _STATS.size
    return Item(key, bytes(data[position : position + size]), stats), position + size


def decode_footer(data: bytes | memoryview, path: str) -> Footer:
    """Reads the footer at the end of a run; `scan_run` checks whether it fits the entries."""
    position = len(data) - FOOTER_BYTES
    if position < 0:
        raise Damaged(Damage(path, 0, len(data), "too short for a footer", torn=True))
    pending_count, tombstone_count, upper, lower, max_id = _FOOTER.unpack_from(data, position)
    decoded = _decode_key(upper, lower)
    if isinstance(decoded, str):
        raise Damaged(Damage(path, position, FOOTER_BYTES, f"the last key: {decoded}"))
    if (pending_count + tombstone_count) * KEY_BYTES > position:
        reason = f"{pending_count + tombstone_count} entries in {position} bytes"
        raise Damaged(Damage(path, position, FOOTER_BYTES, reason))
    return Footer(pending_count, tombstone_count, *decoded, max_id)


def scan_run(data: bytes | memoryview, path: str) -> Iterator[Entry | Damage]:
    """Yields the entries of a version 1 run; the first mismatch ends it, as a Damage.

    Nothing in the format shows where the next entry starts after a bad one. The footer, if
    readable, shows how many are missing. A file that ends without one is torn.
    """
    tally = _Tally()
    end = len(data) - FOOTER_BYTES
    footer: Footer | None = None
    wrong: Damage | None = None
    try:
        footer = decode_footer(data, path)
    except Damaged as error:
        wrong = error.damage
    # A readable footer is not part of a value, even if the size of the value includes it.
    entries = memoryview(data)[:end] if footer is not None else memoryview(data)
    position = 0
    while position != end:
        decoded = _next_entry(entries, position, tally, footer)
        if isinstance(decoded, str):
            yield _missing(data, position, path, decoded, tally, footer)
            return
        entry, position = decoded
        tally.add(entry)
        yield entry
    if footer is None:
        assert wrong is not None
        yield wrong
        return
    reason = tally.differs(footer)
    if reason is not None:
        yield Damage(path, position, FOOTER_BYTES, reason)


def _next_entry(
    data: memoryview, position: int, tally: _Tally, footer: Footer | None
) -> tuple[Entry, int] | str:
    """Reads an entry that may follow those counted so far, or returns what is wrong."""
    decoded = decode_entry(data, position)
    if isinstance(decoded, str):
        return decoded
    entry, end = decoded
    if not tally.accepts(entry.key):
        return "the key is below the one before"
    if footer is None or tally.count >= footer.count:
        # A file that lost its bytes in a power cut is all zeros, which would decode as many items.
        if not any(data[position:end]):
            return "zeros where an entry should be"
    elif tally.count + 1 == footer.count and end != len(data):
        # The last entry ends where the footer starts, unless the count is wrong.
        following = decode_entry(data, end)
        if isinstance(following, str) or following[0].key < entry.key:
            return "the last entry does not end where the footer starts"
    return entry, end


class _Tally:
    """The values that the footer must have for the entries read so far."""

    def __init__(self) -> None:
        self.pending_count = 0
        self.tombstone_count = 0
        self._last: Entry | None = None
        self._unsigned = True
        self._signed = True
        self._max_id = 0
        self._max_signed_id = -(2**63)

    @property
    def count(self) -> int:
        """Returns how many entries were read."""
        return self.pending_count + self.tombstone_count

    def accepts(self, key: Key) -> bool:
        """Returns whether a key may follow, in one of the two orders; determines which."""
        if self._last is None:
            return True
        last = self._last.key
        if key.deadline_ms != last.deadline_ms:
            return key.deadline_ms > last.deadline_ms
        self._unsigned = self._unsigned and key.id >= last.id
        self._signed = self._signed and _signed(key.id) >= _signed(last.id)
        return self._unsigned or self._signed

    def add(self, entry: Entry) -> None:
        if isinstance(entry, Tombstone):
            self.tombstone_count += 1
        else:
            self.pending_count += 1
        self._last = entry
        self._max_id = max(self._max_id, entry.key.id)
        self._max_signed_id = max(self._max_signed_id, _signed(entry.key.id))

    def differs(self, footer: Footer) -> str | None:
        """Returns how the footer differs; None if it does not."""
        found = (footer.pending_count, footer.tombstone_count)
        if found != (self.pending_count, self.tombstone_count):
            counts = f"{self.pending_count} pending and {self.tombstone_count} tombstones"
            return f"the footer counts {found[0]} and {found[1]}, but there are {counts}"
        if self._last is None:
            return None if footer in _EMPTY else "a footer with a key, but no entries"
        if (footer.last_key, footer.last_is_tombstone) != (
            self._last.key,
            isinstance(self._last, Tombstone),
        ):
            return f"the footer's last key is {footer.last_key}, but it is {self._last.key}"
        if footer.max_id not in (self._max_id, self._max_signed_id & _MASK):
            return f"the footer's largest id is {footer.max_id}, but it is {self._max_id}"
        return None


def _missing(
    data: bytes | memoryview,
    position: int,
    path: str,
    reason: str,
    tally: _Tally,
    footer: Footer | None,
) -> Damage:
    """Returns the damage from a position to the end, with what the footer says about it."""
    if footer is None:
        # The file ends without a footer, so the number of entries is unknown.
        return Damage(path, position, len(data) - position, reason, torn="cut off" in reason)
    length = len(data) - FOOTER_BYTES - position
    count = footer.count - tally.count
    return Damage(path, position, length, reason, count=count if count > 0 else None)


def _encode_key(key: Key, is_tombstone: bool) -> tuple[int, int]:
    kind = _TOMBSTONE if is_tombstone else _PENDING
    return key.deadline_ms << 2 | key.id >> 62, key.id << 2 & _MASK | kind


def _decode_key(upper: int, lower: int) -> tuple[Key, bool] | str:
    if upper >> 50:
        return "a reserved bit of the key is set"
    kind = lower & 3
    if kind not in (_PENDING, _TOMBSTONE):
        return f"the reserved type {kind}"
    return Key(upper >> 2, (upper & 3) << 62 | lower >> 2), kind == _TOMBSTONE


def _signed(number: int) -> int:
    return number - 2**64 if number >> 63 else number
