"""Reads blocks of deadline runs where they lie in the bytes of files, without an object for each.

For merges, which let go of the interpreter's lock: many blocks are fed at once, and each is checked
before anything of it is given out. Only plain blocks are read; one that is compressed or damaged is
left to who knows about it (`deadline_block.py`). Compiled only.
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
    from cython.cimports.forebay.kernels.deadline_block import Block
    from cython.cimports.forebay.kernels.little import direct
else:
    from forebay.kernels import deadline_columns as columns
    from forebay.kernels.deadline_block import Block

# A row of the table of blocks that `feed` takes: where it begins, its number, its entries.
_ROW = cython.declare(cython.Py_ssize_t, 3)
# The bases of the columns, before their widths; and what a block begins with (deadline_build.py).
_BASES_BYTES = cython.declare(cython.ulonglong, 64)
_MARK = cython.declare(cython.ulonglong, 0x42444246)
# The cells of a source: of its block the bases, widths and addresses of the columns, its entries,
# its end; which entry is the next one, where its reason and value are; the address of the bytes
# that were fed, how many they are, the address of the table of their blocks, how many these are,
# which is the next one, and the checksum of the salt.
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


@cython.cclass
class Sources:
    """The next entries of some runs. `seeds` are the checksums of their salts."""

    def __init__(self, seeds: list) -> None:
        self._cells = memoryview(bytearray(8 * _CELLS * len(seeds) + 8)).cast("Q")
        # What the addresses are of: it must stay.
        self._held = [None] * len(seeds)
        source: cython.Py_ssize_t
        for source in range(len(seeds)):
            self._cells[_CELLS * source + _SEED] = seeds[source]

    @cython.cfunc
    def feed(self, source: cython.Py_ssize_t, data: bytes, table: object) -> cython.bint:
        """Gives a source its next blocks; says whether it is at an entry now.

        A row of the table is where a block begins, its number and its entries; a last one says
        where they end. The bytes may end before: a file may have been cut off.
        """
        bytes_view: cython.const[cython.uchar][::1] = data
        table_view: cython.const[cython.ulonglong][::1] = table
        base: cython.Py_ssize_t = _CELLS * source
        self._held[source] = (data, table)
        if cython.compiled:
            self._cells[base + _DATA] = cython.cast(cython.size_t, cython.address(bytes_view[0]))
            self._cells[base + _TABLE] = cython.cast(cython.size_t, cython.address(table_view[0]))
        self._cells[base + _SIZE] = cython.cast(cython.ulonglong, len(bytes_view))
        self._cells[base + _BLOCKS] = cython.cast(cython.ulonglong, len(table_view) // _ROW - 1)
        self._cells[base + _NEXT] = 0
        return self._enter(source)

    @cython.cfunc
    def forget(self, source: cython.Py_ssize_t) -> object:
        """Lets go of the blocks that a source was fed with."""
        self._held[source] = None

    @cython.cfunc
    def feed_block(self, source: cython.Py_ssize_t, block: Block) -> object:
        """Gives a source the next of its blocks, as it was read elsewhere."""
        base: cython.Py_ssize_t = _CELLS * source
        held: tuple = self._held[source]
        self._held[source] = (held[0], held[1], block)
        body: cython.ulonglong = 0
        if cython.compiled:
            body = cython.cast(cython.size_t, cython.address(block.data[0]))
        size: cython.ulonglong = cython.cast(cython.ulonglong, len(block.data))
        count: cython.ulonglong = cython.cast(cython.ulonglong, block.count)
        if not self._open(source, body, size, count):
            raise ValueError(f"a block of {size} bytes and {count} entries")
        self._cells[base + _NEXT] += 1

    @cython.cfunc
    def skip_block(self, source: cython.Py_ssize_t) -> cython.bint:
        """Leaves out the next block of a source; says whether it is at an entry now."""
        self._cells[_CELLS * source + _NEXT] += 1
        return self._enter(source)

    @cython.cfunc
    def next_block(self, source: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives which of the blocks that a source was fed with is the next one."""
        return self._cells[_CELLS * source + _NEXT]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def advance(self, source: cython.Py_ssize_t) -> cython.bint:
        """Goes to the next entry of a source; False if it needs more blocks."""
        base: cython.Py_ssize_t = _CELLS * source
        self._cells[base + _REASON_AT] += self.number(source, columns.REASON)
        self._cells[base + _VALUE_AT] += self.number(source, columns.VALUE)
        self._cells[base + _AT] += 1
        if self._cells[base + _AT] < self._cells[base + _ENTRIES]:
            return True
        return self._enter(source)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def reason_at(self, source: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives the address of the reason of the next entry of a source."""
        return self._cells[_CELLS * source + _REASON_AT]

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def value_at(self, source: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives the address of the value of the next entry of a source."""
        return self._cells[_CELLS * source + _VALUE_AT]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def requeue_ms(self, source: cython.Py_ssize_t) -> cython.ulonglong:
        """Gives when the next entry of a source was requeued last; 0: never."""
        base: cython.ulonglong = self._cells[_CELLS * source + _BASES + columns.REQUEUE]
        number: cython.ulonglong = self.number(source, columns.REQUEUE)
        return 0 if number == base else number - 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _enter(self, source: cython.Py_ssize_t) -> cython.bint:
        """Begins the next block of a source; False if there is none, or none that is plain."""
        base: cython.Py_ssize_t = _CELLS * source
        row: cython.ulonglong = 24 * self._cells[base + _NEXT]
        if self._cells[base + _NEXT] == self._cells[base + _BLOCKS]:
            return False
        row += self._cells[base + _TABLE]
        start: cython.ulonglong = _word_at(row)
        stop: cython.ulonglong = _word_at(row + 24)
        room: cython.ulonglong = stop - start
        if stop > self._cells[base + _SIZE] or room < columns.BLOCK_HEAD + columns.HEAD:
            return False
        head: cython.ulonglong = self._cells[base + _DATA] + start
        count: cython.ulonglong = _number_at(head + 8, 4)
        size: cython.ulonglong = _number_at(head + 12, 4)
        if (
            _number_at(head, 4) != _MARK
            or _number_at(head + 4, 4) != _word_at(row + 8)
            or count != _word_at(row + 16)
            or size > room - columns.BLOCK_HEAD
            or size != _number_at(head + 16, 4)
            or _check(self._cells[base + _SEED], head, size) != _number_at(head + 20, 4)
            or not self._open(source, head + columns.BLOCK_HEAD, size, count)
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
        """Goes to the first entry of a block; False if its columns and sizes are not its bytes."""
        if size < columns.HEAD or count < 1 or count > columns.ENTRIES_MAX:
            return False
        base: cython.Py_ssize_t = _CELLS * source
        position: cython.ulonglong = body + columns.HEAD
        width: cython.ulonglong
        column: cython.Py_ssize_t
        for column in range(columns.COLUMNS):
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
        if self._cells[base + _WIDTHS + columns.ATTRIBUTES] > 0:
            for at in range(count):
                self._cells[base + _AT] = at
                if self.number(source, columns.ATTRIBUTES) > columns.BURIED:
                    return False
        elif self._cells[base + _BASES + columns.ATTRIBUTES] > columns.BURIED:
            return False
        self._cells[base + _REASON_AT] = position
        position = self._skip_sizes(source, columns.REASON, position)
        self._cells[base + _VALUE_AT] = position
        position = self._skip_sizes(source, columns.VALUE, position)
        self._cells[base + _AT] = 0
        return position == stop

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _skip_sizes(
        self, source: cython.Py_ssize_t, column: cython.Py_ssize_t, position: cython.ulonglong
    ) -> cython.ulonglong:
        """Gives the end of all reasons or values from an address on; one behind the block: bad."""
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
        """Gives the number of the next entry of a source in a column."""
        base: cython.Py_ssize_t = _CELLS * source
        width: cython.ulonglong = self._cells[base + _WIDTHS + column]
        least: cython.ulonglong = self._cells[base + _BASES + column]
        if width == 0:
            return least
        bit: cython.ulonglong = width * self._cells[base + _AT]
        address: cython.ulonglong = self._cells[base + _STARTS + column] + (bit >> 3)
        return least + _bits_at(address, bit & 7, width, self._cells[base + _STOP])


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
    """Reads some bits, so many behind an address, and no byte from `stop` on."""
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
    return code


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number_at(address: cython.ulonglong, size: cython.Py_ssize_t) -> cython.ulonglong:
    """Reads a number of some bytes, the lowest first."""
    data: cython.p_uchar = cython.cast(cython.p_uchar, cython.cast(cython.size_t, address))
    number: cython.ulonglong = 0
    at: cython.Py_ssize_t
    for at in range(size):
        number |= cython.cast(cython.ulonglong, data[at]) << (8 * at)
    return number


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _word_at(address: cython.ulonglong) -> cython.ulonglong:
    """Reads a number of the machine."""
    return cython.cast(cython.pointer(cython.ulonglong), cython.cast(cython.size_t, address))[0]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check(
    seed: cython.ulonglong, head: cython.ulonglong, size: cython.ulonglong
) -> cython.ulonglong:
    """Gives the checksum of a block of so many bytes behind its head."""
    data: cython.p_uchar = cython.cast(cython.p_uchar, cython.cast(cython.size_t, head))
    crc: cython.uint = direct(cython.cast(cython.uint, seed), data, 20)
    return direct(crc, data + 24, cython.cast(cython.size_t, size))
