"""The `index` file: consumers and their offsets. Page: docs/formats/fflg.md.

The seed's file to the letter, big-endian: `u32 id length | u64 offset | id in UTF-8`, repeated to
the end of the file. It has no checksum; storage keeps one beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from forebay.errors import InvalidOption
from forebay.frames import Damage

NAME_BYTES_MAX = 255

# id length 4 | offset 8, then the id
_ENTRY = struct.Struct(">IQ")
assert _ENTRY.size == 12


def encode_index(positions: Mapping[str, int]) -> bytes:
    """Returns the bytes of the file, in the order of the mapping."""
    parts = []
    for name, offset in positions.items():
        encoded = name.encode()
        parts.append(_ENTRY.pack(len(encoded), offset) + encoded)
    return b"".join(parts)


def decode_index(data: bytes, path: str) -> tuple[dict[str, int], Damage | None]:
    """Reads the file up to the first entry that is none; returns the places, and what is wrong.

    Of a name that is there twice, the last counts.
    """
    positions: dict[str, int] = {}
    position = 0
    while position < len(data):
        if len(data) - position < _ENTRY.size:
            return positions, _damage(data, position, path, "the file ends within an entry")
        size, offset = _ENTRY.unpack_from(data, position)
        start = position + _ENTRY.size
        if size > len(data) - start:
            return positions, _damage(data, position, path, f"an id of {size} bytes does not fit")
        try:
            name = data[start : start + size].decode()
        except UnicodeDecodeError:
            return positions, _damage(data, position, path, "an id is not UTF-8")
        positions[name] = offset
        position = start + size
    return positions, None


def check_name(name: object) -> str:
    """Returns a consumer's name back if it may be one."""
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or not 1 <= len(name.encode(errors="replace")) <= NAME_BYTES_MAX
    ):
        raise InvalidOption(
            f"consumer name {name!r}: must be 1 to {NAME_BYTES_MAX} bytes of printable text"
        )
    return name


def _damage(data: bytes, position: int, path: str, reason: str) -> Damage:
    return Damage(path, position, len(data) - position, reason, count=0)
