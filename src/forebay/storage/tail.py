"""`tail`: where the live end of a queue is, for other processes and for recovery.

Source of truth for what is durable: a mark is written only after the bytes below it were synced,
so an old one is still true, only low. Two checked slots (`slots.py`); payload, big-endian:

| field | bytes | meaning |
| --- | --- | --- |
| queue id | 16 | random, set at creation |
| boot id | 16 | of the machine's start in which it was written |
| written | 8 | offset after the last record that is in the files |
| durable | 8 | offset after the last record that survives a power cut |
| segment | 8 | base offset of the segment that the durable end is in |
| position | 8 | where in it |
| time | 8 | ms of the last record, so that times never fall |
| flags | 4 | 1: closed cleanly, written = durable; 2: records after `written` wait in `staging` |
| incarnation | 4 | counts the times that offsets may have been lost and assigned again |
| starts | 8 × 8 | the offsets at which the last 8 incarnations began, newest first |
| begin | 8 | offset of the oldest record that must exist; all ones: not on record |
| salt | 8 | of the segment above, which ties the mark to it; zeros: not on record |

Before `begin` and `salt` were added the magic was `FBTL`; now it is `FBT2`. Both are read. `begin`
is durable before anything below it is removed: if the first file above it is missing, that is
damage.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from forebay.errors import Damaged, NotAQueue
from forebay.storage import quarantine
from forebay.storage.filesystem import Directory
from forebay.storage.readable import unopenable
from forebay.storage.slots import SlotFile, encode_slots

NAME = "tail"
_MAGIC = b"FBT2"
_MAGIC_OLD = b"FBTL"
_PAYLOAD_OLD = struct.Struct(">16s16s5QII8Q")
_PAYLOAD = struct.Struct(">16s16s5QII8QQ8s")
assert (_PAYLOAD_OLD.size, _PAYLOAD.size) == (144, 160)
_CLEAN = 1
_STAGED = 2
_NOT_ON_RECORD = 2**64 - 1
_NO_SALT = bytes(8)
_OLDER = ((_MAGIC_OLD, _PAYLOAD_OLD.size),)
# No number or position of a queue is above it.
_NUMBER_MAX = 2**63
_TIME_MS_MAX = 2**47


class Tail(NamedTuple):
    """The content of one slot of `tail`."""

    queue_id: bytes
    boot_id: bytes
    written: int = 0
    durable: int = 0
    segment: int = 0
    position: int = 0
    time_ms: int = 0
    clean: bool = False
    incarnation: int = 1
    starts: tuple[int, ...] = (0,) * 8
    begin: int | None = None
    salt: bytes = b""
    staged: bool = False

    def encode(self) -> bytes:
        """Returns the payload of a slot."""
        return _PAYLOAD.pack(
            self.queue_id,
            self.boot_id,
            self.written,
            self.durable,
            self.segment,
            self.position,
            self.time_ms,
            (_CLEAN if self.clean else 0) | (_STAGED if self.staged else 0),
            self.incarnation,
            *self.starts,
            _NOT_ON_RECORD if self.begin is None else self.begin,
            self.salt or _NO_SALT,
        )

    @classmethod
    def decode(cls, payload: bytes) -> Tail:
        """Reads the payload of a slot, of this version or the one before."""
        if len(payload) == _PAYLOAD_OLD.size:
            payload += _NOT_ON_RECORD.to_bytes(8, "big") + _NO_SALT
        fields = _PAYLOAD.unpack(payload)
        queue_id, boot_id, written, durable, segment, position, time_ms, flags, count = fields[:9]
        *starts, begin, salt = fields[9:]
        marks = (written, durable, segment, position, time_ms, bool(flags & _CLEAN))
        begin = None if begin == _NOT_ON_RECORD else begin
        salt = b"" if salt == _NO_SALT else salt
        staged = bool(flags & _STAGED)
        return cls(queue_id, boot_id, *marks, count, tuple(starts), begin, salt, staged)

    @property
    def is_sound(self) -> bool:
        """Returns whether all of it is plausible: numbers in range and in order."""
        return (
            (self.begin or 0) <= self.durable <= self.written <= _NUMBER_MAX
            and self.segment <= _NUMBER_MAX
            and self.position <= _NUMBER_MAX
            and self.time_ms < _TIME_MS_MAX
            # A close makes everything durable first: no record can be past the durable end.
            and (self.written == self.durable or not self.clean)
        )

    def recovered(
        self,
        boot_id: bytes,
        end: int,
        segment: int,
        position: int,
        salt: bytes = b"",
        *,
        time_ms: int,
        lost: bool,
    ) -> Tail:
        """Returns the mark that follows a recovery: everything below `end` is durable, in place.

        `lost`: numbers above the end may have been assigned before. Readers learn of it by the
        incarnation.
        """
        incarnation, starts = self.incarnation, self.starts
        if lost:
            incarnation, starts = incarnation + 1, (end, *starts[:-1])
        return self._replace(
            boot_id=boot_id,
            written=end,
            durable=end,
            segment=segment,
            position=position,
            salt=salt,
            time_ms=time_ms,
            clean=False,
            staged=False,
            incarnation=incarnation,
            starts=starts,
        )

    def lost_since(self, incarnation: int, offset: int) -> bool:
        """Returns whether a reader at `offset` in an older incarnation missed records."""
        passed = self.incarnation - incarnation
        if passed >= len(self.starts):
            return True
        return any(start < offset for start in self.starts[:passed])


def encode_tail(tail: Tail) -> bytes:
    """Returns the bytes of a `tail` file."""
    return encode_slots(_MAGIC, tail.encode())


class TailFile:
    """The open `tail` of a queue."""

    def __init__(self, slots: SlotFile) -> None:
        self._slots = slots

    @classmethod
    def open(cls, directory: Directory, *, write: bool, name: str = NAME) -> TailFile | None:
        """Opens it; None if there is none. Raises `Damaged` if it exists and cannot be opened."""
        try:
            slots = SlotFile.open(
                directory,
                name,
                _MAGIC,
                _PAYLOAD.size,
                write=write,
                older=_OLDER,
                sound=lambda payload: Tail.decode(payload).is_sound,
            )
        except (OSError, NotAQueue) as error:
            raise Damaged(unopenable(f"{directory.path}/{name}", error)) from None
        return None if slots is None else cls(slots)

    @classmethod
    def open_or_set_aside(cls, directory: Directory, name: str = NAME) -> TailFile | None:
        """Opens it for its owner; None if it cannot be opened and was moved to `quarantine/`."""
        try:
            return cls.open(directory, write=True, name=name)
        except Damaged:
            quarantine.keep_file(directory, name)
            return None

    @classmethod
    def create(cls, directory: Directory, tail: Tail, name: str = NAME) -> TailFile:
        """Creates it, durably."""
        return cls(SlotFile.create(directory, name, _MAGIC, tail.encode()))

    def read(self) -> Tail | None:
        """Returns the newest slot; None if none verifies."""
        payload = self._slots.read()
        return None if payload is None else Tail.decode(payload)

    def write(self, tail: Tail, *, sync: bool = False) -> None:
        """Publishes a new end; with `sync` it is durable on return."""
        self._slots.write(tail.encode(), sync=sync)

    @property
    def whole(self) -> bool:
        """Returns whether both slots verified at the last `read`; else the newest may be lost."""
        return self._slots.whole

    def faults(self) -> list[str]:
        """Lists what is not a good slot, in a queue that is not being written."""
        return self._slots.faults()

    def sync(self) -> None:
        """Makes the last mark durable."""
        self._slots.sync()

    def close(self) -> None:
        """Closes the file."""
        self._slots.close()
