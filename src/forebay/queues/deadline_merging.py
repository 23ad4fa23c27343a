"""Which sets of runs to merge: neighbours of like size, and those that tombstones have emptied.

Only neighbours by age are merged, so that tombstones stay newer than what they take away.
"""

from __future__ import annotations

from forebay.formats.deadline import FileKind
from forebay.queues.deadline_runs import RunSet

SETS_MAX = 64
# So many sets of like size are worth a merge: each entry is rewritten about once for each power.
_LIKE_MIN = 24
_LIKE_FACTOR = 4
# A set below this is as small as any other.
_SMALL_BYTES = 64 * 1024


def choose_merge(sets: list[RunSet], *, everything: bool = False) -> tuple[int, int]:
    """Returns the first of the sets to merge, the oldest being 0, and how many; 0: none."""
    if everything:
        only = len(sets) == 1 and set(sets[0].files) == {FileKind.PENDING_RUN}
        return (0, 0) if not sets or only else (0, len(sets))
    if are_half_dead(sets):
        return 0, len(sets)
    first = _first_alike(sets)
    if len(sets) - first >= _LIKE_MIN:
        return first, len(sets) - first
    if len(sets) > SETS_MAX:
        return len(sets) - _LIKE_MIN, _LIKE_MIN
    return 0, 0


def are_half_dead(sets: list[RunSet]) -> bool:
    """Says whether half of what the sets take would go in a merge of all of them."""
    gone = sum(each.entry_count(FileKind.TOMBSTONE_RUN) for each in sets)
    items = sum(each.entry_count(FileKind.PENDING_RUN) for each in sets)
    return len(sets) > 1 and gone > 0 and 2 * gone >= items


def _first_alike(sets: list[RunSet]) -> int:
    """Returns the oldest set from which on none is much larger than all newer ones."""
    largest = _SMALL_BYTES
    first = len(sets)
    while first > 0:
        size = max(sets[first - 1].size, _SMALL_BYTES)
        if first < len(sets) and size > _LIKE_FACTOR * largest:
            break
        largest = max(largest, size)
        first -= 1
    return first
