"""The loops of Beats segments: their frames, and the CBOR in them. Page: docs/formats/beats.md.

A frame is `u32 size | payload | u32 crc | u32 size`, little-endian. The size counts all four parts,
so a frame is 12 bytes longer than its payload, which is never empty. The CRC-32 covers the leading
size and the payload. Nothing in a frame shows its place in the segment.

`check_cbor` walks over the CBOR of an event before it is passed to a decoder, and creates no
objects. It rejects what must not reach the decoder: tags (and with them bignums and values that
contain themselves), endless nesting, and lengths that exceed the bytes present.

`Transcoder` makes the JSON text of an event from the CBOR that Beats writes, without an object per
field. For anything it cannot handle it returns None, so that the caller uses the slow way (decode,
then `json.dumps` in the text form of the page). Its text never differs from that of the slow way.

`is_simple` returns whether a value can be written to an event without further checks. A value that
is not simple may still be valid in an event: the slow way decides that, and reports what is wrong
with it.
"""

from __future__ import annotations

import struct
from array import array
from binascii import b2a_base64

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.conversion import Py_DTSF_ADD_DOT_0, PyOS_double_to_string
    from cython.cimports.cpython.mem import PyMem_Free
    from cython.cimports.forebay.kernels.buffers import (
        copy_bytes,
        get32,
        put32,
        put_bytes,
        sum_bytes,
        take_bytes,
    )
    from cython.cimports.libc.string import memcmp, memcpy
else:
    from forebay.kernels.buffers import copy_bytes, get32, put32, put_bytes, sum_bytes, take_bytes

FRAME_BYTES = 12
GAVE_UP = -2
_FRAME = cython.declare(cython.Py_ssize_t, FRAME_BYTES)
_SUMMED_MIN = cython.declare(cython.Py_ssize_t, 64 << 20)
_SUMMED_RATIO = cython.declare(cython.Py_ssize_t, 16)


@cython.cfunc
@cython.inline
def _good_size(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Returns the size of the frame at `position` if both of its sizes agree, else 0."""
    if end - position <= _FRAME:
        return 0
    size: cython.Py_ssize_t = get32(data, position)
    if size <= _FRAME or size > end - position:
        return 0
    again: cython.Py_ssize_t = get32(data, position + size - 4)
    return size if again == size else 0


@cython.cfunc
@cython.inline
def _verified_size(
    data: cython.const[cython.uchar][::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Returns the size of the frame at `position` if it verifies, else 0."""
    size: cython.Py_ssize_t = _good_size(data, position, end)
    if size == 0 or get32(data, position + size - 8) != sum_bytes(data, position, size - 8, 0):
        return 0
    return size


def encode(
    values: list, first: cython.Py_ssize_t, count: cython.Py_ssize_t, buffer: object
) -> cython.Py_ssize_t:
    """Writes the frames of `count` values to the start of `buffer`; returns their size."""
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    value: bytes
    number: cython.Py_ssize_t
    for number in range(first, first + count):
        value = values[number]
        size = len(value) + _FRAME
        put32(out, position, size)
        put_bytes(out, position + 4, value, size - _FRAME)
        put32(out, position + size - 8, sum_bytes(out, position, size - 8, 0))
        put32(out, position + size - 4, size)
        position += size
    return position


def scan(buffer: object, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> tuple:
    """Verifies frames from `position` on; returns their payloads and where it stopped.

    Stops at `limit` frames, at the end of the buffer, or at the first frame that does not verify.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    values: list = []
    size: cython.Py_ssize_t
    while limit > 0:
        size = _verified_size(data, position, end)
        if size == 0:
            break
        values.append(take_bytes(data, position + 4, size - _FRAME))
        limit -= 1
        position += size
    return values, position


def find(buffer: object, position: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Searches byte by byte for the next frame that verifies; returns its position or -1.

    The two sizes are compared before any checksum is computed, so garbage does not cost checksums
    of megabytes. Bytes crafted to pass that test everywhere must not stall the search: it ends once
    it has summed a multiple of its input, and returns `GAVE_UP`: good frames may follow.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    left: cython.Py_ssize_t = _SUMMED_MIN + _SUMMED_RATIO * (end - position)
    size: cython.Py_ssize_t
    while left > 0 and end - position > _FRAME:
        size = _good_size(data, position, end)
        if size != 0:
            if get32(data, position + size - 8) == sum_bytes(data, position, size - 8, 0):
                return position
            left -= size
        position += 1
    return -1 if left > 0 else GAVE_UP


def hop(
    buffer: object, position: cython.Py_ssize_t, target: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Counts the frames from `position` to `target` by their leading sizes alone.

    Returns -1 if the sizes do not lead exactly there.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    while target - position > _FRAME:
        size = get32(data, position)
        if size <= _FRAME:
            return -1
        position += size
        count += 1
    return count if position == target else -1


def gather(
    buffer: object,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    payload: object,
    ends: object,
    positions: object,
) -> tuple:
    """Verifies frames and lays out their payloads for Arrow.

    The payloads go into `payload` one after another, their ends into `ends` (int32, after a first 0
    that is already there), and the positions of their frames into `positions` (int64, counted from
    the start of the buffer). Returns (count, position).
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    out: cython.uchar[::1] = memoryview(payload)
    out_ends: cython.int[::1] = memoryview(ends)
    out_positions: cython.longlong[::1] = memoryview(positions)
    end: cython.Py_ssize_t = len(data)
    room: cython.Py_ssize_t = len(out)
    size: cython.Py_ssize_t
    number: cython.Py_ssize_t = 0
    used: cython.Py_ssize_t = 0
    while number < limit:
        size = _verified_size(data, position, end)
        if size == 0 or size - _FRAME > room - used:
            break
        copy_bytes(out, used, data, position + 4, size - _FRAME)
        used += size - _FRAME
        out_positions[number] = position
        number += 1
        out_ends[number] = used
        position += size
    return number, position


def find_block(
    buffer: object, position: cython.Py_ssize_t, stored_max: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Searches for the next place that can be an LZ4 block: its size fits in the buffer.

    The highest bit of the size means that the block is not compressed. Returns -1 if there is none.
    """
    data: cython.const[cython.uchar][::1] = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    size: cython.Py_ssize_t
    while end - position > 4:
        size = get32(data, position) & 0x7FFFFFFF
        if 0 < size <= stored_max and size <= end - position - 4:
            return position
        position += 1
    return -1


NESTING_MAX = 100

# Results of `check_cbor` other than 0: the event holds `undefined`, or what is wrong with it.
UNDEFINED = 1
TRUNCATED = -1
TOO_DEEP = -2
TAGGED = -3
KEY_NOT_TEXT = -4
TRAILING = -5
MALFORMED = -6
SIMPLE_VALUE = -7
NOT_A_MAP = -8

# Remaining items in a container of unknown length: a list, or a map before a key or a value.
_LIST = cython.declare(cython.longlong, -3)
_BEFORE_KEY = cython.declare(cython.longlong, -2)
_BEFORE_VALUE = cython.declare(cython.longlong, -1)


def check_cbor(data: bytes) -> int:
    """Returns whether the bytes are one event that is safe to decode: 0, UNDEFINED or an error."""
    walk = _Walk(data)
    first: cython.int = walk.head()
    if first < 0:
        return first
    if first >> 5 != 5:
        return NOT_A_MAP
    state: cython.int = walk.open(first)
    while state >= 0 and walk.depth > 0:
        if walk.left[walk.depth - 1] == 0:
            walk.depth -= 1
        else:
            state = walk.item()
    if state < 0:
        return state
    return walk.flags if walk.position == walk.end else TRAILING


@cython.cclass
class _Walk:
    """The state of a check: the open containers, and the last head that was read."""

    data: cython.const[cython.uchar][::1]
    left: cython.longlong[101]
    is_map: cython.bint[101]
    position: cython.Py_ssize_t
    end: cython.Py_ssize_t
    depth: cython.Py_ssize_t
    argument: cython.ulonglong
    flags: cython.int

    def __init__(self, data: bytes) -> None:
        self.data = data
        if not cython.compiled:
            self.left = [0] * (NESTING_MAX + 1)
            self.is_map = [False] * (NESTING_MAX + 1)
        self.position = 0
        self.end = len(data)
        self.depth = 0
        self.flags = 0

    @cython.cfunc
    def head(self) -> cython.int:
        """Reads one head: returns its first byte, or an error; its number is in `argument`."""
        if self.position >= self.end:
            return TRUNCATED
        first: cython.int = self.data[self.position]
        info: cython.int = first & 31
        self.position += 1
        if info < 24 or info == 31:
            self.argument = cython.cast(cython.ulonglong, info)
            return first
        if info > 27:
            return MALFORMED
        width: cython.Py_ssize_t = 1 << (info - 24)
        if self.end - self.position < width:
            return TRUNCATED
        self.argument = 0
        stop: cython.Py_ssize_t = self.position + width
        while self.position < stop:
            self.argument = (self.argument << 8) | self.data[self.position]
            self.position += 1
        return first

    @cython.cfunc
    def string(self, first: cython.int) -> cython.int:
        """Skips the bytes of a string, which may come in parts."""
        if first & 31 != 31:
            if self.argument > cython.cast(cython.ulonglong, self.end - self.position):
                return TRUNCATED
            self.position += cython.cast(cython.Py_ssize_t, self.argument)
            return 0
        part: cython.int = self.head()
        while part != 0xFF:
            if part < 0:
                return part
            if part >> 5 != first >> 5 or part & 31 == 31:
                return MALFORMED
            part = self.string(part)
            if part < 0:
                return part
            part = self.head()
        return 0

    @cython.cfunc
    def open(self, first: cython.int) -> cython.int:
        """Opens a list or a map."""
        if self.depth >= NESTING_MAX:
            return TOO_DEEP
        is_map: cython.bint = first >> 5 == 5
        items: cython.longlong = _BEFORE_KEY if is_map else _LIST
        if first & 31 != 31:
            # An item takes at least a byte: a larger count cannot be true.
            if self.argument > cython.cast(cython.ulonglong, self.end - self.position):
                return TRUNCATED
            items = cython.cast(cython.longlong, self.argument) * (2 if is_map else 1)
        self.left[self.depth] = items
        self.is_map[self.depth] = is_map
        self.depth += 1
        return 0

    @cython.cfunc
    def item(self) -> cython.int:
        """Reads one item, or the mark that ends a container of unknown length."""
        first: cython.int = self.head()
        if first < 0:
            return first
        left: cython.longlong = self.left[self.depth - 1]
        if first == 0xFF:
            if left != _LIST and left != _BEFORE_KEY:
                return MALFORMED
            self.left[self.depth - 1] = 0
            return 0
        major: cython.int = first >> 5
        before_key: cython.bint = left == _BEFORE_KEY or (left > 0 and left % 2 == 0)
        if self.is_map[self.depth - 1] and before_key and major != 3:
            return KEY_NOT_TEXT
        if left > 0:
            self.left[self.depth - 1] = left - 1
        elif left != _LIST:
            self.left[self.depth - 1] = _BEFORE_VALUE if left == _BEFORE_KEY else _BEFORE_KEY
        if major == 6:
            return TAGGED
        if major == 4 or major == 5:
            return self.open(first)
        if major == 2 or major == 3:
            return self.string(first)
        if first & 31 == 31:
            return MALFORMED
        if major == 7:
            return self.special(first & 31)
        return 0

    @cython.cfunc
    def special(self, info: cython.int) -> cython.int:
        if info < 20 or info == 24:
            return SIMPLE_VALUE
        if info == 23:
            self.flags = UNDEFINED
        return 0


_EVENT_BYTES_MAX = cython.declare(cython.Py_ssize_t, 1 << 20)
# The most JSON bytes per byte of CBOR: an empty byte string, and the comma after it.
_GROWTH = cython.declare(cython.Py_ssize_t, 19)
_KEYS_MAX = cython.declare(cython.Py_ssize_t, 64)
_DEPTH_MAX = cython.declare(cython.Py_ssize_t, NESTING_MAX)
_HEX = cython.declare(bytes, b"0123456789abcdef")
# What follows the backslash for a character below 93; a space if it has no short form.
_SHORT = cython.declare(bytes, b"        btn fr".ljust(34) + b'"'.ljust(58) + b"\\")


@cython.cclass
class Transcoder:
    """Makes the JSON text of events. One thread at a time may use it; it keeps its memory."""

    _data: cython.const[cython.uchar][::1]
    _out: cython.uchar[::1]
    _scratch: object
    # Where the keys of the open maps are: two numbers per key, a row for each depth.
    _spans: cython.longlong[::1]
    _position: cython.Py_ssize_t
    _end: cython.Py_ssize_t
    _used: cython.Py_ssize_t
    _major: cython.int
    _info: cython.int
    _argument: cython.ulonglong

    def __init__(self) -> None:
        self._scratch = bytearray(1 << 14)
        self._out = memoryview(self._scratch)
        self._spans = memoryview(array("q", bytes(16 * 101 * 64)))

    def event(self, payload: bytes) -> tuple | None:
        """Returns (timestamp, flags, meta, fields) of an event, the maps as JSON in UTF-8.

        Returns None if the slow way must decide: the event is damaged, unusual or large.
        """
        if not self._begin(payload) or not self._head() or self._major != 5:
            return None
        left: cython.ulonglong = self._argument
        if left > 4:
            return None
        timestamp: object = 0
        flags: object = 0
        meta: bytes = b"{}"
        fields: bytes = b"{}"
        seen: cython.int = 0
        bit: cython.int
        while left > 0:
            left -= 1
            bit = self._key_of_event()
            if bit == 0 or seen & bit or not self._head():
                return None
            seen |= bit
            if bit == 1 and self._major <= 1 and self._argument < (1 << 63):
                timestamp = self._argument if self._major == 0 else -1 - int(self._argument)
            elif bit == 2 and self._major == 0 and self._argument < (1 << 32):
                flags = self._argument
            elif bit > 2 and self._major == 5:
                self._used = 0
                if not self._map(1):
                    return None
                if bit == 4:
                    meta = self._text()
                else:
                    fields = self._text()
            else:
                return None
        return (timestamp, flags, meta, fields) if self._position == self._end else None

    @cython.cfunc
    def _begin(self, payload: bytes) -> cython.bint:
        size: cython.Py_ssize_t = len(payload)
        if size > _EVENT_BYTES_MAX:
            return False
        if len(self._scratch) < size * _GROWTH + 64:
            self._scratch = bytearray(size * _GROWTH + 64)
            self._out = memoryview(self._scratch)
        self._data = payload
        self._position = 0
        self._end = size
        return True

    @cython.cfunc
    def _text(self) -> bytes:
        if cython.compiled:
            return PyBytes_FromStringAndSize(
                cython.cast(cython.p_char, cython.address(self._out[0])), self._used
            )
        return bytes(self._out[: self._used])

    @cython.cfunc
    def _key_of_event(self) -> cython.int:
        """Reads a key of the event itself: 1 timestamp, 2 flags, 4 meta, 8 fields, 0 another."""
        if not self._head() or self._major != 3 or self._argument > 9:
            return 0
        size: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._argument)
        start: cython.Py_ssize_t = self._position
        if size > self._end - start:
            return 0
        self._position += size
        if size == 9:
            return 1 if self._is_text(start, b"timestamp") else 0
        if size == 5:
            return 2 if self._is_text(start, b"flags") else 0
        if size == 4:
            return 4 if self._is_text(start, b"meta") else 0
        return 8 if size == 6 and self._is_text(start, b"fields") else 0

    @cython.cfunc
    @cython.inline
    def _is_text(self, position: cython.Py_ssize_t, text: bytes) -> cython.bint:
        size: cython.Py_ssize_t = len(text)
        if not cython.compiled:
            return self._data[position : position + size] == text
        start: cython.p_char = text
        return memcmp(cython.address(self._data[position]), start, size) == 0

    @cython.cfunc
    @cython.inline
    def _is_same(
        self, one: cython.Py_ssize_t, other: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.bint:
        if not cython.compiled:
            return self._data[one : one + size] == self._data[other : other + size]
        return memcmp(cython.address(self._data[one]), cython.address(self._data[other]), size) == 0

    @cython.cfunc
    def _head(self) -> cython.bint:
        """Reads one head of a known length."""
        if self._position >= self._end:
            return False
        first: cython.int = self._data[self._position]
        self._position += 1
        self._major = first >> 5
        self._info = first & 31
        if self._info < 24:
            self._argument = cython.cast(cython.ulonglong, self._info)
            return True
        if self._info > 27:
            return False
        width: cython.Py_ssize_t = 1 << (self._info - 24)
        if self._end - self._position < width:
            return False
        argument: cython.ulonglong = 0
        number: cython.Py_ssize_t
        for number in range(self._position, self._position + width):
            argument = (argument << 8) | self._data[number]
        self._argument = argument
        self._position += width
        return True

    @cython.cfunc
    def _value(self, depth: cython.Py_ssize_t) -> cython.bint:
        """Converts one value to text; False leaves it to the slow way."""
        if not self._head():
            return False
        if self._major == 0:
            self._number(self._argument)
            return True
        if self._major == 1:
            if self._argument == cython.cast(cython.ulonglong, 0xFFFFFFFFFFFFFFFF):
                return False
            self._sign(45)
            self._number(self._argument + 1)
            return True
        if self._major == 2:
            return self._binary()
        if self._major == 3:
            return self._string()
        if self._major == 4:
            return self._list(depth)
        if self._major == 5:
            return self._map(depth)
        return self._major == 7 and self._special()

    @cython.cfunc
    def _list(self, depth: cython.Py_ssize_t) -> cython.bint:
        left: cython.ulonglong = self._argument
        if depth >= _DEPTH_MAX:
            return False
        self._sign(91)
        while left > 0:
            if not self._value(depth + 1):
                return False
            left -= 1
            if left > 0:
                self._sign(44)
        self._sign(93)
        return True

    @cython.cfunc
    def _map(self, depth: cython.Py_ssize_t) -> cython.bint:
        count: cython.ulonglong = self._argument
        if depth >= _DEPTH_MAX or count > cython.cast(cython.ulonglong, _KEYS_MAX):
            return False
        self._sign(123)
        number: cython.Py_ssize_t
        for number in range(cython.cast(cython.Py_ssize_t, count)):
            if number > 0:
                self._sign(44)
            if not self._head() or self._major != 3:
                return False
            if self._is_repeated(depth, number) or not self._string():
                return False
            self._sign(58)
            if not self._value(depth + 1):
                return False
        self._sign(125)
        return True

    @cython.cfunc
    def _is_repeated(self, depth: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.bint:
        """Records where a key is; returns whether the map already has it. The last one counts."""
        if self._argument > cython.cast(cython.ulonglong, self._end - self._position):
            return True
        size: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._argument)
        row: cython.Py_ssize_t = depth * 2 * _KEYS_MAX
        other: cython.Py_ssize_t
        number: cython.Py_ssize_t
        for number in range(count):
            if self._spans[row + 2 * number + 1] != size:
                continue
            other = cython.cast(cython.Py_ssize_t, self._spans[row + 2 * number])
            if self._is_same(other, self._position, size):
                return True
        self._spans[row + 2 * count] = self._position
        self._spans[row + 2 * count + 1] = size
        return False

    @cython.cfunc
    @cython.inline
    def _sign(self, sign: cython.uchar) -> cython.void:
        self._out[self._used] = sign
        self._used += 1

    @cython.cfunc
    def _put(self, text: bytes) -> cython.void:
        size: cython.Py_ssize_t = len(text)
        if not cython.compiled:
            self._out[self._used : self._used + size] = text
        elif size > 0:
            memcpy(cython.address(self._out[self._used]), cython.cast(cython.p_char, text), size)
        self._used += size

    @cython.cfunc
    def _number(self, value: cython.ulonglong) -> cython.void:
        digits: cython.Py_ssize_t = 1
        rest: cython.ulonglong = value // 10
        while rest > 0:
            digits += 1
            rest //= 10
        place: cython.Py_ssize_t = self._used + digits
        self._used = place
        while digits > 0:
            place -= 1
            digits -= 1
            self._out[place] = 48 + value % 10
            value //= 10

    @cython.cfunc
    def _special(self) -> cython.bint:
        if self._info == 20:
            self._put(b"false")
        elif self._info == 21:
            self._put(b"true")
        elif self._info == 22 or self._info == 23:
            self._put(b"null")
        elif self._info == 26 or self._info == 27:
            self._float()
        else:
            return False
        return True

    @cython.cfunc
    def _float(self) -> cython.void:
        value: cython.double = _number_of_bits(self._argument, self._info == 26)
        if value != value:
            self._put(b'{"$float":"nan"}')
        elif value - value != 0:
            self._put(b'{"$float":"inf"}' if value > 0 else b'{"$float":"-inf"}')
        elif not cython.compiled:
            self._put(repr(value).encode())
        else:
            text: cython.p_char = PyOS_double_to_string(
                value, b"r", 0, Py_DTSF_ADD_DOT_0, cython.NULL
            )
            self._put(text)
            PyMem_Free(text)

    @cython.cfunc
    def _binary(self) -> cython.bint:
        if self._argument > cython.cast(cython.ulonglong, self._end - self._position):
            return False
        stop: cython.Py_ssize_t = self._position + cython.cast(cython.Py_ssize_t, self._argument)
        self._put(b'{"$bytes_b64":"')
        self._put(b2a_base64(bytes(self._data[self._position : stop]), newline=False))
        self._put(b'"}')
        self._position = stop
        return True

    @cython.cfunc
    def _string(self) -> cython.bint:
        """Converts text to a JSON string; False if it is not UTF-8."""
        if self._argument > cython.cast(cython.ulonglong, self._end - self._position):
            return False
        position: cython.Py_ssize_t = self._position
        stop: cython.Py_ssize_t = position + cython.cast(cython.Py_ssize_t, self._argument)
        width: cython.Py_ssize_t
        sign: cython.uchar
        self._sign(34)
        while position < stop:
            sign = self._data[position]
            if sign >= 0x80:
                width = self._sequence(position, stop)
                if width == 0:
                    return False
                while width > 0:
                    self._sign(self._data[position])
                    position += 1
                    width -= 1
                continue
            if sign < 0x20 or sign == 34 or sign == 92:
                self._escape(sign)
            else:
                self._sign(sign)
            position += 1
        self._sign(34)
        self._position = stop
        return True

    @cython.cfunc
    def _escape(self, sign: cython.uchar) -> cython.void:
        short: cython.uchar = _SHORT[sign]
        self._sign(92)
        if short != 32:
            self._sign(short)
        else:
            self._put(b"u00")
            self._sign(_HEX[sign >> 4])
            self._sign(_HEX[sign & 15])

    @cython.cfunc
    def _sequence(self, position: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns how many bytes the UTF-8 of one character takes; 0 if it is not valid."""
        first: cython.int = self._data[position]
        width: cython.Py_ssize_t = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        if first < 0xC2 or first > 0xF4 or stop - position < width:
            return 0
        second: cython.int = self._data[position + 1]
        low: cython.int = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        high: cython.int = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if second < low or second > high:
            return 0
        number: cython.Py_ssize_t
        for number in range(position + 2, position + width):
            if self._data[number] & 0xC0 != 0x80:
                return 0
        return width


@cython.cfunc
def _number_of_bits(bits: cython.ulonglong, single: cython.bint) -> cython.double:
    if not cython.compiled:
        return struct.unpack(">f" if single else ">d", bits.to_bytes(4 if single else 8, "big"))[0]
    wide: cython.double = 0.0
    narrow: cython.float = 0.0
    low: cython.uint = cython.cast(cython.uint, bits & 0xFFFFFFFF)
    if single:
        memcpy(cython.address(narrow), cython.address(low), 4)
        return narrow
    memcpy(cython.address(wide), cython.address(bits), 8)
    return wide


_SIMPLE_DEPTH_MAX = cython.declare(cython.Py_ssize_t, 98)
_INTEGER_MIN = cython.declare(object, -(2**63))
_INTEGER_MAX = cython.declare(object, 2**64 - 1)


def is_simple(value: object) -> bool:
    """Returns whether a value is simple: of the types of JSON or bytes, and within all bounds."""
    return _is_simple(value, 0)


@cython.cfunc
def _is_simple(value: object, depth: cython.Py_ssize_t) -> cython.bint:
    kind: object = type(value)
    if kind is str:
        return _is_text(value)
    if kind is int:
        return _INTEGER_MIN <= value <= _INTEGER_MAX
    if kind is dict:
        return depth <= _SIMPLE_DEPTH_MAX and _is_simple_map(value, depth)
    if kind is list:
        return depth <= _SIMPLE_DEPTH_MAX and _is_simple_list(value, depth)
    if kind is float:
        return value - value == 0
    return value is None or kind is bool or kind is bytes


@cython.cfunc
def _is_simple_map(items: dict, depth: cython.Py_ssize_t) -> cython.bint:
    for key, item in items.items():
        if type(key) is not str or not key or not _is_text(key):
            return False
        if not _is_simple(item, depth + 1):
            return False
    return True


@cython.cfunc
def _is_simple_list(items: list, depth: cython.Py_ssize_t) -> cython.bint:
    simple: cython.bint = True
    for item in items:
        simple = _is_simple(item, depth + 1)
        if not simple:
            break
    return simple


@cython.cfunc
def _is_text(value: str) -> cython.bint:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
