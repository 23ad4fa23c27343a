"""The fflg segment format, and the `index` of its consumers. Page: docs/formats/fflg.md.

Owns the byte layouts of versions 0, 1 and 2: headers, names and frames. Promises that what it
decodes re-encodes to the same bytes. Rejects an unknown magic, version or name with an error that
names the file. No I/O, no clock; the hot loops over frames are in `forebay.kernels.fflg`.

The `index` follows the seed exactly, big-endian: `u32 id length | u64 offset | id in UTF-8`,
repeated to the end of the file. It has no checksum; storage keeps one in a file beside it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption, NotAQueue, UnsupportedVersion
from forebay.kernels import fflg as kernel
from forebay.kernels.buffers import crc32, fit
from forebay.kernels.fflg import encode_unchecked, scan_unchecked

MAGIC = b"FFLG"
VERSION_DEFAULT = 2
VERSIONS_WRITABLE = (0, 1, 2)
OFFSET_MAX = 2**63 - 1
MS_MAX = 2**32 - 1

# Version 0, as the original program wrote it.
#   magic 4 | version 4 | base offset 8
_HEADER_0 = struct.Struct(">4sIQ")
# Version 1, exactly as in the seed.
#   magic 4 | version 2 | base offset 8
_HEADER_1 = struct.Struct(">4sHQ")
# Version 2.
#   magic 4 | version 2 | base offset 8 | salt 8 | epoch, ms since 1970 8 | crc32 of all before 4
_HEADER_2 = struct.Struct(">4sHQ8sQI")
assert (_HEADER_0.size, _HEADER_1.size, _HEADER_2.size) == (16, 14, 34)
HEADER_BYTES_MAX = _HEADER_2.size

_NAME = re.compile(r"[0-9a-f]{10}|[1-9a-f][0-9a-f]{10,15}|[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the versions differ: a row of the table of versions."""

    header_bytes: int
    frame_bytes: int
    checked: bool
    zero_size_ends: bool


LAYOUTS = {
    0: Layout(_HEADER_0.size, 4, checked=False, zero_size_ends=False),
    1: Layout(_HEADER_1.size, 4, checked=False, zero_size_ends=True),
    2: Layout(_HEADER_2.size, kernel.FRAME_BYTES, checked=True, zero_size_ends=False),
}


@dataclass(frozen=True, slots=True)
class Header:
    """The start of a segment; `salt` and `epoch_ms` exist from version 2 on."""

    version: int
    base_offset: int
    salt: bytes = b""
    epoch_ms: int = 0

    @property
    def layout(self) -> Layout:
        """Returns the row of its version."""
        return LAYOUTS[self.version]

    @property
    def seed(self) -> int:
        """Returns the value that the checks of its frames start from."""
        return crc32(self.salt)

    def encode(self) -> bytes:
        """Returns the bytes of the header."""
        if self.version == 0:
            return _HEADER_0.pack(MAGIC, 0, self.base_offset)
        if self.version == 1:
            return _HEADER_1.pack(MAGIC, 1, self.base_offset)
        fields = (MAGIC, 2, self.base_offset, self.salt, self.epoch_ms)
        return _HEADER_2.pack(*fields, crc32(_HEADER_2.pack(*fields, 0)[:-4]))


def decode_header(data: bytes, path: str) -> Header:
    """Reads the start of a segment."""
    if data[:4] != MAGIC[: len(data)]:
        raise NotAQueue(f"{path}: not a segment: starts with {data[:4]!r}, not with {MAGIC!r}")
    if len(data) < _HEADER_1.size:
        raise Damaged(Damage(path, 0, len(data), "the file ends within its header", torn=True))
    version, base_offset = struct.unpack_from(">HQ", data, 4)
    if version == 0:
        return _decode_header_0(data, path)
    if version == 1:
        return Header(1, _offset(base_offset, path))
    if version != 2:
        raise UnsupportedVersion(f"{path}: fflg version {version}; this program reads 0, 1 and 2")
    if len(data) < _HEADER_2.size:
        raise Damaged(Damage(path, 0, len(data), "the file ends within its header", torn=True))
    _, _, base_offset, salt, epoch_ms, stored = _HEADER_2.unpack_from(data)
    found = crc32(data[: _HEADER_2.size - 4])
    if found != stored:
        reason = f"header checksum {stored:#010x} expected, {found:#010x} found"
        raise Damaged(Damage(path, 0, _HEADER_2.size, reason))
    return Header(2, _offset(base_offset, path), salt, epoch_ms)


def _decode_header_0(data: bytes, path: str) -> Header:
    if len(data) < _HEADER_0.size:
        raise Damaged(Damage(path, 0, len(data), "the file ends within its header", torn=True))
    _, version, base_offset = _HEADER_0.unpack_from(data)
    if version != 0:
        raise UnsupportedVersion(f"{path}: fflg version {version}; this program reads 0, 1 and 2")
    return Header(0, _offset(base_offset, path))


def repair_header(data: bytes, base_offset: int) -> Header | None:
    """Finds the one flipped bit in a version 2 header, if that is what happened.

    Without the repair a single bad bit in 34 bytes would cost every record of the segment. At this
    length the CRC distinguishes each single flipped bit from all others; the file's name must
    agree.
    """
    if len(data) < _HEADER_2.size:
        return None
    known = _HEADER_1.pack(MAGIC, 2, base_offset)
    guess = known + data[len(known) : _HEADER_2.size]
    # Bit -1 stands for none: the flipped bit is in the fields that the name determines.
    for bit in range(-1, (_HEADER_2.size - len(known)) * 8):
        fixed = bytearray(guess)
        if bit >= 0:
            fixed[len(known) + bit // 8] ^= 1 << bit % 8
        if crc32(fixed[:-4]) == int.from_bytes(fixed[-4:], "big"):
            return decode_header(bytes(fixed), "")
    return None


def segment_name(base_offset: int, version: int = VERSION_DEFAULT) -> str:
    """Returns the file name of the segment that starts at an offset.

    The original program, whose version is 0, only knows names of 16 digits.
    """
    return f"{base_offset:016x}" if version == 0 else f"{base_offset:010x}"


def parse_segment_name(name: str) -> int | None:
    """Returns the base offset in a file name; None if it is not the name of a segment."""
    if _NAME.fullmatch(name) is None:
        return None
    base_offset = int(name, 16)
    return base_offset if base_offset <= OFFSET_MAX else None


class Frames:
    """The frames of one segment: what storage needs from a codec, for one header."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.layout = header.layout
        self.seed = header.seed

    def fit(self, values: list[bytes], first: int, room: int) -> tuple[int, int]:
        """Returns how many of the values from `first` on fit in `room` bytes, and their size."""
        return fit(values, first, room, self.layout.frame_bytes)

    def encode(
        self,
        values: list[bytes],
        first: int,
        count: int,
        buffer: bytearray | memoryview,
        index: int,
        ms: int,
        times: list[int] | None = None,
    ) -> int:
        """Writes the frames of `count` values to `buffer`; returns their size.

        All have the same `ms` since the epoch, or each has its own from `times`.
        """
        if self.layout.checked:
            return kernel.encode(values, first, count, buffer, index, self.seed, ms, times)
        return encode_unchecked(values, first, count, buffer)

    def scan(
        self, data: bytes, position: int, index: int, limit: int, times: list[int] | None
    ) -> tuple[list[bytes], int]:
        """Reads whole, good frames from `position` on; returns values and where it stopped."""
        if self.layout.checked:
            return kernel.scan(data, position, index, self.seed, limit, times)
        return scan_unchecked(data, position, limit, self.layout.zero_size_ends)

    def frame_size(self, data: bytes, position: int) -> int | None:
        """Returns the claimed size of the frame at `position`; None if it cannot be read."""
        if len(data) - position < 4:
            return None
        size = int.from_bytes(data[position : position + 4], "big")
        if size == 0 and self.layout.zero_size_ends:
            return None
        return self.layout.frame_bytes + size

    def find(self, data: bytes, position: int, index: int, limit: int) -> tuple[int, int] | None:
        """Searches for the next good frame from `position` on; returns its position and index.

        The index is at least `index` and below `limit`.
        """
        if not self.layout.checked or limit <= index:
            return None
        most = min(limit - index - 1, 2**32 - 1)
        position, index = kernel.find(data, position, index, self.seed, most)
        return (position, index) if position >= 0 else None

    def locate(self, data: bytes, position: int, before: int) -> tuple[int, int] | None:
        """Searches for a good frame of any index; returns its position and index.

        `before` bytes lie between the first frame of the segment and `position`. One hit may be a
        coincidence: check what follows it.
        """
        found, index = kernel.find(data, position, 0, self.seed, 2**32 - 1, before)
        return (found, index) if found >= 0 else None


def _offset(value: int, path: str) -> int:
    if value > OFFSET_MAX:
        raise Damaged(Damage(path, 0, HEADER_BYTES_MAX, f"base offset {value} is out of range"))
    return value


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
    """Reads the file up to the first bad entry; returns the places, and what is wrong.

    If a name occurs twice, the last one counts.
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
    """Returns a consumer's name if it is valid."""
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
