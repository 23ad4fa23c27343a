"""Finds frames in the middle of a segment, without a walk from its start.

A version 2 frame tells the index that it claims, so a reader may begin anywhere: it searches for
the next frame that verifies and that is followed by one that does. What it finds depends on the
bytes of the segment only: two readers that cut a segment at the same position agree on the record.
"""

from __future__ import annotations

from forebay.formats.fflg import Frames
from forebay.storage.readable import Content

NEAR = 2048
_WINDOW_BYTES = 16 << 10
_STEPS_MAX = 24


def frame_from(file: Content, frames: Frames, position: int) -> tuple[int, int] | None:
    """Gives position and index of the first sure frame at or behind a position; None if none is."""
    size = file.size()
    start = max(position, frames.layout.header_bytes)
    before = start - frames.layout.header_bytes
    window = _WINDOW_BYTES
    while start < size:
        data = file.pread(min(window, size - start), start)
        found = frames.locate(data, 0, before)
        while found is not None:
            place, index = found
            if _is_followed(file, frames, start + place, index + 1, size):
                return start + place, index
            found = frames.locate(data, place + 1, before + place + 1)
        if start + len(data) >= size:
            return None
        # A frame may be larger than the window; it is searched anew, whole.
        window *= 4
    return None


def frame_near(file: Content, frames: Frames, index: int, count: int) -> tuple[int, int]:
    """Gives position and index of a sure frame at or before an index, at most about `NEAR` before.

    `count` is about how many entries there are: the better it is known, the fewer steps it takes.
    """
    low = (frames.layout.header_bytes, 0)
    high = (file.size(), max(count, index + 1))
    for step in range(_STEPS_MAX):
        if index - low[1] <= NEAR or high[0] - low[0] <= _WINDOW_BYTES:
            break
        share = (index - NEAR // 2 - low[1]) / (high[1] - low[1])
        # Every third step halves: a guess by the average can be wrong for long.
        guess = low[0] + int((high[0] - low[0]) * (0.5 if step % 3 == 2 else share))
        found = frame_from(file, frames, guess)
        if found is None or found[1] > index:
            high = (guess, high[1] if found is None else found[1])
        elif found[0] > low[0]:
            low = found
        else:
            break
    return low


def _is_followed(file: Content, frames: Frames, position: int, index: int, end: int) -> bool:
    """Says whether behind the frame at `position` comes a good one of that index, or nothing."""
    size = frames.frame_size(file.pread(4, position), 0) or 0
    behind = position + size
    if behind == end:
        return True
    head = file.pread(frames.layout.frame_bytes, behind)
    if not any(head):
        return True
    claimed = frames.frame_size(head, 0)
    if claimed is None or claimed > end - behind:
        return False
    values, _ = Frames(frames.header).scan(file.pread(claimed, behind), 0, index, 1, None)
    return bool(values)
