"""A small file of two checked slots, written in turn.

A write goes to the slot that is not the newest, so a crash in the middle of it leaves the other
one intact. A reader in another process gets a whole slot with one `pread`, never a mixture. Writes
work on a full disk: the space is allocated from the start.

Slot, big-endian: `magic 4 | sequence 8 | payload | crc32 of all before 4`, at 0 and at 4096.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from forebay.kernels.buffers import crc32
from forebay.storage.filesystem import Directory, File, write_all
from forebay.storage.readable import Readable, open_again

# Magics and payload sizes of earlier versions of a file.
Older = Sequence[tuple[bytes, int]]
# Returns whether a payload is plausible: its numbers are in range and agree.
Sound = Callable[[bytes], bool]

# The slots are in different pages, so that no torn write can hit both.
_STRIDE = 4096
_HEAD = struct.Struct(">4sQ")
_CRC = struct.Struct(">I")
assert _HEAD.size + _CRC.size == 16
# Far above any real sequence: a sequence must be able to rise.
_SEQUENCE_MAX = 2**63


def encode_slots(magic: bytes, payload: bytes) -> bytes:
    """Returns the bytes of a file that has the same payload in both slots."""
    parts = []
    for sequence in (2, 1):
        head = _HEAD.pack(magic, sequence) + payload
        parts.append(head + _CRC.pack(crc32(head)))
    return parts[0].ljust(_STRIDE, b"\0") + parts[1]


class SlotFile:
    """A two-slot file. One thread at a time may write; any number of processes may read."""

    def __init__(
        self,
        file: File,
        magic: bytes,
        payload_bytes: int,
        older: Older = (),
        sound: Sound | None = None,
    ) -> None:
        """`older` are magics and payload sizes that are read too; the size identifies them.

        A slot whose payload is not `sound` counts as one that does not verify.
        """
        self._file = file
        self._magic = magic
        self._sound = sound
        self._layouts = [(magic, payload_bytes), *older]
        # Whether both slots verified at the last read: otherwise the newest one may be lost.
        self.whole = False
        try:
            self.sequence, self.payload = self._newest()
        except BaseException:
            file.close()
            raise

    @classmethod
    def open(
        cls,
        directory: Directory,
        name: str,
        magic: bytes,
        payload_bytes: int,
        *,
        write: bool,
        older: Older = (),
        sound: Sound | None = None,
    ) -> SlotFile | None:
        """Opens a slot file; None if there is none."""
        try:
            # A store from which it is only read knows no `write`.
            options = {"write": True} if write else {}
            file = open_again(lambda: directory.open(name, **options))
        except FileNotFoundError:
            return None
        return cls(file, magic, payload_bytes, older, sound)

    @classmethod
    def create(cls, directory: Directory, name: str, magic: bytes, payload: bytes) -> SlotFile:
        """Creates one, or takes over one that a crash left; durable on return, name included."""
        slots = cls.make(directory, name, magic, len(payload))
        try:
            slots.begin(directory, payload)
        except BaseException:
            slots.close()
            raise
        return slots

    @classmethod
    def make(cls, directory: Directory, name: str, magic: bytes, payload_bytes: int) -> SlotFile:
        """Creates one without a payload, or opens an existing one; `begin` writes the first."""
        try:
            file = directory.create(name)
        except FileExistsError:
            file = directory.open(name, write=True)
        return cls(file, magic, payload_bytes)

    def begin(self, directory: Directory, payload: bytes) -> None:
        """Writes a payload to both slots; durable on return, with the name."""
        self.write(payload)
        self.write(payload, sync=True)
        directory.sync()

    def read(self) -> bytes | None:
        """Returns the newest payload in the file now; None if no slot verifies."""
        self.sequence, self.payload = self._newest()
        return self.payload

    def write(self, payload: bytes, *, sync: bool = False) -> None:
        """Writes a payload; it survives the process, and with `sync`, or after it, a power cut."""
        sequence = self.sequence + 1
        head = _HEAD.pack(self._magic, sequence) + payload
        write_all(self._file, head + _CRC.pack(crc32(head)), sequence % 2 * _STRIDE)
        self.sequence, self.payload = sequence, payload
        if sync:
            self.sync()

    def faults(self, end: int | None = None) -> list[str]:
        """Lists what is not a good slot, up to `end`, in a file that is not being written."""
        data = Readable(self._file).pread(self._file.size(), 0)[:end]
        longest = _HEAD.size + _CRC.size + max(size for _, size in self._layouts)
        found = []
        for start in (0, _STRIDE):
            if not any(self._decode(data[start : start + _STRIDE], *it) for it in self._layouts):
                found.append(f"the slot at byte {start} does not verify")
        if any(data[longest:_STRIDE]) or len(data) > _STRIDE + longest:
            found.append("there are bytes outside its slots")
        return found

    def sync(self) -> None:
        """Makes what was written durable."""
        self._file.sync()

    def lock(self) -> bool:
        """Takes the lock of the file, if it is free."""
        return self._file.lock()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _newest(self) -> tuple[int, bytes | None]:
        # A slot in a bad sector is a bad slot: the other one may suffice.
        data = Readable(self._file).pread(2 * _STRIDE, 0)
        slots = [
            self._decode(data[start : start + _STRIDE], *layout)
            for start in (0, _STRIDE)
            for layout in self._layouts
        ]
        good = [slot for slot in slots if slot is not None]
        self.whole = len(good) == 2
        return max(good) if good else (0, None)

    def _decode(self, slot: bytes, magic: bytes, payload_bytes: int) -> tuple[int, bytes] | None:
        slot = slot[: _HEAD.size + payload_bytes + _CRC.size]
        if len(slot) != _HEAD.size + payload_bytes + _CRC.size or not slot.startswith(magic):
            return None
        if _CRC.unpack(slot[-4:])[0] != crc32(slot[:-4]):
            return None
        sequence, payload = _HEAD.unpack_from(slot)[1], slot[_HEAD.size : -4]
        if sequence > _SEQUENCE_MAX or (self._sound is not None and not self._sound(payload)):
            return None
        return sequence, payload
