"""The part of a deadline queue that is in memory: one segment for each log.

A key, a deadline and an id, is used for one item only and never again, so what happened to it needs
no order: an item is there if it was written and no tombstone was, and it was given out as often as
the highest count says. Keys are plain tuples here, which compare faster.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from forebay.formats.deadline import BURIED_BIT, Item, Tombstone
from forebay.formats.deadline_wal import Dequeued, Record

KeyTuple = tuple[int, int]
# What an item is reckoned to take in memory beside its value.
_ITEM_BYTES = 64


class DueCount:
    """Counts what is due, as time goes by; each deadline is looked at once."""

    def __init__(self) -> None:
        self._count = 0
        self._now_ms = -1
        self._later: list[KeyTuple] = []

    def add(self, deadline_ms: int, step: int) -> None:
        """Adds an item (1) or takes one away (-1)."""
        if deadline_ms <= self._now_ms:
            self._count += step
        elif deadline_ms < BURIED_BIT:
            heapq.heappush(self._later, (deadline_ms, step))

    def at(self, now_ms: int) -> int:
        """Gives how many are due; the time never goes back."""
        self._now_ms = max(self._now_ms, now_ms)
        while self._later and self._later[0][0] <= self._now_ms:
            self._count += heapq.heappop(self._later)[1]
        return self._count


class Segment:
    """What one log says. Called with the queue's lock held.

    `tombstones` and `marks` are of items that are in older logs or in runs; the others are done
    with when they are read. `order` holds the keys of items that may be given out, and more.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: dict[KeyTuple, Item] = {}
        self.order: list[KeyTuple] = []
        self.ids: dict[int, KeyTuple] = {}
        self.tombstones: set[KeyTuple] = set()
        self.marks: dict[KeyTuple, tuple[int, int]] = {}
        self.due = DueCount()
        self.bytes = 0

    @property
    def count(self) -> int:
        """How many entries it holds."""
        return len(self.items) + len(self.tombstones) + len(self.marks)

    def add(self, item: Item) -> None:
        """Takes an item in; `show` lets it be given out."""
        key = (item.key.deadline_ms, item.key.id)
        self.items[key] = item
        self.ids[key[1]] = key
        self.due.add(key[0], 1)
        self.bytes += len(item.value) + len(item.reason) + _ITEM_BYTES

    def show(self, key: KeyTuple) -> None:
        """Lets an item be given out."""
        if key[0] < BURIED_BIT:
            heapq.heappush(self.order, key)

    def kill(self, key: KeyTuple) -> None:
        """Takes an item away, wherever it is."""
        self.due.add(key[0], -1)
        self.marks.pop(key, None)
        item = self.items.pop(key, None)
        if item is None:
            self.tombstones.add(key)
            return
        if self.ids.get(key[1]) == key:
            del self.ids[key[1]]
        self.bytes -= len(item.value) + len(item.reason) + _ITEM_BYTES

    def mark(self, key: KeyTuple, count: int, time_ms: int) -> None:
        """Notes that an item was given out, so many times by now."""
        item = self.items.get(key)
        if item is None:
            known = self.marks.get(key)
            if known is None or known[0] < count:
                self.marks[key] = (count, time_ms)
        elif item.stats.dequeue_count < count:
            self.items[key] = replace(item, stats=replace(item.stats, dequeue_count=count))

    def replay(self, record: Record) -> None:
        """Takes in a record of a log, in the order of writing."""
        key = (record.key.deadline_ms, record.key.id)
        if isinstance(record, Tombstone):
            if key not in self.tombstones:
                self.kill(key)
        elif isinstance(record, Dequeued):
            self.mark(key, record.dequeue_count, record.time_ms)
        elif key not in self.items and key not in self.tombstones:
            self.add(record)
            mark = self.marks.pop(key, None)
            if mark is not None:
                self.mark(key, *mark)

    def show_all(self) -> None:
        """Lets all items be given out."""
        self.order = sorted(key for key in self.items if key[0] < BURIED_BIT)

    def counts(self) -> tuple[int, int]:
        """Gives what it adds to the pending and to the buried items."""
        buried = sum(key[0] >= BURIED_BIT for key in self.items)
        buried_gone = sum(key[0] >= BURIED_BIT for key in self.tombstones)
        pending = len(self.items) - buried
        return pending - (len(self.tombstones) - buried_gone), buried - buried_gone
