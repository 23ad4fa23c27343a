"""`fifo-head`: what has left a fifo, and what is only lent. Source of truth.

Four checked slots, 4096 bytes apart; of the slots that verify, the one with the highest sequence
counts. The first two are written in turn at every change and never waited for: they survive `kill
-9`. They are mapped, so that a pop is a few stores; under "always" they are not used. The other two
are written in turn, each with a sync: a power cut that tears the one being written leaves the one
that was synced. One slot holds both the place and the lent entries, so that no crash comes between
the two. A clean close leaves the same in all four: then a slot that does not verify costs nothing.

A slot, big-endian:

| field | bytes | meaning |
| --- | --- | --- |
| magic | 4 | `FBH2`, or `FBH3` if any entries are lent |
| sequence | 8 | counts the changes |
| file bytes | 8 | the size of a file of the tape |
| position | 8 | where on the tape the next entry is |
| number | 8 | of the next entry: how many have left, or are lent |
| id | 8 | the next entry's id is greater than this |
| expired | 8 | how many left because they had expired |
| dropped | 8 | how many left to make room |
| damaged | 8 | how many left because they could not be read |
| count | 4 | of lent entries; after a crash they come back to the front |
| version | 8 | the version field of this queue's entries |
| lent | 24 each | position 8, number 8, the upper bytes of the id 6, how often it was lent 2 |
| crc32 | 4 | of all fields before it |
| storing | 4, the last of the 4096 | `FBHW` while the slot is being stored to mapped memory |

A slot that does not verify and has `FBHW` was torn by a kill. What it was to record never returned,
and the slot before it counts: that is no fault.

The lower bits of an id are those of the number and need not be stored. A slot `FBH2` with lent
entries has their whole ids, but not how often they were lent, which is then taken as once. Version
0.1 wrote the magic `FBHD` and no version; its entries have `FBENTRY1`.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from typing import Any, NamedTuple

from forebay.clock import SteadyClock
from forebay.errors import Damaged
from forebay.formats.entry import OLD_VERSION
from forebay.kernels.buffers import crc32
from forebay.queues.fifo.names import HEAD
from forebay.queues.fifo.options import FILE_BYTES_MAX, FILE_BYTES_MIN
from forebay.queues.fifo.scanner import Place
from forebay.queues.fifo.staged import (
    HEAD_FIXED_BYTES,
    HEAD_MAGIC,
    LENDING_MAGIC,
    LENT_BYTES,
    STORING,
    STORING_AT,
    HeadCursor,
)
from forebay.storage.filesystem import Directory, File, Mapping, unmap, write_all
from forebay.storage.readable import open_readable

SLOT_STRIDE = 4096
_SLOTS = 4
HEAD_BYTES = _SLOTS * SLOT_STRIDE
_MAPPED_BYTES = 2 * SLOT_STRIDE
# The slots that are written with a sync.
_SYNCED = (2, 3)
_FIXED = struct.Struct(">4s8QI8s")
assert _FIXED.size == HEAD_FIXED_BYTES
_OLD_MAGIC = b"FBHD"
_OLD_FIXED = struct.Struct(">4s8QI")
_LENT = struct.Struct(">3Q")
assert _LENT.size == LENT_BYTES
_CRC = struct.Struct(">I")
LENT_MAX = 128
_NUMBER_MAX = 2**63
# No tape is that long. A place on it is a signed number of 8 bytes, with room for what comes after.
POSITION_MAX = 2**62
# Nor has a queue so many entries. A scan for all of them ends there.
ENTRY_NUMBER_MAX = 2**62
_SLOT_BYTES_MAX = _FIXED.size + LENT_MAX * _LENT.size + _CRC.size
assert _SLOT_BYTES_MAX <= STORING_AT == SLOT_STRIDE - len(STORING)


class Lent(NamedTuple):
    """An entry that is lent: where it is, and how often it was lent.

    An entry that was popped and given back counts as never lent.
    """

    position: int
    number: int
    id: int
    attempts: int = 1

    @property
    def place(self) -> Place:
        """The place just before this entry."""
        return Place(self.position, self.number, self.id - 1)

    def encode(self) -> bytes:
        """Returns the entry's row in a slot."""
        return _LENT.pack(self.position, self.number, self.id & ~0xFFFF | self.attempts)

    @classmethod
    def decode(cls, data: bytes, start: int, *, counted: bool) -> Lent:
        """Reads a row; `counted`: the row has how often the entry was lent."""
        position, number, last = _LENT.unpack_from(data, start)
        if not counted:
            return cls(position, number, last)
        return cls(position, number, last & ~0xFFFF | number & 0xFFFF, last & 0xFFFF)


class Head(NamedTuple):
    """The contents of one slot."""

    file_bytes: int
    version: bytes
    position: int = 0
    number: int = 0
    last_id: int = 0
    expired: int = 0
    dropped: int = 0
    damaged: int = 0
    lent: tuple[Lent, ...] = ()
    sequence: int = 0

    @property
    def place(self) -> Place:
        """The place just before the next entry."""
        return Place(self.position, self.number, self.last_id)

    def at(
        self, position: int, number: int, last_id: int, expired: int, dropped: int, damaged: int
    ) -> Head:
        """Returns the head at another place, with other counts."""
        return self._replace(
            position=position,
            number=number,
            last_id=last_id,
            expired=expired,
            dropped=dropped,
            damaged=damaged,
        )

    def encode(self) -> bytes:
        """Returns the bytes of a slot."""
        counts = (self.position, self.number, self.last_id)
        left = (self.expired, self.dropped, self.damaged)
        fields = (self.sequence, self.file_bytes, *counts, *left, len(self.lent), self.version)
        magic = LENDING_MAGIC if self.lent else HEAD_MAGIC
        data = _FIXED.pack(magic, *fields) + b"".join([row.encode() for row in self.lent])
        return data + _CRC.pack(crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> Head | None:
        """Reads a slot; None if it does not verify."""
        magic = data[:4]
        layout = _OLD_FIXED if magic == _OLD_MAGIC else _FIXED
        if len(data) < layout.size or magic not in (HEAD_MAGIC, LENDING_MAGIC, _OLD_MAGIC):
            return None
        fields: tuple[Any, ...] = layout.unpack_from(data)
        version = OLD_VERSION if layout is _OLD_FIXED else fields[10]
        count = fields[9]
        end = layout.size + count * _LENT.size
        if count > LENT_MAX or len(data) < end + _CRC.size:
            return None
        if _CRC.unpack_from(data, end)[0] != crc32(data[:end]):
            return None
        rows = range(layout.size, end, _LENT.size)
        counted = magic == LENDING_MAGIC
        lent = tuple(Lent.decode(data, start, counted=counted) for start in rows)
        head = cls(fields[2], version)._replace(lent=lent, sequence=fields[1])
        head = head.at(*fields[3:9])
        return head if head.is_sound else None

    @property
    def is_sound(self) -> bool:
        """Whether its values are possible: numbers in range, lent entries before the place."""
        numbers = (self.sequence, *self[2:8])
        return (
            FILE_BYTES_MIN <= self.file_bytes <= FILE_BYTES_MAX
            and max(numbers) < _NUMBER_MAX
            and self.position <= POSITION_MAX
            and self.number < ENTRY_NUMBER_MAX
            and all(
                it.id > 0 and it.number < self.number and it.position < self.position
                for it in self.lent
            )
        )


class Slots(NamedTuple):
    """The contents of the file: the newest head, and the slots that are neither valid nor blank.

    Those that a kill has torn count as blank.
    """

    head: Head | None
    bad: list[int]
    # How many of the slots that verify have the same contents as the newest.
    copies: int
    size: int


def read_slots(directory: Directory) -> Slots:
    """Reads the file; a missing file has no slots.

    Raises `Damaged` if it cannot be opened.
    """
    try:
        file = open_readable(directory, HEAD)
    except FileNotFoundError:
        return Slots(None, [], 0, 0)
    with contextlib.closing(file):
        # A slot that the disk cannot read does not verify; the others still do.
        data = file.pread(_SLOTS * SLOT_STRIDE, 0)
        holes = file.holes
        size = file.size()
    slots = [data[slot * SLOT_STRIDE :][:SLOT_STRIDE] for slot in range(_SLOTS)]
    heads = [Head.decode(slot) for slot in slots]
    good = [head for head in heads if head is not None]
    newest = max(good, key=lambda head: head.sequence, default=None)
    bad = [
        number
        for number, slot in enumerate(slots)
        if heads[number] is None
        and (holes or slot[:_SLOT_BYTES_MAX].strip(b"\0"))
        and not (number not in _SYNCED and slot[STORING_AT:] == STORING)
    ]
    copies = sum(newest is not None and head.sequence == newest.sequence for head in good)
    return Slots(newest, bad, copies, size)


def read_head(directory: Directory) -> Head | None:
    """Returns the newest head; None if there is none that can be read and verifies."""
    try:
        return read_slots(directory).head
    except Damaged:
        return None


def write_head(directory: Directory, head: Head) -> Head:
    """Makes this the head, in all slots; durable on return. Returns it with its new sequence."""
    try:
        file = directory.open(HEAD, write=True)
    except FileNotFoundError:
        file = directory.create(HEAD)
    with contextlib.closing(file):
        # Allocated, not sparse: a store into a hole on a full disk would kill the process.
        file.allocate(0, _SLOTS * SLOT_STRIDE)
        data = file.pread(_SLOTS * SLOT_STRIDE, 0)
        slots = [Head.decode(data[slot * SLOT_STRIDE :][:SLOT_STRIDE]) for slot in range(_SLOTS)]
        sequences = [-1 if slot is None else slot.sequence for slot in slots]
        sequence = max(0, *sequences)
        # The newest slot last: until another is synced, it is the one that counts.
        for slot in sorted(range(_SLOTS), key=lambda slot: sequences[slot]):
            sequence += 1
            # The whole slot: if a kill has torn it, it says so no longer.
            whole = head._replace(sequence=sequence).encode().ljust(SLOT_STRIDE, b"\0")
            write_all(file, whole, slot * SLOT_STRIDE)
            file.sync()
        directory.sync()
    return head._replace(sequence=sequence)


class Popped:
    """The entries that one pop has taken and that are not yet known to be gone for good.

    Those in `rows` had been given back before; the others lay on the tape from the place `start` up
    to the number `end`.
    """

    __slots__ = ("end", "rows", "start", "values")

    def __init__(self, start: Place) -> None:
        self.start = start
        self.end = start.number
        self.rows: list[Lent] = []
        self.values: list[bytes] = []

    @property
    def position(self) -> int:
        """The position on the tape of the first of them."""
        return min([self.start.position, *(row.position for row in self.rows)])


class HeadFile:
    """The head of a fifo that this process owns, and the kernel that moves it.

    Called with the queue's lock held, except for `commit`, `store` and `settle`.
    """

    def __init__(
        self,
        directory: Directory,
        head: Head,
        lock: threading.Lock,
        clock: SteadyClock,
        *,
        mapped: bool,
    ) -> None:
        """`head` is what all slots contain. `mapped`: each change survives a kill at once.

        Otherwise `store` or `commit` must follow each change.
        """
        self._file: File = directory.open(HEAD, write=True)
        self.mapped = mapped
        self._memory: Mapping = bytearray(_MAPPED_BYTES)
        if mapped:
            try:
                if self._file.size() < _MAPPED_BYTES:
                    # The file was truncated from outside; the remaining slots still have the head.
                    self._file.allocate(0, _MAPPED_BYTES)
                self._memory = self._file.map(_MAPPED_BYTES)
            except BaseException:
                self._file.close()
                raise
        self.cursor = HeadCursor(
            self._memory,
            head.file_bytes,
            head.sequence,
            lock,
            None if clock.is_system else clock.now_ms,
            clock.ahead_ms,
            head.version,
        )
        self._mutex = threading.Lock()
        self._next_slot = _SYNCED[0]
        # After a kill the newest slot may be only in the cache: the first commit always writes.
        self._synced = head._replace(sequence=-1)
        # The state that counts if a later one cannot be kept.
        self._kept = self._synced
        self.lent: dict[int, Lent] = {}
        # Pops that may still be given back: their entries stay on the tape.
        self.unsettled: set[Popped] = set()
        self._place(head)

    @property
    def place(self) -> Place:
        """The place just before the next entry that has not been taken."""
        _, position, number, last_id, *_ = self.cursor.state()
        return Place(position, number, last_id)

    @property
    def first_position(self) -> int:
        """The position on the tape of the oldest entry that has not left for good."""
        position = self.cursor.position
        if self.lent or self.unsettled:
            # Copied to lists: other threads change the two meanwhile.
            kept = [row.position for row in list(self.lent.values())]
            kept += [popped.position for popped in list(self.unsettled)]
            position = min(position, *kept)
        return position

    @property
    def oldest(self) -> int:
        """The number of the oldest entry that has not left for good."""
        return min([self.cursor.number, *self.lent])

    @property
    def may_lend(self) -> bool:
        """Whether a slot has room for one more lent entry."""
        return len(self.lent) < LENT_MAX

    def finish(self, numbers: list[int]) -> None:
        """Records that lent entries have left."""
        for number in numbers:
            del self.lent[number]
        self.save()

    def save(self) -> None:
        """Records the place and the lent entries."""
        # Rows exceed a slot only if pops were given back, and the head is not mapped then.
        rows = [row.encode() for row in self.lent.values()]
        self.cursor.lent = b"".join(rows[:LENT_MAX])
        self.cursor.save()

    def state(self) -> Head:
        """Returns the head as of one moment: other threads pop without the lock."""
        sequence, position, number, last_id, *left = self.cursor.state()
        rows = tuple(self.lent.values())
        if len(rows) > LENT_MAX:
            # The head goes back to the entries that have no room in a slot. If this is read, what
            # was popped after them comes again, and none of them is lost.
            rows = tuple(sorted(rows, key=lambda row: row.number))
            position, number, last_id = rows[LENT_MAX].place
            rows = rows[:LENT_MAX]
        expired, dropped, damaged = left
        of_queue = (self._synced.file_bytes, self._synced.version)
        place = (position, number, last_id)
        return Head(*of_queue, *place, expired, dropped, damaged, rows, sequence)

    def commit(self, head: Head) -> None:
        """Makes a state durable, unless a later one already is; any thread may call it."""
        with self._mutex:
            if head.sequence <= self._synced.sequence:
                return
            write_all(self._file, head.encode(), self._next_slot * SLOT_STRIDE)
            self._file.sync()
            self._synced = head
            if self._kept.sequence < head.sequence:
                self._kept = head
            self._next_slot = _SYNCED[0] + _SYNCED[1] - self._next_slot

    def store(self, head: Head) -> None:
        """Writes a state to the slot that a mapped store would use; any thread may call it."""
        with self._mutex:
            if head.sequence <= self._kept.sequence:
                return
            write_all(self._file, head.encode(), head.sequence % 2 * SLOT_STRIDE)
            self._kept = head

    def go_back(self) -> None:
        """Puts the head back to the last state that was kept, after a failed commit or store.

        A mapped head stays: each change was kept at once, and its entry was returned to the caller.
        """
        if self.mapped:
            return
        self._place(self._kept)
        self.cursor.save()
        # Overwrites the slot whose sync failed: the cache may show bytes that are not on the disk.
        write_all(self._file, self.state().encode(), self._next_slot * SLOT_STRIDE)

    def settle(self, head: Head) -> None:
        """Makes a state durable and leaves the same in all slots, for a clean close."""
        self.commit(head)
        with self._mutex:
            # The durable slot is not overwritten: a power cut may tear everything not yet synced.
            durable = _SYNCED[0] + _SYNCED[1] - self._next_slot
            for slot in range(_SLOTS):
                if slot != durable:
                    write_all(self._file, self._synced.encode(), slot * SLOT_STRIDE)
            self._file.sync()

    def close(self) -> None:
        """Unmaps and closes the file."""
        with self._mutex, contextlib.ExitStack() as stack:
            stack.callback(self._file.close)
            stack.callback(unmap, self._memory)
            self.cursor.release_slots()

    def _place(self, head: Head) -> None:
        self.cursor.place(*head.place)
        self.cursor.expired = head.expired
        self.cursor.dropped = head.dropped
        self.cursor.damaged = head.damaged
        self.lent = {lent.number: lent for lent in head.lent}
        self.cursor.lent = b"".join([row.encode() for row in head.lent])
