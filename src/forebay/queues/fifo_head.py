"""`fifo-head`: what has left a fifo, and what is only lent out. Source of truth.

Four checked slots, 4096 bytes apart; the one with the highest sequence counts, of those that
verify. The first two are written in turn at every change and never waited for: they survive `kill
-9`. They are mapped, so that a pop is a few stores; under "always" they are not used. The other two
are written in turn, each with a sync: a power cut that tears what was being stored leaves what was
synced. One slot holds place and lent entries together, so that no crash comes between the two.

A slot, big-endian:

| field | bytes | meaning |
| --- | --- | --- |
| magic | 4 | `FBHD` |
| sequence | 8 | counts the changes |
| file bytes | 8 | the size of a file of the tape |
| position | 8 | where on the tape the next entry is |
| number | 8 | of the next entry: how many have left, or are lent out |
| id | 8 | the next entry's is above this |
| expired | 8 | how many left because their time was over |
| dropped | 8 | how many left to make room |
| damaged | 8 | how many left because they could not be read |
| count | 4 | of entries that are lent out; after a crash they come back to the front |
| lent | 24 each | position, number and id of each |
| crc32 | 4 | of all before |
"""

from __future__ import annotations

import struct
import threading
from typing import Any, NamedTuple

from forebay.clock import SteadyClock
from forebay.errors import Full
from forebay.kernels.checksum import crc32
from forebay.kernels.popper import HEAD_FIXED_BYTES, HEAD_MAGIC, LENT_BYTES, Popper
from forebay.queues.fifo_names import HEAD
from forebay.queues.fifo_scanner import Place
from forebay.storage.filesystem import Directory, File, Mapping, unmap, write_all

_STRIDE = 4096
_SLOTS = 4
_MAPPED_BYTES = 2 * _STRIDE
# Those that are written with a sync.
_SYNCED = (2, 3)
_FIXED = struct.Struct(">4s8QI")
assert _FIXED.size == HEAD_FIXED_BYTES
_LENT = struct.Struct(">3Q")
assert _LENT.size == LENT_BYTES
_CRC = struct.Struct(">I")
LENT_MAX = 128
assert _FIXED.size + LENT_MAX * _LENT.size + _CRC.size <= _STRIDE


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

    def encode(self) -> bytes:
        """Gives the bytes of a slot."""
        fields = (self.sequence, *self[:7], len(self.lent))
        data = _FIXED.pack(HEAD_MAGIC, *fields) + b"".join(_LENT.pack(*row) for row in self.lent)
        return data + _CRC.pack(crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> Head | None:
        """Reads a slot; None if it does not verify."""
        if len(data) < _FIXED.size or data[:4] != HEAD_MAGIC:
            return None
        fields: tuple[Any, ...] = _FIXED.unpack_from(data)
        count = fields[-1]
        end = _FIXED.size + count * _LENT.size
        if count > LENT_MAX or len(data) < end + _CRC.size:
            return None
        if _CRC.unpack_from(data, end)[0] != crc32(data[:end]):
            return None
        rows = range(_FIXED.size, end, _LENT.size)
        lent = tuple(Lent(*_LENT.unpack_from(data, start)) for start in rows)
        return cls(*fields[2:9])._replace(lent=lent, sequence=fields[1])


def read_head(directory: Directory) -> Head | None:
    """Gives the newest head; None if there is none, or none that verifies."""
    try:
        file = directory.open(HEAD)
    except FileNotFoundError:
        return None
    try:
        heads = [head for head in _read_slots(file) if head is not None]
    finally:
        file.close()
    return max(heads, key=lambda head: head.sequence, default=None)


def write_head(directory: Directory, head: Head) -> Head:
    """Makes this the head, in all slots; durable on return. Gives it with its sequence."""
    try:
        file = directory.open(HEAD, write=True)
    except FileNotFoundError:
        file = directory.create(HEAD)
    try:
        # Allocated, not sparse: a store into a hole of a full disk would kill the process.
        file.allocate(0, _SLOTS * _STRIDE)
        sequences = [-1 if slot is None else slot.sequence for slot in _read_slots(file)]
        sequence = max(0, *sequences)
        # The newest one last: until another is synced, it is the one that counts.
        for slot in sorted(range(_SLOTS), key=lambda slot: sequences[slot]):
            sequence += 1
            write_all(file, head._replace(sequence=sequence).encode(), slot * _STRIDE)
            file.sync()
        directory.sync()
    finally:
        file.close()
    return head._replace(sequence=sequence)


def _read_slots(file: File) -> list[Head | None]:
    data = file.pread(_SLOTS * _STRIDE, 0)
    return [Head.decode(data[slot * _STRIDE :][:_STRIDE]) for slot in range(_SLOTS)]


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
        self._path = directory.path
        self._file: File = directory.open(HEAD, write=True)
        self._memory: Mapping = bytearray(_MAPPED_BYTES)
        if mapped:
            try:
                self._memory = self._file.map(_MAPPED_BYTES)
            except BaseException:
                self._file.close()
                raise
        self.popper = Popper(
            self._memory,
            head.file_bytes,
            head.sequence,
            lock,
            None if clock.is_system else clock.now_ms,
            clock.ahead_ms,
        )
        self._mutex = threading.Lock()
        self._next_slot = _SYNCED[0]
        # After a kill the newest slot may be in the cache alone: the first commit always writes.
        self._synced = head._replace(sequence=-1)
        # What counts if a later one cannot be kept.
        self._kept = self._synced
        self.lent: dict[int, Lent] = {}
        self._place(head)

    def lend(self, lent: Lent) -> None:
        """Notes that the entry that was stepped over is lent out; raises Full if too many are."""
        if len(self.lent) >= LENT_MAX:
            raise Full(f"{self._path}: {LENT_MAX} entries are taken and not given back")
        self._set_lent({**self.lent, lent.number: lent})
        self.popper.save()

    def finish(self, number: int) -> None:
        """Notes that an entry that was lent out has left."""
        self._set_lent({key: lent for key, lent in self.lent.items() if key != number})
        self.popper.save()

    def state(self) -> Head:
        """Gives the head as it is now."""
        popper = self.popper
        counts = (popper.expired, popper.dropped, popper.damaged)
        return Head(
            self._synced.file_bytes,
            popper.position,
            popper.number,
            popper.last_id,
            *counts,
            tuple(self.lent.values()),
            popper.sequence,
        )

    def commit(self, head: Head) -> None:
        """Makes a state durable, unless a later one is; any thread may call it."""
        with self._mutex:
            if head.sequence <= self._synced.sequence:
                return
            write_all(self._file, head.encode(), self._next_slot * _STRIDE)
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
            write_all(self._file, head.encode(), head.sequence % 2 * _STRIDE)
            self._kept = head

    def go_back(self) -> None:
        """Puts the head back to what was kept last, after a failed commit or store."""
        self._place(self._kept)
        self.popper.save()
        # Over the slot whose sync failed: the cache may show what is not on the disk.
        write_all(self._file, self.state().encode(), self._next_slot * _STRIDE)

    def close(self) -> None:
        """Unmaps and closes the file."""
        self.popper.release_slots()
        unmap(self._memory)
        self._file.close()

    def _place(self, head: Head) -> None:
        self.popper.place(*head.place)
        self.popper.expired = head.expired
        self.popper.dropped = head.dropped
        self.popper.damaged = head.damaged
        self._set_lent({lent.number: lent for lent in head.lent})

    def _set_lent(self, lent: dict[int, Lent]) -> None:
        self.lent = lent
        self.popper.lent = b"".join(_LENT.pack(*row) for row in lent.values())
