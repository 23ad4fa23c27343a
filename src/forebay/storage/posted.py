"""`posted/`: the files in which clients of a shared queue leave records for its owner.

A client puts records into a file of its own, by a mapping: each verifies itself, by the salt of the
file and its number, so that there are no pointers, and nothing must be written in order. The owner
only reads it by `pread`, into its own memory. So a record that was put survives both processes.
Page: docs/protocol.md. Source of truth for what was posted and is not in the queue yet.

| part | at | meaning |
| --- | --- | --- |
| notes | 0, 4096 | two checked slots of the owner (`slots.py`): how far the file was taken |
| header | 8192 | of the client, checked: boot, salt, how many bytes there are for records |
| asleep | 12288 | 1 byte, not 0 while the owner sleeps and wants to be woken |
| records | 16384 | a ring |

Before the owner stores records it notes which, and the end of its queue: after a crash the queue
itself says how many of them it has. A header or a note that does not verify, another boot, or a
copy of the file makes it void: it is kept in `quarantine/` if it holds records.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass

from forebay.errors import NotAQueue, ProtocolError
from forebay.kernels.buffers import CUT_OFF, OTHER, POSTED_BYTES, crc32, gather
from forebay.storage import quarantine
from forebay.storage.filesystem import Directory, File, Mapping, inode, unmap, write_all
from forebay.storage.slots import SlotFile

DIRECTORY = "posted"
NOTE_MAGIC = b"FBPN"
HEADER_MAGIC = b"FBPC"
HEADER_AT = 8192
ASLEEP_AT = 12288
DATA_AT = 16384
# Room for the records of a client, and the most that an owner accepts.
ROOM_BYTES = 1 << 20
_ROOM_BYTES_MAX = 64 << 20
_VERSION = 1
_HEADER = struct.Struct(">4sH16s8sQ")
_CRC = struct.Struct(">I")
_NOTE = struct.Struct(">QQQI")
assert (_HEADER.size, _NOTE.size) == (38, 28)
# How much is read at a time: as much as there was the last time, within bounds.
_READ_BYTES_MIN, _READ_BYTES_MAX = 4 << 10, 256 << 10
_COUNT_MAX = 1024
# Far above any real number: they must be able to rise.
_NUMBER_MAX = 2**62


def size_max(room: int) -> int:
    """Returns the largest record that is put into a file with so much room."""
    return room // 8


@dataclass(frozen=True, slots=True)
class Note:
    """How far a file was taken: the next record, and how many bytes of the ring are before it.

    `count` records from there on were being stored in a queue whose end was `end`.
    """

    place: int = 0
    number: int = 1
    end: int = 0
    count: int = 0

    @classmethod
    def of(cls, payload: bytes | None) -> Note:
        """Reads a slot's payload; without one nothing was taken."""
        return cls() if payload is None else cls(*_NOTE.unpack(payload))

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Its fields, in the order of a slot."""
        return self.place, self.number, self.end, self.count

    def encode(self) -> bytes:
        """Returns the payload of a slot."""
        return _NOTE.pack(*self.numbers)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that verify, each after its size; `extra` is what all of them have beside it.

    `records` are only valid until the next look. `after` is the place after them in the ring.
    """

    records: memoryview
    count: int
    extra: int
    after: int

    def values(self) -> list[bytes]:
        """Returns the records as objects."""
        found, position = [], 0
        while position < len(self.records):
            end = position + 4 + int.from_bytes(self.records[position : position + 4], "little")
            found.append(bytes(self.records[position + 4 : end]))
            position = end
        return found


class ClientFile:
    """A file of this process: mapped, preallocated and warm. Locked as long as it is open."""

    @classmethod
    def make(cls, queue: Directory, boot: bytes) -> ClientFile | None:
        """Makes one; None where stores to a mapped file may fail, or there is no space for it."""
        if not queue.maps:
            return None
        try:
            return cls(queue, boot)
        except OSError:
            return None

    def __init__(self, queue: Directory, boot: bytes, room: int = ROOM_BYTES) -> None:
        """Makes one; raises `OSError`, and then leaves none."""
        directory = queue.directory(DIRECTORY, create=True)
        with contextlib.closing(directory):
            made = f"{os.getpid()}-{os.urandom(8).hex()}"
            self._file: File = directory.create(made)
            try:
                self._file.lock()
                # Allocated, not sparse: on a full disk a store to a hole would kill the process.
                self._file.allocate(0, DATA_AT + room)
                self.mapping: Mapping = self._file.map(DATA_AT + room)
                # Writes to all pages: a store then needs no system call.
                self.mapping[:] = bytes(DATA_AT + room)
                salt = os.urandom(8)
                self.seed = crc32(salt)
                head = _HEADER.pack(HEADER_MAGIC, _VERSION, boot, salt, room)
                head += _CRC.pack(crc32(head))
                self.mapping[HEADER_AT : HEADER_AT + len(head)] = head
                # The name tells the file from a copy of it.
                self.name = f"{inode(f'{directory.path}/{made}'):x}-{made}"
                directory.rename(made, self.name)
            except BaseException:
                self._file.close()
                with contextlib.suppress(FileNotFoundError):
                    directory.unlink(made)
                raise

    def note(self) -> Note:
        """Returns how far the owner has taken it."""
        return Note.of(SlotFile(self._file, NOTE_MAGIC, _NOTE.size).payload)

    def sleep(self) -> None:
        """Has the next record wake the owner, as if it slept."""
        self.mapping[ASLEEP_AT] = 1

    def close(self) -> None:
        """Unmaps the file and releases its lock: the owner takes what is left, and removes it."""
        unmap(self.mapping)
        self._file.close()


class PostedFile:
    """A file of a client, as the owner of the queue sees it. One thread at a time may call it."""

    def __init__(self, directory: Directory, name: str, boot: bytes) -> None:
        """Opens it; raises `NotAQueue`, `ProtocolError` or `OSError` if it cannot be used."""
        self.name = name
        # Why nothing of it may be stored, although it is whole.
        self.void: str | None = None
        self._file = directory.open(name, write=True)
        try:
            self._seed, self.room = self._read_header(boot)
            found = inode(f"{directory.path}/{name}")
            if found and not name.startswith(f"{found:x}-"):
                self.void = "it is a copy"
            self._slots = SlotFile(self._file, NOTE_MAGIC, _NOTE.size)
            self.note = Note.of(self._slots.payload)
            sound = self._slots.payload is not None or not any(self._file.pread(HEADER_AT, 0))
            if not sound or self.note.number < 1 or max(self.note.numbers) > _NUMBER_MAX:
                raise ProtocolError(f"{DIRECTORY}/{name}: its notes are damaged")
        except BaseException:
            self._file.close()
            raise
        self._extra = 0
        self._scratch = bytearray()
        self._want = _READ_BYTES_MIN

    @property
    def number(self) -> int:
        """The number of the record that is taken next."""
        return self.note.number

    def look(self, limit: int = _COUNT_MAX) -> Batch | None:
        """Returns the records that were put since the last, up to `limit`; None: there are none."""
        at = self.note.place % self.room
        found = None
        if self._is_next(at):
            found = self._gather(at, self.note.place, limit)
        # One that did not fit before the end of the ring is at its start.
        if found is None and at and self._is_next(0):
            found = self._gather(0, self.note.place - at + self.room, limit)
        return found

    def begin(self, batch: Batch, end: int) -> None:
        """Notes that a batch is stored next, in a queue that ends at `end`."""
        self._write(Note(self.note.place, self.note.number, end, batch.count))

    def advance(self, batch: Batch, count: int) -> None:
        """Notes that the first `count` records of a batch are stored."""
        if count == batch.count:
            self._write(Note(batch.after, self.note.number + count))
        else:
            self._write(self._after(count))

    def resume(self, end: int) -> None:
        """Goes on where an owner ended that may have been storing a batch; `end` as it is now."""
        if self.note.count:
            self._write(self._after(min(self.note.count, max(0, end - self.note.end))))

    @property
    def is_empty(self) -> bool:
        """Whether all that was put is taken for sure."""
        return not self.note.count and self.look() is None

    def sleep(self) -> None:
        """Asks to be woken by the next record. Look again after it: one may have just come."""
        write_all(self._file, b"\1", ASLEEP_AT)

    def wake(self) -> None:
        """Says that nobody needs to be woken."""
        write_all(self._file, b"\0", ASLEEP_AT)

    def is_left(self) -> bool:
        """Says whether its client is gone."""
        return self._file.lock()

    def close(self) -> None:
        """Closes it."""
        self._file.close()

    def _is_next(self, at: int) -> bool:
        """Says whether what is there claims to be the next record: mostly, there is nothing."""
        return self._file.pread(8, DATA_AT + at + 8) == self.note.number.to_bytes(8, "little")

    def _gather(self, at: int, place: int, limit: int) -> Batch | None:
        want = min(self._want, self.room - at)
        while True:
            data = self._file.pread(want, DATA_AT + at)
            if len(self._scratch) < len(data):
                self._scratch = bytearray(max(len(data), _READ_BYTES_MIN))
            count, end, size, why, more = self._copy(data, limit)
            if count == 0 and why == OTHER:
                self._extra = more
                count, end, size, why, more = self._copy(data, limit)
            if count or why != CUT_OFF or len(data) < want or want == self.room - at:
                break
            want = min(max(more, 2 * want), self.room - at)
        if not count:
            return None
        grown = 4 * want if why == CUT_OFF else max(_READ_BYTES_MIN, want // 2, 2 * end)
        self._want = min(grown, _READ_BYTES_MAX)
        records = memoryview(self._scratch)[:size]
        return Batch(records, count, self._extra, place + end)

    def _copy(self, data: bytes, limit: int) -> tuple[int, int, int, int, int]:
        largest = size_max(self.room)
        return gather(
            data, 0, self.note.number, self._seed, largest, limit, self._scratch, self._extra
        )

    def _after(self, count: int) -> Note:
        """Returns how far the file is taken when the next records are."""
        note = Note(self.note.place, self.note.number)
        while count:
            self.note = note
            batch = self.look(count)
            if batch is None:
                raise ProtocolError(f"{DIRECTORY}/{self.name}: records that were noted are gone")
            note = Note(batch.after, note.number + batch.count)
            count -= batch.count
        return note

    def _write(self, note: Note) -> None:
        self._slots.write(note.encode())
        self.note = note

    def _read_header(self, boot: bytes) -> tuple[int, int]:
        data = self._file.pread(_HEADER.size + _CRC.size, HEADER_AT)
        where = f"{DIRECTORY}/{self.name}"
        if len(data) < _HEADER.size + _CRC.size or data[:4] != HEADER_MAGIC:
            raise ProtocolError(f"{where} has no header of a client")
        if _CRC.unpack(data[_HEADER.size :])[0] != crc32(data[: _HEADER.size]):
            raise ProtocolError(f"{where}: its header is damaged")
        _, version, found, salt, room = _HEADER.unpack(data[: _HEADER.size])
        if version != _VERSION:
            raise ProtocolError(f"{where} has version {version}; this program knows {_VERSION}")
        if found != boot:
            self.void = "the machine was restarted since"
        if room % 8 or not 8 * POSTED_BYTES <= room <= _ROOM_BYTES_MAX:
            raise ProtocolError(f"{where}: {room} bytes of room")
        return crc32(salt), int(room)


def set_aside(queue: Directory, directory: Directory, name: str) -> bool:
    """Keeps a file that cannot be used in `quarantine/`; False if its client lives."""
    try:
        file = directory.open(name, write=True)
    except (NotAQueue, OSError):
        quarantine.keep_file(queue, name, source=directory)
        return True
    with contextlib.closing(file):
        if not file.lock():
            return False
    quarantine.keep_file(queue, name, source=directory)
    return True


def count_files(queue: Directory) -> int:
    """Returns how many clients have a file there, or have left one."""
    try:
        directory = queue.directory(DIRECTORY)
    except FileNotFoundError:
        return 0
    with contextlib.closing(directory):
        return len(directory.names())
