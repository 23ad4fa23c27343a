"""`contents`: what each finished segment of a Beats queue holds.

Nothing in the files of Beats says which segments exist, and the count in a segment has no check. So
after a segment was synced, and before the next one is created, the owner records its number, how
many events it holds and how large its file is. Then a segment that is missing, cut or zeroed is
damage, with the number of events that it costs.

Rebuilt at every open from the segments that exist: a file that is lost, or belongs to another
queue, makes no claims.
Big-endian. Head: `magic 4 | version 4 | queue id 16 | crc 4`; then records, in the order in which
segments were finished: `segment 8 | events 8 | file size 8 | crc of queue id and all before 4`.
Events 2⁶⁴ − 1: not counted, as in what Beats left.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from forebay.errors import NotAQueue
from forebay.kernels.buffers import crc32
from forebay.queues.beats.names import CONTENTS_NAME
from forebay.storage import atomic
from forebay.storage.filesystem import Directory, File, write_all

_MAGIC = b"FBEC"
_VERSION = 1
_HEAD = struct.Struct(">4sI16s")
_RECORD = struct.Struct(">QQQ")
_CRC = struct.Struct(">I")
_ROW_BYTES = _RECORD.size + _CRC.size
assert _HEAD.size + _CRC.size == _ROW_BYTES == 28
_UNKNOWN = 2**64 - 1


class Held(NamedTuple):
    """What a segment holds: the number of events, None if not counted; the size of its file."""

    events: int | None
    size: int


class Contents:
    """The record of an owner. Called with the queue's lock held."""

    def __init__(self, directory: Directory, queue_id: bytes, held: dict[int, Held]) -> None:
        """Writes a new file if it has changed; durable on return, unless the disk is full."""
        self._queue_id = queue_id
        self._file: File | None = None
        self._end = 0
        self._unsaved: list[int] = []
        self.held = held
        found = read_contents(directory)
        if found != (queue_id, held):
            with contextlib.suppress(OSError):
                atomic.replace(directory, CONTENTS_NAME, encode_contents(queue_id, held))
        with contextlib.suppress(OSError, NotAQueue):
            self._file = directory.open(CONTENTS_NAME, write=True)
            self._end = self._file.size() // _ROW_BYTES * _ROW_BYTES

    def add(self, segment: int, held: Held) -> None:
        """Records a segment that was finished; durable on return, or with the next one.

        A failure costs no event: only less can then be said about damage.
        """
        self.held[segment] = held
        self._unsaved.append(segment)
        if self._file is None:
            return
        rows = b"".join(_row(self._queue_id, key, self.held[key]) for key in self._unsaved)
        try:
            write_all(self._file, rows, self._end)
            self._file.sync()
        except OSError:
            return
        self._end += len(rows)
        self._unsaved = []

    def forget(self, segment: int) -> None:
        """Forgets a segment that was removed; the next open leaves it out of the file."""
        self.held.pop(segment, None)
        if segment in self._unsaved:
            self._unsaved.remove(segment)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


def encode_contents(queue_id: bytes, held: dict[int, Held]) -> bytes:
    """Returns the bytes of the file."""
    head = _HEAD.pack(_MAGIC, _VERSION, queue_id)
    rows = (_row(queue_id, segment, held[segment]) for segment in sorted(held))
    return head + _CRC.pack(crc32(head)) + b"".join(rows)


def read_contents(directory: Directory) -> tuple[bytes | None, dict[int, Held]]:
    """Returns the id of the queue and what its segments hold; None and {} if it is damaged."""
    try:
        data = atomic.read_small(directory, CONTENTS_NAME)
    except (OSError, NotAQueue):
        return None, {}
    if data is None or len(data) < _ROW_BYTES:
        return None, {}
    magic, version, queue_id = _HEAD.unpack_from(data)
    check = _CRC.pack(crc32(data[: _HEAD.size]))
    if (magic, version) != (_MAGIC, _VERSION) or data[_HEAD.size : _ROW_BYTES] != check:
        return None, {}
    return queue_id, dict(_rows(queue_id, data))


def contents_bytes(segments: int) -> int:
    """Returns the size of the file for a number of segments."""
    return _ROW_BYTES * (1 + segments)


def _rows(queue_id: bytes, data: bytes) -> Iterable[tuple[int, Held]]:
    """Yields the records that verify."""
    for start in range(_ROW_BYTES, len(data) - _ROW_BYTES + 1, _ROW_BYTES):
        segment, events, size = _RECORD.unpack_from(data, start)
        held = Held(None if events == _UNKNOWN else events, size)
        if data[start : start + _ROW_BYTES] == _row(queue_id, segment, held):
            yield segment, held


def _row(queue_id: bytes, segment: int, held: Held) -> bytes:
    events = _UNKNOWN if held.events is None else held.events
    row = _RECORD.pack(segment, events, held.size)
    return row + _CRC.pack(crc32(queue_id + row))
