"""`state.dat` of a Beats queue: the first frame that is not acknowledged. Page: formats/beats.md.

Source of truth for what has been read. Little-endian, no magic, no check. Version 0 counts bytes
after the segment's header and has no frame number; version 1 counts from the start of the segment.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption

# Version 0:  version 4 | segment id 8 | bytes after the header 8
_STATE_0 = struct.Struct("<IQQ")
# Version 1:  version 4 | segment id 8 | logical position, header counted 8 | frame index 8
_STATE_1 = struct.Struct("<IQQQ")
assert (_STATE_0.size, _STATE_1.size) == (20, 28)
_UINT64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class State:
    """A place in a queue. `byte_index` is the stored number; `position` returns its meaning.

    `frame_index` is how many frames of the segment precede it; None in version 0.
    """

    segment_id: int
    byte_index: int
    frame_index: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("segment_id", self.segment_id),
            ("byte_index", self.byte_index),
            ("frame_index", self.frame_index or 0),
        ):
            if not 0 <= value <= _UINT64_MAX:
                raise InvalidOption(f"{name} is {value}; must be 0 to 2**64 - 1")

    @property
    def version(self) -> int:
        """Returns the version that it is stored in."""
        return 0 if self.frame_index is None else 1

    def position(self, header_bytes: int) -> int:
        """Returns the logical position of the first frame that is not acknowledged.

        Byte index 0 is the first frame of the segment. For Beats, frame index 0 means the same, no
        matter what the byte index is.
        """
        if self.frame_index is None:
            return header_bytes + self.byte_index
        return max(header_bytes, self.byte_index) if self.frame_index else header_bytes

    def encode(self) -> bytes:
        """Returns the content of `state.dat`."""
        if self.frame_index is None:
            return _STATE_0.pack(0, self.segment_id, self.byte_index)
        return _STATE_1.pack(1, self.segment_id, self.byte_index, self.frame_index)


def decode_state(data: bytes, path: str) -> State | None:
    """Reads `state.dat`; None if it is empty, as Beats leaves it before the first acknowledgement.

    Bytes after the state are ignored, as in Beats. Raises Damaged if the state is cut off, or has a
    version that no program writes, as after a flipped bit. Beats then starts at the oldest segment.
    """
    if not data:
        return None
    version = int.from_bytes(data[:4], "little")
    if len(data) >= 4 and version not in (0, 1):
        raise Damaged(Damage(path, 0, len(data), f"state version {version}; 0 and 1 are known"))
    layout = _STATE_1 if version == 1 else _STATE_0
    if len(data) < layout.size:
        reason = f"the file ends within the state: {len(data)} of {layout.size} bytes"
        raise Damaged(Damage(path, 0, len(data), reason, torn=True))
    return State(*layout.unpack_from(data)[1:])
