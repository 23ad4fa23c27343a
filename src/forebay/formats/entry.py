"""The entries of a fifo, and the files that hold them; the page is docs/formats/entry.md.

Owns the layout of an entry's metadata, what an id says, and the names of a tape's files. No I/O.
The loops over many entries are in `kernels/entry.py`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime

from forebay.errors import Damaged, InvalidOption
from forebay.frames import Damage
from forebay.kernels.checksum import crc32
from forebay.kernels.entry import METADATA_BYTES, VERSION

SIZE_MAX = 2**32 - 1
TTL_SECONDS_MAX = 2**32 - 1
# | field         | bytes | meaning                                       |
# | metadata hash | 4     | CRC-32 of the 28 bytes that follow            |
# | version       | 8     | `FBENTRY1`                                    |
# | size          | 4     | bytes of data                                 |
# | ttl           | 4     | seconds from the push; 0: for ever            |
# | id            | 8     | ms of the push << 16 | number & 0xFFFF        |
# | data hash     | 4     | CRC-32 of the data                            |
_METADATA = struct.Struct("<I8sIIQI")
assert _METADATA.size == METADATA_BYTES
# Leading zeros up to ten digits, and none beyond.
_FILE_NAME = re.compile(r"(?:[0-9a-f]{10}|[1-9a-f][0-9a-f]{10,14})\.tape")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it is read. `offset` is its number in the queue, counted from 0."""

    offset: int
    id: int
    ttl_seconds: int
    value: bytes

    @property
    def time_ms(self) -> int:
        """When it was pushed, in ms since 1970, UTC."""
        return self.id >> 16

    @property
    def time(self) -> datetime:
        """When it was pushed, in UTC."""
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)

    @property
    def expires_ms(self) -> int | None:
        """When it expires, in ms since 1970, UTC; None if never."""
        return self.time_ms + self.ttl_seconds * 1000 if self.ttl_seconds else None

    def has_expired(self, now_ms: int) -> bool:
        """Says whether its time is over."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


def make_id(time_ms: int, offset: int) -> int:
    """Gives the id of the entry with a number, pushed at a time."""
    return time_ms << 16 | offset & 0xFFFF


def as_bytes(value: object) -> bytes:
    """Gives the data of an entry; refuses what is not bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"an entry is bytes, not {type(value).__name__}")
    return bytes(value)


def check_ttl(ttl: object) -> int:
    """Gives a time to live; refuses what is none."""
    if isinstance(ttl, int) and not isinstance(ttl, bool) and 0 <= ttl <= TTL_SECONDS_MAX:
        return ttl
    raise InvalidOption(
        f"ttl_seconds = {ttl!r}: must be a whole number, 0 (for ever) to {TTL_SECONDS_MAX}"
    )


def encode_entry(entry: Entry) -> bytes:
    """Gives the bytes of an entry."""
    checked = _METADATA.pack(
        0, VERSION, len(entry.value), entry.ttl_seconds, entry.id, crc32(entry.value)
    )[4:]
    return crc32(checked).to_bytes(4, "little") + checked + entry.value


def decode_entry(data: bytes, position: int, offset: int, path: str) -> tuple[Entry, int]:
    """Reads the entry at a position; gives it and where the next one begins."""
    metadata = data[position : position + METADATA_BYTES]
    if len(metadata) < METADATA_BYTES:
        raise _damaged(path, position, len(metadata), "the metadata is cut off")
    found, version, size, ttl, entry_id, data_hash = _METADATA.unpack(metadata)
    if found != crc32(metadata[4:]):
        raise _damaged(path, position, METADATA_BYTES, "the metadata hash does not match")
    if version != VERSION:
        raise _damaged(path, position, METADATA_BYTES, f"unknown version {version!r}")
    if (entry_id ^ offset) & 0xFFFF:
        raise _damaged(path, position, METADATA_BYTES, f"it is not entry {offset}")
    start = position + METADATA_BYTES
    value = bytes(data[start : start + size])
    if len(value) < size:
        raise _damaged(path, position, len(data) - position, "the data is cut off")
    if data_hash != crc32(value):
        raise _damaged(path, position, METADATA_BYTES + size, "the data hash does not match")
    return Entry(offset, entry_id, ttl, value), start + size


def file_name(number: int) -> str:
    """Gives the name of a file of the tape."""
    return f"{number:010x}.tape"


def parse_file_name(name: str) -> int | None:
    """Gives the number of a file of the tape; None if the name is not one."""
    if not _FILE_NAME.fullmatch(name):
        return None
    return int(name.removesuffix(".tape"), 16)


def _damaged(path: str, position: int, length: int, reason: str) -> Damaged:
    return Damaged(Damage(path, position, length, reason))
