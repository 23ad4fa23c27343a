"""Makes the JSON text of an event from the CBOR that Beats writes, with no object for a field.

What it does not know, it leaves to its caller: it gives None, never another text than the slow way
gives (decode, then `json.dumps` in the text form of docs/formats/beats.md).
"""

from __future__ import annotations

import struct
from array import array
from binascii import b2a_base64

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.conversion import Py_DTSF_ADD_DOT_0, PyOS_double_to_string
    from cython.cimports.cpython.mem import PyMem_Free
    from cython.cimports.libc.string import memcmp, memcpy

COMPILED = cython.compiled
_EVENT_BYTES_MAX = cython.declare(cython.Py_ssize_t, 1 << 20)
# The most that a byte of CBOR becomes as JSON: an empty byte string, and the comma behind it.
_GROWTH = cython.declare(cython.Py_ssize_t, 19)
_KEYS_MAX = cython.declare(cython.Py_ssize_t, 64)
_DEPTH_MAX = cython.declare(cython.Py_ssize_t, 100)
_HEX = cython.declare(bytes, b"0123456789abcdef")
# What stands behind the backslash for a sign below 93; a space where the sign has no short form.
_SHORT = cython.declare(bytes, b"        btn fr".ljust(34) + b'"'.ljust(58) + b"\\")


@cython.cclass
class Transcoder:
    """Makes JSON text of events. One thread at a time may use it; it keeps its memory."""

    _data: cython.const[cython.uchar][::1]
    _out: cython.uchar[::1]
    _scratch: object
    # Where the keys of the open maps lie: two numbers a key, a row for each depth.
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
        """Gives (timestamp, flags, meta, fields) of an event, the maps as JSON in UTF-8.

        Gives None for what the slow way must decide: an event that is damaged, unusual or large.
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
        """Turns one value into text; False is for the slow way."""
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
        """Notes where a key lies; says whether the map has it already: then the last one counts."""
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
        """Turns text into a JSON string; False if it is not UTF-8."""
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
        """Gives how many bytes the UTF-8 of one character takes; 0 if it is none."""
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
