"""The hot loops of the deadline queue's write-ahead log: encode, verify and find batches.

A batch is `u32 size | u32 check | records`, little-endian, and

    check = crc32(salt ‖ size ‖ records) XOR (number × SPREAD mod 2³²)

`seed` below is crc32(salt). Because the number of the batch in its file is mixed in last, a batch
tells which one it claims to be: salvage needs no guess. A record begins with its kind:

    1 fresh      u48 deadline | u64 id | u48 enqueue time | u32 size | value
    2 item       u48 deadline | u64 id | u48 enqueue time | u48 requeue time | u32 dequeue count
                 | u8 attributes | u16 size of the reason | u32 size | reason | value
    3 tombstone  u48 deadline | u64 id
    4 dequeued   u48 deadline | u64 id | u32 dequeue count | u48 time
    128 to 255   u32 size | bytes: for later programs; passed over

The page is docs/formats/deadline.md.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.little import (
        get_number,
        put_bytes,
        put_number,
        sum_bytes,
        take_bytes,
    )
else:
    from forebay.kernels.little import get_number, put_bytes, put_number, sum_bytes, take_bytes

BATCH_BYTES = 8
FRESH, ITEM, TOMBSTONE, DEQUEUED, PASSED_OVER = 1, 2, 3, 4, 128
FRESH_BYTES, ITEM_BYTES, TOMBSTONE_BYTES, DEQUEUED_BYTES = 25, 38, 15, 25
_BATCH = cython.declare(cython.Py_ssize_t, 8)
_FRESH = cython.declare(cython.Py_ssize_t, 25)
_ITEM = cython.declare(cython.Py_ssize_t, 38)
_TOMBSTONE = cython.declare(cython.Py_ssize_t, 15)
_DEQUEUED = cython.declare(cython.Py_ssize_t, 25)
# Kind and size of a record that is passed over: the smallest that there is.
_LEAST = cython.declare(cython.Py_ssize_t, 5)
# The bits of the attributes that have no meaning; 2 says that the item is buried.
_UNKNOWN = cython.declare(cython.ulonglong, 0xFD)
_SPREAD = cython.declare(cython.ulonglong, 0x9E3779B1)
_UNSPREAD = cython.declare(cython.ulonglong, 0x0E8B2F51)
_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
def _claimed(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    seed: cython.ulonglong,
) -> cython.ulonglong:
    """Gives the number, modulo 2³², that the check of a batch claims."""
    crc: cython.ulonglong = sum_bytes(data, position, 4, seed)
    crc = sum_bytes(data, position + _BATCH, size, crc)
    return ((get_number(data, position + 4, 4) ^ crc) * _UNSPREAD) & _MASK


@cython.cfunc
@cython.inline
def put_key(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    kind: cython.ulonglong,
    deadline: cython.ulonglong,
    id: cython.ulonglong,
) -> cython.void:
    """Writes the kind and the key of a record."""
    put_number(out, position, kind, 1)
    put_number(out, position + 1, deadline, 6)
    put_number(out, position + 7, id, 8)


@cython.cfunc
def seal_at(
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Makes a batch of `size` bytes of records behind a place for its head; gives its end."""
    put_number(out, start, cython.cast(cython.ulonglong, size), 4)
    crc: cython.ulonglong = sum_bytes(out, start, 4, seed)
    crc = sum_bytes(out, start + _BATCH, size, crc)
    put_number(out, start + 4, crc ^ ((number * _SPREAD) & _MASK), 4)
    return start + _BATCH + size


def seal(
    buffer: object,
    size: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Makes a batch of `size` bytes of records that are in their place; gives what it takes."""
    return seal_at(memoryview(buffer), 0, size, number, seed)


def encode_fresh(
    values: list,
    deadlines: list,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    buffer: object,
    id: cython.ulonglong,
    enqueue_ms: cython.ulonglong,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Writes a batch of new items, each with its deadline, to the start of `buffer`.

    The first gets the id, the others those that follow. Gives what the batch takes.
    """
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = _BATCH
    size: cython.Py_ssize_t
    value: bytes
    at: cython.Py_ssize_t
    for at in range(first, first + count):
        value = values[at]
        size = len(value)
        put_key(out, position, 1, deadlines[at], id)
        put_number(out, position + 15, enqueue_ms, 6)
        put_number(out, position + 21, cython.cast(cython.ulonglong, size), 4)
        put_bytes(out, position + _FRESH, value, size)
        position += _FRESH + size
        id += 1
    return seal(buffer, position - _BATCH, number, seed)


def encode_tombstones(
    deadlines: list,
    ids: list,
    buffer: object,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Writes a batch of tombstones to the start of `buffer`; gives what it takes."""
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = _BATCH
    at: cython.Py_ssize_t
    for at in range(len(deadlines)):
        put_key(out, position, 3, deadlines[at], ids[at])
        position += _TOMBSTONE
    return seal(buffer, position - _BATCH, number, seed)


def encode_dequeued(
    deadlines: list,
    ids: list,
    counts: list,
    time_ms: cython.ulonglong,
    buffer: object,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Writes a batch that says how often items have been given out by now; gives what it takes."""
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = _BATCH
    at: cython.Py_ssize_t
    for at in range(len(deadlines)):
        put_key(out, position, 4, deadlines[at], ids[at])
        put_number(out, position + 15, counts[at], 4)
        put_number(out, position + 19, time_ms, 6)
        position += _DEQUEUED
    return seal(buffer, position - _BATCH, number, seed)


@cython.cfunc
@cython.inline
def _record_size(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Gives what the record at a position takes; 0 if it is of no known kind or goes on too far."""
    kind: cython.uchar = data[position]
    room: cython.Py_ssize_t = end - position
    size: cython.Py_ssize_t = 0
    if kind == 1:
        if room >= _FRESH:
            size = _FRESH + cython.cast(cython.Py_ssize_t, get_number(data, position + 21, 4))
    elif kind == 2:
        if room >= _ITEM and data[position + 31] & _UNKNOWN == 0:
            size = _ITEM + cython.cast(
                cython.Py_ssize_t,
                get_number(data, position + 32, 2) + get_number(data, position + 34, 4),
            )
    elif kind == 3:
        size = _TOMBSTONE
    elif kind == 4:
        size = _DEQUEUED
    elif kind >= 128 and room >= _LEAST:
        size = _LEAST + cython.cast(cython.Py_ssize_t, get_number(data, position + 1, 4))
    return size if size <= room else 0


@cython.cfunc
@cython.inline
def _are_records(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Says whether some bytes are records from the first to the last."""
    size: cython.Py_ssize_t
    while position < end:
        size = _record_size(data, position, end)
        if size == 0:
            return False
        position += size
    return True


@cython.cfunc
@cython.inline
def _record(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> tuple:
    """Gives the fields of the record at a position, which is known to be whole."""
    kind: cython.uchar = data[position]
    if kind >= 128:
        return (kind, 0, 0, 0, 0, 0, 0, b"", take_bytes(data, position + 5, size - 5))
    deadline: object = get_number(data, position + 1, 6)
    id: object = get_number(data, position + 7, 8)
    if kind == 3:
        return (kind, deadline, id, 0, 0, 0, 0, b"", b"")
    time: object
    count: object
    if kind == 4:
        count = get_number(data, position + 15, 4)
        time = get_number(data, position + 19, 6)
        return (kind, deadline, id, time, 0, count, 0, b"", b"")
    time = get_number(data, position + 15, 6)
    value: bytes
    if kind == 1:
        value = take_bytes(data, position + _FRESH, size - _FRESH)
        return (kind, deadline, id, time, 0, 0, 0, b"", value)
    requeue: object = get_number(data, position + 21, 6)
    count = get_number(data, position + 27, 4)
    length: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, get_number(data, position + 32, 2))
    reason: bytes = take_bytes(data, position + _ITEM, length)
    value = take_bytes(data, position + _ITEM + length, size - _ITEM - length)
    return (kind, deadline, id, time, requeue, count, data[position + 31], reason, value)


def scan(
    buffer: object,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
    limit: cython.Py_ssize_t,
    records: list,
) -> tuple:
    """Verifies batches from `position` on; gives where it stopped, and the number due there.

    `records` gets a tuple for each record: kind, deadline, id, time, requeue time, dequeue count,
    attributes, reason, value. Stops at `limit` batches, at the end, or at the first batch that is
    not good or holds a record of an unknown kind.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    while limit > 0 and end - position >= _BATCH:
        size = cython.cast(cython.Py_ssize_t, get_number(data, position, 4))
        if size == 0 or size > end - position - _BATCH:
            break
        if _claimed(data, position, size, seed) != number & _MASK:
            break
        at = position + _BATCH
        stop = at + size
        if not _are_records(data, at, stop):
            break
        while at < stop:
            size = _record_size(data, at, stop)
            records.append(_record(data, at, size))
            at += size
        position = stop
        number += 1
        limit -= 1
    return position, number


def verifies(
    buffer: object,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.bint:
    """Says whether the check of the batch at a position fits, whatever its records are."""
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    if len(data) - position < _BATCH:
        return False
    size: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, get_number(data, position, 4))
    if size == 0 or size > len(data) - position - _BATCH:
        return False
    return _claimed(data, position, size, seed) == number & _MASK


def find(
    buffer: object,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
    before: cython.Py_ssize_t,
) -> tuple:
    """Searches byte by byte for the next good batch; gives (position, its number) or -1.

    `number` is the one that is due `before` bytes ahead of `position`. The number found must be one
    that the bytes passed over leave room for. What is no row of records is never summed: rubbish
    would cost a sum over megabytes at every byte.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    start: cython.Py_ssize_t = position - before
    ahead: cython.ulonglong
    passed: cython.ulonglong
    while end - position >= _BATCH + _LEAST:
        size = cython.cast(cython.Py_ssize_t, get_number(data, position, 4))
        if (
            size > 0
            and size <= end - position - _BATCH
            and _are_records(data, position + _BATCH, position + _BATCH + size)
        ):
            ahead = (_claimed(data, position, size, seed) - number) & _MASK
            passed = cython.cast(cython.ulonglong, (position - start) // (_BATCH + _LEAST))
            if ahead <= passed:
                return position, number + ahead
        position += 1
    return -1, 0
