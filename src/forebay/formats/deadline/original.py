"""The write-ahead logs of the original deadline queue, read only. Page: docs/formats/deadline.md.

A log is a sequence of entries, each a varint with its size and a Protobuf message:

    Entry      1 pending: Item | 2 tombstone: Tombstone          one of the two
    Item       1 id: uint64 | 2 deadline: Timestamp | 3 value: bytes | 4 stats: Stats
    Tombstone  1 id: uint64 | 2 deadline: Timestamp
    Stats      1 dequeue_count: uint32 | 2 enqueue_time: Timestamp | 3 requeue_time: Timestamp
    Timestamp  1 seconds: int64 | 2 nanos: int32

Accepts only what the original's library writes: each field once, in the order of the field numbers,
shortest varints, no explicit zeros. There is no checksum, so only this strictness separates an
entry from garbage. No I/O.

Also merges the sorted entries of a deadline queue, and cancels items with their tombstones.
Promises that the result is sorted, and that a tombstone removes exactly one item with its deadline
and id, no matter which of the two comes first and which run each is in.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from forebay.damage import Damage
from forebay.formats.deadline.items import (
    DEQUEUE_COUNT_MAX,
    ID_MAX,
    TIME_MS_MAX,
    Entry,
    Item,
    Key,
    Stats,
    Tombstone,
)

_VARINT = 0
_BYTES = 2
_ENTRY = {1: _BYTES, 2: _BYTES}
_ITEM = {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES}
_TOMBSTONE = {1: _VARINT, 2: _BYTES}
_STATS = {1: _VARINT, 2: _BYTES, 3: _BYTES}
_TIMESTAMP = {1: _VARINT, 2: _VARINT}
_NANOS_MAX = 999_999_999


def scan_log(data: bytes, path: str) -> Iterator[Entry | Damage]:
    """Yields the entries of a log in the order in which they were written, and the damage.

    Bad bytes followed by good entries are damage. Bad bytes that no good entry follows are torn, as
    a crash leaves them.
    """
    position = 0
    while position < len(data):
        decoded = _decode(data, position)
        if isinstance(decoded, tuple):
            entry, position = decoded
            yield entry
            continue
        found = None if decoded.cut_off else _find(data, position)
        end = len(data) if found is None else found
        yield Damage(path, position, end - position, decoded.reason, torn=found is None)
        position = end


@dataclass(frozen=True, slots=True)
class _Wrong:
    """Why there is no entry at a position; `cut_off` if it merely continues past the end."""

    reason: str
    cut_off: bool = False


class _Bad(Exception):
    """The bytes are not a message; the text says why."""


class _CutOff(Exception):
    """The message continues past the end of the data."""


def _decode(data: bytes, position: int) -> tuple[Entry, int] | _Wrong:
    """Reads the entry at a position; returns it and where it ends, or what is wrong."""
    try:
        size, start = _varint(data, position, position + 10)
        return _entry(data, start, start + size), start + size
    except _CutOff:
        return _Wrong("the entry is cut off", cut_off=True)
    except _Bad as error:
        return _Wrong(str(error))


def _find(data: bytes, position: int) -> int | None:
    """Searches for the next entry after a bad one: one followed by another or by the end.

    The claimed end of the bad entry is tried first: its value may contain what looks like an entry.
    """
    for found in _candidates(data, position):
        decoded = _decode(data, found)
        if isinstance(decoded, tuple):
            end = decoded[1]
            following = _decode(data, end) if end < len(data) else None
            if not isinstance(following, _Wrong) or following.cut_off:
                return found
    return None


def _candidates(data: bytes, position: int) -> Iterator[int]:
    try:
        size, start = _varint(data, position, position + 10)
        if start + size < len(data):
            yield start + size
    except (_Bad, _CutOff):
        pass  # The size itself is bad.
    yield from range(position + 1, len(data))


def _entry(data: bytes, position: int, end: int) -> Entry:
    fields = _fields(data, position, end, _ENTRY)
    if len(fields) != 1:
        raise _Bad(f"an entry has one field, but this one has {len(fields)}")
    if 2 in fields:
        return Tombstone(_key(data, _fields(data, *fields[2], _TOMBSTONE)))
    item = _fields(data, *fields[1], _ITEM)
    start, stop = item.get(3, (0, 0))
    return Item(_key(data, item), data[start:stop], _stats(data, item.get(4)))


def _key(data: bytes, fields: dict[int, tuple[int, int]]) -> Key:
    if 2 not in fields:
        raise _Bad("no deadline")
    return Key(_time_ms(data, fields[2]), _number(fields, 1, ID_MAX))


def _stats(data: bytes, place: tuple[int, int] | None) -> Stats:
    fields = _fields(data, *place, _STATS) if place is not None else {}
    return Stats(
        _time_ms(data, fields.get(2)),
        _time_ms(data, fields.get(3)),
        _number(fields, 1, DEQUEUE_COUNT_MAX),
    )


def _time_ms(data: bytes, place: tuple[int, int] | None) -> int:
    fields = _fields(data, *place, _TIMESTAMP) if place is not None else {}
    seconds = _number(fields, 1, TIME_MS_MAX // 1000)
    return seconds * 1000 + _number(fields, 2, _NANOS_MAX) // 1_000_000


def _number(fields: dict[int, tuple[int, int]], field: int, most: int) -> int:
    number = fields.get(field, (0, 0))[0]
    if number > most:
        raise _Bad(f"field {field} is {number}; at most {most}")
    return number


def _fields(
    data: bytes, position: int, end: int, wires: dict[int, int]
) -> dict[int, tuple[int, int]]:
    """Returns the fields of a message: a number and 0, or where the bytes start and end."""
    fields: dict[int, tuple[int, int]] = {}
    last = 0
    while position < end:
        tag, position = _varint(data, position, end)
        field, wire = tag >> 3, tag & 7
        if wires.get(field) != wire or field <= last:
            raise _Bad(f"field {field} of wire type {wire} does not belong here")
        last = field
        number, position = _varint(data, position, end)
        if wire == _VARINT:
            if number == 0:
                raise _Bad(f"field {field} is an explicit zero")
            fields[field] = number, 0
            continue
        if number > end - position:
            raise _Bad(f"field {field} of {number} bytes, but {end - position} are left")
        fields[field] = position, position + number
        position += number
    if end > len(data):
        raise _CutOff
    return fields


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Reads a number of at most 64 bits; returns it and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise _Bad("a number continues past its message")
        if position >= len(data):
            raise _CutOff
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if (byte == 0 and shift) or number > ID_MAX:
                raise _Bad("a number in a form that is never written")
            return number, position
    raise _Bad("a number of more than ten bytes")


# A tuple compares faster than a Key, and in the same order.
_KEY = attrgetter("key.deadline_ms", "key.id")
_DEADLINE_MS = attrgetter("key.deadline_ms")


def merge(runs: Iterable[Iterable[Entry]], *, full: bool) -> Iterator[Entry]:
    """Yields what is left of the entries of runs, oldest run first, each sorted by key.

    `full` means that every run that can hold the item of a tombstone is included: a tombstone
    without an item is then dropped. Otherwise it is kept, because an older run may hold that item.
    An item that is in two files counts once: a crash after a log was frozen and before it was
    removed leaves such items.
    """
    merged = heapq.merge(*map(_checked, runs), key=_KEY)
    for _, same in groupby(merged, _KEY):
        items: list[Entry] = []
        tombstones: list[Entry] = []
        for entry in same:
            if isinstance(entry, Tombstone):
                tombstones.append(entry)
            elif entry not in items:
                items.append(entry)
        # Of several items with the same key the newest stay.
        yield from items[len(tombstones) :]
        if not full:
            yield from tombstones[len(items) :]


def in_unsigned_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields the entries of a run in the order of keys, if its ids were sorted as signed numbers.

    Only entries with the same deadline can be out of order, so only those are held at once.
    """
    for _, same in groupby(entries, _DEADLINE_MS):
        yield from sorted(same, key=_KEY)


def _checked(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields the entries; raises at an unsorted one, which would silently corrupt the merge."""
    last = (-1, -1)
    for entry in entries:
        key = entry.key.deadline_ms, entry.key.id
        if key < last:
            raise ValueError(f"{key} after {last}: only sorted runs can be merged")
        last = key
        yield entry
