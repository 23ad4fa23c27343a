"""`fifo-head`: what has left a fifo, and what is only lent out. Source of truth.

Four checked slots, 4096 bytes apart; the one with the highest sequence counts, of those that
verify. The first two are written in turn at every change and never waited for: they survive `kill
-9`. They are mapped, so that a pop is a few stores; under "always" they are not used. The other two
are written in turn, each with a sync: a power cut that tears what was being stored leaves what was
synced. One slot holds place and lent entries together, so that no crash comes between the two. A
clean close leaves the same in all four: then one that does not verify costs nothing.

A slot, big-endian:

| field | bytes | meaning |
| --- | --- | --- |
| magic | 4 | `FBH2` |
| sequence | 8 | counts the changes |
| file bytes | 8 | the size of a file of the tape |
| position | 8 | where on the tape the next entry is |
| number | 8 | of the next entry: how many have left, or are lent out |
| id | 8 | the next entry's is above this |
| expired | 8 | how many left because their time was over |
| dropped | 8 | how many left to make room |
| damaged | 8 | how many left because they could not be read |
| count | 4 | of entries that are lent out; after a crash they come back to the front |
| version | 8 | what the entries of this queue have in their version field |
| lent | 24 each | position, number and id of each |
| crc32 | 4 | of all before |

Version 0.1 wrote the magic `FBHD` and no version; its entries have `FBENTRY1`.
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
from forebay.queues.fifo.scanner import Place
from forebay.queues.fifo.staged import HEAD_FIXED_BYTES, HEAD_MAGIC, LENT_BYTES, HeadCursor
from forebay.queues.shared.options import FILE_BYTES_MAX, FILE_BYTES_MIN
from forebay.storage.filesystem import Directory, File, Mapping, unmap, write_all
from forebay.storage.readable import open_readable

SLOT_STRIDE = 4096
_SLOTS = 4
HEAD_BYTES = _SLOTS * SLOT_STRIDE
_MAPPED_BYTES = 2 * SLOT_STRIDE
# Those that are written with a sync.
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
# No tape is as long. A place on it is a signed number of 8 bytes, with room for what comes after.
POSITION_MAX = 2**62
_SLOT_BYTES_MAX = _FIXED.size + LENT_MAX * _LENT.size + _CRC.size
assert _SLOT_BYTES_MAX <= SLOT_STRIDE


class Lent(NamedTuple):
    """An entry that is lent out: where it is."""

    position: int
    number: int
    id: int

    @property
    def place(self) -> Place:
        """The place before it."""
        return Place(self.position, self.number, self.id - 1)


class Head(NamedTuple):
    """What one slot says."""

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
        """The place before the next entry."""
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
        data = _FIXED.pack(HEAD_MAGIC, *fields) + b"".join(_LENT.pack(*row) for row in self.lent)
        return data + _CRC.pack(crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> Head | None:
        """Reads a slot; None if it does not verify."""
        layout = _OLD_FIXED if data[:4] == _OLD_MAGIC else _FIXED
        if len(data) < layout.size or data[:4] not in (HEAD_MAGIC, _OLD_MAGIC):
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
        lent = tuple(Lent(*_LENT.unpack_from(data, start)) for start in rows)
        head = cls(fields[2], version)._replace(lent=lent, sequence=fields[1])
        head = head.at(*fields[3:9])
        return head if head.is_sound else None

    @property
    def is_sound(self) -> bool:
        """Whether all of it can be true: numbers in their range, lent entries before the place."""
        numbers = (self.sequence, *self[2:8])
        return (
            FILE_BYTES_MIN <= self.file_bytes <= FILE_BYTES_MAX
            and max(numbers) < _NUMBER_MAX
            and self.position <= POSITION_MAX
            and all(
                it.id > 0 and it.number < self.number and it.position < self.position
                for it in self.lent
            )
        )


class Slots(NamedTuple):
    """What is in the file: the newest head, and the slots that do not verify and are not blank."""

    head: Head | None
    bad: list[int]
    # Of the slots that verify, how many say the same as the newest.
    copies: int
    size: int


def read_slots(directory: Directory) -> Slots:
    """Reads the file; a file that is not there has no slots.

    Raises `Damaged` if it cannot be opened.
    """
    try:
        file = open_readable(directory, HEAD)
    except FileNotFoundError:
        return Slots(None, [], 0, 0)
    try:
        # A slot that the disk cannot give back does not verify, and the others do.
        data = file.pread(_SLOTS * SLOT_STRIDE, 0)
        holes = file.holes
        size = file.size()
    finally:
        file.close()
    slots = [data[slot * SLOT_STRIDE :][:SLOT_STRIDE] for slot in range(_SLOTS)]
    heads = [Head.decode(slot) for slot in slots]
    good = [head for head in heads if head is not None]
    newest = max(good, key=lambda head: head.sequence, default=None)
    bad = [
        number
        for number, slot in enumerate(slots)
        if heads[number] is None and (holes or slot[:_SLOT_BYTES_MAX].strip(b"\0"))
    ]
    copies = sum(newest is not None and head.sequence == newest.sequence for head in good)
    return Slots(newest, bad, copies, size)


def read_head(directory: Directory) -> Head | None:
    """Returns the newest head; None if there is none, or none that can be read and verifies."""
    try:
        return read_slots(directory).head
    except Damaged:
        return None


def write_head(directory: Directory, head: Head) -> Head:
    """Makes this the head, in all slots; durable on return. Returns it with its sequence."""
    try:
        file = directory.open(HEAD, write=True)
    except FileNotFoundError:
        file = directory.create(HEAD)
    try:
        # Allocated, not sparse: a store into a hole of a full disk would kill the process.
        file.allocate(0, _SLOTS * SLOT_STRIDE)
        data = file.pread(_SLOTS * SLOT_STRIDE, 0)
        slots = [Head.decode(data[slot * SLOT_STRIDE :][:SLOT_STRIDE]) for slot in range(_SLOTS)]
        sequences = [-1 if slot is None else slot.sequence for slot in slots]
        sequence = max(0, *sequences)
        # The newest one last: until another is synced, it is the one that counts.
        for slot in sorted(range(_SLOTS), key=lambda slot: sequences[slot]):
            sequence += 1
            write_all(file, head._replace(sequence=sequence).encode(), slot * SLOT_STRIDE)
            file.sync()
        directory.sync()
    finally:
        file.close()
    return head._replace(sequence=sequence)


class HeadFile:
    """The head of a fifo that this process owns, and the kernel that moves it.

    Called with the queue's lock held, except `commit`.
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
        """`head` is what all slots say. `mapped`: each change survives a kill at once.

        Otherwise `store` or `commit` must follow.
        """
        self._file: File = directory.open(HEAD, write=True)
        self._mapped = mapped
        self._memory: Mapping = bytearray(_MAPPED_BYTES)
        if mapped:
            try:
                if self._file.size() < _MAPPED_BYTES:
                    # Somebody has cut it; the slots that are left tell the head all the same.
                    self._file.allocate(0, _MAPPED_BYTES)
                self._memory = self._file.map(_MAPPED_BYTES)
            except BaseException:
                self._file.close()
                raise
        self.popper = HeadCursor(
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
        # After a kill the newest slot may be in the cache alone: the first commit always writes.
        self._synced = head._replace(sequence=-1)
        # What counts if a later one cannot be kept.
        self._kept = self._synced
        self.lent: dict[int, Lent] = {}
        self._place(head)

    @property
    def may_lend(self) -> bool:
        """Whether there is room in a slot for one more that is lent out."""
        return len(self.lent) < LENT_MAX

    def lend(self, lent: Lent) -> None:
        """Notes that the entry that was stepped over is lent out."""
        self._set_lent({**self.lent, lent.number: lent})
        self.popper.save()

    def finish(self, number: int) -> None:
        """Notes that an entry that was lent out has left."""
        self._set_lent({key: lent for key, lent in self.lent.items() if key != number})
        self.popper.save()

    def state(self) -> Head:
        """Returns the head as it is now, of one moment: other threads pop without the lock."""
        sequence, *rest = self.popper.state()
        head = self._synced._replace(sequence=sequence, lent=tuple(self.lent.values()))
        return head.at(*rest)

    def commit(self, head: Head) -> None:
        """Makes a state durable, unless a later one is; any thread may call it."""
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
        """Writes a state where a mapped store would have put it; any thread may call it."""
        with self._mutex:
            if head.sequence <= self._kept.sequence:
                return
            write_all(self._file, head.encode(), head.sequence % 2 * SLOT_STRIDE)
            self._kept = head

    def go_back(self) -> None:
        """Puts the head back to what was kept last, after a failed commit or store.

        A mapped one stays: each of its changes was kept at once, and its entry given to the caller.
        """
        if self._mapped:
            return
        self._place(self._kept)
        self.popper.save()
        # Over the slot whose sync failed: the cache may show what is not on the disk.
        write_all(self._file, self.state().encode(), self._next_slot * SLOT_STRIDE)

    def settle(self) -> None:
        """Leaves the same in all slots, for a clean close; any thread may call it."""
        with self._mutex:
            # Not over the one that is durable: a power cut may tear all that is not synced yet.
            durable = _SYNCED[0] + _SYNCED[1] - self._next_slot
            for slot in range(_SLOTS):
                if slot != durable:
                    write_all(self._file, self._synced.encode(), slot * SLOT_STRIDE)
            self._file.sync()

    def close(self) -> None:
        """Unmaps and closes the file."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._file.close)
            stack.callback(unmap, self._memory)
            self.popper.release_slots()

    def _place(self, head: Head) -> None:
        self.popper.place(*head.place)
        self.popper.expired = head.expired
        self.popper.dropped = head.dropped
        self.popper.damaged = head.damaged
        self._set_lent({lent.number: lent for lent in head.lent})

    def _set_lent(self, lent: dict[int, Lent]) -> None:
        self.lent = lent
        self.popper.lent = b"".join(_LENT.pack(*row) for row in lent.values())
