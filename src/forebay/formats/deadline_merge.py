"""Merging sorted entries of a deadline queue, and cancelling items with their tombstones.

Promises that what comes out is sorted, and that a tombstone takes away exactly one item of its
deadline and id, whichever of the two comes first and wherever it is.
Page: docs/formats/deadline.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from forebay.formats.deadline import Entry, Tombstone

# A tuple compares faster than a Key, and in the same order.
_KEY = attrgetter("key.deadline_ms", "key.id")
_DEADLINE_MS = attrgetter("key.deadline_ms")


def merge(runs: Iterable[Iterable[Entry]], *, full: bool) -> Iterator[Entry]:
    """Yields what is left of the entries of runs, oldest run first, each sorted by key.

    `full` says that every run takes part that can hold the item of a tombstone: then a tombstone
    that meets no item is dropped. Otherwise it is kept, because an older run may hold that item.
    The same item in two files, as a crash between freezing a log and removing it leaves, is one.
    """
    merged = heapq.merge(*map(_checked, runs), key=_KEY)
    for _, same in groupby(merged, _KEY):
        items: list[Entry] = []
        tombstones: list[Entry] = []
        for entry in same:
            if isinstance(entry, Tombstone):
                tombstones.append(entry)
            elif entry not in items:
                items.append(entry)
        # Of copies of one key the newest stays.
        yield from items[len(tombstones) :]
        if not full:
            yield from tombstones[len(items) :]


def in_unsigned_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields the entries of a run whose ids were sorted as signed numbers in the order of keys.

    Only entries of one deadline can be out of order, so no more than those are held at once.
    """
    for _, same in groupby(entries, _DEADLINE_MS):
        yield from sorted(same, key=_KEY)


def _checked(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Passes entries on; an unsorted run would be merged into a wrong one without a sound."""
    last = (-1, -1)
    for entry in entries:
        key = entry.key.deadline_ms, entry.key.id
        if key < last:
            raise ValueError(f"{key} after {last}: only sorted runs can be merged")
        last = key
        yield entry
