"""Compiled parts of the fifo: entries staged in memory, and the head that takes them out again.

A push or a pop that does not wait for the disk is a memory copy, and for a pop a record of it. Both
are atomic: compiled, with the C functions for CRC and time, they make no Python call, and the
interpreter's own lock keeps other threads out. Otherwise they take the queue's lock.

The 8 bytes before the first staged entry, where there are any, hold how many were written: the
number and its complement, little-endian, 4 bytes each. So the count of what was acknowledged there
is known even if it no longer verifies. Entries are taken from a window, which is a part of the tape
or the memory of `StagedEntries`, and each is recorded in the slots of the head (`head.py`).
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own shadow module is slower than ours")
except ImportError:
    from forebay.kernels import cython_shadow as cython

from forebay.kernels.buffers import direct_address
from forebay.kernels.entry import METADATA_BYTES

if cython.compiled:
    from cython.cimports.forebay.kernels.buffers import (
        boot_ms,
        keep_order,
        put32,
        put_bytes,
        sum_bytes,
        take_bytes,
    )
    from cython.cimports.forebay.kernels.entry import (
        entry_size,
        get_id,
        get_ttl,
        next_ms,
        put_entry,
    )
else:
    from forebay.kernels.buffers import boot_ms, keep_order, put32, put_bytes, sum_bytes, take_bytes
    from forebay.kernels.entry import entry_size, get_id, get_ttl, next_ms, put_entry

HEAD_MAGIC = b"FBH2"
LENDING_MAGIC = b"FBH3"
# magic 4 | sequence 8 | file bytes, position, number, id, expired, dropped, damaged, 8 each
# | count of lent entries 4 | version of the entries 8 | 24 for each lent entry | crc 4
HEAD_FIXED_BYTES = 80
LENT_BYTES = 24
# In the last 4 bytes of a slot while it is being stored.
STORING = b"FBHW"
STORING_AT = 4092
_FIXED = cython.declare(cython.Py_ssize_t, HEAD_FIXED_BYTES)
_LENT = cython.declare(cython.Py_ssize_t, LENT_BYTES)
_HEAD = cython.declare(cython.ulonglong, int.from_bytes(HEAD_MAGIC, "big"))
_STORING = cython.declare(cython.ulonglong, int.from_bytes(STORING, "big"))
_STORING_AT = cython.declare(cython.Py_ssize_t, STORING_AT)
_LENDING = cython.declare(cython.ulonglong, int.from_bytes(LENDING_MAGIC, "big"))
_STRIDE = cython.declare(cython.Py_ssize_t, 4096)
# What `entry_size` returns for an entry that continues past the end.
_CUT_OFF = cython.declare(cython.Py_ssize_t, -1)
_META = cython.declare(cython.Py_ssize_t, METADATA_BYTES)
_NUMBER_MASK = cython.declare(cython.ulonglong, 0xFFFF)


@cython.cclass
class StagedEntries:
    """Writes entries to memory. Any thread may call `push`; all else needs the queue's lock.

    `number` is that of the next entry, `position` where in the memory it goes, `start` where the
    first one is, and `last_ms` the time of the last one.
    """

    start = cython.declare(cython.Py_ssize_t, visibility="readonly")
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    number = cython.declare(cython.ulonglong, visibility="readonly")
    last_ms = cython.declare(cython.longlong, visibility="readonly")
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
    _acknowledges: cython.bint
    _atomic: cython.bint
    _stopped: cython.bint

    def __init__(
        self,
        lock: object,
        now_ms: object,
        ahead_ms: cython.longlong,
        version: bytes,
        acknowledges: cython.bint,
    ) -> None:
        """`version` is the 8 bytes of the version field of this queue's entries.

        `now_ms` None means the boot clock of the machine; wall time is `ahead_ms` ahead of it.
        `acknowledges`: what is in the memory survives the process, and a push need not wait.
        """
        self._view = memoryview(bytearray(1))
        self._acquire = lock.acquire
        self._release = lock.release
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self._acknowledges = acknowledges
        self._atomic = now_ms is None and cython.compiled and direct_address() != 0
        if len(version) != 8:
            raise ValueError("a version is 8 bytes")
        self._version = version
        self._end = 0
        self._stop = 0
        self._mark = -1
        self._first = 0
        self._stopped = False
        self.start = 0
        self.position = 0
        self.number = 0
        self.last_ms = 0

    @property
    def is_open(self) -> bool:
        """Whether there is room for entries."""
        return self._end > 0

    def use(self, buffer: object) -> None:
        """Writes to this memory from now on and keeps a view of it."""
        self._view = memoryview(buffer)

    def begin(
        self,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        stop: cython.ulonglong,
    ) -> None:
        """Opens the room from `start` to `end` for entries with numbers below `stop`."""
        self.position = self.start = start
        self._mark = start - 8
        self._note()
        self._stop = stop
        if not self._stopped:
            self._end = end

    def finish(self) -> None:
        """Closes the room: there is none until the next `begin`."""
        self._end = 0

    def empty(self, number: cython.ulonglong, last_ms: cython.longlong) -> None:
        """Forgets the entries and closes the room; sets the next number and the last time."""
        self._end = 0
        self._mark = -1
        self.position = self.start
        self.number = self._first = number
        self.last_ms = last_ms

    def stop(self) -> None:
        """Closes the room for good."""
        self._stopped = True
        self._end = 0

    def release_buffer(self) -> None:
        """Releases the memory, so that it can be unmapped."""
        self.stop()
        self._mark = -1
        self._view = memoryview(bytearray(1))

    def push(self, value: object, ttl: cython.longlong):
        """Writes one entry and returns its id.

        None if it does not fit, is not bytes, or must be waited for.
        """
        # Without the lock: in the child of a fork its holder may be a thread that no longer exists.
        if not self._acknowledges or self._end == 0 or type(value) is not bytes:
            return None
        if self._atomic:
            return self.put(cython.cast(bytes, value), ttl)
        self._acquire()
        try:
            return self.put(value, ttl)
        finally:
            self._release()

    @cython.ccall
    def put(self, value: bytes, ttl: cython.longlong) -> object:
        """Writes one entry and returns its id; None: it does not fit. Called with the lock held."""
        size: cython.Py_ssize_t = len(value)
        position: cython.Py_ssize_t = self.position
        if size > self._end - position - _META or self.number >= self._stop:
            return None
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
        return entry_id

    @cython.cfunc
    @cython.inline
    def _note(self) -> cython.void:
        """Records how many entries are written."""
        if self._mark >= 0:
            count: cython.ulonglong = self.number - self._first
            put32(self._view, self._mark, count)
            put32(self._view, self._mark + 4, 0xFFFFFFFF - count)


@cython.cfunc
@cython.inline
def _put32(
    out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.ulonglong
) -> cython.void:
    """Writes a big-endian u32."""
    if cython.compiled:
        out[position] = (value >> 24) & 255
        out[position + 1] = (value >> 16) & 255
        out[position + 2] = (value >> 8) & 255
        out[position + 3] = value & 255
    else:
        out[position : position + 4] = value.to_bytes(4, "big")


@cython.cfunc
@cython.inline
def _put64(
    out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.ulonglong
) -> cython.void:
    """Writes a big-endian u64."""
    _put32(out, position, value >> 32)
    _put32(out, position + 4, value & 0xFFFFFFFF)


@cython.cclass
class HeadCursor:
    """Takes entries at the head and records that in the head's mapped slots.

    Any thread may call `pop`; all else needs the queue's lock. A window is open between `open` and
    `close`. Without an open window, or while `held`, `pop` takes nothing. `lent` are the rows of
    the lent entries, recorded together with the place.
    """

    number = cython.declare(cython.ulonglong, visibility="readonly")
    last_id = cython.declare(cython.ulonglong, visibility="readonly")
    expired = cython.declare(cython.ulonglong, visibility="public")
    dropped = cython.declare(cython.ulonglong, visibility="public")
    damaged = cython.declare(cython.ulonglong, visibility="public")
    sequence = cython.declare(cython.ulonglong, visibility="readonly")
    held = cython.declare(cython.bint, visibility="public")
    lent = cython.declare(bytes, visibility="public")
    _file_bytes: cython.ulonglong
    _version: bytes
    _base: cython.longlong
    _at: cython.Py_ssize_t
    _end: cython.Py_ssize_t
    _found_at: cython.Py_ssize_t
    _found_size: cython.Py_ssize_t
    _is_open: cython.bint
    _stopped: cython.bint
    _window: cython.const[cython.uchar][::1]
    _slots: cython.uchar[::1]
    _staged: StagedEntries
    _acquire: object
    _release: object
    _now_ms: object
    _ahead_ms: cython.longlong
    _atomic: cython.bint

    def __init__(
        self,
        slots: object,
        file_bytes: cython.ulonglong,
        sequence: cython.ulonglong,
        lock: object,
        now_ms: object,
        ahead_ms: cython.longlong,
        version: bytes,
    ) -> None:
        """Keeps a view of the two slots; `sequence` is that of the newest.

        `version` is the 8 bytes of the version field of this queue's entries.
        """
        if len(version) != 8:
            raise ValueError("a version is 8 bytes")
        self._version = version
        self._slots = memoryview(slots)
        self._file_bytes = file_bytes
        self.sequence = sequence
        self._acquire = lock.acquire
        self._release = lock.release
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self._atomic = now_ms is None and cython.compiled and direct_address() != 0
        self._window = b""
        self._staged = None
        self._is_open = False
        self._stopped = False
        self.held = False
        self.lent = b""
        self._base = 0
        self._at = self._end = self._found_at = self._found_size = 0
        self.number = self.last_id = self.expired = self.dropped = self.damaged = 0

    @property
    def position(self) -> int:
        """Where on the tape the next entry is."""
        return self._base + self._at

    @property
    def in_memory(self) -> bool:
        """Whether the window is on staged entries, and not on the tape."""
        return self._staged is not None

    def state(self) -> tuple:
        """Returns the head as of one moment, in the order of a slot.

        Sequence, position, number, last id, and how many expired, were dropped, were damaged. Read
        one by one, they could be from before and after a pop of another thread.
        """
        sequence: cython.ulonglong = self.sequence
        position: cython.longlong = self._base + self._at
        number: cython.ulonglong = self.number
        last_id: cython.ulonglong = self.last_id
        expired: cython.ulonglong = self.expired
        dropped: cython.ulonglong = self.dropped
        damaged: cython.ulonglong = self.damaged
        return sequence, position, number, last_id, expired, dropped, damaged

    def place(
        self, position: cython.longlong, number: cython.ulonglong, last_id: cython.ulonglong
    ) -> None:
        """Puts the head before the entry with a number, whose id is greater than `last_id`."""
        self.close()
        self._base = position
        self.number = number
        self.last_id = last_id

    def open(self, window: object, base: cython.longlong, staged: StagedEntries | None) -> None:
        """Opens a window that begins at the position `base` of the tape, at or before the head.

        With `staged`, it is the memory of that object and reaches as far as it has written.
        """
        self._at = cython.cast(cython.Py_ssize_t, self._base + self._at - base)
        self._base = base
        self._window = memoryview(window)
        self._end = len(self._window) if staged is None else 0
        self._staged = staged
        self._is_open = True

    def close(self) -> None:
        """Closes the window; the place on the tape stays."""
        self._base += self._at
        self._at = self._end = 0
        self._window = b""
        self._staged = None
        self._is_open = False

    def leave_memory(self) -> None:
        """Closes a window on staged entries, whose memory is about to change."""
        if self._staged is not None:
            self.close()

    def stop(self) -> None:
        """Ends `pop` for good."""
        self._stopped = True

    def release_slots(self) -> None:
        """Releases the mapped memory, so that it can be unmapped."""
        self.close()
        self._slots = memoryview(bytearray(2 * _STRIDE))

    def pop(self):
        """Takes the next entry that has not expired; None if the window has none."""
        # Without the lock: in the child of a fork its holder may be a thread that no longer exists.
        if self._stopped or self.held or not self._is_open:
            return None
        if self._atomic:
            return self._pop()
        self._acquire()
        try:
            return self._pop()
        finally:
            self._release()

    def skip_expired(self) -> bool:
        """Steps over the entries at the front that have expired; says whether there were any.

        Called with the lock held.
        """
        before: cython.ulonglong = self.number
        while self._is_open and self._step(True):
            self.expired += 1
        if self.number == before:
            return False
        self._save()
        return True

    def next_expiry_ms(self) -> cython.longlong:
        """Returns when the next entry of the window expires; 0 if never, or there is none.

        Called with the lock held.
        """
        if not self._is_open or self._entry_size() < 0:
            return 0
        ttl: cython.ulonglong = get_ttl(self._window, self._at)
        if ttl == 0:
            return 0
        return cython.cast(cython.longlong, (get_id(self._window, self._at) >> 16) + ttl * 1000)

    def next_entry(self):
        """Steps over the next entry that has not expired; returns value, id, ttl and position.

        None if the window has none. Nothing is recorded before `save`; called with the lock held.
        """
        if not self._next():
            return None
        return (
            take_bytes(self._window, self._found_at + _META, self._found_size),
            get_id(self._window, self._found_at),
            get_ttl(self._window, self._found_at),
            self._base + self._found_at,
        )

    def save(self) -> None:
        """Records the place in the slot that is not the newest."""
        self._save()

    @cython.cfunc
    def _pop(self) -> object:
        before: cython.ulonglong = self.expired
        if self._stopped or self.held or not self._next():
            if self.expired != before:
                self._save()
            return None
        value: bytes = take_bytes(self._window, self._found_at + _META, self._found_size)
        self._save()
        return value

    @cython.ccall
    def take_many(self, count: cython.Py_ssize_t) -> list:
        """Takes up to `count` entries that have not expired, as far as the window has them.

        Called with the lock held.
        """
        before: cython.ulonglong = self.number
        values: list = []
        while len(values) < count and self._next():
            values.append(take_bytes(self._window, self._found_at + _META, self._found_size))
        if self.number != before:
            self._save()
        return values

    @cython.cfunc
    def _next(self) -> cython.bint:
        """Finds the next entry that has not expired and steps over it."""
        while self._is_open and self._step(False):
            if not self._has_expired(self._found_at):
                return True
            self.expired += 1
        return False

    @cython.cfunc
    @cython.inline
    def _step(self, only_expired: cython.bint) -> cython.bint:
        """Steps over the next entry of the window, or only if it has expired."""
        size: cython.Py_ssize_t = self._entry_size()
        if size == _CUT_OFF and self._staged is not None:
            self._end = self._staged.position
            size = self._entry_size()
        if size < 0 or (only_expired and not self._has_expired(self._at)):
            return False
        self._found_at = self._at
        self._found_size = size
        self._at += _META + size
        self.number += 1
        self.last_id = get_id(self._window, self._found_at)
        return True

    @cython.cfunc
    @cython.inline
    def _entry_size(self) -> cython.Py_ssize_t:
        return entry_size(
            self._window, self._at, self._end, self.number, self.last_id, self._version
        )

    @cython.cfunc
    @cython.inline
    def _has_expired(self, at: cython.Py_ssize_t) -> cython.bint:
        ttl: cython.ulonglong = get_ttl(self._window, at)
        return ttl != 0 and self._is_past((get_id(self._window, at) >> 16) + ttl * 1000)

    @cython.cfunc
    def _is_past(self, ms: cython.ulonglong) -> cython.bint:
        now_ms: cython.longlong
        if self._now_ms is None:
            now_ms = boot_ms() + self._ahead_ms
        else:
            now_ms = self._now_ms()
        return cython.cast(cython.longlong, ms) <= now_ms

    @cython.cfunc
    def _save(self) -> cython.void:
        self.sequence += 1
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.sequence % 2) * _STRIDE
        size: cython.Py_ssize_t = len(self.lent)
        # A slot that a kill has torn says so: the change that it was to hold never returned.
        _put32(self._slots, at + _STORING_AT, _STORING)
        keep_order()
        _put32(self._slots, at, _LENDING if size > 0 else _HEAD)
        _put64(self._slots, at + 4, self.sequence)
        _put64(self._slots, at + 12, self._file_bytes)
        _put64(self._slots, at + 20, cython.cast(cython.ulonglong, self._base + self._at))
        _put64(self._slots, at + 28, self.number)
        _put64(self._slots, at + 36, self.last_id)
        _put64(self._slots, at + 44, self.expired)
        _put64(self._slots, at + 52, self.dropped)
        _put64(self._slots, at + 60, self.damaged)
        _put32(self._slots, at + 68, cython.cast(cython.ulonglong, size // _LENT))
        put_bytes(self._slots, at + 72, self._version, 8)
        put_bytes(self._slots, at + _FIXED, self.lent, size)
        size += _FIXED
        _put32(self._slots, at + size, sum_bytes(self._slots, at, size, 0))
        keep_order()
        _put32(self._slots, at + _STORING_AT, 0)
