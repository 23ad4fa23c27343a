"""The loops over data sorted by deadline: batches of a log, blocks and runs.

They create no object per entry.

A batch of a write-ahead log is `u32 size | u32 check | records`, little-endian, and

    check = crc32(salt ‖ size ‖ records) XOR (number × SPREAD mod 2³²)

`seed` below is crc32(salt). Because the number of the batch in its file is mixed in last, a batch
shows which one it claims to be: salvage does not have to guess. A record starts with its kind:

    1 fresh      u48 deadline | u64 id | u48 enqueue time | u32 size | value
    2 item       u48 deadline | u64 id | u48 enqueue time | u48 requeue time | u32 dequeue count
                 | u8 attributes | u16 size of the reason | u32 size | reason | value
    3 tombstone  u48 deadline | u64 id
    4 dequeued   u48 deadline | u64 id | u32 dequeue count | u48 time
    128 to 255   u32 size | bytes: for later programs; skipped

A block of n entries is eight columns, then their reasons and their values back to back:

    8 × u64 base | 8 × u8 width | the columns, n × width bits each, from the lowest bit on, filled
    up to a whole byte | reasons | values

The columns are deadline, id, enqueue time, requeue time, dequeue count, attributes, size of the
reason and size of the value. A packed number is the number minus the base of its column. A requeue
time that means never is packed as 0; any other is packed as one more. A tombstone has 0 for its
times and its count. So an entry is found without unpacking others, except for the sizes.

A run is a sequence of blocks in key order; a key is a deadline and an id. `RunView` and `merge`
walk over runs of several kinds and combine all entries of a key: an item, its tombstone, how often
it was delivered. `BlockStream` and `Merger` process many blocks at a time without the GIL: taking
it for each block would keep other threads waiting, and would wait for them. They read by address;
plain Python has pages in place of addresses, see `address_of`. The page is
docs/formats/deadline.md.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.forebay.kernels.buffers import (
        copy_bytes,
        direct,
        get_number,
        put_bytes,
        put_number,
        sum_bytes,
        take_bytes,
    )
    from cython.cimports.libc.string import memcpy, memset
else:
    import sys
    from itertools import count as count_from
    from weakref import WeakValueDictionary

    from forebay.kernels.buffers import (
        copy_bytes,
        get_number,
        put_bytes,
        put_number,
        sum_bytes,
        take_bytes,
    )

    # In place of memory: the views that sources hold, each of which is a page of its own.
    _PAGE_BITS = 40
    _PAGES_MAX = 1 << 22
    _pages: WeakValueDictionary[int, memoryview] = WeakValueDictionary()
    _page_numbers = count_from()

    def address_of(view: memoryview) -> int:
        """Returns the address of bytes, which is valid as long as the view exists."""
        number = 1 + next(_page_numbers) % _PAGES_MAX
        _pages[number] = view
        return number << _PAGE_BITS

    def bytes_at(address: int, size: int) -> memoryview:
        """Returns the bytes at an address."""
        place = address & ((1 << _PAGE_BITS) - 1)
        return _pages[address >> _PAGE_BITS][place : place + size]


BATCH_BYTES = 8
FRESH, ITEM, TOMBSTONE, DEQUEUED, PASSED_OVER = 1, 2, 3, 4, 128
FRESH_BYTES, ITEM_BYTES, TOMBSTONE_BYTES, DEQUEUED_BYTES = 25, 38, 15, 25
_BATCH_SIZE = cython.declare(cython.Py_ssize_t, BATCH_BYTES)
_FRESH_SIZE = cython.declare(cython.Py_ssize_t, FRESH_BYTES)
_ITEM_SIZE = cython.declare(cython.Py_ssize_t, ITEM_BYTES)
_TOMBSTONE_SIZE = cython.declare(cython.Py_ssize_t, TOMBSTONE_BYTES)
_DEQUEUED_SIZE = cython.declare(cython.Py_ssize_t, DEQUEUED_BYTES)
# Kind and size of a record that is skipped: the smallest possible.
_LEAST = cython.declare(cython.Py_ssize_t, 5)
# The unused bits of the attributes of a record; 2 means that the item is buried.
_UNKNOWN = cython.declare(cython.ulonglong, 0xFD)
_SPREAD = cython.declare(cython.ulonglong, 0x9E3779B1)
_UNSPREAD = cython.declare(cython.ulonglong, 0x0E8B2F51)
_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFF)

# A block: how many columns, the bytes of their head, those of the block's head before that, and the
# most entries. A block starts with "FBDB"; then come number, count, two sizes and check.
COLUMNS = 8
HEAD_BYTES = 72
_COLUMNS = cython.declare(cython.Py_ssize_t, COLUMNS)
_HEAD = cython.declare(cython.Py_ssize_t, HEAD_BYTES)
_BLOCK_HEAD = cython.declare(cython.Py_ssize_t, 24)
_ENTRIES_MAX = cython.declare(cython.Py_ssize_t, 65536)
_BLOCK_MARK = cython.declare(cython.ulonglong, 0x42444246)
# The numbers of the columns.
_DEADLINE = cython.declare(cython.Py_ssize_t, 0)
_ID = cython.declare(cython.Py_ssize_t, 1)
_ENQUEUE = cython.declare(cython.Py_ssize_t, 2)
_REQUEUE = cython.declare(cython.Py_ssize_t, 3)
_COUNT = cython.declare(cython.Py_ssize_t, 4)
_ATTRIBUTES = cython.declare(cython.Py_ssize_t, 5)
_REASON = cython.declare(cython.Py_ssize_t, 6)
_VALUE = cython.declare(cython.Py_ssize_t, 7)
# The attributes of an entry of a block.
IS_TOMBSTONE, IS_BURIED = 1, 2
_IS_TOMBSTONE = cython.declare(cython.ulonglong, IS_TOMBSTONE)
_IS_BURIED = cython.declare(cython.ulonglong, IS_BURIED)

# The initial size of a builder, and the estimated size of an entry without reason and value.
_FIRST_ENTRIES = cython.declare(cython.Py_ssize_t, 4096)
_FIRST_BYTES = cython.declare(cython.Py_ssize_t, 4096)
_MOST_BYTES = cython.declare(cython.Py_ssize_t, 65536)
_ENTRY = cython.declare(cython.Py_ssize_t, 8)

# The row for a block in the table of a stream: how many entries, first deadline, first id, where it
# ends, smallest and largest id, how many tombstones, how many buried items.
ROW_NUMBERS = 8
_ROW_NUMBERS = cython.declare(cython.Py_ssize_t, ROW_NUMBERS)
_ROW_END = cython.declare(cython.Py_ssize_t, 3)

# Sorting goes digit by digit, of this many bits each.
_DIGIT = cython.declare(cython.Py_ssize_t, 11)
_DIGITS = cython.declare(cython.Py_ssize_t, 1 << 11)
_DIGIT_MASK = cython.declare(cython.ulonglong, (1 << 11) - 1)
_BITS = cython.declare(cython.Py_ssize_t, 64)
_LARGEST = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
# How many ids are sorted at once, if they are spread evenly: that takes twice as many numbers.
_AT_ONCE = cython.declare(cython.Py_ssize_t, 1 << 20)

# The numbers of a key in a heap, and the initial number of keys.
_CELL = cython.declare(cython.Py_ssize_t, 3)
_FIRST_KEYS = cython.declare(cython.Py_ssize_t, 64)

# Kinds of runs. No key is above the last.
ITEMS, TOMBSTONES, MARKS = 1, 2, 3
_ITEMS = cython.declare(cython.Py_ssize_t, ITEMS)
_TOMBSTONES = cython.declare(cython.Py_ssize_t, TOMBSTONES)
_MARKS = cython.declare(cython.Py_ssize_t, MARKS)
_LAST = cython.declare(cython.ulonglong, 1 << 48)

# A row of the table of blocks for a merge: where the block starts, its number, its entries.
_BLOCK_ROW = cython.declare(cython.Py_ssize_t, 3)
# The bases of the columns, before their widths.
_BASES_BYTES = cython.declare(cython.ulonglong, 64)
# The cells of a source. For its block: the bases, widths and addresses of the columns, its entries,
# its end. Then which entry is next, and where its reason and value are. Then the address of the
# bytes it was fed, their number, the address of the table of their blocks, their number, which is
# next, and the checksum of the salt.
_CELLS = cython.declare(cython.Py_ssize_t, 35)
_BASES = cython.declare(cython.Py_ssize_t, 0)
_WIDTHS = cython.declare(cython.Py_ssize_t, 8)
_STARTS = cython.declare(cython.Py_ssize_t, 16)
_ENTRIES = cython.declare(cython.Py_ssize_t, 24)
_STOP = cython.declare(cython.Py_ssize_t, 25)
_AT = cython.declare(cython.Py_ssize_t, 26)
_REASON_AT = cython.declare(cython.Py_ssize_t, 27)
_VALUE_AT = cython.declare(cython.Py_ssize_t, 28)
_DATA = cython.declare(cython.Py_ssize_t, 29)
_TABLE = cython.declare(cython.Py_ssize_t, 30)
_BLOCKS = cython.declare(cython.Py_ssize_t, 31)
_NEXT = cython.declare(cython.Py_ssize_t, 32)
_SEED = cython.declare(cython.Py_ssize_t, 33)
_SIZE = cython.declare(cython.Py_ssize_t, 34)

# Results of `Merger.run`: everything is done; `source` has no more blocks, or one that is not
# plain; the block of `kind` is full, and there is no room for another.
DONE, HUNGRY, FULL = 0, 1, 2
_DONE = cython.declare(cython.int, DONE)
_HUNGRY = cython.declare(cython.int, HUNGRY)
_FULL = cython.declare(cython.int, FULL)
_NO_ROOM = cython.declare(cython.int, 3)


@cython.cfunc
@cython.inline
def _claimed(
    data: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    seed: cython.ulonglong,
) -> cython.ulonglong:
    """Returns the number, modulo 2³², that the check of a batch claims."""
    crc: cython.ulonglong = sum_bytes(data, position, 4, seed)
    crc = sum_bytes(data, position + _BATCH_SIZE, size, crc)
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
def seal_batch_at(
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Makes a batch of `size` bytes of records after a gap for its head; returns its end."""
    put_number(out, start, cython.cast(cython.ulonglong, size), 4)
    crc: cython.ulonglong = sum_bytes(out, start, 4, seed)
    crc = sum_bytes(out, start + _BATCH_SIZE, size, crc)
    put_number(out, start + 4, crc ^ ((number * _SPREAD) & _MASK), 4)
    return start + _BATCH_SIZE + size


def seal_batch(
    buffer: object,
    size: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Makes a batch of `size` bytes of records that are in place; returns its size."""
    return seal_batch_at(memoryview(buffer), 0, size, number, seed)


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

    The first has the id `id`, the others have the ids after it. Returns the size of the batch.
    """
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = _BATCH_SIZE
    size: cython.Py_ssize_t
    value: bytes
    at: cython.Py_ssize_t
    for at in range(first, first + count):
        value = values[at]
        size = len(value)
        put_key(out, position, 1, deadlines[at], id)
        put_number(out, position + 15, enqueue_ms, 6)
        put_number(out, position + 21, cython.cast(cython.ulonglong, size), 4)
        put_bytes(out, position + _FRESH_SIZE, value, size)
        position += _FRESH_SIZE + size
        id += 1
    return seal_batch(buffer, position - _BATCH_SIZE, number, seed)


def encode_tombstones(
    deadlines: list,
    ids: list,
    buffer: object,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Writes a batch of tombstones to the start of `buffer`; returns its size."""
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = _BATCH_SIZE
    at: cython.Py_ssize_t
    for at in range(len(deadlines)):
        put_key(out, position, 3, deadlines[at], ids[at])
        position += _TOMBSTONE_SIZE
    return seal_batch(buffer, position - _BATCH_SIZE, number, seed)


def encode_dequeued(
    deadlines: list,
    ids: list,
    counts: list,
    time_ms: cython.ulonglong,
    buffer: object,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Writes a batch that records how often items were delivered so far; returns its size."""
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = _BATCH_SIZE
    at: cython.Py_ssize_t
    for at in range(len(deadlines)):
        put_key(out, position, 4, deadlines[at], ids[at])
        put_number(out, position + 15, counts[at], 4)
        put_number(out, position + 19, time_ms, 6)
        position += _DEQUEUED_SIZE
    return seal_batch(buffer, position - _BATCH_SIZE, number, seed)


@cython.cfunc
@cython.inline
def _record_size(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Returns the size of the record at a position; 0 if its kind is unknown or it is cut off."""
    kind: cython.uchar = data[position]
    room: cython.Py_ssize_t = end - position
    size: cython.Py_ssize_t = 0
    if kind == 1:
        if room >= _FRESH_SIZE:
            size = _FRESH_SIZE + cython.cast(cython.Py_ssize_t, get_number(data, position + 21, 4))
    elif kind == 2:
        if room >= _ITEM_SIZE and data[position + 31] & _UNKNOWN == 0:
            size = _ITEM_SIZE + cython.cast(
                cython.Py_ssize_t,
                get_number(data, position + 32, 2) + get_number(data, position + 34, 4),
            )
    elif kind == 3:
        size = _TOMBSTONE_SIZE
    elif kind == 4:
        size = _DEQUEUED_SIZE
    elif kind >= 128 and room >= _LEAST:
        size = _LEAST + cython.cast(cython.Py_ssize_t, get_number(data, position + 1, 4))
    return size if size <= room else 0


@cython.cfunc
@cython.inline
def _are_records(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Returns whether some bytes consist of records from first to last."""
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
    """Returns the fields of the record at a position, which is known to be whole."""
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
        value = take_bytes(data, position + _FRESH_SIZE, size - _FRESH_SIZE)
        return (kind, deadline, id, time, 0, 0, 0, b"", value)
    requeue: object = get_number(data, position + 21, 6)
    count = get_number(data, position + 27, 4)
    length: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, get_number(data, position + 32, 2))
    reason: bytes = take_bytes(data, position + _ITEM_SIZE, length)
    value = take_bytes(data, position + _ITEM_SIZE + length, size - _ITEM_SIZE - length)
    return (kind, deadline, id, time, requeue, count, data[position + 31], reason, value)


def scan_batches(
    buffer: object,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
    limit: cython.Py_ssize_t,
    records: list,
) -> tuple:
    """Verifies batches from `position` on; returns where it stopped, and the number due there.

    `records` gets a tuple for each record: kind, deadline, id, time, requeue time, dequeue count,
    attributes, reason, value. Stops at `limit` batches, at the end, or at the first batch that is
    not good or holds a record of an unknown kind.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    while limit > 0 and end - position >= _BATCH_SIZE:
        size = cython.cast(cython.Py_ssize_t, get_number(data, position, 4))
        if size == 0 or size > end - position - _BATCH_SIZE:
            break
        if _claimed(data, position, size, seed) != number & _MASK:
            break
        at = position + _BATCH_SIZE
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


def batch_verifies(
    buffer: object,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
) -> cython.bint:
    """Returns whether the check of the batch at a position matches, with any kinds of records."""
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    if len(data) - position < _BATCH_SIZE:
        return False
    size: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, get_number(data, position, 4))
    if size == 0 or size > len(data) - position - _BATCH_SIZE:
        return False
    return _claimed(data, position, size, seed) == number & _MASK


def find_batch(
    buffer: object,
    position: cython.Py_ssize_t,
    number: cython.ulonglong,
    seed: cython.ulonglong,
    before: cython.Py_ssize_t,
) -> tuple:
    """Searches byte by byte for the next good batch; returns (position, its number) or -1.

    `number` is the one that is expected `before` bytes ahead of `position`. The number found must
    be possible for the bytes skipped. No checksum is computed of bytes that are not a sequence of
    records: garbage would otherwise cost a checksum of megabytes at every byte.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    start: cython.Py_ssize_t = position - before
    ahead: cython.ulonglong
    passed: cython.ulonglong
    while end - position >= _BATCH_SIZE + _LEAST:
        size = cython.cast(cython.Py_ssize_t, get_number(data, position, 4))
        if (
            size > 0
            and size <= end - position - _BATCH_SIZE
            and _are_records(data, position + _BATCH_SIZE, position + _BATCH_SIZE + size)
        ):
            ahead = (_claimed(data, position, size, seed) - number) & _MASK
            passed = cython.cast(cython.ulonglong, (position - start) // (_BATCH_SIZE + _LEAST))
            if ahead <= passed:
                return position, number + ahead
        position += 1
    return -1, 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_bits(
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    bit: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    code: cython.ulonglong,
) -> cython.void:
    """Writes `width` bits into zeros, `bit` bits after the byte `start`."""
    at: cython.Py_ssize_t = start + (bit >> 3)
    shift: cython.Py_ssize_t = bit & 7
    while width > 0:
        out[at] |= (code << shift) & 255
        code >>= 8 - shift
        width -= 8 - shift
        shift = 0
        at += 1


@cython.cfunc
@cython.inline
def get_bits(
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    bit: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
) -> cython.ulonglong:
    """Reads `width` bits, `bit` bits after the byte `start`, and touches no byte without them."""
    if width == 0:
        return 0
    at: cython.Py_ssize_t = start + (bit >> 3)
    shift: cython.Py_ssize_t = bit & 7
    if not cython.compiled:
        stop = at + (shift + width + 7) // 8
        return (int.from_bytes(data[at:stop], "little") >> shift) & ((1 << width) - 1)
    code: cython.ulonglong = cython.cast(cython.ulonglong, data[at]) >> shift
    have: cython.Py_ssize_t = 8 - shift
    while have < width:
        at += 1
        code |= cython.cast(cython.ulonglong, data[at]) << have
        have += 8
    if width < 64:
        code &= (cython.cast(cython.ulonglong, 1) << width) - 1
    return code


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def width_of(number: cython.ulonglong) -> cython.Py_ssize_t:
    """Returns how many bits a number takes."""
    width: cython.Py_ssize_t = 0
    while number > 0:
        number >>= 1
        width += 1
    return width


def pack(numbers: list, base: cython.ulonglong, width: cython.Py_ssize_t) -> bytes:
    """Returns the bits of numbers minus a base, filled up to a whole byte."""
    buffer: object = bytearray((len(numbers) * width + 7) >> 3)
    out: cython.uchar[::1] = memoryview(buffer)
    number: cython.ulonglong
    at: cython.Py_ssize_t
    for at in range(len(numbers)):
        number = numbers[at]
        put_bits(out, 0, at * width, width, number - base)
    return bytes(buffer)


def unpack(
    buffer: object,
    start: cython.Py_ssize_t,
    index: cython.Py_ssize_t,
    base: cython.ulonglong,
    width: cython.Py_ssize_t,
) -> object:
    """Returns one of the numbers that `pack` wrote, from `start` on."""
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    return base + get_bits(data, start, index * width, width)


def search_packed(
    buffer: object,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base: cython.ulonglong,
    width: cython.Py_ssize_t,
    wanted: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Returns the index of the first of `count` ascending packed numbers not below `wanted`."""
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = count
    middle: cython.Py_ssize_t
    while low < high:
        middle = (low + high) >> 1
        if base + get_bits(data, start, middle * width, width) < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@cython.cclass
class Block:
    """A block for reading. Raises ValueError if the bytes are not one of `count` entries."""

    def __init__(self, body: bytes, count: cython.Py_ssize_t) -> None:
        """Checks that the columns and the sizes fill the bytes exactly."""
        if len(body) < HEAD_BYTES or count < 1:
            raise ValueError(f"{count} entries in {len(body)} bytes")
        self.count = count
        self.data = body
        self._bases = memoryview(bytearray(64)).cast("Q")
        self._widths = memoryview(bytearray(64)).cast("q")
        self._starts = memoryview(bytearray(64)).cast("q")
        position: cython.Py_ssize_t = _HEAD
        end: cython.Py_ssize_t = len(body)
        column: cython.Py_ssize_t
        for column in range(_COLUMNS):
            self._bases[column] = get_number(self.data, 8 * column, 8)
            self._widths[column] = self.data[8 * _COLUMNS + column]
            self._starts[column] = position
            if self._widths[column] > 64:
                raise ValueError(f"column {column} has {self._widths[column]} bits")
            position += (count * self._widths[column] + 7) >> 3
        if position > end:
            raise ValueError(f"the columns end at {position}, the block at {end}")
        at: cython.Py_ssize_t
        for at in range(count if self._widths[_ATTRIBUTES] > 0 else 1):
            if self._number(_ATTRIBUTES, at) > _IS_BURIED:
                raise ValueError(f"entry {at} has unknown attributes")
        # 2n + 1 ends: of the reasons, then of the values.
        self._ends = memoryview(bytearray(8 * (2 * count + 1))).cast("q")
        self._ends[0] = position
        size: cython.ulonglong
        for at in range(2 * count):
            size = self._number(_REASON if at < count else _VALUE, at if at < count else at - count)
            if size > cython.cast(cython.ulonglong, end - position):
                raise ValueError(f"entry {at % count} goes on past the block")
            position += cython.cast(cython.Py_ssize_t, size)
            self._ends[at + 1] = position
        if position != end:
            raise ValueError(f"the values end at {position}, the block at {end}")

    @cython.cfunc
    @cython.inline
    def _number(self, column: cython.Py_ssize_t, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the number of an entry in a column; wrong where a tombstone has none."""
        width: cython.Py_ssize_t = self._widths[column]
        code: cython.ulonglong = get_bits(self.data, self._starts[column], at * width, width)
        if not cython.compiled:
            return (self._bases[column] + code) & 0xFFFFFFFFFFFFFFFF
        return self._bases[column] + code

    def deadline(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the deadline of an entry, in ms."""
        return self._number(_DEADLINE, at)

    def id(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the id of an entry."""
        return self._number(_ID, at)

    def attributes(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the attributes of an entry."""
        return self._number(_ATTRIBUTES, at)

    def enqueue_ms(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns when an item was enqueued."""
        return self._number(_ENQUEUE, at)

    def requeue_ms(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns when an item was requeued last; 0: never."""
        width: cython.Py_ssize_t = self._widths[_REQUEUE]
        code: cython.ulonglong = get_bits(self.data, self._starts[_REQUEUE], at * width, width)
        return 0 if code == 0 else self._bases[_REQUEUE] + (code - 1)

    def dequeue_count(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns how often an item was delivered."""
        return self._number(_COUNT, at)

    def reason(self, at: cython.Py_ssize_t) -> bytes:
        """Returns the reason of an item."""
        start: cython.Py_ssize_t = self._ends[at]
        return take_bytes(self.data, start, self._ends[at + 1] - start)

    def value(self, at: cython.Py_ssize_t) -> bytes:
        """Returns the value of an item."""
        start: cython.Py_ssize_t = self._ends[self.count + at]
        return take_bytes(self.data, start, self._ends[self.count + at + 1] - start)

    def row(self, at: cython.Py_ssize_t) -> tuple:
        """Returns an entry: deadline, id, attributes, the two times, count, reason, value."""
        deadline: object = self._number(_DEADLINE, at)
        id: object = self._number(_ID, at)
        attributes: cython.ulonglong = self._number(_ATTRIBUTES, at)
        if attributes & _IS_TOMBSTONE:
            return (deadline, id, attributes, 0, 0, 0, b"", b"")
        times: tuple = (self.enqueue_ms(at), self.requeue_ms(at), self.dequeue_count(at))
        return (deadline, id, attributes, *times, self.reason(at), self.value(at))

    def search(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.Py_ssize_t:
        """Returns the index of the first entry whose key is not below the given one."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = self.count
        middle: cython.Py_ssize_t
        found: cython.ulonglong
        while low < high:
            middle = (low + high) >> 1
            found = self._number(_DEADLINE, middle)
            if found < deadline or (found == deadline and self._number(_ID, middle) < id):
                low = middle + 1
            else:
                high = middle
        return low

    def find_id(self, id: cython.ulonglong, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the index of the first entry with an id from `at` on; -1 if there is none."""
        while at < self.count:
            if self._number(_ID, at) == id:
                return at
            at += 1
        return -1


@cython.cclass
class BlockBuilder:
    """The block that is being filled. It has `count` entries."""

    def __init__(self, block_bytes: cython.Py_ssize_t) -> None:
        self._block_bytes = block_bytes
        self._numbers = memoryview(bytearray(8 * _COLUMNS * _FIRST_ENTRIES)).cast("Q")
        self._values = memoryview(bytearray(max(min(block_bytes, _MOST_BYTES), _FIRST_BYTES)))
        self._reasons = memoryview(bytearray(_FIRST_BYTES))
        self._values_end = self._reasons_end = 0
        self.count = 0

    def fits(self, size: cython.Py_ssize_t) -> cython.bint:
        """Returns whether a reason and value of `size` bytes still fit in this block."""
        return self._fits(size)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _fits(self, size: cython.Py_ssize_t) -> cython.bint:
        if self.count == 0:
            return True
        used: cython.Py_ssize_t = self._values_end + self._reasons_end + _ENTRY * self.count
        return used + size + _ENTRY <= self._block_bytes and self.count < _ENTRIES_MAX

    def add(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        enqueue: cython.ulonglong,
        requeue: cython.ulonglong,
        dequeued: cython.ulonglong,
        attributes: cython.ulonglong,
        reason: bytes,
        value: bytes,
    ) -> None:
        """Adds an entry, whose key must not be below the one before."""
        size: cython.Py_ssize_t = len(value)
        length: cython.Py_ssize_t = len(reason)
        self.reserve(length, size)
        at: cython.Py_ssize_t = _COLUMNS * self.count
        self._numbers[at] = deadline
        self._numbers[at + 1] = id
        self._numbers[at + 2] = enqueue
        self._numbers[at + 3] = requeue
        self._numbers[at + 4] = dequeued
        self._numbers[at + 5] = attributes
        self._numbers[at + 6] = cython.cast(cython.ulonglong, length)
        self._numbers[at + 7] = cython.cast(cython.ulonglong, size)
        put_bytes(self._reasons, self._reasons_end, reason, length)
        self._reasons_end += length
        put_bytes(self._values, self._values_end, value, size)
        self._values_end += size
        self.count += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def add_raw(
        self,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        enqueue: cython.ulonglong,
        requeue: cython.ulonglong,
        dequeued: cython.ulonglong,
        attributes: cython.ulonglong,
        reason: cython.ulonglong,
        length: cython.Py_ssize_t,
        value: cython.ulonglong,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Adds an entry whose reason and value are at addresses.

        Returns 1; 0 if the block is full; -1 if `reserve` must be called.
        """
        if not self._fits(size + length):
            return 0
        at: cython.Py_ssize_t = _COLUMNS * self.count
        end: cython.Py_ssize_t = self._values_end + size
        reasons_end: cython.Py_ssize_t = self._reasons_end + length
        if at == len(self._numbers) or end > len(self._values) or reasons_end > len(self._reasons):
            return -1
        self._numbers[at] = deadline
        self._numbers[at + 1] = id
        self._numbers[at + 2] = enqueue
        self._numbers[at + 3] = requeue
        self._numbers[at + 4] = dequeued
        self._numbers[at + 5] = attributes
        self._numbers[at + 6] = cython.cast(cython.ulonglong, length)
        self._numbers[at + 7] = cython.cast(cython.ulonglong, size)
        if cython.compiled:
            if length > 0:
                memcpy(
                    cython.address(self._reasons[self._reasons_end]),
                    cython.cast(cython.p_char, cython.cast(cython.size_t, reason)),
                    length,
                )
            if size > 0:
                memcpy(
                    cython.address(self._values[self._values_end]),
                    cython.cast(cython.p_char, cython.cast(cython.size_t, value)),
                    size,
                )
        else:
            if length > 0:
                self._reasons[self._reasons_end : reasons_end] = bytes_at(reason, length)
            if size > 0:
                self._values[self._values_end : end] = bytes_at(value, size)
        self._values_end = end
        self._reasons_end = reasons_end
        self.count += 1
        return 1

    @cython.cfunc
    def reserve(self, length: cython.Py_ssize_t, size: cython.Py_ssize_t) -> object:
        """Makes room for one more entry, with a reason and a value of these sizes."""
        if _COLUMNS * self.count == len(self._numbers):
            self._numbers = grown(self._numbers, 2 * len(self._numbers))
        if self._values_end + size > len(self._values):
            self._values = _with_room(self._values, self._values_end + size)
        if self._reasons_end + length > len(self._reasons):
            self._reasons = _with_room(self._reasons, self._reasons_end + length)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def size_max(self) -> cython.Py_ssize_t:
        """Returns an upper bound for the size of the block, head included."""
        numbers: cython.Py_ssize_t = 8 * _COLUMNS * self.count
        head: cython.Py_ssize_t = _BLOCK_HEAD + _HEAD
        return head + numbers + self._reasons_end + self._values_end

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def describe(self, table: cython.ulonglong[::1], at: cython.Py_ssize_t) -> cython.void:
        """Writes counts, the first key and the bounds of the ids to a row of a table."""
        tombstones: cython.ulonglong = 0
        buried: cython.ulonglong = 0
        least: cython.ulonglong = self._numbers[_ID]
        most: cython.ulonglong = least
        entry: cython.Py_ssize_t
        for entry in range(self.count):
            least = min(least, self._numbers[_COLUMNS * entry + _ID])
            most = max(most, self._numbers[_COLUMNS * entry + _ID])
            tombstones += self._numbers[_COLUMNS * entry + _ATTRIBUTES] & 1
            buried += self._numbers[_COLUMNS * entry + _ATTRIBUTES] >> 1
        table[at] = cython.cast(cython.ulonglong, self.count)
        table[at + 1] = self._numbers[0]
        table[at + 2] = self._numbers[1]
        table[at + 4] = least
        table[at + 5] = most
        table[at + 6] = tombstones
        table[at + 7] = buried

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def emit(
        self,
        out: cython.uchar[::1],
        start: cython.Py_ssize_t,
        number: cython.ulonglong,
        seed: cython.ulonglong,
    ) -> cython.Py_ssize_t:
        """Writes the block with its head, uncompressed, to a position; returns its end.

        Compiled, it needs the C function for CRC-32. `seed` is that of the salt.
        """
        body: cython.Py_ssize_t = start + _BLOCK_HEAD
        position: cython.Py_ssize_t = body + _HEAD
        column: cython.Py_ssize_t
        if cython.compiled:
            memset(cython.address(out[body]), 0, _HEAD + 8 * _COLUMNS * self.count)
        else:
            out[body : position + 8 * _COLUMNS * self.count] = bytes(
                _HEAD + 8 * _COLUMNS * self.count
            )
        for column in range(_COLUMNS):
            position = self._put_column(out, body, position, column)
        copy_bytes(out, position, self._reasons, 0, self._reasons_end)
        position += self._reasons_end
        copy_bytes(out, position, self._values, 0, self._values_end)
        position += self._values_end
        size: cython.ulonglong = cython.cast(cython.ulonglong, position - body)
        put_number(out, start, _BLOCK_MARK, 4)
        put_number(out, start + 4, number, 4)
        put_number(out, start + 8, cython.cast(cython.ulonglong, self.count), 4)
        put_number(out, start + 12, size, 4)
        put_number(out, start + 16, size, 4)
        crc: cython.ulonglong = seed
        if cython.compiled:
            crc = direct(cython.cast(cython.uint, seed), cython.address(out[start]), 20)
            crc = direct(
                cython.cast(cython.uint, crc),
                cython.address(out[body]),
                cython.cast(cython.size_t, size),
            )
        else:
            crc = sum_bytes(out, body, size, sum_bytes(out, start, 20, seed))
        put_number(out, start + 20, crc, 4)
        return position

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def clear(self) -> cython.void:
        """Starts the next block."""
        self.count = self._values_end = self._reasons_end = 0

    def first_key(self) -> tuple:
        """Returns the key of the first entry."""
        return self._numbers[0], self._numbers[1]

    def last_key(self) -> tuple:
        """Returns the key of the last entry."""
        at: cython.Py_ssize_t = _COLUMNS * (self.count - 1)
        return self._numbers[at], self._numbers[at + 1]

    def id_bounds(self) -> tuple:
        """Returns the smallest and the largest id."""
        least: cython.ulonglong = self._numbers[_ID]
        most: cython.ulonglong = least
        at: cython.Py_ssize_t
        for at in range(_ID, _COLUMNS * self.count, _COLUMNS):
            least = min(least, self._numbers[at])
            most = max(most, self._numbers[at])
        return least, most

    def ids(self) -> bytearray:
        """Returns the ids of the entries, as 8-byte numbers in the machine's order."""
        found: object = bytearray(8 * self.count)
        self.copy_ids(memoryview(found).cast("Q"), 0)
        return found

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def copy_ids(self, out: cython.ulonglong[::1], start: cython.Py_ssize_t) -> cython.void:
        """Copies the ids of the entries to a position."""
        at: cython.Py_ssize_t
        for at in range(self.count):
            out[start + at] = self._numbers[_COLUMNS * at + _ID]

    def counts(self) -> tuple:
        """Returns how many entries are pending items, tombstones and buried items."""
        tombstones: cython.Py_ssize_t = 0
        buried: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t
        for at in range(_ATTRIBUTES, _COLUMNS * self.count, _COLUMNS):
            if self._numbers[at] == 1:
                tombstones += 1
            elif self._numbers[at] == 2:
                buried += 1
        return self.count - tombstones - buried, tombstones, buried

    def take(self) -> bytes:
        """Returns the bytes of the block and starts the next one."""
        # No column takes more than 64 bits per entry.
        most: cython.Py_ssize_t = _HEAD + 8 * _COLUMNS * self.count
        buffer: object = bytearray(most + self._reasons_end + self._values_end)
        out: cython.uchar[::1] = memoryview(buffer)
        position: cython.Py_ssize_t = _HEAD
        column: cython.Py_ssize_t
        for column in range(_COLUMNS):
            position = self._put_column(out, 0, position, column)
        end: cython.Py_ssize_t = position + self._reasons_end
        copy_bytes(out, position, self._reasons, 0, self._reasons_end)
        copy_bytes(out, end, self._values, 0, self._values_end)
        end += self._values_end
        self.clear()
        return bytes(memoryview(buffer)[:end])

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_column(
        self,
        out: cython.uchar[::1],
        body: cython.Py_ssize_t,
        position: cython.Py_ssize_t,
        column: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Writes base, width and bits of one column of a body; returns where its bits end."""
        # Neither a tombstone nor a missing time may lower the base.
        is_of_items: cython.bint = column >= _ENQUEUE and column <= _COUNT
        is_requeue: cython.bint = column == _REQUEUE
        more: cython.ulonglong = 1 if is_requeue else 0
        number: cython.ulonglong
        least: cython.ulonglong = 0
        most: cython.ulonglong = 0
        found: cython.bint = False
        at: cython.Py_ssize_t
        for at in range(self.count):
            if is_of_items and self._numbers[_COLUMNS * at + _ATTRIBUTES] & 1:
                continue
            number = self._numbers[_COLUMNS * at + column]
            if is_requeue and number == 0:
                continue
            if not found or number < least:
                least = number
            if number > most:
                most = number
            found = True
        width: cython.Py_ssize_t = 0
        if found:
            width = width_of(most - least + more)
        put_number(out, body + 8 * column, least, 8)
        put_number(out, body + 8 * _COLUMNS + column, cython.cast(cython.ulonglong, width), 1)
        if width == 0:
            return position
        bit: cython.Py_ssize_t = 0
        for at in range(self.count):
            number = self._numbers[_COLUMNS * at + column]
            if not (is_of_items and self._numbers[_COLUMNS * at + _ATTRIBUTES] & 1) and not (
                is_requeue and number == 0
            ):
                put_bits(out, position, bit, width, number - least + more)
            bit += width
        return position + ((self.count * width + 7) >> 3)


@cython.cfunc
def _with_room(data: cython.uchar[::1], size: cython.Py_ssize_t) -> object:
    """Returns a larger buffer that starts with the same bytes."""
    larger: object = bytearray(max(2 * len(data), size))
    view: cython.uchar[::1] = memoryview(larger)
    view[: len(data)] = data
    return memoryview(larger)


def can_stream() -> cython.bint:
    """Returns whether streams of blocks work here; otherwise blocks are made the usual way."""
    works: cython.bint = True
    if cython.compiled:
        works = direct != cython.NULL
    return works


@cython.cclass
class BlockStream:
    """Blocks made from the content of a builder: `size` bytes in `out`, uncompressed.

    `table` has `blocks` rows of numbers, and `ids` the `id_count` ids of all entries, if they are
    wanted.
    """

    def __init__(
        self,
        builder: BlockBuilder,
        seed: cython.ulonglong,
        room: cython.Py_ssize_t,
        blocks_max: cython.Py_ssize_t,
        with_ids: cython.bint,
    ) -> None:
        self.builder = builder
        self._seed = seed
        self.out = memoryview(bytearray(room))
        self.table = memoryview(bytearray(8 * _ROW_NUMBERS * blocks_max)).cast("Q")
        self._with_ids = with_ids
        self.ids = memoryview(bytearray(8 * _ENTRIES_MAX if with_ids else 8)).cast("Q")
        self.start(0)

    def start(self, number: cython.ulonglong) -> None:
        """Starts over; the next block has this number."""
        self._number = number
        self.size = self.blocks = self.id_count = 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def end_block(self) -> cython.bint:
        """Makes a block from the builder, and empties it; False if there is no room."""
        if (
            self.size + self.builder.size_max() > len(self.out)
            or _ROW_NUMBERS * (self.blocks + 1) > len(self.table)
            or (self._with_ids and self.id_count + self.builder.count > len(self.ids))
        ):
            return False
        self.builder.describe(self.table, _ROW_NUMBERS * self.blocks)
        if self._with_ids:
            self.builder.copy_ids(self.ids, self.id_count)
            self.id_count += self.builder.count
        self.size = self.builder.emit(self.out, self.size, self._number, self._seed)
        self.table[_ROW_NUMBERS * self.blocks + _ROW_END] = cython.cast(cython.ulonglong, self.size)
        self.builder.clear()
        self._number += 1
        self.blocks += 1
        return True


def sort(
    cells: cython.ulonglong[::1],
    count: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    words: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Sorts `count` cells of `size` numbers by their first `words`; returns where they start.

    The array has room for twice as many: the cells, and after them a work area. The sorted cells
    may be in either half.
    """
    ends: cython.ulonglong[::1] = memoryview(bytearray(8 * _DIGITS)).cast("Q")
    source: cython.Py_ssize_t = 0
    target: cython.Py_ssize_t = count * size
    word: cython.Py_ssize_t = words
    shift: cython.Py_ssize_t
    differing: cython.ulonglong
    with cython.nogil:
        while word > 0:
            word -= 1
            differing = _differing(cells, source + word, count, size)
            shift = 0
            while shift < _BITS and differing >> shift > 0:
                # A digit that is the same in all cells moves none of them.
                if (differing >> shift) & _DIGIT_MASK > 0:
                    _move(cells, ends, source, target, count, size, word, shift)
                    source, target = target, source
                shift += _DIGIT
    return source


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _differing(
    cells: cython.ulonglong[::1],
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.ulonglong:
    """Returns the bits in which a word differs between cells."""
    differing: cython.ulonglong = 0
    at: cython.Py_ssize_t
    for at in range(count):
        differing |= cells[start + at * size] ^ cells[start]
    return differing


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _move(
    cells: cython.ulonglong[::1],
    ends: cython.ulonglong[::1],
    source: cython.Py_ssize_t,
    target: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    word: cython.Py_ssize_t,
    shift: cython.Py_ssize_t,
) -> cython.void:
    """Moves cells by one digit; those with equal digits keep their order."""
    at: cython.Py_ssize_t
    to: cython.Py_ssize_t
    part: cython.Py_ssize_t
    digit: cython.Py_ssize_t
    sum: cython.ulonglong = 0
    here: cython.ulonglong
    for digit in range(_DIGITS):
        ends[digit] = 0
    for at in range(count):
        digit = cython.cast(
            cython.Py_ssize_t, (cells[source + at * size + word] >> shift) & _DIGIT_MASK
        )
        ends[digit] += 1
    for digit in range(_DIGITS):
        here = ends[digit]
        ends[digit] = sum
        sum += here
    for at in range(count):
        digit = cython.cast(
            cython.Py_ssize_t, (cells[source + at * size + word] >> shift) & _DIGIT_MASK
        )
        to = target + size * cython.cast(cython.Py_ssize_t, ends[digit])
        ends[digit] += 1
        for part in range(size):
            cells[to + part] = cells[source + at * size + part]


def pack_ids(
    ids: cython.ulonglong[::1],
    counts: cython.ulonglong[::1],
    base: cython.ulonglong,
    id_width: cython.Py_ssize_t,
    block_width: cython.Py_ssize_t,
) -> bytearray:
    """Returns the bits of the ids, ascending, each minus `base`, then those of the blocks.

    `ids` holds the ids of one block after another, `counts` how many each block has. The two widths
    together are at most 64.
    """
    count: cython.Py_ssize_t = len(ids)
    start: cython.Py_ssize_t = (count * id_width + 7) >> 3
    buffer: object = bytearray(start + ((count * block_width + 7) >> 3))
    out: cython.uchar[::1] = memoryview(buffer)
    most: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << id_width) - 1
    if id_width == 64:
        most = _LARGEST
    parts: cython.ulonglong = 1 + cython.cast(cython.ulonglong, count // _AT_ONCE)
    step: cython.ulonglong = most // parts
    low: cython.ulonglong = 0
    high: cython.ulonglong
    done: cython.Py_ssize_t = 0
    # Some ids at a time, the lowest first: a buffer for all of them would be large.
    while done < count:
        high = low + step if most - low > step else most
        cells: object = _gather_ids(ids, counts, base, low, high, block_width)
        done += _put_ids(cells, out, start, done, id_width, block_width)
        low = high + 1
    return buffer


@cython.cfunc
def _gather_ids(
    ids: cython.ulonglong[::1],
    counts: cython.ulonglong[::1],
    base: cython.ulonglong,
    low: cython.ulonglong,
    high: cython.ulonglong,
    block_width: cython.Py_ssize_t,
) -> object:
    """Returns the ids between two bounds, each before its block, and room for as many."""
    count: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    with cython.nogil:
        for at in range(len(ids)):
            if ids[at] - base >= low and ids[at] - base <= high:
                count += 1
    found: object = memoryview(bytearray(2 * 8 * max(count, 1))).cast("Q")
    cells: cython.ulonglong[::1] = found
    block: cython.Py_ssize_t
    end: cython.Py_ssize_t = 0
    id: cython.ulonglong
    with cython.nogil:
        at = count = 0
        for block in range(len(counts)):
            end += cython.cast(cython.Py_ssize_t, counts[block])
            while at < end:
                id = ids[at] - base
                if id >= low and id <= high:
                    cells[count] = (id << block_width) | cython.cast(cython.ulonglong, block)
                    count += 1
                at += 1
    return found[: 2 * count]


@cython.cfunc
def _put_ids(
    found: object,
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    done: cython.Py_ssize_t,
    id_width: cython.Py_ssize_t,
    block_width: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Sorts the first half of an array, and appends it to the result; returns how many."""
    count: cython.Py_ssize_t = len(found) // 2
    if count == 0:
        return 0
    cells: cython.ulonglong[::1] = found
    first: cython.Py_ssize_t = sort(cells, count, 1, 1)
    mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << block_width) - 1
    at: cython.Py_ssize_t
    cell: cython.ulonglong
    with cython.nogil:
        for at in range(count):
            cell = cells[first + at]
            put_bits(out, 0, (done + at) * id_width, id_width, cell >> block_width)
            put_bits(out, start, (done + at) * block_width, block_width, cell & mask)
    return count


@cython.final
@cython.cclass
class KeyHeap:
    """Keys with a tag each; the lowest key is `deadline`, `id` and `tag`, if `count` is not 0."""

    def __init__(self) -> None:
        self._cells = memoryview(bytearray(8 * _CELL * _FIRST_KEYS)).cast("Q")
        self.count = 0
        self.deadline = self.id = self.tag = 0

    def push(self, deadline: cython.ulonglong, id: cython.ulonglong, tag: cython.ulonglong) -> None:
        """Adds a key."""
        at: cython.Py_ssize_t = self.count
        if _CELL * at >= len(self._cells):
            self._grow()
        self.count = at + 1
        up: cython.Py_ssize_t
        while at > 0:
            up = (at - 1) >> 1
            if not self._is_below(deadline, id, up):
                break
            self._move(up, at)
            at = up
        self._put(at, deadline, id, tag)
        self._show()

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def pop(self) -> cython.void:
        """Drops the lowest key."""
        last: cython.Py_ssize_t = self.count - 1
        self.count = last
        if last > 0:
            self.replace(
                self._cells[_CELL * last],
                self._cells[_CELL * last + 1],
                self._cells[_CELL * last + 2],
            )

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def replace(
        self, deadline: cython.ulonglong, id: cython.ulonglong, tag: cython.ulonglong
    ) -> cython.void:
        """Adds a key after dropping the lowest one."""
        at: cython.Py_ssize_t = 0
        down: cython.Py_ssize_t = 1
        while down < self.count:
            if down + 1 < self.count and self._is_below(
                self._cells[_CELL * (down + 1)], self._cells[_CELL * (down + 1) + 1], down
            ):
                down += 1
            if self._is_below(deadline, id, down):
                break
            self._move(down, at)
            at = down
            down = 2 * at + 1
        self._put(at, deadline, id, tag)
        self._show()

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_below(
        self, deadline: cython.ulonglong, id: cython.ulonglong, at: cython.Py_ssize_t
    ) -> cython.bint:
        """Returns whether a key is below the one in a cell."""
        other: cython.ulonglong = self._cells[_CELL * at]
        return deadline < other or (deadline == other and id < self._cells[_CELL * at + 1])

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(
        self,
        at: cython.Py_ssize_t,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
        tag: cython.ulonglong,
    ) -> cython.void:
        self._cells[_CELL * at] = deadline
        self._cells[_CELL * at + 1] = id
        self._cells[_CELL * at + 2] = tag

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _move(self, source: cython.Py_ssize_t, target: cython.Py_ssize_t) -> cython.void:
        self._cells[_CELL * target] = self._cells[_CELL * source]
        self._cells[_CELL * target + 1] = self._cells[_CELL * source + 1]
        self._cells[_CELL * target + 2] = self._cells[_CELL * source + 2]

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _show(self) -> cython.void:
        self.deadline = self._cells[0]
        self.id = self._cells[1]
        self.tag = self._cells[2]

    @cython.cfunc
    def _grow(self) -> object:
        self._cells = grown(self._cells, 2 * len(self._cells))


@cython.cfunc
def grown(numbers: cython.ulonglong[::1], count: cython.Py_ssize_t) -> object:
    """Returns a larger array that starts with the same numbers; the rest is 0."""
    larger: cython.ulonglong[::1] = memoryview(bytearray(8 * count)).cast("Q")
    larger[: len(numbers)] = numbers
    return larger if not cython.compiled else larger.base


@cython.cclass
class Cursor:
    """A place in a run of a kind. The key is that of the next entry, or past all keys at the end.

    `load` returns the next block, or None after the last; if it raises, the cursor does not move.
    """

    def __init__(
        self,
        kind: cython.Py_ssize_t,
        load: object,
        deadline: cython.ulonglong,
        id: cython.ulonglong,
    ) -> None:
        """Moves to the first entry whose key is not below the given one."""
        self.kind = kind
        self.load = load
        self.deadline = _LAST
        self.id = 0
        self.at = 0
        self.block = None
        self._next_block()
        if self.block is not None and (
            self.deadline < deadline or (self.deadline == deadline and self.id < id)
        ):
            self.at = self.block.search(deadline, id)
            self._settle()

    @cython.ccall
    def advance(self) -> cython.bint:
        """Moves to the next entry."""
        self.at += 1
        try:
            self._settle()
        except BaseException:
            self.at -= 1
            raise
        return True

    @cython.cfunc
    def _settle(self) -> object:
        if self.block is not None and self.at < self.block.count:
            self.deadline = self.block.deadline(self.at)
            self.id = self.block.id(self.at)
        else:
            self._next_block()

    @cython.cfunc
    def _next_block(self) -> object:
        block: Block = self.load()
        self.block = block
        self.at = 0
        if block is None:
            self.deadline = _LAST
            self.id = 0
        else:
            self.deadline = block.deadline(0)
            self.id = block.id(0)


@cython.cclass
class RunView:
    """Cursors over runs. One thread at a time may use it.

    After `meet`, `deadline` and `id` are the lowest key; `item` is the cursor of the item, if there
    is one; `dead` tells whether there is a tombstone; `count` and `time_ms` tell how often and when
    it was delivered, according to the marks. `passed` is how many keys were processed.
    """

    def __init__(self) -> None:
        self.cursors = []
        self._heap = KeyHeap()
        self._same = []
        self.met = self.dead = self.marked = False
        self.passed = 0
        self.item = None
        self.deadline = self.id = self.count = self.time_ms = 0

    def add(self, cursor: Cursor) -> None:
        """Adds a cursor."""
        self._part()
        self.cursors.append(cursor)
        self._push(len(self.cursors) - 1)

    @cython.ccall
    def meet(self) -> cython.bint:
        """Moves to the lowest key and stays there; returns whether there is one."""
        if self.met:
            return True
        heap: KeyHeap = self._heap
        if heap.count == 0:
            return False
        self.deadline = heap.deadline
        self.id = heap.id
        self.dead = self.marked = False
        self.item = None
        self.count = self.time_ms = 0
        cursor: Cursor
        dequeued: cython.ulonglong
        while heap.count > 0 and heap.deadline == self.deadline and heap.id == self.id:
            cursor = self.cursors[cython.cast(cython.Py_ssize_t, heap.tag)]
            self._same.append(heap.tag)
            heap.pop()
            if cursor.kind == _TOMBSTONES:
                self.dead = True
                continue
            dequeued = cursor.block.dequeue_count(cursor.at)
            if cursor.kind == _ITEMS:
                self.item = cursor
            else:
                self.marked = True
            if dequeued >= self.count:
                self.count = dequeued
                self.time_ms = cursor.block.enqueue_ms(cursor.at)
        self.met = True
        return True

    @cython.ccall
    def go_on(self) -> cython.bint:
        """Leaves the lowest key.

        Items move first: if the disk fails, no tombstone has moved on without the item that it
        removes.
        """
        cursor: Cursor
        tag: cython.Py_ssize_t
        try:
            for tag in self._same:
                cursor = self.cursors[tag]
                if cursor.kind == _ITEMS:
                    cursor.advance()
            for tag in self._same:
                cursor = self.cursors[tag]
                if cursor.kind != _ITEMS:
                    cursor.advance()
            self.passed += 1
        finally:
            self._part()
        return True

    @cython.cfunc
    def _part(self) -> object:
        """Puts the cursors at the lowest key back, each at its present place."""
        tag: cython.Py_ssize_t
        self.met = False
        for tag in self._same:
            self._push(tag)
        self._same.clear()

    @cython.cfunc
    def _push(self, at: cython.Py_ssize_t) -> object:
        cursor: Cursor = self.cursors[at]
        if cursor.deadline < _LAST:
            self._heap.push(cursor.deadline, cursor.id, cython.cast(cython.ulonglong, at))


# Results of a merge other than the kind of a full block: everything is merged; there is more to do,
# although no block is full.
END, MORE = 0, -1
_END = cython.declare(cython.Py_ssize_t, END)
_MORE = cython.declare(cython.Py_ssize_t, MORE)


def merge(
    view: RunView,
    full: cython.bint,
    items: BlockBuilder,
    tombstones: BlockBuilder,
    marks: BlockBuilder,
    limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Moves the result of a merge into blocks; returns the kind of a full one, or `END`.

    After `limit` keys it returns `MORE`, even if most of their items are gone: there are more keys.
    `full` means that no older run is left out: then tombstones and marks without an item are
    dropped. Otherwise they are kept, because an older run may hold that item.
    """
    block: Block
    at: cython.Py_ssize_t
    reason: bytes
    value: bytes
    while view.meet():
        if limit == 0:
            return _MORE
        limit -= 1
        if view.dead:
            if view.item is None and not full:
                if not tombstones.fits(0):
                    return TOMBSTONES
                tombstones.add(view.deadline, view.id, 0, 0, 0, 1, b"", b"")
        elif view.item is not None:
            block = view.item.block
            at = view.item.at
            reason = block.reason(at)
            value = block.value(at)
            if not items.fits(len(value) + len(reason)):
                return ITEMS
            items.add(
                view.deadline,
                view.id,
                block.enqueue_ms(at),
                block.requeue_ms(at),
                view.count,
                block.attributes(at),
                reason,
                value,
            )
        elif not full:
            if not marks.fits(0):
                return MARKS
            marks.add(view.deadline, view.id, view.time_ms, 0, view.count, 0, b"", b"")
        view.go_on()
    return _END


@cython.cclass
class Sources:
    """The next entries of some runs. `seeds` are the checksums of their salts."""

    _cells: cython.ulonglong[::1]
    _held: list

    def __init__(self, seeds: list) -> None:
        self._cells = memoryview(bytearray(8 * _CELLS * len(seeds) + 8)).cast("Q")
        # The objects that the addresses point into: they must stay alive.
        self._held = [None] * len(seeds)
        source: cython.Py_ssize_t
        for source in range(len(seeds)):
            self._cells[_CELLS * source + _SEED] = seeds[source]

    @cython.cfunc
    def feed(self, source: cython.Py_ssize_t, data: bytes, table: object) -> cython.bint:
        """Feeds a source its next blocks; returns whether it is at an entry now.

        A row of the table holds where a block starts, its number and its entries; the last one
        holds where they end. The bytes may end earlier: a file may have been cut off.
        """
        bytes_view: cython.const[cython.uchar][::1] = data
        table_view: cython.const[cython.ulonglong][::1] = table
        base: cython.Py_ssize_t = _CELLS * source
        self._held[source] = (data, table)
        if cython.compiled:
            self._cells[base + _DATA] = cython.cast(cython.size_t, cython.address(bytes_view[0]))
            self._cells[base + _TABLE] = cython.cast(cython.size_t, cython.address(table_view[0]))
        else:
            held = memoryview(data), memoryview(table).cast("B")
            self._held[source] = held
            self._cells[base + _DATA], self._cells[base + _TABLE] = map(address_of, held)
        self._cells[base + _SIZE] = cython.cast(cython.ulonglong, len(bytes_view))
        self._cells[base + _BLOCKS] = cython.cast(
            cython.ulonglong, len(table_view) // _BLOCK_ROW - 1
        )
        self._cells[base + _NEXT] = 0
        return self._enter(source)

    @cython.cfunc
    def forget(self, source: cython.Py_ssize_t) -> object:
        """Releases the blocks that a source was fed."""
        self._held[source] = None

    @cython.cfunc
    def feed_block(self, source: cython.Py_ssize_t, block: Block) -> object:
        """Feeds a source its next block, as it was read elsewhere."""
        base: cython.Py_ssize_t = _CELLS * source
        held: tuple = self._held[source]
        body: cython.ulonglong
        if cython.compiled:
            self._held[source] = (held[0], held[1], block)
            body = cython.cast(cython.size_t, cython.address(block.data[0]))
        else:
            view = memoryview(block.data)
            self._held[source] = (held[0], held[1], view)
            body = address_of(view)
        size: cython.ulonglong = cython.cast(cython.ulonglong, len(block.data))
        count: cython.ulonglong = cython.cast(cython.ulonglong, block.count)
        if not self._open(source, body, size, count):
            raise ValueError(f"a block of {size} bytes and {count} entries")
        self._cells[base + _NEXT] += 1

    @cython.cfunc
    def skip_block(self, source: cython.Py_ssize_t) -> cython.bint:
        """Skips the next block of a source; returns whether it is at an entry now."""
        self._cells[_CELLS * source + _NEXT] += 1
        return self._enter(source)

    @cython.cfunc
    def next_block(self, source: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns which of the blocks that a source was fed is next."""
        return self._cells[_CELLS * source + _NEXT]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def advance(self, source: cython.Py_ssize_t) -> cython.bint:
        """Moves to the next entry of a source; False if it needs more blocks."""
        base: cython.Py_ssize_t = _CELLS * source
        self._cells[base + _REASON_AT] += self.number(source, _REASON)
        self._cells[base + _VALUE_AT] += self.number(source, _VALUE)
        self._cells[base + _AT] += 1
        if self._cells[base + _AT] < self._cells[base + _ENTRIES]:
            return True
        return self._enter(source)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def reason_at(self, source: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the address of the reason of the next entry of a source."""
        return self._cells[_CELLS * source + _REASON_AT]

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def value_at(self, source: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the address of the value of the next entry of a source."""
        return self._cells[_CELLS * source + _VALUE_AT]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def requeue_ms(self, source: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns when the next entry of a source was requeued last; 0: never."""
        base: cython.ulonglong = self._cells[_CELLS * source + _BASES + _REQUEUE]
        number: cython.ulonglong = self.number(source, _REQUEUE)
        return 0 if number == base else number - 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _enter(self, source: cython.Py_ssize_t) -> cython.bint:
        """Starts the next block of a source; False if there is none, or it is not plain."""
        base: cython.Py_ssize_t = _CELLS * source
        row: cython.ulonglong = 24 * self._cells[base + _NEXT]
        if self._cells[base + _NEXT] == self._cells[base + _BLOCKS]:
            return False
        row += self._cells[base + _TABLE]
        start: cython.ulonglong = _word_at(row)
        stop: cython.ulonglong = _word_at(row + 24)
        room: cython.ulonglong = stop - start
        if stop > self._cells[base + _SIZE] or room < cython.cast(
            cython.ulonglong, _BLOCK_HEAD + _HEAD
        ):
            return False
        head: cython.ulonglong = self._cells[base + _DATA] + start
        count: cython.ulonglong = _number_at(head + 8, 4)
        size: cython.ulonglong = _number_at(head + 12, 4)
        if (
            _number_at(head, 4) != _BLOCK_MARK
            or _number_at(head + 4, 4) != _word_at(row + 8)
            or count != _word_at(row + 16)
            or size > room - _BLOCK_HEAD
            or size != _number_at(head + 16, 4)
            or _block_check(self._cells[base + _SEED], head, size) != _number_at(head + 20, 4)
            or not self._open(source, head + _BLOCK_HEAD, size, count)
        ):
            return False
        self._cells[base + _NEXT] += 1
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _open(
        self,
        source: cython.Py_ssize_t,
        body: cython.ulonglong,
        size: cython.ulonglong,
        count: cython.ulonglong,
    ) -> cython.bint:
        """Moves to the first entry of a block; False if columns and sizes do not fill its bytes."""
        if (
            size < cython.cast(cython.ulonglong, _HEAD)
            or count < 1
            or count > cython.cast(cython.ulonglong, _ENTRIES_MAX)
        ):
            return False
        base: cython.Py_ssize_t = _CELLS * source
        position: cython.ulonglong = body + _HEAD
        width: cython.ulonglong
        column: cython.Py_ssize_t
        for column in range(_COLUMNS):
            width = _number_at(body + _BASES_BYTES + column, 1)
            if width > 64:
                return False
            self._cells[base + _BASES + column] = _number_at(body + 8 * column, 8)
            self._cells[base + _WIDTHS + column] = width
            self._cells[base + _STARTS + column] = position
            position += (count * width + 7) >> 3
        stop: cython.ulonglong = body + size
        if position > stop:
            return False
        self._cells[base + _STOP] = stop
        self._cells[base + _ENTRIES] = count
        at: cython.ulonglong
        if self._cells[base + _WIDTHS + _ATTRIBUTES] > 0:
            for at in range(count):
                self._cells[base + _AT] = at
                if self.number(source, _ATTRIBUTES) > _IS_BURIED:
                    return False
        elif self._cells[base + _BASES + _ATTRIBUTES] > _IS_BURIED:
            return False
        self._cells[base + _REASON_AT] = position
        position = self._skip_sizes(source, _REASON, position)
        self._cells[base + _VALUE_AT] = position
        position = self._skip_sizes(source, _VALUE, position)
        self._cells[base + _AT] = 0
        return position == stop

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _skip_sizes(
        self, source: cython.Py_ssize_t, column: cython.Py_ssize_t, position: cython.ulonglong
    ) -> cython.ulonglong:
        """Returns the end of all reasons or values from an address on; past the block if bad."""
        base: cython.Py_ssize_t = _CELLS * source
        stop: cython.ulonglong = self._cells[base + _STOP]
        size: cython.ulonglong
        at: cython.ulonglong
        for at in range(self._cells[base + _ENTRIES]):
            self._cells[base + _AT] = at
            size = self.number(source, column)
            if position > stop or size > stop - position:
                return stop + 1
            position += size
        return position

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def number(self, source: cython.Py_ssize_t, column: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the number of the next entry of a source in a column."""
        base: cython.Py_ssize_t = _CELLS * source
        width: cython.ulonglong = self._cells[base + _WIDTHS + column]
        least: cython.ulonglong = self._cells[base + _BASES + column]
        if width == 0:
            return least
        bit: cython.ulonglong = width * self._cells[base + _AT]
        address: cython.ulonglong = self._cells[base + _STARTS + column] + (bit >> 3)
        return (least + _bits_at(address, bit & 7, width, self._cells[base + _STOP])) & _LARGEST


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _bits_at(
    address: cython.ulonglong,
    shift: cython.ulonglong,
    width: cython.ulonglong,
    stop: cython.ulonglong,
) -> cython.ulonglong:
    """Reads some bits at a distance from an address, and no byte from `stop` on."""
    bits: cython.ulonglong = shift + width
    code: cython.ulonglong
    if address + 8 <= stop:
        code = _number_at(address, 8) >> shift
    else:
        code = _number_at(address, cython.cast(cython.Py_ssize_t, (bits + 7) >> 3)) >> shift
    if bits > 64:
        code |= _number_at(address + 8, 1) << (64 - shift)
    if width < 64:
        code &= (cython.cast(cython.ulonglong, 1) << width) - 1
    return code & _LARGEST


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number_at(address: cython.ulonglong, size: cython.Py_ssize_t) -> cython.ulonglong:
    """Reads a number of some bytes, the lowest first."""
    number: cython.ulonglong = 0
    at: cython.Py_ssize_t
    if cython.compiled:
        data: cython.p_uchar = cython.cast(cython.p_uchar, cython.cast(cython.size_t, address))
        for at in range(size):
            number |= cython.cast(cython.ulonglong, data[at]) << (8 * at)
    else:
        number = int.from_bytes(bytes_at(address, size), "little")
    return number


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _word_at(address: cython.ulonglong) -> cython.ulonglong:
    """Reads a machine word."""
    word: cython.ulonglong
    if cython.compiled:
        word = cython.cast(cython.pointer(cython.ulonglong), cython.cast(cython.size_t, address))[0]
    else:
        word = int.from_bytes(bytes_at(address, 8), sys.byteorder)
    return word


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _block_check(
    seed: cython.ulonglong, head: cython.ulonglong, size: cython.ulonglong
) -> cython.ulonglong:
    """Returns the checksum of a block with this many bytes after its head."""
    crc: cython.uint
    if cython.compiled:
        data: cython.p_uchar = cython.cast(cython.p_uchar, cython.cast(cython.size_t, head))
        crc = direct(cython.cast(cython.uint, seed), data, 20)
        crc = direct(crc, data + 24, cython.cast(cython.size_t, size))
    else:
        block = bytes_at(head, 24 + size)
        crc = sum_bytes(block, 24, size, sum_bytes(block, 0, 20, seed))
    return crc


@cython.cclass
class Merger:
    """A merge of sources of several kinds; a hungry source must be fed, and all start hungry.

    `builders` hold items, tombstones and marks. `streams` make blocks from them; if they are None,
    each block is full at once. `seeds` are the checksums of the salts. `passed` is how many keys
    were merged so far.
    """

    source = cython.declare(cython.Py_ssize_t, visibility="readonly")
    kind = cython.declare(cython.Py_ssize_t, visibility="readonly")
    passed = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _full: cython.bint
    _items: BlockBuilder
    _tombstones: BlockBuilder
    _marks: BlockBuilder
    _item_stream: BlockStream
    _tombstone_stream: BlockStream
    _mark_stream: BlockStream
    _has_streams: cython.bint
    _sources: Sources
    _heap: KeyHeap
    _kinds: cython.ulonglong[::1]
    _hungry: cython.ulonglong[::1]
    _hungry_count: cython.Py_ssize_t
    # The key that was met, and what is left of it.
    _met: cython.bint
    _has_item: cython.bint
    _dead: cython.bint
    _deadline: cython.ulonglong
    _id: cython.ulonglong
    _count: cython.ulonglong
    _time_ms: cython.ulonglong
    _enqueue_ms: cython.ulonglong
    _requeue_ms: cython.ulonglong
    _attributes: cython.ulonglong
    _reason_at: cython.ulonglong
    _reason_size: cython.Py_ssize_t
    _value_at: cython.ulonglong
    _value_size: cython.Py_ssize_t

    def __init__(
        self, full: cython.bint, kinds: list, seeds: list, builders: list, streams: list
    ) -> None:
        self._full = full
        self._items, self._tombstones, self._marks = builders
        self._item_stream, self._tombstone_stream, self._mark_stream = streams
        self._has_streams = None not in streams
        self._sources = Sources(seeds)
        self._heap = KeyHeap()
        count: cython.Py_ssize_t = len(kinds)
        self._kinds = memoryview(bytearray(8 * count + 8)).cast("Q")
        self._hungry = memoryview(bytearray(8 * count + 8)).cast("Q")
        self._hungry_count = count
        at: cython.Py_ssize_t
        for at in range(count):
            self._kinds[at] = kinds[at]
            self._hungry[at] = cython.cast(cython.ulonglong, at)
        self._met = False
        self.source = self.kind = self.passed = 0

    @property
    def block(self) -> int:
        """Returns which of the blocks that the hungry source was fed is next."""
        return self._sources.next_block(self.source)

    def feed(self, data: bytes, table: object) -> None:
        """Feeds the hungry source its next blocks.

        A row of the table holds where a block starts, its number and its entries; the last one
        holds where they end.
        """
        if self._sources.feed(self.source, data, table):
            self._take_in()

    def forget(self) -> None:
        """Releases the blocks that the hungry source was fed."""
        self._sources.forget(self.source)

    def feed_block(self, block: Block) -> None:
        """Feeds the hungry source its next block, as it was read elsewhere."""
        self._sources.feed_block(self.source, block)
        self._take_in()

    def skip_block(self) -> None:
        """Makes the hungry source skip its next block."""
        if self._sources.skip_block(self.source):
            self._take_in()

    def end_source(self) -> None:
        """Marks the hungry source as having no more blocks."""
        self._hungry_count -= 1

    @cython.cfunc
    def _take_in(self) -> object:
        """Includes the hungry source again."""
        self._hungry_count -= 1
        self._heap.push(
            self._sources.number(self.source, _DEADLINE),
            self._sources.number(self.source, _ID),
            cython.cast(cython.ulonglong, self.source),
        )

    def run(self) -> cython.int:
        """Runs until something is needed; returns what is needed."""
        needed: cython.int = _NO_ROOM
        while needed == _NO_ROOM:
            with cython.nogil:
                needed = self._run()
            if needed == _NO_ROOM:
                # Tombstones and marks need room only for numbers.
                self._items.reserve(self._reason_size, self._value_size)
                self._tombstones.reserve(0, 0)
                self._marks.reserve(0, 0)
        return needed

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _run(self) -> cython.int:
        """Walks from key to key."""
        needed: cython.int
        while True:
            if not self._met:
                if self._hungry_count > 0:
                    self.source = cython.cast(
                        cython.Py_ssize_t, self._hungry[self._hungry_count - 1]
                    )
                    return _HUNGRY
                if self._heap.count == 0:
                    return _DONE
                self._meet()
            needed = self._put()
            if needed != _DONE:
                return needed
            self._met = False
            self.passed += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _meet(self) -> cython.void:
        """Records all entries of the lowest key, and moves past them."""
        self._met = True
        self._deadline = self._heap.deadline
        self._id = self._heap.id
        self._has_item = self._dead = False
        self._count = self._time_ms = 0
        source: cython.Py_ssize_t
        while (
            self._heap.count > 0
            and self._heap.deadline == self._deadline
            and self._heap.id == self._id
        ):
            source = cython.cast(cython.Py_ssize_t, self._heap.tag)
            self._note(source)
            if self._sources.advance(source):
                self._heap.replace(
                    self._sources.number(source, _DEADLINE),
                    self._sources.number(source, _ID),
                    self._heap.tag,
                )
            else:
                self._heap.pop()
                self._hungry[self._hungry_count] = cython.cast(cython.ulonglong, source)
                self._hungry_count += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _note(self, source: cython.Py_ssize_t) -> cython.void:
        """Records the next entry of a source."""
        kind: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._kinds[source])
        if kind == _TOMBSTONES:
            self._dead = True
            return
        count: cython.ulonglong = self._sources.number(source, _COUNT)
        time_ms: cython.ulonglong = self._sources.number(source, _ENQUEUE)
        if count >= self._count:
            self._count = count
            self._time_ms = time_ms
        if kind == _ITEMS:
            self._has_item = True
            self._enqueue_ms = time_ms
            self._requeue_ms = self._sources.requeue_ms(source)
            self._attributes = self._sources.number(source, _ATTRIBUTES)
            self._reason_at = self._sources.reason_at(source)
            self._reason_size = self._sources.number(source, _REASON)
            self._value_at = self._sources.value_at(source)
            self._value_size = self._sources.number(source, _VALUE)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(self) -> cython.int:
        """Puts what is left of the key into its block; returns what is needed for that, or 0."""
        taken: cython.int = 0
        while True:
            if self._dead:
                if self._has_item or self._full:
                    return _DONE
                self.kind = _TOMBSTONES
                taken = self._tombstones.add_raw(self._deadline, self._id, 0, 0, 0, 1, 0, 0, 0, 0)
            elif self._has_item:
                self.kind = _ITEMS
                taken = self._items.add_raw(
                    self._deadline,
                    self._id,
                    self._enqueue_ms,
                    self._requeue_ms,
                    self._count,
                    self._attributes,
                    self._reason_at,
                    self._reason_size,
                    self._value_at,
                    self._value_size,
                )
            elif self._full:
                return _DONE
            else:
                self.kind = _MARKS
                taken = self._marks.add_raw(
                    self._deadline, self._id, self._time_ms, 0, self._count, 0, 0, 0, 0, 0
                )
            if taken > 0:
                return _DONE
            if taken < 0:
                return _NO_ROOM
            if not self._has_streams or not self._end_block():
                return _FULL

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _end_block(self) -> cython.bint:
        """Makes a block from the builder of the kind; False if there is no room."""
        if self.kind == _ITEMS:
            return self._item_stream.end_block()
        if self.kind == _TOMBSTONES:
            return self._tombstone_stream.end_block()
        return self._mark_stream.end_block()
