"""What a queue can take: the bounds of a record, and of all of them together."""

from __future__ import annotations

from forebay.errors import InvalidOption, RecordTooLarge
from forebay.formats.fflg import Layout
from forebay.kernels.sizes import measure


def check_values(values: list[bytes], layout: Layout, segment_bytes: int) -> int:
    """Refuses records that can never be stored; gives the size of all their frames."""
    total, largest, smallest = measure(values)
    room = segment_bytes - layout.header_bytes - layout.frame_bytes
    if largest > room:
        raise RecordTooLarge(
            f"a record of {largest} bytes does not fit into a segment of "
            f"segment_bytes = {segment_bytes}: at most {room}"
        )
    if smallest == 0 and layout.zero_size_ends:
        raise InvalidOption("an empty record cannot be stored in version 1; use version 2")
    return total + len(values) * layout.frame_bytes
