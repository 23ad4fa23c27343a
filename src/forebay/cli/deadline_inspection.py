"""What can be told of a deadline queue from outside: state, files, when its items are due.

Only reads, takes no lock, and works on a queue that is in use, was killed, or is damaged.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from forebay import DeadlineReader
from forebay.cli.deadline_folder import Folder
from forebay.clock import SystemClock
from forebay.formats.deadline.items import BURIED_BIT, FileKind, Item

# What state a queue is in, in a word, and what that means.
STATES = {
    "open": "open",
    "closed": "not in use",
    "manifest-damaged": "its manifest is lost; the next open makes one of all files that are there",
}
# Until when an item of each row of the histogram is due, in seconds from now.
SPANS = {
    "overdue": 0,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
WHAT = {
    FileKind.PENDING_RUN: "items",
    FileKind.TOMBSTONE_RUN: "tombstones",
    FileKind.DEQUEUED_RUN: "counts",
}
_LAST_MS = BURIED_BIT - 1


@dataclass(frozen=True, slots=True)
class Counts:
    """How many items there are, and when they are due: a count for each of `SPANS`, and later."""

    pending: int
    buried: int
    due: dict[str, int]


def state_of(folder: Folder, owner: int | None) -> str:
    """Says whether a queue is in use, or has lost its manifest: a key of `STATES`."""
    if owner is not None:
        return "open"
    return "closed" if folder.manifest is not None else "manifest-damaged"


def count_items(folder: Folder) -> Counts:
    """Counts by the indexes of the runs; where something is damaged, by going over all items."""
    now_ms = SystemClock().now_ms()
    times = [*(min(now_ms + 1000 * span, _LAST_MS) for span in SPANS.values()), _LAST_MS]
    if not folder.damage:
        with DeadlineReader(folder.path) as reader:
            totals = [0, *reader.due_counts(times), len(reader)]
        # A bad block of tombstones, which nobody has read yet, takes nothing off.
        if totals == sorted(totals):
            return _counts(totals)
    deadlines = [item.key.deadline_ms for item in folder.items() if isinstance(item, Item)]
    return _counts([0, *(bisect_right(deadlines, time_ms) for time_ms in times), len(deadlines)])


def _counts(totals: list[int]) -> Counts:
    *due, buried = (after - before for before, after in pairwise(totals))
    return Counts(totals[-2], buried, dict(zip([*SPANS, "later"], due, strict=True)))


def next_deadline(folder: Folder) -> int | None:
    """Returns when the first pending item is or was due."""
    for item in folder.items():
        if isinstance(item, Item):
            return None if item.buried else item.key.deadline_ms
    return None
