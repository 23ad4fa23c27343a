"""Reads Beats segments in memory, the way a queue reads files: round damage, or up to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from forebay.damage import Damage
from forebay.formats.beats.bytes import open_bytes
from forebay.formats.beats.crypto import Key
from forebay.formats.beats.frames import Frames, SegmentEncoder
from forebay.formats.beats.recognition import recognise
from forebay.formats.beats.versions import (
    COUNT_POSITION,
    LAYOUTS,
    Dialect,
    Header,
    encode_count,
    new_header,
)
from forebay.storage.filesystem import File
from forebay.storage.segments import scan_segment
from tests.formats.beats_independent import IV, KEY
from tests.formats.salvage import MemoryFile

WRITABLE = [name for name, row in LAYOUTS.items() if row.writable]
READABLE = list(LAYOUTS)


@dataclass
class Read:
    """What a scan gave: the header, the events as bytes, and damage; `stops` counts events."""

    header: Header
    events: list[bytes] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    good_prefix: int | None = None

    @property
    def lost(self) -> int:
        """How many events are known to be lost."""
        return sum(damage.count or 0 for damage in self.damage)


def read(
    data: bytes, key: bytes | None = KEY, dialect: Dialect | None = None, *, counted: bool = False
) -> Read:
    """Reads a segment round all damage; `counted` holds the header's count against it."""
    raw = MemoryFile(data)
    the_key = Key(key) if key is not None else None
    header = recognise(raw, "0.seg", key=the_key, dialect=dialect)
    content = cast("File", open_bytes(raw, header, the_key, "0.seg"))
    found = Read(header)
    for item in scan_segment(
        content,
        "0.seg",
        Frames(header),
        position=header.layout.header_bytes,
        expected=header.count if counted else 0,
    ):
        if isinstance(item, Damage):
            found.damage.append(item)
            if found.good_prefix is None:
                found.good_prefix = len(found.events)
        else:
            found.events.extend(item.values)
    if found.good_prefix is None:
        found.good_prefix = len(found.events)
    return found


def write(name: str, events: list[bytes], batches: int = 1) -> bytes:
    """Lets the codec write a segment, as a queue does that closes it."""
    header = new_header(name, IV if LAYOUTS[name].encrypted else b"")
    encoder = SegmentEncoder(header, Key(KEY) if header.layout.encrypted else None)
    data = bytearray(header.encode())
    step = -(-len(events) // batches) or 1
    for first in range(0, len(events), step):
        data += encoder.encode(events, first, min(step, len(events) - first))
    data += encoder.finish()
    if header.layout.counted:
        data[COUNT_POSITION : COUNT_POSITION + 4] = encode_count(encoder.count)
    return bytes(data)
