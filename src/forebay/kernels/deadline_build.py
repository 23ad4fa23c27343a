"""Builds the blocks of a deadline run: gathers entries, packs their columns.

The layout is that of `deadline_block.py`. Entries come as they are in memory or in another block,
without an object for each.
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
    from cython.cimports.forebay.kernels.deadline_block import put_bits, width_of
    from cython.cimports.forebay.kernels.deadline_keys import grown
    from cython.cimports.forebay.kernels.little import copy_bytes, direct, put_bytes, put_number
    from cython.cimports.libc.string import memcpy, memset
else:
    from forebay.kernels import deadline_columns as columns
    from forebay.kernels.deadline_block import put_bits, width_of
    from forebay.kernels.deadline_keys import grown
    from forebay.kernels.little import copy_bytes, put_bytes, put_number

# "FBDB", which a block begins with; then number, count, two sizes and check.
_MARK = cython.declare(cython.ulonglong, 0x42444246)
_FIRST_ENTRIES = cython.declare(cython.Py_ssize_t, 4096)
_FIRST_BYTES = cython.declare(cython.Py_ssize_t, 4096)
_MOST_BYTES = cython.declare(cython.Py_ssize_t, 65536)
# What an entry is reckoned to take beside reason and value when blocks are filled.
_ENTRY = cython.declare(cython.Py_ssize_t, 8)


@cython.cclass
class BlockBuilder:
    """The block that is being filled. `count` entries are in it."""

    def __init__(self, block_bytes: cython.Py_ssize_t) -> None:
        self._block_bytes = block_bytes
        self._numbers = memoryview(bytearray(8 * columns.COLUMNS * _FIRST_ENTRIES)).cast("Q")
        self._values = memoryview(bytearray(max(min(block_bytes, _MOST_BYTES), _FIRST_BYTES)))
        self._reasons = memoryview(bytearray(_FIRST_BYTES))
        self._values_end = self._reasons_end = 0
        self.count = 0

    def fits(self, size: cython.Py_ssize_t) -> cython.bint:
        """Says whether reason and value of `size` bytes still belong into this block."""
        return self._fits(size)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _fits(self, size: cython.Py_ssize_t) -> cython.bint:
        if self.count == 0:
            return True
        used: cython.Py_ssize_t = self._values_end + self._reasons_end + _ENTRY * self.count
        return used + size + _ENTRY <= self._block_bytes and self.count < columns.ENTRIES_MAX

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
        """Takes in an entry, whose key is not below the one before."""
        size: cython.Py_ssize_t = len(value)
        length: cython.Py_ssize_t = len(reason)
        self.reserve(length, size)
        at: cython.Py_ssize_t = columns.COLUMNS * self.count
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
        """Takes in an entry whose reason and value are at addresses.

        Gives 1; 0 if the block is full; -1 if `reserve` is to be called. Only compiled.
        """
        if not self._fits(size + length):
            return 0
        at: cython.Py_ssize_t = columns.COLUMNS * self.count
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
        self._values_end = end
        self._reasons_end = reasons_end
        self.count += 1
        return 1

    @cython.cfunc
    def reserve(self, length: cython.Py_ssize_t, size: cython.Py_ssize_t) -> object:
        """Makes room for one entry more, with a reason and a value of such sizes."""
        if columns.COLUMNS * self.count == len(self._numbers):
            self._numbers = grown(self._numbers, 2 * len(self._numbers))
        if self._values_end + size > len(self._values):
            self._values = _with_room(self._values, self._values_end + size)
        if self._reasons_end + length > len(self._reasons):
            self._reasons = _with_room(self._reasons, self._reasons_end + length)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def size_max(self) -> cython.Py_ssize_t:
        """Gives more than what the block takes, its head included."""
        numbers: cython.Py_ssize_t = 8 * columns.COLUMNS * self.count
        head: cython.Py_ssize_t = columns.BLOCK_HEAD + columns.HEAD
        return head + numbers + self._reasons_end + self._values_end

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def describe(self, table: cython.ulonglong[::1], at: cython.Py_ssize_t) -> cython.void:
        """Notes counts, the first key and the bounds of the ids in a row of a table."""
        tombstones: cython.ulonglong = 0
        buried: cython.ulonglong = 0
        least: cython.ulonglong = self._numbers[columns.ID]
        most: cython.ulonglong = least
        entry: cython.Py_ssize_t
        for entry in range(self.count):
            least = min(least, self._numbers[columns.COLUMNS * entry + columns.ID])
            most = max(most, self._numbers[columns.COLUMNS * entry + columns.ID])
            tombstones += self._numbers[columns.COLUMNS * entry + columns.ATTRIBUTES] & 1
            buried += self._numbers[columns.COLUMNS * entry + columns.ATTRIBUTES] >> 1
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
        """Writes the block with its head, not compressed, to a place; gives its end.

        Only compiled, with the C function for CRC-32. `seed` is that of the salt.
        """
        body: cython.Py_ssize_t = start + columns.BLOCK_HEAD
        position: cython.Py_ssize_t = body + columns.HEAD
        column: cython.Py_ssize_t
        if cython.compiled:
            memset(cython.address(out[body]), 0, columns.HEAD + 8 * columns.COLUMNS * self.count)
        for column in range(columns.COLUMNS):
            position = self._put_column(out, body, position, column)
        copy_bytes(out, position, self._reasons, 0, self._reasons_end)
        position += self._reasons_end
        copy_bytes(out, position, self._values, 0, self._values_end)
        position += self._values_end
        size: cython.ulonglong = cython.cast(cython.ulonglong, position - body)
        put_number(out, start, _MARK, 4)
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
        put_number(out, start + 20, crc, 4)
        return position

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def clear(self) -> cython.void:
        """Begins the next block."""
        self.count = self._values_end = self._reasons_end = 0

    def first_key(self) -> tuple:
        """Gives the key of the first entry."""
        return self._numbers[0], self._numbers[1]

    def last_key(self) -> tuple:
        """Gives the key of the last entry."""
        at: cython.Py_ssize_t = columns.COLUMNS * (self.count - 1)
        return self._numbers[at], self._numbers[at + 1]

    def id_bounds(self) -> tuple:
        """Gives the smallest and the largest id."""
        least: cython.ulonglong = self._numbers[columns.ID]
        most: cython.ulonglong = least
        at: cython.Py_ssize_t
        for at in range(columns.ID, columns.COLUMNS * self.count, columns.COLUMNS):
            least = min(least, self._numbers[at])
            most = max(most, self._numbers[at])
        return least, most

    def ids(self) -> bytearray:
        """Gives the ids of the entries, as numbers of 8 bytes in the machine's order."""
        found: object = bytearray(8 * self.count)
        self.copy_ids(memoryview(found).cast("Q"), 0)
        return found

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def copy_ids(self, out: cython.ulonglong[::1], start: cython.Py_ssize_t) -> cython.void:
        """Copies the ids of the entries to a place."""
        at: cython.Py_ssize_t
        for at in range(self.count):
            out[start + at] = self._numbers[columns.COLUMNS * at + columns.ID]

    def counts(self) -> tuple:
        """Gives how many entries are pending items, tombstones and buried ones."""
        tombstones: cython.Py_ssize_t = 0
        buried: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t
        for at in range(columns.ATTRIBUTES, columns.COLUMNS * self.count, columns.COLUMNS):
            if self._numbers[at] == 1:
                tombstones += 1
            elif self._numbers[at] == 2:
                buried += 1
        return self.count - tombstones - buried, tombstones, buried

    def take(self) -> bytes:
        """Gives the bytes of the block and begins the next one."""
        # No column takes more than 64 bits an entry.
        most: cython.Py_ssize_t = columns.HEAD + 8 * columns.COLUMNS * self.count
        buffer: object = bytearray(most + self._reasons_end + self._values_end)
        out: cython.uchar[::1] = memoryview(buffer)
        position: cython.Py_ssize_t = columns.HEAD
        column: cython.Py_ssize_t
        for column in range(columns.COLUMNS):
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
        """Writes base, width and bits of one column of a body; gives where its bits end."""
        # Neither a tombstone nor a time that is not may pull the base down.
        is_of_items: cython.bint = column >= columns.ENQUEUE and column <= columns.COUNT
        is_requeue: cython.bint = column == columns.REQUEUE
        more: cython.ulonglong = 1 if is_requeue else 0
        number: cython.ulonglong
        least: cython.ulonglong = 0
        most: cython.ulonglong = 0
        found: cython.bint = False
        at: cython.Py_ssize_t
        for at in range(self.count):
            if is_of_items and self._numbers[columns.COLUMNS * at + columns.ATTRIBUTES] & 1:
                continue
            number = self._numbers[columns.COLUMNS * at + column]
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
        put_number(
            out, body + 8 * columns.COLUMNS + column, cython.cast(cython.ulonglong, width), 1
        )
        if width == 0:
            return position
        bit: cython.Py_ssize_t = 0
        for at in range(self.count):
            number = self._numbers[columns.COLUMNS * at + column]
            if not (
                is_of_items and self._numbers[columns.COLUMNS * at + columns.ATTRIBUTES] & 1
            ) and not (is_requeue and number == 0):
                put_bits(out, position, bit, width, number - least + more)
            bit += width
        return position + ((self.count * width + 7) >> 3)


@cython.cfunc
def _with_room(data: cython.uchar[::1], size: cython.Py_ssize_t) -> object:
    """Gives a larger buffer that begins with the same bytes."""
    larger: object = bytearray(max(2 * len(data), size))
    view: cython.uchar[::1] = memoryview(larger)
    view[: len(data)] = data
    return memoryview(larger)
