"""The loops of the entry format: encode, verify and find entries, and lay them out for Arrow.

An entry is 32 bytes of metadata, little-endian, and its data:

    u32 hash of the 28 bytes that follow | 8 bytes version | u32 size | u32 ttl | u64 id
    | u32 hash of the data

The version is `FBE2` and four random bytes of the tape, so that nothing a user puts into an entry
passes for one of it; the caller says which. Old tapes have `FBENTRY1`.

An id is `ms << 16 | number & 0xFFFF`: the time of the push, and the low bits of the entry's number
on its tape. So an entry tells where it belongs, and how many are missing before it. The page is
docs/formats/entry.md.

`EntryColumns` owns buffers laid out as Arrow wants them and fills them from verified entries,
without an object for each.
"""

from __future__ import annotations

import struct

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
# What `entry_size` returns for bytes that are no whole, good entry.
_CUT_OFF = cython.declare(cython.Py_ssize_t, -1)
_BAD = cython.declare(cython.Py_ssize_t, -2)
_CHECKED = struct.Struct("<8sIIQI")


@cython.cfunc
@cython.inline
def get_ttl(data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t) -> cython.ulonglong:
    """Returns the time to live of the entry at a position, in seconds; 0 is for ever."""
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
    """Writes the entry of one value; its metadata hash last: before it is in, nothing verifies."""
    if not cython.compiled:
        checked = _CHECKED.pack(version, size, ttl, entry_id, crc32(value))
        out[position + 4 : position + _META] = checked
        out[position + _META : position + _META + size] = value
        out[position : position + 4] = crc32(checked).to_bytes(4, "little")
        return
    put_bytes(out, position + _META, value, size)
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
    """Says whether the 32 bytes at a position are metadata of this version that verifies."""
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

    It must be the entry of this number, with an id above `last_id`. -1: it goes on after `end`;
    -2: it is not good.
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
    """Returns the time of the next entry; a later one where the low bits of its number restart."""
    if number & _NUMBER_MASK == 0 and number > 0:
        last_ms += 1
    return now_ms if now_ms > last_ms else last_ms


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

    The first must be of this number and have an id above `last_id`, and so on. Stops at `limit`
    entries, at one that the buffer cuts off, or at the first that is not good. The lists get the
    id and the ttl of each.
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
    """Returns what the entry at a position claims to take, metadata included; -1: none is there."""
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    if len(data) - position < _META or not _is_metadata(data, position, version):
        return -1
    return _META + cython.cast(cython.Py_ssize_t, get32(data, position + 12))


def boundary(buffer: object, at: cython.Py_ssize_t) -> tuple:
    """Returns the first end of an entry at or after `at`, and how many entries are before it.

    The buffer is whole, good entries from its start on.
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

    `number` is the one that is due `before` bytes ahead of `position`. The number found must be
    one that the bytes passed over leave room for, at most `most` above it, and its id above
    `last_id`.
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
    """Rows that are being gathered: numbers, ids, times, lives, positions and, if wanted, payloads.

    `ends` (int32) has one more than `rows`, beginning with 0. `numbers`, `ids`, `micros` (of the
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
        """Makes room; without `values` entries are verified, but their payloads left out."""
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

        The first must be of this number and have an id above `last_id`, and so on. Takes none that
        begins at `stop` or after, `limit` at most, and ends at one that is cut off or not good, or
        where there is no more room.
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
