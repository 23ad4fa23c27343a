"""Walks over the CBOR of an event before a decoder may have it. Page: docs/formats/beats.md.

Makes no object of it, so that what must not reach a decoder does not: tags (with them bignums and
values that hold themselves), nesting without end, and lengths of bytes that are not there.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

NESTING_MAX = 100

# What `check` gives, beside 0: that the event holds `undefined`, or what is wrong with it.
UNDEFINED = 1
TRUNCATED = -1
TOO_DEEP = -2
TAGGED = -3
KEY_NOT_TEXT = -4
TRAILING = -5
MALFORMED = -6
SIMPLE_VALUE = -7
NOT_A_MAP = -8

# Items that are left in a container of unknown length: a list, or a map before a key or a value.
_LIST = cython.declare(cython.longlong, -3)
_BEFORE_KEY = cython.declare(cython.longlong, -2)
_BEFORE_VALUE = cython.declare(cython.longlong, -1)


def check(data: bytes) -> int:
    """Says whether the bytes are one event that a decoder may have: 0, UNDEFINED or an error."""
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
    """Where a check stands: the containers that are open, and the head that was read last."""

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
        """Reads one head: gives its first byte, or an error; its number is in `argument`."""
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
        """Steps over the bytes of a string, which may come in parts."""
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
            # An item takes at least a byte: a count that is larger cannot be true.
            if self.argument > cython.cast(cython.ulonglong, self.end - self.position):
                return TRUNCATED
            items = cython.cast(cython.longlong, self.argument) * (2 if is_map else 1)
        self.left[self.depth] = items
        self.is_map[self.depth] = is_map
        self.depth += 1
        return 0

    @cython.cfunc
    def item(self) -> cython.int:
        """Takes one item, or the mark that ends a container of unknown length."""
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
