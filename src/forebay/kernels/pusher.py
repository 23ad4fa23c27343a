"""The push of a fifo that does not wait for the disk: a memory copy.

Atomic: compiled, with the C functions for CRC and time, a push makes no Python call, and the
interpreter's own lock keeps it apart from all else. Otherwise it takes the queue's lock.

In the 8 bytes before the first entry, where there are any, stands how many it has written: the
number and its complement, little-endian, 4 bytes each. So what was acknowledged there is known,
even if it does not verify any more.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

from forebay.kernels.checksum import direct_address

if cython.compiled:
    from cython.cimports.forebay.kernels.boot_clock import boot_ms
    from cython.cimports.forebay.kernels.entry import next_ms, put_entry
    from cython.cimports.forebay.kernels.little import put32
else:
    from forebay.kernels.boot_clock import boot_ms
    from forebay.kernels.entry import next_ms, put_entry
    from forebay.kernels.little import put32

_META = cython.declare(cython.Py_ssize_t, 32)
_NUMBER_MASK = cython.declare(cython.ulonglong, 0xFFFF)


@cython.cclass
class Pusher:
    """Writes entries to memory. Any thread may call `push`; all else needs the queue's lock."""

    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    number = cython.declare(cython.ulonglong, visibility="readonly")
    last_ms = cython.declare(cython.longlong, visibility="public")
    _end: cython.Py_ssize_t
    _stop: cython.ulonglong
    _mark: cython.Py_ssize_t
    _first: cython.ulonglong
    _version: bytes
    _ahead_ms: cython.longlong
    _view: cython.uchar[::1]
    _acquire: object
    _release: object
    _now_ms: object
    _atomic: cython.bint

    def __init__(
        self,
        buffer: object,
        lock: object,
        now_ms: object,
        ahead_ms: cython.longlong,
        version: bytes,
    ) -> None:
        """Keeps a view of `buffer`; `version` is the 8 bytes that entries of this queue have.

        `now_ms` None means the boot clock of the machine, which wall time is `ahead_ms` ahead of.
        """
        self._view = memoryview(buffer)
        self._acquire = lock.acquire
        self._release = lock.release
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self._atomic = now_ms is None and cython.compiled and direct_address() != 0
        if len(version) != 8:
            raise ValueError("a version is 8 bytes")
        self._version = version
        self._end = 0
        self._stop = 0
        self._mark = -1
        self._first = 0
        self.position = 0
        self.number = 0
        self.last_ms = 0

    def begin(
        self,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        number: cython.ulonglong,
        stop: cython.ulonglong,
    ) -> None:
        """Opens the room from `start` to `end` for entries from `number` on, and below `stop`."""
        self.position = start
        self.number = self._first = number
        self._mark = start - 8
        self._note()
        self._stop = stop
        self._end = end

    def finish(self) -> None:
        """Closes the room: `push` returns -1 until the next `begin`."""
        self._end = 0

    def release_buffer(self) -> None:
        """Lets go of the memory, so that it can be unmapped."""
        self._end = 0
        self._view = memoryview(bytearray(1))

    def push(self, value: object, ttl: cython.longlong) -> cython.longlong:
        """Writes one entry and returns its id; -1 if there is no room, or it is not bytes."""
        if type(value) is not bytes:
            return -1
        if self._atomic:
            return self.put(cython.cast(bytes, value), ttl)
        self._acquire()
        try:
            return self.put(value, ttl)
        finally:
            self._release()

    @cython.ccall
    def put(self, value: bytes, ttl: cython.longlong) -> cython.longlong:
        """Writes one entry; called with the queue's lock held."""
        size: cython.Py_ssize_t = len(value)
        position: cython.Py_ssize_t = self.position
        if size > self._end - position - _META or self.number >= self._stop:
            return -1
        now_ms: cython.longlong
        if self._now_ms is None:
            now_ms = boot_ms() + self._ahead_ms
        else:
            now_ms = self._now_ms()
        self.last_ms = next_ms(self.number, now_ms, self.last_ms)
        entry_id: cython.ulonglong = (cython.cast(cython.ulonglong, self.last_ms) << 16) | (
            self.number & _NUMBER_MASK
        )
        put_entry(
            self._view,
            position,
            value,
            size,
            cython.cast(cython.ulonglong, ttl),
            entry_id,
            self._version,
        )
        self.position = position + _META + size
        self.number += 1
        self._note()
        return cython.cast(cython.longlong, entry_id)

    @cython.cfunc
    @cython.inline
    def _note(self) -> cython.void:
        """Notes how many entries are written."""
        if self._mark >= 0:
            count: cython.ulonglong = self.number - self._first
            put32(self._view, self._mark, count)
            put32(self._view, self._mark + 4, 0xFFFFFFFF - count)
