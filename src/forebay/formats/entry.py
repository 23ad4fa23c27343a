"""The entries of a fifo, and the files that hold them; the page is docs/formats/entry.md.

Owns the layout of an entry's metadata, the meaning of an id, and the names of a tape's files. No
I/O. The loops over many entries are in `kernels/entry.py`.
"""

from __future__ import annotations

import re
import struct
from datetime import timedelta

from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption
from forebay.kernels.buffers import crc32
from forebay.kernels.entry import METADATA_BYTES, Entry

# The version of entries in directories of version 0.1, where no queue had a version of its own.
OLD_VERSION = b"FBENTRY1"
_VERSION = b"FBE2"
VERSION_BYTES = 8
SIZE_MAX = 2**32 - 1
TTL_SECONDS_MAX = 2**32 - 1
# | field         | bytes | meaning                                       |
# | metadata hash | 4     | CRC-32 of the 28 bytes that follow            |
# | version       | 8     | `FBE2` and 4 random bytes of the queue        |
# | size          | 4     | bytes of data                                 |
# | ttl           | 4     | seconds from the push; 0: no limit            |
# | id            | 8     | ms of the push << 16 | number & 0xFFFF        |
# | data hash     | 4     | CRC-32 of the data                            |
_METADATA = struct.Struct("<I8sIIQI")
assert _METADATA.size == METADATA_BYTES
# Zero-padded to ten digits; a longer number has no leading zeros.
_FILE_NAME = re.compile(r"(?:[0-9a-f]{10}|[1-9a-f][0-9a-f]{10,14})\.tape")


def version_of(queue_id: bytes) -> bytes:
    """Returns the version of a queue's entries: `FBE2` and 4 bytes of its id."""
    return _VERSION + queue_id[:4]


def is_version_of(version: bytes, queue_id: bytes) -> bool:
    """Returns whether entries of a version may belong to a queue; old ones may belong to any."""
    return version in (OLD_VERSION, version_of(queue_id))


def is_known(version: bytes) -> bool:
    """Returns whether this program reads entries of a version, in any queue."""
    return version == OLD_VERSION or version.startswith(_VERSION)


def version_at(data: bytes, position: int) -> bytes | None:
    """Returns the version of the metadata at a position; None if none verifies there."""
    metadata = data[position : position + METADATA_BYTES]
    if len(metadata) < METADATA_BYTES or not metadata[4:8].isalnum():
        return None
    if int.from_bytes(metadata[:4], "little") != crc32(metadata[4:]):
        return None
    return bytes(metadata[4 : 4 + VERSION_BYTES])


def find_version(data: bytes) -> bytes | None:
    """Returns the first known version among the metadata in some bytes."""
    found = []
    for prefix in (_VERSION, OLD_VERSION):
        position = data.find(prefix, 4)
        while position >= 0 and version_at(data, position - 4) is None:
            position = data.find(prefix, position + 1)
        if position >= 0:
            found.append(position)
    return data[min(found) : min(found) + VERSION_BYTES] if found else None


def as_bytes(value: object) -> bytes:
    """Returns the data of an entry; raises if it is not bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"an entry is bytes, not {type(value).__name__}")
    return bytes(value)


def check_ttl(ttl: object) -> int:
    """Returns a time to live in seconds, given in seconds or as a timedelta; raises if invalid."""
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        seconds = -1
    if 0 <= seconds <= TTL_SECONDS_MAX and seconds % 1 == 0:
        return int(seconds)
    raise InvalidOption(
        f"ttl_seconds = {ttl!r}: must be whole seconds, 0 (for ever) to {TTL_SECONDS_MAX}"
    )


def encode_entry(entry: Entry, version: bytes) -> bytes:
    """Returns the bytes of an entry."""
    checked = _METADATA.pack(
        0, version, len(entry.value), entry.ttl_seconds, entry.id, crc32(entry.value)
    )[4:]
    return crc32(checked).to_bytes(4, "little") + checked + entry.value


def decode_entry(
    data: bytes, position: int, offset: int, path: str, expected: bytes
) -> tuple[Entry, int]:
    """Reads the entry at a position; returns it and where the next one starts."""
    metadata = data[position : position + METADATA_BYTES]
    if len(metadata) < METADATA_BYTES:
        raise _damaged(path, position, len(metadata), "the metadata is cut off")
    found, version, size, ttl, entry_id, data_hash = _METADATA.unpack(metadata)
    if found != crc32(metadata[4:]):
        raise _damaged(path, position, METADATA_BYTES, "the metadata hash does not match")
    if version != expected:
        raise _damaged(path, position, METADATA_BYTES, describe_version(version))
    if (entry_id ^ offset) & 0xFFFF:
        raise _damaged(path, position, METADATA_BYTES, f"it is not entry {offset}")
    start = position + METADATA_BYTES
    value = bytes(data[start : start + size])
    if len(value) < size:
        raise _damaged(path, position, len(data) - position, "the data is cut off")
    if data_hash != crc32(value):
        raise _damaged(path, position, METADATA_BYTES + size, "the data hash does not match")
    return Entry(offset, entry_id, ttl, value), start + size


def describe_version(version: bytes) -> str:
    """Returns why an entry whose version is not that of the queue is not read."""
    if is_known(version):
        return f"an entry of another queue, of version {version!r}"
    return f"an entry of version {version!r}, which this program does not read"


def file_name(number: int) -> str:
    """Returns the name of a file of the tape."""
    return f"{number:010x}.tape"


def parse_file_name(name: str) -> int | None:
    """Returns the number of a file of the tape; None if the name is not one."""
    if not _FILE_NAME.fullmatch(name):
        return None
    return int(name.removesuffix(".tape"), 16)


def _damaged(path: str, position: int, length: int, reason: str) -> Damaged:
    return Damaged(Damage(path, position, length, reason))
