"""The versions of the Beats segment format, as rows of a table, and their headers.

Owns the unencrypted start of a segment. All integers are little-endian. Two layouts have the
version number 2; `recognition.py` determines from its frames which of them a file has.
Page: docs/formats/beats.md.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Literal

from forebay.errors import InvalidOption
from forebay.formats.beats.crypto import IV_BYTES

Dialect = Literal["released", "seed"]
Compression = Literal["none", "block", "stream"]

# Version 0, and the seed's versions 2 and 3:   version 4
# Version 1:                                     version 4 | frame count 4
# The released version 2:                        version 4 | frame count 4 | options 4
# In the encrypted ones the initialization vector follows, 16 bytes.
_WORD = struct.Struct("<I")
COUNT_POSITION = 4

# The options word of the released version 2. Beats ignores the bits that it does not know.
OPTION_ENCRYPTION = 0x1
OPTION_COMPRESSION = 0x2
OPTION_PROTOBUF = 0x4
_OPTIONS_OF_LAYOUT = OPTION_ENCRYPTION | OPTION_COMPRESSION
OPTIONS_KNOWN = _OPTIONS_OF_LAYOUT | OPTION_PROTOBUF

_NAME = re.compile(r"(0|[1-9][0-9]*)\.seg", re.IGNORECASE)
SEGMENT_ID_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Layout:
    """How the versions differ: a row of the table of versions.

    `words` is how many 32-bit words the header has: version, then count, then options. `dialect` is
    None if the version number is unambiguous.
    """

    name: str
    version: int
    words: int
    dialect: Dialect | None = None
    options: int = 0
    encrypted: bool = False
    compression: Compression = "none"
    writable: bool = False

    @property
    def counted(self) -> bool:
        """Returns whether the header has a field for the number of frames."""
        return self.words > 1

    @property
    def header_bytes(self) -> int:
        """Returns where the first frame is, as a position of `state.dat`."""
        return self.words * _WORD.size

    @property
    def body_position(self) -> int:
        """Returns where in the file the first byte after header and vector is."""
        return self.header_bytes + (IV_BYTES if self.encrypted else 0)


_ROWS = (
    # Read only: Beats 7.10 to 7.13 wrote JSON, which cannot express everything that an event may
    # hold here.
    Layout("v0", 0, 1),
    Layout("v1", 1, 2, writable=True),
    Layout("v2", 2, 3, "released", 0, writable=True),
    Layout("v2-lz4", 2, 3, "released", 2, compression="stream", writable=True),
    Layout("v2-aes", 2, 3, "released", 1, encrypted=True, writable=True),
    Layout("v2-aes-lz4", 2, 3, "released", 3, encrypted=True, compression="stream", writable=True),
    Layout("v2-seed", 2, 1, "seed", encrypted=True, writable=True),
    Layout("v3-seed", 3, 1, "seed", encrypted=True, compression="block", writable=True),
    Layout("v3-seed-stream", 3, 1, "seed", encrypted=True, compression="stream", writable=True),
)
LAYOUTS = {row.name: row for row in _ROWS}
# Every Beat loses events of these versions because of its own bugs; warn when one is chosen.
LOSSY_IN_BEATS = ("v2-lz4", "v2-aes-lz4")
HEADER_BYTES_MAX = max(row.body_position for row in _ROWS)
assert HEADER_BYTES_MAX == 28


@dataclass(frozen=True, slots=True)
class Header:
    """The start of a segment.

    `count` is 0 while the segment is being written and after a crash: it means "unknown", never
    "none". `repaired` is set if the words in the file claim another layout than that of its frames.
    """

    layout: Layout
    count: int = 0
    options: int = 0
    iv: bytes = b""
    repaired: bool = False

    def __post_init__(self) -> None:
        wanted = IV_BYTES if self.layout.encrypted else 0
        if len(self.iv) != wanted:
            raise InvalidOption(
                f"{self.layout.name}: the initialization vector has {len(self.iv)} bytes, "
                f"not {wanted}"
            )

    def encode(self) -> bytes:
        """Returns the bytes of the header and of the vector after it."""
        words = (self.layout.version, self.count, self.options)[: self.layout.words]
        return struct.pack(f"<{len(words)}I", *words) + self.iv


def new_header(name: str, iv: bytes = b"") -> Header:
    """Makes the header of a new segment; `iv` is 16 fresh random bytes if it is encrypted."""
    layout = LAYOUTS.get(name)
    if layout is None or not layout.writable:
        known = ", ".join(row.name for row in _ROWS if row.writable)
        raise InvalidOption(f"version {name!r} cannot be written; writable versions: {known}")
    return Header(layout, options=layout.options, iv=iv)


def lossy_warning(name: str) -> str:
    """Returns a warning for a version whose events Beats itself loses."""
    return (
        f"{name}: because of its own bugs, a released Beat reads only some of the events in "
        "compressed segments after a restart, and none after a crash; for a queue that goes back "
        f"to a Beat, choose {'v2' if name == 'v2-lz4' else 'v2-aes'}"
    )


def encode_count(count: int) -> bytes:
    """Returns the four bytes that go to `COUNT_POSITION` when a segment is closed."""
    return _WORD.pack(count)


def decode_header_as(layout: Layout, data: bytes) -> Header | None:
    """Reads the start of a file as one row of the table; None if the file is too short."""
    if len(data) < layout.body_position:
        return None
    version, count, options = (*words_of(data, layout.words), 0, 0)[:3]
    return Header(
        layout,
        count,
        options,
        data[layout.header_bytes : layout.body_position],
        repaired=version != layout.version or options & _OPTIONS_OF_LAYOUT != layout.options,
    )


def words_of(data: bytes, count: int) -> tuple[int, ...]:
    """Reads the first words of a file, as many as there are."""
    count = min(count, len(data) // _WORD.size)
    return struct.unpack_from(f"<{count}I", data)


def claimed_layouts(data: bytes, dialect: Dialect | None) -> list[Layout]:
    """Lists the rows that the words at the start of a file allow, the likeliest first."""
    words = words_of(data, 3)
    options = words[2] if len(words) > 2 else 0
    return [
        row
        for row in _ROWS
        if row.version == words[0]
        and (dialect is None or row.dialect in (None, dialect))
        and (row.dialect != "released" or _may_be_released(row, options, dialect))
    ]


def _may_be_released(row: Layout, options: int, dialect: Dialect | None) -> bool:
    """Returns whether an options word fits a row; a random vector is this small once in 2²⁹."""
    plausible = options <= OPTIONS_KNOWN or dialect == "released"
    return plausible and row.options == options & _OPTIONS_OF_LAYOUT


def segment_name(segment_id: int) -> str:
    """Returns the file name of a segment."""
    return f"{segment_id}.seg"


def parse_segment_name(name: str) -> int | None:
    """Returns the id in a file name; None if it is not the name of a segment."""
    match = _NAME.fullmatch(name)
    if match is None or len(match[1]) > 20 or int(match[1]) > SEGMENT_ID_MAX:
        return None
    return int(match[1])
