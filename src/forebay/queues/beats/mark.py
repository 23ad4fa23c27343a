"""`mark`: where the durable end of a Beats queue is, and what its `state.dat` says.

Source of truth for what is durable: it is written only after the bytes below it were synced, so an
old mark is still true, but low. `state.dat` has no check of its own: the mark has its content, the
present one and the next, so that a damaged one can be told from one that a Beat wrote.

Two checked slots (`storage/slots.py`); payload, big-endian:

| field | bytes | meaning |
| --- | --- | --- |
| queue id | 16 | random, given at creation |
| boot id | 16 | identifies the start of the machine in which it was written |
| written | 8 | how many events, of all ever put, were written to the files |
| durable | 8 | how many of them survive a power cut |
| segment | 8 | number of the segment that the durable end is in |
| position | 8 | logical position of the end in it; 0: the file is still being created |
| size | 8 | size of the file there |
| events | 8 | how many events of the segment lie before it |
| flags | 4 | 1: closed cleanly, written = durable |
| incarnation | 4 | counts the times that events may have been lost |
| places | 2 × 29 | size and content of `state.dat`: the present one and the next |

After the slots, at 8192, is `segment 8 | position 8 | size 8 | events 8 | crc of queue id and
all before 4`: the end of what is written; under the weaker policies it is updated after every
write. It is not synced, and counts only until the machine restarts.

An older mark, which is a `tail` (`storage/tail.py`) with the size in place of the time, can be
read, and is replaced at the next open.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any, NamedTuple

from forebay.kernels.buffers import crc32
from forebay.queues.beats.names import MARK_NAME
from forebay.queues.shared.mark import DurableMark
from forebay.storage import atomic
from forebay.storage.filesystem import Directory, File
from forebay.storage.slots import SlotFile, encode_slots
from forebay.storage.tail import Tail, TailFile

_MAGIC = b"FBEM"
_PAYLOAD = struct.Struct(">16s16s6QII29p29p")
assert _PAYLOAD.size == 146
_CLEAN = 1
_LIVE = struct.Struct(">4Q")
_CRC = struct.Struct(">I")
_LIVE_POSITION = 8192
MARK_BYTES = _LIVE_POSITION + _LIVE.size + _CRC.size
_NUMBER_MAX = 2**63


class Mark(NamedTuple):
    """The content of one slot of `mark`; `events` and `places` are None in an older mark."""

    queue_id: bytes
    boot_id: bytes
    written: int = 0
    durable: int = 0
    segment: int = 0
    position: int = 0
    raw_size: int = 0
    clean: bool = False
    incarnation: int = 1
    events: int | None = None
    places: tuple[bytes, bytes] | None = None

    def encode(self) -> bytes:
        """Returns the payload of a slot."""
        return _PAYLOAD.pack(
            self.queue_id,
            self.boot_id,
            self.written,
            self.durable,
            self.segment,
            self.position,
            self.raw_size,
            self.events or 0,
            _CLEAN if self.clean else 0,
            self.incarnation,
            *(self.places or (b"", b"")),
        )

    @classmethod
    def decode(cls, payload: bytes) -> Mark:
        """Reads the payload of a slot."""
        queue_id, boot_id, written, durable, segment, position, raw_size, *rest = _PAYLOAD.unpack(
            payload
        )
        events, flags, incarnation, present, following = rest
        return cls(
            queue_id,
            boot_id,
            written,
            durable,
            segment,
            position,
            raw_size,
            bool(flags & _CLEAN),
            incarnation,
            events,
            (present, following),
        )


def _is_sound(payload: bytes) -> bool:
    """Says whether a mark can be true: its numbers are in their range and in order."""
    mark = Mark.decode(payload)
    numbers = (mark.segment, mark.position, mark.raw_size, mark.events or 0)
    return mark.durable <= mark.written <= _NUMBER_MAX and max(numbers) <= _NUMBER_MAX


def encode_mark(mark: Mark) -> bytes:
    """Returns the bytes of a `mark` file."""
    return encode_slots(_MAGIC, mark.encode())


class MarkFile:
    """The open `mark` of a queue."""

    def __init__(self, directory: Directory, file: File) -> None:
        self._directory = directory
        self._file = file
        self._slots = SlotFile(file, _MAGIC, _PAYLOAD.size, sound=_is_sound)

    @classmethod
    def open(cls, directory: Directory, *, write: bool) -> MarkFile | None:
        """Opens it; returns None if there is none."""
        try:
            # A store from which it is only read knows no `write`.
            file = directory.open(MARK_NAME, write=True) if write else directory.open(MARK_NAME)
        except FileNotFoundError:
            return None
        try:
            return cls(directory, file)
        except BaseException:
            file.close()
            raise

    @classmethod
    def create(cls, directory: Directory, mark: Mark) -> MarkFile:
        """Creates it, durably; replaces one that cannot be read, if there is one."""
        temporary = MARK_NAME + atomic.TEMPORARY
        SlotFile.create(directory, temporary, _MAGIC, mark.encode()).close()
        directory.rename(temporary, MARK_NAME)
        directory.sync()
        return cls(directory, directory.open(MARK_NAME, write=True))

    @property
    def is_current(self) -> bool:
        """Whether it is of this version, and has a slot that verifies."""
        return self._slots.payload is not None

    @property
    def may_be_old(self) -> bool:
        """Whether one of its slots, which may be the newer one, does not verify."""
        return not self._slots.whole

    def read(self) -> Mark | None:
        """Returns the newest slot; None if none verifies."""
        payload = self._slots.read()
        return _read_older(self._directory) if payload is None else Mark.decode(payload)

    def faults(self) -> list[str]:
        """Lists the faults of its slots; only for a queue that is not in use."""
        return self._slots.faults(_LIVE_POSITION) if self.is_current else []

    def write(self, mark: Mark, *, sync: bool = False) -> None:
        """Publishes a new end; with `sync` it is durable on return."""
        self._slots.write(mark.encode(), sync=sync)

    def write_live(self, queue_id: bytes, end: tuple[int, int, int, int]) -> None:
        """Writes the end of what is written: segment, position, size of the file, events."""
        row = _LIVE.pack(*end)
        self._file.pwrite(row + _CRC.pack(crc32(queue_id + row)), _LIVE_POSITION)

    def with_live(self, mark: Mark) -> Mark:
        """Returns the mark with the end of what is written instead of what is durable."""
        data = self._file.pread(_LIVE.size + _CRC.size, _LIVE_POSITION)
        row = data[: _LIVE.size]
        if len(data) < _LIVE.size + _CRC.size or mark.clean or mark.events is None:
            return mark
        segment, position, raw_size, events = _LIVE.unpack(row)
        if data[_LIVE.size :] != _CRC.pack(crc32(mark.queue_id + row)):
            return mark
        if segment != mark.segment or events <= mark.events:
            return mark
        return mark._replace(position=position, raw_size=raw_size, events=events)

    def sync(self) -> None:
        """Makes the last mark durable."""
        self._slots.sync()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class BeatsMark(DurableMark[Mark]):
    """The mark of a Beats queue that this process owns."""

    def __init__(self, file: MarkFile, last: Mark) -> None:
        super().__init__(file, last)
        self._live = file

    def publish(self, *, sync: bool = False, **changes: Any) -> None:
        """Writes a new mark: the last one with changes."""
        self.write(self.last._replace(**changes), sync=sync)

    def note_live(self, end: tuple[int, int, int, int]) -> None:
        """Writes the end of what is written, after each write; cheap, and without a promise."""
        # If this fails, the next write does it.
        with contextlib.suppress(OSError):
            self._live.write_live(self.last.queue_id, end)

    def announce_place(self, content: bytes) -> None:
        """Writes what `state.dat` is about to be. If it raises, the queue can go on."""
        present = self.last.places[0] if self.last.places is not None else b""
        self.publish(places=(present, content))

    def settle_place(self, content: bytes) -> None:
        """Writes what `state.dat` is now."""
        self.publish(places=(content, content))


def _read_older(directory: Directory) -> Mark | None:
    file = TailFile.open(directory, write=False, name=MARK_NAME)
    if file is None:
        return None
    try:
        tail = file.read()
    finally:
        file.close()
    return None if tail is None else _from_tail(tail)


def _from_tail(tail: Tail) -> Mark:
    return Mark(
        tail.queue_id,
        tail.boot_id,
        tail.written,
        tail.durable,
        tail.segment,
        tail.position,
        tail.time_ms,
        tail.clean,
        tail.incarnation,
    )
