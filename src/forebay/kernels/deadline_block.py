"""The hot loops of a block of a deadline run: find and take its entries; pack numbers.

A block of n entries is eight columns, then their reasons and their values back to back:

    8 × u64 base | 8 × u8 width | the columns, n × width bits each, from the lowest bit on, filled
    up to a whole byte | reasons | values

The columns are deadline, id, enqueue time, requeue time, dequeue count, attributes, size of the
reason and size of the value. What is packed is the number minus the base of its column; of a
requeue time, 0 for never and else one more. A tombstone has 0 for its times and its count. So an
entry is found without unpacking others, except for the sizes. The page is
docs/formats/deadline.md.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

if cython.compiled:
    from cython.cimports.forebay.kernels import deadline_columns as columns
    from cython.cimports.forebay.kernels.little import get_number, take_bytes
else:
    from forebay.kernels import deadline_columns as columns
    from forebay.kernels.little import get_number, take_bytes

COLUMNS = 8
HEAD_BYTES = 72
TOMBSTONE, BURIED = 1, 2


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
    """Writes `width` bits into zeros, `bit` bits behind the byte `start`."""
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
    """Reads `width` bits, `bit` bits behind the byte `start`; no byte that holds none of them."""
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
    """Gives how many bits a number takes."""
    width: cython.Py_ssize_t = 0
    while number > 0:
        number >>= 1
        width += 1
    return width


def pack(numbers: list, base: cython.ulonglong, width: cython.Py_ssize_t) -> bytes:
    """Gives the bits of numbers minus a base, filled up to a whole byte."""
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
    """Gives one of the numbers that `pack` made, from `start` on."""
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
    """Gives the index of the first of `count` rising packed numbers that is not below `wanted`."""
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
    """A block that is read. Raises ValueError if the bytes are none of `count` entries."""

    def __init__(self, body: bytes, count: cython.Py_ssize_t) -> None:
        """Checks that the columns and the sizes fill the bytes, and nothing else is there."""
        if len(body) < HEAD_BYTES or count < 1:
            raise ValueError(f"{count} entries in {len(body)} bytes")
        self.count = count
        self.data = body
        self._bases = memoryview(bytearray(64)).cast("Q")
        self._widths = memoryview(bytearray(64)).cast("q")
        self._starts = memoryview(bytearray(64)).cast("q")
        position: cython.Py_ssize_t = columns.HEAD
        end: cython.Py_ssize_t = len(body)
        column: cython.Py_ssize_t
        for column in range(columns.COLUMNS):
            self._bases[column] = get_number(self.data, 8 * column, 8)
            self._widths[column] = self.data[8 * columns.COLUMNS + column]
            self._starts[column] = position
            if self._widths[column] > 64:
                raise ValueError(f"column {column} has {self._widths[column]} bits")
            position += (count * self._widths[column] + 7) >> 3
        if position > end:
            raise ValueError(f"the columns end at {position}, the block at {end}")
        at: cython.Py_ssize_t
        for at in range(count if self._widths[columns.ATTRIBUTES] > 0 else 1):
            if self._number(columns.ATTRIBUTES, at) > columns.BURIED:
                raise ValueError(f"entry {at} has unknown attributes")
        # 2n + 1 ends: of the reasons, and behind them of the values.
        self._ends = memoryview(bytearray(8 * (2 * count + 1))).cast("q")
        self._ends[0] = position
        size: cython.ulonglong
        for at in range(2 * count):
            size = self._number(
                columns.REASON if at < count else columns.VALUE, at if at < count else at - count
            )
            if size > cython.cast(cython.ulonglong, end - position):
                raise ValueError(f"entry {at % count} goes on behind the block")
            position += cython.cast(cython.Py_ssize_t, size)
            self._ends[at + 1] = position
        if position != end:
            raise ValueError(f"the values end at {position}, the block at {end}")

    @cython.cfunc
    @cython.inline
    def _number(self, column: cython.Py_ssize_t, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives the number of an entry in a column; wrong for what a tombstone does not have."""
        width: cython.Py_ssize_t = self._widths[column]
        code: cython.ulonglong = get_bits(self.data, self._starts[column], at * width, width)
        if not cython.compiled:
            return (self._bases[column] + code) & 0xFFFFFFFFFFFFFFFF
        return self._bases[column] + code

    def deadline(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives the deadline of an entry, in ms."""
        return self._number(columns.DEADLINE, at)

    def id(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives the id of an entry."""
        return self._number(columns.ID, at)

    def attributes(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives the attributes of an entry."""
        return self._number(columns.ATTRIBUTES, at)

    def enqueue_ms(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives when an item was enqueued."""
        return self._number(columns.ENQUEUE, at)

    def requeue_ms(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives when an item was requeued last; 0: never."""
        width: cython.Py_ssize_t = self._widths[columns.REQUEUE]
        code: cython.ulonglong = get_bits(
            self.data, self._starts[columns.REQUEUE], at * width, width
        )
        return 0 if code == 0 else self._bases[columns.REQUEUE] + (code - 1)

    def dequeue_count(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives how often an item was given out."""
        return self._number(columns.COUNT, at)

    def reason(self, at: cython.Py_ssize_t) -> bytes:
        """Gives the reason of an item."""
        start: cython.Py_ssize_t = self._ends[at]
        return take_bytes(self.data, start, self._ends[at + 1] - start)

    def value(self, at: cython.Py_ssize_t) -> bytes:
        """Gives the value of an item."""
        start: cython.Py_ssize_t = self._ends[self.count + at]
        return take_bytes(self.data, start, self._ends[self.count + at + 1] - start)

    def row(self, at: cython.Py_ssize_t) -> tuple:
        """Gives an entry: deadline, id, attributes, the two times, count, reason, value."""
        deadline: object = self._number(columns.DEADLINE, at)
        id: object = self._number(columns.ID, at)
        attributes: cython.ulonglong = self._number(columns.ATTRIBUTES, at)
        if attributes & columns.TOMBSTONE:
            return (deadline, id, attributes, 0, 0, 0, b"", b"")
        times: tuple = (self.enqueue_ms(at), self.requeue_ms(at), self.dequeue_count(at))
        return (deadline, id, attributes, *times, self.reason(at), self.value(at))

    def search(self, deadline: cython.ulonglong, id: cython.ulonglong) -> cython.Py_ssize_t:
        """Gives the index of the first entry whose key is not below the one given."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = self.count
        middle: cython.Py_ssize_t
        found: cython.ulonglong
        while low < high:
            middle = (low + high) >> 1
            found = self._number(columns.DEADLINE, middle)
            if found < deadline or (found == deadline and self._number(columns.ID, middle) < id):
                low = middle + 1
            else:
                high = middle
        return low

    def find_id(self, id: cython.ulonglong, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Gives the index of the first entry of an id from `at` on; -1 if there is none."""
        while at < self.count:
            if self._number(columns.ID, at) == id:
                return at
            at += 1
        return -1
