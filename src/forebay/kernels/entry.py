"""The loops of the entry format: encode, verify and find entries, and lay them out for Arrow.

An entry is 32 bytes of metadata, little-endian, and its data:

    u32 hash of the 28 bytes that follow | 8 bytes version | u32 size | u32 ttl | u64 id
    | u32 hash of the data

The version is `FBE2` and four random bytes of the tape, so that no data in an entry looks like an
entry of the tape; the caller supplies the version. Old tapes have `FBENTRY1`.

An id is `ms << 16 | number & 0xFFFF`: the time of the push, and the low bits of the entry's number
on its tape. So an entry shows where it belongs, and how many are missing before it. The page is
docs/formats/entry.md.

`EntryColumns` owns buffers in Arrow's layout and fills them from verified entries, without an
object for each entry.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

from forebay.kernels.buffers import crc32

if cython.compiled:
    from cython.cimports.forebay.kernels.buffers import (
        Rows,
        copy_bytes,
        get32,
        put32,
        put_bytes,
        sum_bytes,
        take_bytes,
    )
    from cython.cimports.libc.string import memcmp
else:
    from forebay.kernels.buffers import (
        Rows,
        copy_bytes,
        get32,
        put32,
        put_bytes,
        sum_bytes,
        take_bytes,
    )

METADATA_BYTES = 32
_META = cython.declare(cython.Py_ssize_t, METADATA_BYTES)
_NUMBER_MASK = cython.declare(cython.ulonglong, 0xFFFF)
# The results of `entry_size` for bytes that are not a whole, good entry.
_CUT_OFF = cython.declare(cython.Py_ssize_t, -1)
_BAD = cython.declare(cython.Py_ssize_t, -2)
_CHECKED = struct.Struct("<8sIIQI")


@cython.cfunc
@cython.inline
def get_ttl(data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t) -> cython.ulonglong:
    """Returns the time to live of the entry at a position, in seconds; 0 means no limit."""
    return get32(data, position + 16)


@cython.cfunc
@cython.inline
def get_id(data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t) -> cython.ulonglong:
    """Returns the id of the entry at a position."""
    return get32(data, position + 20) | (get32(data, position + 24) << 32)


@cython.cfunc
@cython.inline
def put_entry(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    value: bytes,
    size: cython.Py_ssize_t,
    ttl: cython.ulonglong,
    entry_id: cython.ulonglong,
    version: bytes,
) -> cython.void:
    """Writes the entry of one value, its metadata hash last: until then, nothing verifies."""
    put_bytes(out, position + _META, value, size)
    _put_metadata(out, position, size, ttl, entry_id, version)


@cython.cfunc
@cython.inline
def _put_metadata(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    ttl: cython.ulonglong,
    entry_id: cython.ulonglong,
    version: bytes,
) -> cython.void:
    """Writes the metadata before the data of an entry."""
    if not cython.compiled:
        data_hash = sum_bytes(out, position + _META, size, 0)
        checked = _CHECKED.pack(version, size, ttl, entry_id, data_hash)
        out[position + 4 : position + _META] = checked
        out[position : position + 4] = crc32(checked).to_bytes(4, "little")
        return
    put_bytes(out, position + 4, version, 8)
    put32(out, position + 12, cython.cast(cython.ulonglong, size))
    put32(out, position + 16, ttl)
    put32(out, position + 20, entry_id & 0xFFFFFFFF)
    put32(out, position + 24, entry_id >> 32)
    put32(out, position + 28, sum_bytes(out, position + _META, size, 0))
    put32(out, position, sum_bytes(out, position + 4, 28, 0))


@cython.cfunc
@cython.inline
def _is_metadata(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, version: bytes
) -> cython.bint:
    """Returns whether the 32 bytes at a position are metadata of this version that verify."""
    if cython.compiled:
        if memcmp(cython.address(data[position + 4]), cython.cast(cython.p_char, version), 8) != 0:
            return False
    elif data[position + 4 : position + 12] != version:
        return False
    return get32(data, position) == sum_bytes(data, position + 4, 28, 0)


@cython.cfunc
@cython.inline
def entry_size(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    number: cython.ulonglong,
    last_id: cython.ulonglong,
    version: bytes,
) -> cython.Py_ssize_t:
    """Returns the size of the data of the good entry at a position; negative if there is none.

    It must be the entry with this number, and its id must be above `last_id`. The result -1 means
    that the entry continues past `end`, -2 that it is not good.
    """
    if end - position < _META:
        return _CUT_OFF
    if not _is_metadata(data, position, version):
        return _BAD
    entry_id: cython.ulonglong = get_id(data, position)
    if (entry_id ^ number) & _NUMBER_MASK != 0 or entry_id <= last_id:
        return _BAD
    size: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, get32(data, position + 12))
    if size > end - position - _META:
        return _CUT_OFF
    if get32(data, position + 28) != sum_bytes(data, position + _META, size, 0):
        return _BAD
    return size


@cython.cfunc
@cython.inline
def next_ms(
    number: cython.ulonglong, now_ms: cython.longlong, last_ms: cython.longlong
) -> cython.longlong:
    """Returns the time of the next entry; a later one if the low bits of its number wrap around."""
    if number & _NUMBER_MASK == 0 and number > 0:
        last_ms += 1
    return now_ms if now_ms > last_ms else last_ms


@cython.final
@cython.cclass
class Entry:
    """An entry that was read: `offset`, `id`, `ttl_seconds` and `value`.

    `offset` is its number in the queue, counted from 0.
    """

    offset = cython.declare(cython.longlong, visibility="readonly")
    id = cython.declare(cython.ulonglong, visibility="readonly")
    ttl_seconds = cython.declare(cython.longlong, visibility="readonly")
    value = cython.declare(bytes, visibility="readonly")

    def __init__(
        self,
        offset: cython.longlong,
        id: cython.ulonglong,
        ttl_seconds: cython.longlong,
        value: bytes,
    ) -> None:
        self.offset = offset
        self.id = id
        self.ttl_seconds = ttl_seconds
        self.value = value

    @property
    def time_ms(self) -> int:
        """Returns when it was pushed, in ms since 1970, UTC."""
        return self.id >> 16

    @property
    def time(self):
        """Returns when it was pushed, in UTC."""
        return datetime.fromtimestamp((self.id >> 16) / 1000, UTC)

    @property
    def expires_ms(self) -> int | None:
        """Returns when it expires, in ms since 1970, UTC; None if never."""
        return (self.id >> 16) + self.ttl_seconds * 1000 if self.ttl_seconds else None

    def has_expired(self, now_ms: int) -> bool:
        """Returns whether its time to live has passed."""
        expires_ms = self.expires_ms
        return expires_ms is not None and expires_ms <= now_ms

    def __repr__(self) -> str:
        fields = f"offset={self.offset}, id={self.id}, ttl_seconds={self.ttl_seconds}"
        return f"Entry({fields}, value={self.value!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        mine = (self.offset, self.id, self.ttl_seconds, self.value)
        return mine == (other.offset, other.id, other.ttl_seconds, other.value)

    def __hash__(self) -> int:
        return hash((self.offset, self.id))

    def __reduce__(self):
        return Entry, (self.offset, self.id, self.ttl_seconds, self.value)


def make_entries(offset: cython.longlong, values: list, ids: list, ttls: list) -> list:
    """Makes entries from the result of `scan`; the first has this offset."""
    entries: list = []
    entry: Entry
    number: cython.Py_ssize_t
    for number in range(len(values)):
        entry = Entry.__new__(Entry)
        entry.offset = offset + number
        entry.id = ids[number]
        entry.ttl_seconds = ttls[number]
        entry.value = values[number]
        entries.append(entry)
    return entries


def encode(
    values: list,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    buffer: object,
    number: cython.ulonglong,
    now_ms: cython.longlong,
    last_ms: cython.longlong,
    ttl: cython.ulonglong,
    version: bytes,
) -> tuple:
    """Writes the entries of `count` values to the start of `buffer`; returns size and last time."""
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    value: bytes
    at: cython.Py_ssize_t
    for at in range(first, first + count):
        value = values[at]
        size = len(value)
        last_ms = next_ms(number, now_ms, last_ms)
        put_entry(
            out,
            position,
            value,
            size,
            ttl,
            (cython.cast(cython.ulonglong, last_ms) << 16) | (number & _NUMBER_MASK),
            version,
        )
        number += 1
        position += _META + size
    return position, last_ms


def measure_sized(records: object, count: cython.Py_ssize_t) -> tuple:
    """Returns the sum of the sizes of records that each follow their size, and the largest.

    The sum is -1 if the buffer does not consist of exactly `count` records.
    """
    data: cython.const[cython.uchar][::1] = memoryview(records)
    end: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = 0
    largest: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    left: cython.Py_ssize_t = count
    while left > 0:
        if end - position < 4:
            return -1, 0
        size = cython.cast(cython.Py_ssize_t, get32(data, position))
        position += 4
        if size > end - position:
            return -1, 0
        position += size
        if size > largest:
            largest = size
        left -= 1
    if left < 0 or position != end:
        return -1, 0
    return end - 4 * count, largest


def encode_sized(
    records: object,
    count: cython.Py_ssize_t,
    buffer: object,
    number: cython.ulonglong,
    now_ms: cython.longlong,
    last_ms: cython.longlong,
    ttl: cython.ulonglong,
    version: bytes,
) -> tuple:
    """Writes the entries of measured records to `buffer`; returns size and last time.

    Rejects records that were changed since: they would not fill the buffer.
    """
    data: cython.const[cython.uchar][::1] = memoryview(records)
    out: cython.uchar[::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    room: cython.Py_ssize_t = len(out)
    start: cython.Py_ssize_t = 0
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    for _ in range(count):
        size = -1 if end - start < 4 else cython.cast(cython.Py_ssize_t, get32(data, start))
        start += 4
        if size < 0 or size > end - start or size > room - position - _META:
            raise ValueError("the records were changed while they were pushed")
        copy_bytes(out, position + _META, data, start, size)
        last_ms = next_ms(number, now_ms, last_ms)
        _put_metadata(
            out,
            position,
            size,
            ttl,
            (cython.cast(cython.ulonglong, last_ms) << 16) | (number & _NUMBER_MASK),
            version,
        )
        number += 1
        start += size
        position += _META + size
    if position != room:
        raise ValueError("the records were changed while they were pushed")
    return position, last_ms


def scan(
    buffer: object,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    last_id: cython.ulonglong,
    limit: cython.Py_ssize_t,
    version: bytes,
    ids: list | None = None,
    ttls: list | None = None,
) -> tuple:
    """Verifies entries from `position` on; returns their values, where it stopped, the last id.

    The first must have this number and an id above `last_id`, and so on. Stops at `limit` entries,
    at one that the buffer cuts off, or at the first that is not good. The lists get the id and the
    ttl of each.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    values: list = []
    size: cython.Py_ssize_t
    while limit > 0:
        size = entry_size(data, position, end, number, last_id, version)
        if size < 0:
            break
        values.append(take_bytes(data, position + _META, size))
        last_id = get_id(data, position)
        if ids is not None:
            ids.append(last_id)
        if ttls is not None:
            ttls.append(get_ttl(data, position))
        number += 1
        limit -= 1
        position += _META + size
    return values, position, last_id


def claimed_size(buffer: object, position: cython.Py_ssize_t, version: bytes) -> cython.Py_ssize_t:
    """Returns the claimed size of the entry at a position, metadata included; -1: there is none."""
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    if len(data) - position < _META or not _is_metadata(data, position, version):
        return -1
    return _META + cython.cast(cython.Py_ssize_t, get32(data, position + 12))


def boundary(buffer: object, at: cython.Py_ssize_t) -> tuple:
    """Returns the first end of an entry at or after `at`, and how many entries are before it.

    The buffer holds whole, good entries from its start on.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    position: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    while position < at:
        position += _META + cython.cast(cython.Py_ssize_t, get32(data, position + 12))
        count += 1
    return position, count


def find(
    buffer: bytes,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    last_id: cython.ulonglong,
    most: cython.ulonglong,
    version: bytes,
    before: cython.Py_ssize_t = 0,
) -> tuple:
    """Searches for the next good entry; returns (position, its number) or -1.

    `number` is the one that is expected `before` bytes ahead of `position`. The number found must
    be possible for the bytes skipped, at most `most` above it, and its id above `last_id`.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    start: cython.Py_ssize_t = position - before
    ahead: cython.ulonglong
    passed: cython.ulonglong
    while True:
        position = buffer.find(version, position + 4) - 4
        if position < 0 or end - position < _META:
            return -1, 0
        if _is_metadata(data, position, version):
            ahead = (get_id(data, position) - number) & _NUMBER_MASK
            passed = cython.cast(cython.ulonglong, (position - start) // _META)
            if (
                ahead <= passed
                and ahead <= most
                and entry_size(data, position, end, number + ahead, last_id, version) >= 0
            ):
                return position, number + ahead
        position += 1


@cython.cclass
class EntryColumns(Rows):
    """Rows being collected: numbers, ids, times, lifetimes, positions and, if wanted, payloads.

    `ends` (int32) has one more than `rows`, starting with 0. `numbers`, `ids`, `micros` (of the
    push, since 1970) and `ttls` (seconds) are int64.
    """

    numbers = cython.declare(object, visibility="readonly")
    ids = cython.declare(object, visibility="readonly")
    ttls = cython.declare(object, visibility="readonly")
    _numbers: cython.longlong[::1]
    _ids: cython.longlong[::1]
    _ttls: cython.longlong[::1]

    def __init__(
        self, payload_bytes: cython.Py_ssize_t, rows_max: cython.Py_ssize_t, values: cython.bint
    ) -> None:
        """Allocates the buffers; without `values` payloads are verified, but left out."""
        super().__init__(payload_bytes, rows_max, values)
        self.numbers = bytearray(8 * rows_max)
        self.ids = bytearray(8 * rows_max)
        self.ttls = bytearray(8 * rows_max)
        self._numbers = memoryview(self.numbers).cast("q")
        self._ids = memoryview(self.ids).cast("q")
        self._ttls = memoryview(self.ttls).cast("q")

    def take(
        self,
        buffer: object,
        number: cython.ulonglong,
        last_id: cython.ulonglong,
        limit: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        version: bytes,
    ) -> tuple:
        """Adds good entries from the start of `buffer`; returns (count, where it ended, last id).

        The first must have this number and an id above `last_id`, and so on. Takes no entry that
        starts at `stop` or later, and at most `limit`; ends at one that is cut off or not good, or
        when the buffers are full.
        """
        data: cython.const[cython.uchar][::1] = memoryview(buffer)
        end: cython.Py_ssize_t = len(data)
        position: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        row: cython.Py_ssize_t = self.rows
        first: cython.Py_ssize_t = row
        used: cython.Py_ssize_t = self.used
        if limit > self._rows_max - row:
            limit = self._rows_max - row
        while row - first < limit and position < stop:
            size = entry_size(data, position, end, number, last_id, version)
            if size < 0 or size > self._room - used:
                break
            if self._values:
                copy_bytes(self._payload, used, data, position + _META, size)
            used += size
            last_id = get_id(data, position)
            self._numbers[row] = cython.cast(cython.longlong, number)
            self._ids[row] = cython.cast(cython.longlong, last_id)
            self._micros[row] = cython.cast(cython.longlong, last_id >> 16) * 1000
            self._ttls[row] = cython.cast(cython.longlong, get_ttl(data, position))
            self._positions[row] = position
            row += 1
            self._ends[row] = cython.cast(cython.int, used)
            number += 1
            position += _META + size
        self.rows = row
        self.used = used
        return row - first, position, last_id
