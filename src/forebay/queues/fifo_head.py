"""`fifo-head` and `fifo-taken`: what was taken off a fifo, and what is only lent out.

Both are sources of truth, and hold two pairs of checked slots (`storage/slots.py`). The first pair
is written at every change and never waited for: it survives `kill -9`. The second pair is written
only together with a sync: a power cut that tears both slots of the first pair leaves that one. The
first pair of the head is mapped, so that a pop is a few stores; under "always" it is not used.

The payload of the head, big-endian, 8 bytes each:

| field | meaning |
| --- | --- |
| file bytes | the size of a file of the tape |
| position | where on the tape the next entry is |
| number | of the next entry: how many have left the queue |
| id | the next entry's is above this |
| expired | how many left because their time was over |
| dropped | how many left to make room |
| damaged | how many left because they could not be read |

The payload of `fifo-taken`: how often it was changed (8 bytes), how many entries are lent out (4),
then for each its position, number and id. They are behind the head; after a crash they come back to
its front.
"""

from __future__ import annotations

import struct
import threading
from typing import NamedTuple

from forebay.clock import SteadyClock
from forebay.errors import Full
from forebay.kernels.fifo import HEAD_MAGIC, HEAD_PAYLOAD_BYTES, Popper
from forebay.queues.fifo_names import HEAD, TAKEN
from forebay.queues.fifo_scanner import Place
from forebay.storage.filesystem import Directory, File, Mapping
from forebay.storage.slots import SlotFile

_MAPPED_BYTES = 2 * 4096
_FILE_BYTES = 4 * 4096
_SYNCED_PAIR = 2
_TAKEN_MAGIC = b"FBTK"
_HEAD = struct.Struct(">7Q")
assert _HEAD.size == HEAD_PAYLOAD_BYTES
_CHANGES = struct.Struct(">QI")
_LENT = struct.Struct(">3Q")
LENT_MAX = 128
_TAKEN_BYTES = _CHANGES.size + LENT_MAX * _LENT.size


class Head(NamedTuple):
    """What one slot of the head says."""

    file_bytes: int
    position: int = 0
    number: int = 0
    last_id: int = 0
    expired: int = 0
    dropped: int = 0
    damaged: int = 0

    @property
    def place(self) -> Place:
        """The place before the next entry."""
        return Place(self.position, self.number, self.last_id)


class Lent(NamedTuple):
    """An entry that is lent out: where it is."""

    position: int
    number: int
    id: int

    @property
    def place(self) -> Place:
        """The place before it."""
        return Place(self.position, self.number, self.id - 1)


def read_head(directory: Directory) -> Head | None:
    """Gives the newest head; None if there is none, or none that verifies."""
    payloads = _read_pairs(directory, HEAD, HEAD_MAGIC, HEAD_PAYLOAD_BYTES)
    heads = [Head(*_HEAD.unpack(payload)) for payload in payloads]
    return max(heads, key=lambda head: head.number, default=None)


def write_head(directory: Directory, head: Head) -> None:
    """Makes this the head, whatever it was; durable on return."""
    file = _open_pairs(directory, HEAD)
    try:
        for first in (_SYNCED_PAIR, 0):
            slots = SlotFile(file, HEAD_MAGIC, HEAD_PAYLOAD_BYTES, first)
            # Twice: the slot before says something else.
            for _ in range(2):
                slots.write(_HEAD.pack(*head))
                file.sync()
        directory.sync()
    finally:
        file.close()


class HeadFile:
    """The head of a fifo that this process owns, and the kernel that moves it."""

    def __init__(
        self,
        directory: Directory,
        head: Head,
        lock: threading.Lock,
        clock: SteadyClock,
        *,
        mapped: bool,
    ) -> None:
        """The file is there, and `head` is what it says. `mapped`: each move survives a kill."""
        self._file: File = directory.open(HEAD, write=True)
        self._memory: Mapping = bytearray(_MAPPED_BYTES)
        self._slots = SlotFile(self._file, HEAD_MAGIC, HEAD_PAYLOAD_BYTES, _SYNCED_PAIR)
        sequence = SlotFile(self._file, HEAD_MAGIC, HEAD_PAYLOAD_BYTES).sequence
        self._mutex = threading.Lock()
        self._mapped = mapped
        if mapped:
            try:
                self._memory = self._file.map(_MAPPED_BYTES)
            except BaseException:
                self._file.close()
                raise
        self.popper = Popper(
            self._memory,
            head.file_bytes,
            sequence,
            lock,
            None if clock.is_system else clock.now_ms,
            clock.ahead_ms,
        )
        self._file_bytes = head.file_bytes
        self._place(head)
        self._synced = head

    def state(self) -> Head:
        """Gives the head as it is now. Lock held."""
        popper = self.popper
        counts = (popper.expired, popper.dropped, popper.damaged)
        return Head(self._file_bytes, popper.position, popper.number, popper.last_id, *counts)

    def commit(self, head: Head) -> None:
        """Makes a head durable, unless a later one is; any thread may call it."""
        with self._mutex:
            if head.number < self._synced.number or head == self._synced:
                return
            self._slots.write(_HEAD.pack(*head))
            self._slots.sync()
            self._synced = head

    def go_back(self) -> None:
        """Puts the head back to what is durable. Lock held, after a failed commit."""
        self._place(self._synced)
        self.popper.save()
        self._slots.write(_HEAD.pack(*self._synced))

    def close(self) -> None:
        """Unmaps and closes the file."""
        self.popper.release_slots()
        if not isinstance(self._memory, bytearray):
            self._memory.close()
        self._file.close()

    def _place(self, head: Head) -> None:
        self.popper.place(*head.place)
        self.popper.expired = head.expired
        self.popper.dropped = head.dropped
        self.popper.damaged = head.damaged


class Taken:
    """The entries that are lent out. Called with the queue's lock held."""

    def __init__(self, directory: Directory, head: int, *, always: bool) -> None:
        """Reads what is lent out; entries at or behind the head's number are not.

        With `always`, every change is durable when it is made.
        """
        self._directory = directory
        self._always = always
        changes, rows = _read_taken(directory)
        self._changes = changes
        self.lent: dict[int, Lent] = {row.number: row for row in rows if row.number < head}
        self._file: File | None = None
        self._live: SlotFile | None = None
        self._slots: SlotFile | None = None
        self._synced = True

    def add(self, lent: Lent) -> None:
        """Lends one more out; raises Full if too many are."""
        if len(self.lent) >= LENT_MAX:
            raise Full(f"{self._directory.path}: {LENT_MAX} entries are taken and not given back")
        self._change({**self.lent, lent.number: lent})

    def remove(self, number: int) -> None:
        """Strikes one out: it has left the queue."""
        self._change({key: lent for key, lent in self.lent.items() if key != number})

    def replace(self, entries: list[Lent]) -> None:
        """Lends these out instead; durable on return."""
        self._change({lent.number: lent for lent in entries})
        self.sync()

    def sync(self) -> None:
        """Makes it durable as it is now."""
        if self._slots is not None and not self._synced:
            self._slots.write(self._encode(self.lent))
            self._slots.sync()
            self._synced = True

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _change(self, lent: dict[int, Lent]) -> None:
        if self._file is None:
            self._file = _open_pairs(self._directory, TAKEN)
            self._live = SlotFile(self._file, _TAKEN_MAGIC, _TAKEN_BYTES)
            self._slots = SlotFile(self._file, _TAKEN_MAGIC, _TAKEN_BYTES, _SYNCED_PAIR)
            self._directory.sync()
        assert self._live is not None
        self._changes += 1
        if not self._always:
            self._live.write(self._encode(lent))
        before, self.lent = self.lent, lent
        self._synced = False
        if self._always:
            try:
                self.sync()
            except OSError:
                self.lent = before
                raise

    def _encode(self, lent: dict[int, Lent]) -> bytes:
        rows = [_LENT.pack(*row) for row in lent.values()]
        return (_CHANGES.pack(self._changes, len(rows)) + b"".join(rows)).ljust(_TAKEN_BYTES, b"\0")


def read_taken(directory: Directory, head: int) -> list[Lent]:
    """Gives the entries that are lent out, without owning the queue."""
    return [row for row in _read_taken(directory)[1] if row.number < head]


def _read_taken(directory: Directory) -> tuple[int, list[Lent]]:
    """Gives how often it was changed, and the entries of the last time."""
    payloads = _read_pairs(directory, TAKEN, _TAKEN_MAGIC, _TAKEN_BYTES)
    if not payloads:
        return 0, []
    payload = max(payloads, key=lambda payload: payload[:8])
    changes, count = _CHANGES.unpack_from(payload)
    starts = range(_CHANGES.size, _CHANGES.size + min(count, LENT_MAX) * _LENT.size, _LENT.size)
    return changes, sorted(Lent(*_LENT.unpack_from(payload, start)) for start in starts)


def _open_pairs(directory: Directory, name: str) -> File:
    """Opens a file of two pairs of slots, or makes one."""
    try:
        file = directory.open(name, write=True)
    except FileNotFoundError:
        file = directory.create(name)
    try:
        # Allocated, not sparse: a store into a hole of a full disk would kill the process.
        file.allocate(0, _FILE_BYTES)
    except BaseException:
        file.close()
        raise
    return file


def _read_pairs(directory: Directory, name: str, magic: bytes, size: int) -> list[bytes]:
    """Gives the newest payload of each pair of slots."""
    try:
        file = directory.open(name)
    except FileNotFoundError:
        return []
    try:
        pairs = [SlotFile(file, magic, size, first) for first in (0, _SYNCED_PAIR)]
        return [pair.payload for pair in pairs if pair.payload is not None]
    finally:
        file.close()
