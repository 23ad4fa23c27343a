"""Writes batches to files in a directory: rotating, synced, renamed when they are whole.

`part` is the file that is being written, `part-state` a slot file (`storage/slots.py`) with how
much of it counts and the keys of the last batches in it. A batch is written and synced first, then
the slot: what a crash leaves after the size in the slot is cut off, and a batch whose key is in the
slot is not written again. Payload, big-endian: `size 8 | first 8 | last 8 | began 8 | keys 32 ×
16`, a key as the first 16 bytes of its SHA-256, zeros where there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay.clock import Clock, SystemClock
from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption
from forebay.forward import encoding
from forebay.forward.outputs import Answer, Batch, Context, Delivered, Gap, Record
from forebay.storage.filesystem import DiskFilesystem, File, write_all
from forebay.storage.slots import SlotFile

PART, STATE = "part", "part-state"
_MAGIC = b"FBFO"
_KEYS = 32
_HEAD = struct.Struct(">4Q")
_PAYLOAD_BYTES = _HEAD.size + 16 * _KEYS
assert _PAYLOAD_BYTES == 544
_ROTATE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    """What counts of the file that is being written."""

    size: int = 0
    first: int = 0
    last: int = 0
    began_ms: int = 0
    keys: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """Returns the payload of a slot."""
        head = _HEAD.pack(self.size, self.first, self.last, self.began_ms)
        return (head + b"".join(self.keys[-_KEYS:])).ljust(_PAYLOAD_BYTES, b"\0")

    @classmethod
    def decode(cls, payload: bytes) -> _Part:
        """Reads the payload of a slot."""
        places = range(_HEAD.size, _PAYLOAD_BYTES, 16)
        keys = (payload[place : place + 16] for place in places)
        size, first, last, began_ms = _HEAD.unpack_from(payload)
        return cls(size, first, last, began_ms, tuple(key for key in keys if any(key)))


class FilesOutput:
    """Writes lines of JSON to `DIR/FIRST-LAST.jsonl`.

    A file is renamed from `part` when it holds `rotate_bytes`, at the first batch after
    `rotate_seconds` (None: never for that), and when the output is closed. One process at a time
    may write to a directory.
    """

    takes_key = True
    records_max: int | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rotate_bytes: int = _ROTATE_BYTES,
        rotate_seconds: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        if rotate_bytes < 1:
            raise InvalidOption(f"rotate_bytes = {rotate_bytes}: must be at least 1")
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()
        self._directory = DiskFilesystem().open_directory(os.fspath(path), create=True)
        self.name = f"file:{self._directory.path}"
        self._file: File | None = None
        with contextlib.ExitStack() as opened:
            opened.callback(self._directory.close)
            self._directory.lock()
            found = SlotFile.open(self._directory, STATE, _MAGIC, _PAYLOAD_BYTES, write=True)
            if found is None:
                found = SlotFile.create(self._directory, STATE, _MAGIC, _Part().encode())
            self._slots = found
            opened.callback(self._slots.close)
            if found.payload is None:
                path = f"{self._directory.path}/{STATE}"
                raise Damaged(Damage(path, 0, 0, "no slot verifies"), "move the directory away")
            self._part = _Part.decode(found.payload)
            self._open_part()
            opened.pop_all()

    def encode(self, records: Sequence[Record], context: Context) -> bytes:
        """Returns lines of JSON."""
        return encoding.json_lines(records)

    def encode_gap(self, gap: Gap, context: Context) -> bytes | None:
        """Returns a line of JSON."""
        return encoding.gap_document(gap, context) + b"\n"

    def send(self, batch: Batch) -> Answer:
        """Writes a batch; it is synced on return."""
        key = hashlib.sha256(batch.key.encode()).digest()[:16]
        with self._mutex:
            if self._file is None:
                # The disk failed while the file was exchanged.
                self._open_part()
            part = self._part
            if key in part.keys:
                return Delivered()
            if part.size and self._is_due(part):
                self._rotate()
                part = self._part
            self._write(part, batch, key)
        return Delivered()

    def close(self) -> None:
        """Renames the file that is being written, and frees the directory."""
        with self._mutex:
            if self._part.size:
                self._rotate()
            if self._file is not None:
                self._file.close()
            with contextlib.suppress(FileNotFoundError):
                if not self._part.size:
                    self._directory.unlink(PART)
            self._slots.close()
            self._directory.close()

    def _write(self, part: _Part, batch: Batch, key: bytes) -> None:
        assert self._file is not None
        # After an error the next try writes at the same place.
        write_all(self._file, batch.body, part.size)
        self._file.sync()
        offsets = [record.offset for record in batch.records]
        changed = replace(
            part, size=part.size + len(batch.body), keys=(*part.keys[1 - _KEYS :], key)
        )
        if not part.size:
            changed = replace(changed, began_ms=self._clock.now_ms())
        if offsets:
            first = min(offsets) if not part.size else min(part.first, *offsets)
            changed = replace(changed, first=first, last=max(part.last, *offsets))
        self._slots.write(changed.encode(), sync=True)
        self._part = changed

    def _is_due(self, part: _Part) -> bool:
        if part.size >= self._rotate_bytes:
            return True
        seconds = self._rotate_seconds
        return seconds is not None and self._clock.now_ms() - part.began_ms >= seconds * 1000

    def _rotate(self) -> None:
        """Gives the file its name, then begins another; a crash between the two is finished later.

        The keys stay: a batch of the old file may come again.
        """
        part = self._part
        name = f"{part.first:020}-{part.last:020}.jsonl"
        names = set(self._directory.names())
        if name in names:
            # Of another queue, or of offsets that were assigned again.
            number = next(
                n for n in range(2, len(names) + 3) if f"{name[:-6]}.{n}.jsonl" not in names
            )
            name = f"{name[:-6]}.{number}.jsonl"
        assert self._file is not None
        self._file.truncate(part.size)
        self._file.sync()
        self._file.close()
        self._file = None
        self._directory.rename(PART, name)
        self._directory.sync()
        self._part = _Part(keys=part.keys)
        self._slots.write(self._part.encode(), sync=True)
        self._open_part()

    def _open_part(self) -> None:
        """Opens the file that is being written, cut to what counts."""
        try:
            self._file = self._directory.open(PART, write=True)
        except FileNotFoundError:
            # Nothing was written yet, or a crash came after the file got its name.
            self._file = self._directory.create(PART)
            self._directory.sync()
            if self._part.size:
                self._part = _Part(keys=self._part.keys)
                self._slots.write(self._part.encode(), sync=True)
        self._file.truncate(self._part.size)
