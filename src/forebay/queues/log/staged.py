"""Compiled parts of the log: frames staged in mapped memory, and records as users get them.

An append that does not wait for the disk is a memory copy. The 8 bytes before the first frame, if
the buffer has them, say how many frames were appended: the number and its complement,
little-endian, 4 bytes each. So it is known what was acknowledged there, even if it no longer
verifies.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

from forebay.kernels.buffers import direct_address
from forebay.kernels.fflg import FRAME_BYTES

if cython.compiled:
    from cython.cimports.forebay.kernels.buffers import put32
    from cython.cimports.forebay.kernels.fflg import put_frame
    from cython.cimports.posix.time import CLOCK_REALTIME, clock_gettime, timespec
else:
    from forebay.kernels.buffers import put32
    from forebay.kernels.fflg import put_frame

_FRAME = cython.declare(cython.Py_ssize_t, FRAME_BYTES)


@cython.cclass
class StagedFrames:
    """Appends frames to a buffer: a put is a memory copy.

    Any thread may call `append`; every other method is called with the queue's lock held. Between
    `begin` and `finish` the frames at `start`..`position` are the exact bytes of a segment's
    entries.

    Compiled, with the C functions for CRC and time, `append` makes no Python call as long as there
    is room: the interpreter's own lock makes it atomic against `finish`. Otherwise it takes the
    queue's lock.
    """

    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    index = cython.declare(cython.ulonglong, visibility="readonly")
    last_ms = cython.declare(cython.longlong, visibility="public")
    _end: cython.Py_ssize_t
    _mark: cython.Py_ssize_t
    _first: cython.ulonglong
    _base: cython.longlong
    _seed: cython.ulonglong
    _epoch_ms: cython.longlong
    _view: cython.uchar[::1]
    _acquire: object
    _release: object
    _now_ms: object
    _atomic: cython.bint
    _acknowledges: cython.bint

    def __init__(self, lock: object, now_ms: object, acknowledges: cython.bint) -> None:
        """Starts without room; `acknowledges`: records in the buffer need not wait for the disk.

        `now_ms` None means the wall clock of the machine.
        """
        self._view = memoryview(bytearray(1))
        self._acknowledges = acknowledges
        self._acquire = lock.acquire
        self._release = lock.release
        self._now_ms = now_ms
        self._atomic = now_ms is None and cython.compiled and direct_address() != 0
        self._end = 0
        self._mark = 0
        self._first = 0
        self.position = 0
        self.index = 0
        self.last_ms = 0

    def use_buffer(self, buffer: object) -> None:
        """Sets the memory that frames are written to."""
        self._view = memoryview(buffer)

    def begin(
        self,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        base: cython.longlong,
        index: cython.ulonglong,
        seed: cython.ulonglong,
        epoch_ms: cython.longlong,
    ) -> None:
        """Opens the room from `start` to `end` for entries from `index` on."""
        self.position = start
        self._mark = start - 8
        self._base = base
        self.index = self._first = index
        self._note()
        self._seed = seed
        self._epoch_ms = epoch_ms
        self._end = end

    def rewind(self, start: cython.Py_ssize_t) -> None:
        """Frees the space of the frames, which are written to the file: the next go to `start`."""
        self._end -= self.position - start
        self.position = start
        self._first = self.index

    def finish(self) -> None:
        """Closes the room until the next `begin`."""
        self._end = 0

    def release_buffer(self) -> None:
        """Releases the mapped memory, so that it can be unmapped."""
        self._end = 0
        self._view = memoryview(bytearray(1))

    def append(self, value: object) -> object:
        """Appends one record and returns its offset; None if it would have to wait for anything."""
        # Without room do not touch the lock: in the child of a fork it may never be released.
        if not self._acknowledges or self._end <= 0 or type(value) is not bytes:
            return None
        if self._atomic:
            return self.put(cython.cast(bytes, value))
        self._acquire()
        try:
            return self.put(value)
        finally:
            self._release()

    @cython.ccall
    def put(self, value: bytes) -> object:
        """Appends one record, with the lock held; returns its offset, or None if it has no room."""
        size: cython.Py_ssize_t = len(value)
        position: cython.Py_ssize_t = self.position
        if size > self._end - position - _FRAME:
            return None
        now_ms: cython.longlong = self._now()
        if now_ms < self.last_ms:
            now_ms = self.last_ms
        ms: cython.longlong = now_ms - self._epoch_ms
        if ms > 0xFFFFFFFF:
            return None
        self.last_ms = now_ms
        put_frame(
            self._view,
            position,
            value,
            size,
            self.index,
            self._seed,
            cython.cast(cython.ulonglong, ms),
        )
        self.position = position + _FRAME + size
        offset: cython.longlong = self._base + cython.cast(cython.longlong, self.index)
        self.index += 1
        self._note()
        return offset

    @cython.cfunc
    @cython.inline
    def _note(self) -> cython.void:
        """Notes how many frames are written."""
        if self._mark >= 0:
            count: cython.ulonglong = self.index - self._first
            put32(self._view, self._mark, count)
            put32(self._view, self._mark + 4, 0xFFFFFFFF - count)

    @cython.cfunc
    @cython.inline
    def _now(self) -> cython.longlong:
        if self._now_ms is not None:
            return self._now_ms()
        if cython.compiled:
            now: timespec
            clock_gettime(CLOCK_REALTIME, cython.address(now))
            return cython.cast(cython.longlong, now.tv_sec) * 1000 + now.tv_nsec // 1_000_000
        return time.time_ns() // 1_000_000


@cython.final
@cython.cclass
class Record:
    """A record that was read: `offset`, `time_ms` (None where the format has no time), `value`."""

    offset = cython.declare(cython.longlong, visibility="readonly")
    time_ms = cython.declare(object, visibility="readonly")
    value = cython.declare(bytes, visibility="readonly")

    def __init__(self, offset: int, time_ms: int | None, value: bytes) -> None:
        self.offset = offset
        self.time_ms = time_ms
        self.value = value

    @property
    def time(self):
        """When it was appended, in UTC; None where the format has no time."""
        if self.time_ms is None:
            return None
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)

    def __repr__(self) -> str:
        return f"Record(offset={self.offset}, time_ms={self.time_ms}, value={self.value!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        mine = (self.offset, self.time_ms, self.value)
        return mine == (other.offset, other.time_ms, other.value)

    def __hash__(self) -> int:
        return hash((self.offset, self.value))

    def __reduce__(self):
        return Record, (self.offset, self.time_ms, self.value)


def make_records(
    values: list, times: list | None, offset: cython.longlong, epoch_ms: cython.longlong
) -> list:
    """Makes records from what `scan` returned."""
    records: list = []
    record: Record
    number: cython.Py_ssize_t
    for number in range(len(values)):
        record = Record.__new__(Record)
        record.offset = offset + number
        record.time_ms = None if times is None else epoch_ms + times[number]
        record.value = values[number]
        records.append(record)
    return records
