"""Reads damaged segments in memory, the way a queue with `salvage=True` reads files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from forebay import Log
from forebay.damage import Damage
from forebay.formats.fflg import HEADER_BYTES_MAX, Frames, Header, decode_header
from forebay.storage.filesystem import File
from forebay.storage.segments import scan_segment
from tests.support.clocks import SteppingClock
from tests.support.inside import writer_of

HEADER_BYTES = HEADER_BYTES_MAX
FRAME_BYTES = 12


class MemoryFile:
    """As much of a file as a scan needs."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def size(self) -> int:
        return len(self._data)


@dataclass(frozen=True)
class Segment:
    """A segment as a log wrote it: its bytes, its header, its records and where each lies."""

    data: bytes
    header: Header
    records: list[tuple[int, bytes]]
    starts: list[int]
    ends: list[int]

    def outside(self, start: int, end: int) -> dict[int, tuple[int, bytes]]:
        """Returns the records that have no byte in a range of the file."""
        return {
            index: record
            for index, record in enumerate(self.records)
            if self.ends[index] <= start or self.starts[index] >= end
        }

    def unharmed(self, data: bytes) -> dict[int, tuple[int, bytes]]:
        """Returns the records whose bytes are the same, at the same place, in other data."""
        return {
            index: record
            for index, record in enumerate(self.records)
            if data[self.starts[index] : self.ends[index]]
            == self.data[self.starts[index] : self.ends[index]]
        }

    def before(self, cut: int) -> dict[int, tuple[int, bytes]]:
        """Returns the records that are whole if the file ends at `cut`."""
        return self.outside(cut, len(self.data) + 1)


@dataclass
class Found:
    """What a scan gave: records by index, and damage."""

    records: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)


def write_segment(path: Path, values: list[bytes], base: int = 0) -> Segment:
    """Lets a log write values, each with a time of its own, and reads the file back."""
    with Log(path, background=False, clock=SteppingClock(1_700_000_000_000, 3)) as log:
        for value in [b""] * base:
            log.append(value)
        if base:
            writer_of(log).roll()
        for value in values:
            log.append(value)
    data = (path / f"{base:010x}").read_bytes()
    header = decode_header(data, str(path))
    found = scan(data, header)
    assert [value for _, value in found.records.values()] == values
    ends = [HEADER_BYTES]
    for value in values:
        ends.append(ends[-1] + FRAME_BYTES + len(value))
    assert ends[-1] == len(data)
    return Segment(data, header, list(found.records.values()), ends[:-1], ends[1:])


def scan(data: bytes, header: Header, expected: int = 0) -> Found:
    """Scans the frames of a segment round all damage; `expected` of them must be there."""
    found = Found()
    file = cast("File", MemoryFile(data))
    for item in scan_segment(
        file, "segment", Frames(header), position=header.layout.header_bytes, expected=expected
    ):
        if isinstance(item, Damage):
            found.damage.append(item)
            continue
        times = item.times or [0] * len(item.values)
        for number, (ms, value) in enumerate(zip(times, item.values, strict=True)):
            assert item.index + number not in found.records
            found.records[item.index + number] = (ms, value)
    return found


def is_subset(found: Found, segment: Segment) -> bool:
    """Says whether every record that was found is one that was written, at its own index."""
    return all(
        index < len(segment.records) and segment.records[index] == record
        for index, record in found.records.items()
    )
