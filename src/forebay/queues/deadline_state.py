"""What is in a deadline queue: memory, runs, leases and counts, and every change of them.

Owns the state and no file. Called with the queue's lock held. Each pending item is at one place
only: in the order of its segment, in the view of the runs, lent out, or in `_returned`, where an
item goes whose lease has ended. So an item is given out to one taker at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

from forebay.errors import Damaged
from forebay.formats.deadline import BURIED_BIT, FileKind, Item, Key, Tombstone
from forebay.queues.deadline_runs import LAST_KEY, Found, RunSet, View
from forebay.queues.deadline_segment import KeyTuple, Segment


@dataclass(slots=True)
class Lease:
    """An item that was given out: how often by now, until when; not `working`: it came back."""

    count: int
    until_ms: int
    working: bool = True


class State:
    """The content of a queue."""

    def __init__(self, current: Segment, sets: list[RunSet], floor_ms: int) -> None:
        self.current = current
        self.frozen: list[Segment] = []
        self.view = View(sets)
        self.floor_ms = floor_ms
        self.working = 0
        self.damaged = 0
        self._leases: dict[KeyTuple, Lease] = {}
        self._ends: list[tuple[int, KeyTuple]] = []
        self._returned: list[KeyTuple] = []
        self._found: Found | None = None
        pairs = [current.counts(), *(each.counts() for each in sets)]
        self.total = sum(pending for pending, _ in pairs)
        self.buried = sum(buried for _, buried in pairs)

    @property
    def segments(self) -> list[Segment]:
        """What is in memory, the newest first."""
        return [self.current, *reversed(self.frozen)]

    @property
    def pending(self) -> int:
        """How many items wait, due or not."""
        return self.total - self.working

    def due(self, now_ms: int) -> int:
        """Gives how many of the pending items are due."""
        self.expire(now_ms)
        memory = sum(segment.due.at(now_ms) for segment in self.segments)
        runs = sum(each.due_count(now_ms) for each in self.view.sets)
        # Items in bad blocks are still in the sum over the runs.
        return min(memory + runs - self.working, self.pending)

    def add(self, item: Item) -> None:
        """Takes in an item that is in the log; `show` lets it be given out."""
        self.current.add(item)
        if item.buried:
            self.buried += 1
        else:
            self.total += 1

    def kill(self, key: KeyTuple) -> None:
        """Takes an item away whose tombstone is in the log."""
        self.current.kill(key)
        lease = self._leases.pop(key, None)
        if lease is not None and lease.working:
            self.working -= 1
        if key[0] >= BURIED_BIT:
            self.buried -= 1
        else:
            self.total -= 1

    def lend(self, key: KeyTuple, count: int, until_ms: int) -> None:
        """Gives an item out; `mark` follows when the log says so, or `give_back`."""
        self._leases[key] = Lease(count, until_ms)
        heapq.heappush(self._ends, (until_ms, key))
        self.working += 1

    def mark(self, key: KeyTuple, count: int, now_ms: int) -> None:
        """Takes note that an item was given out, which the log says."""
        self.current.mark(key, count, now_ms)
        self.floor_ms = max(self.floor_ms, key[0])

    def give_back(self, key: KeyTuple) -> None:
        """Lets an item be given out again."""
        lease = self._leases[key]
        lease.working = False
        self.working -= 1
        heapq.heappush(self._returned, key)

    def lease(self, key: KeyTuple, count: int, now_ms: int) -> Lease | None:
        """Gives the lease of an item that was given out for the `count`th time, if it holds."""
        self.expire(now_ms)
        lease = self._leases.get(key)
        return lease if lease is not None and lease.working and lease.count == count else None

    def extend(self, key: KeyTuple, until_ms: int) -> None:
        """Lets a lease end at another time."""
        self._leases[key].until_ms = until_ms
        heapq.heappush(self._ends, (until_ms, key))

    def expire(self, now_ms: int) -> None:
        """Gives back all items whose leases have ended."""
        while self._ends and self._ends[0][0] <= now_ms:
            _, key = heapq.heappop(self._ends)
            lease = self._leases.get(key)
            if lease is not None and lease.working and lease.until_ms <= now_ms:
                self.give_back(key)

    def next_end(self) -> int | None:
        """Gives when the next lease may end; None if nothing is given out."""
        return self._ends[0][0] if self._ends else None

    def head(self) -> KeyTuple | None:
        """Gives the key of the first pending item, due or not; raises Damaged once for each."""
        keys = []
        returned = self._returned
        while returned and self._is_no_longer_back(returned[0]):
            heapq.heappop(returned)
        if returned:
            keys.append(returned[0])
        for segment in self.segments:
            order = segment.order
            while order and (order[0] not in segment.items or self._passes(order[0])):
                heapq.heappop(order)
            if order:
                keys.append(order[0])
        self._found = self.view.head(self._passes)
        self._tell_damage()
        if self._found is not None:
            keys.append(self._found.key)
        return min(keys, default=None)

    def load_head(self, key: KeyTuple) -> tuple[Item, int]:
        """Gives the item whose key `head` has just given, and how often it was given out."""
        found = self._found
        if found is None or found.key != key:
            pair = self.find(key)
            assert pair is not None
            return pair
        item = found.cursor.entry()
        assert isinstance(item, Item)
        marks = (segment.marks[key][0] for segment in self.segments if key in segment.marks)
        return item, max(item.stats.dequeue_count, found.mark, *marks)

    def find(self, key: KeyTuple) -> tuple[Item, int] | None:
        """Gives an item that is alive, and how often it was given out; None if there is none."""
        count = max(
            (segment.marks[key][0] for segment in self.segments if key in segment.marks), default=0
        )
        for segment in self.segments:
            if key in segment.tombstones:
                return None
            item = segment.items.get(key)
            if item is not None:
                return item, max(count, item.stats.dequeue_count)
        found: Item | None = None
        for each in self.view.sets:
            for kind, file in each.files.items():
                entry = file.run.find(Key(*key))
                if isinstance(entry, Tombstone):
                    return None
                if entry is None:
                    continue
                count = max(count, entry.stats.dequeue_count)
                if kind is FileKind.PENDING_RUN:
                    found = entry
        return (found, count) if found is not None else None

    def find_id(self, id: int) -> tuple[Item, int] | None:
        """Gives the item of an id, pending, lent out or buried; None if there is none."""
        keys = {segment.ids[id] for segment in self.segments if id in segment.ids}
        for each in self.view.sets:
            file = each.files.get(FileKind.PENDING_RUN)
            if file is not None:
                keys |= {(entry.key.deadline_ms, id) for entry in file.run.find_id(id)}
        found = (self.find(key) for key in sorted(keys, reverse=True))
        return next((pair for pair in found if pair is not None), None)

    def browse(self, start: KeyTuple = (0, 0)) -> Iterator[tuple[Item, int]]:
        """Yields all items that are alive by key, lent out and buried ones too."""
        copies = [replace(each, low_water=max(start, each.low_water)) for each in self.view.sets]
        runs = (found.key for found in View(copies).alive())
        memory = sorted({key for segment in self.segments for key in segment.items})
        for key in heapq.merge(runs, (key for key in memory if key >= start)):
            pair = self.find(key)
            if pair is not None:
                yield pair

    def hand_over(self, number: int) -> Segment:
        """Begins a new segment; gives the one before, which changes no more."""
        before = self.current
        self.frozen.append(before)
        self.current = Segment(number)
        return before

    def settle(self, segment: Segment, frozen: RunSet | None) -> None:
        """Reads from now on from runs what was in a segment; None: nothing was left of it."""
        if frozen is not None:
            self.view.add(frozen)
        self.frozen.remove(segment)

    def low_waters(self) -> dict[int, KeyTuple]:
        """Gives for each set the key below which nothing is left of it."""
        back = min(self._leases, default=LAST_KEY)
        return {each.number: min(self.view.low_water(each), back) for each in self.view.sets}

    def recount(self) -> None:
        """Counts by going over all keys, where damage has made the sums wrong."""
        pairs = [pair[0].buried for pair in self.browse()]
        self.buried = sum(pairs)
        self.total = len(pairs) - self.buried

    def _passes(self, key: KeyTuple) -> bool:
        """Says whether an item is given out, has come back, or has a tombstone in memory."""
        return key in self._leases or any(key in segment.tombstones for segment in self.segments)

    def _is_no_longer_back(self, key: KeyTuple) -> bool:
        lease = self._leases.get(key)
        return lease is None or lease.working

    def _tell_damage(self) -> None:
        if self.view.damage:
            kind, damage = self.view.damage.pop()
            count = damage.count or 0
            self.damaged += count
            if kind is FileKind.PENDING_RUN:
                self.total -= min(count, self.total)
            raise Damaged(damage, "the next call goes on behind it")
