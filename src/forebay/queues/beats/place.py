"""Positions in a Beats queue, for its reader, its writer and its `state.dat`."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A frame of a Beats queue, or the end after the last one.

    `position` is logical, as `state.dat` counts; 0 is the first frame. `frame_index` is how many
    frames of the segment lie before it. Places compare in the order of the queue.
    """

    segment: int
    position: int = 0
    frame_index: int = 0


class End(NamedTuple):
    """How far the events of a queue may be read.

    `offset` counts all events ever put. `raw_size` is where in the file the segment ends: the next
    write may be in progress after it. It is None if the segment is no longer written.
    """

    offset: int
    segment: int
    position: int
    raw_size: int | None


# An event as one number: its segment in the high bits, its index in the segment in the low ones.
_INDEX_BITS = 32
SEGMENTS_MAX = 1 << (63 - _INDEX_BITS)


def offset_of(segment: int, frame_index: int) -> int:
    """Returns the number of an event. Numbers rise, with gaps between segments."""
    return (segment << _INDEX_BITS) + frame_index


def split_offset(offset: int) -> tuple[int, int]:
    """Returns the segment and the index in it that a number means."""
    return offset >> _INDEX_BITS, offset & ((1 << _INDEX_BITS) - 1)
