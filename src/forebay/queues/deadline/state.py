"""What is in a deadline queue: memory, runs, leases and counts.

Owns the state and no file. Called with the queue's lock held. Each pending item is in one place
only: in the order of its segment, in the view of the runs, lent, or among those whose leases
have ended. So an item is lent to only one caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from forebay.damage import Damage
from forebay.errors import Damaged
from forebay.formats.deadline.items import BURIED_BIT, FileKind, Item, Key, KeyTuple, Tombstone
from forebay.formats.deadline.runs import decode_row
from forebay.queues.deadline.item import DeadlineItem, as_item
from forebay.queues.deadline.runs import (
    LAST_KEY,
    BadBlocks,
    RunSet,
    View,
    cost_of,
    cursors_between,
    start_cursor,
)
from forebay.queues.deadline.schedule import ITEM, TOMBSTONE, LiveItems, Memory, Schedule
from forebay.storage.losses import Losses

if TYPE_CHECKING:
    from forebay.kernels.deadline import Row

_Live = TypeVar("_Live")
# How many items an iteration over all of them finds at once.
_ITEMS_AT_ONCE = 256
NO_BOUND = 1 << 62


class State:
    """The content of a queue. `schedule` adds, lends and removes items."""

    def __init__(
        self,
        current: Memory,
        sets: list[RunSet],
        floor_ms: int,
        *,
        losses: Losses | None = None,
        next_id: int = 0,
        items_max: int = NO_BOUND,
        attempts_max: int = 0,
        hides: bool = False,
        now_ms: Callable[[], int] | None = None,
        ahead_ms: int = 0,
    ) -> None:
        self.damaged = 0
        # Keys of copies that must not come back; the log does not say so yet.
        self.revived: list[KeyTuple] = []
        self._losses = losses
        damage: BadBlocks = []
        self.view = View(sets, damage)
        pairs = [(current.pending, current.buried), *(each.counts() for each in sets)]
        schedule = self.schedule = Schedule(
            current,
            self.view.runs,
            damage,
            self._find_back,
            self._tell_damage,
            floor_ms=floor_ms,
            pending=sum(pending for pending, _ in pairs),
            buried=sum(buried for _, buried in pairs),
            next_id=next_id,
            items_max=items_max,
            attempts_max=attempts_max,
            hides=hides,
            now_ms=now_ms,
            ahead_ms=ahead_ms,
        )
        if min(schedule.total, schedule.buried) < 0:
            # A block of tombstones is bad.
            self.recount()

    @property
    def segments(self) -> list[Memory]:
        """The segments in memory, the newest first."""
        return self.schedule.memories

    @property
    def current(self) -> Memory:
        """The segment that changes go to."""
        return self.segments[0]

    @property
    def frozen(self) -> list[Memory]:
        """Segments whose runs do not exist yet, the oldest first."""
        return self.segments[:0:-1]

    @property
    def working(self) -> int:
        """How many items are lent."""
        return self.schedule.leases.working

    @property
    def pending(self) -> int:
        """How many items are pending, due or not."""
        return self.schedule.total - self.working

    def due(self, now_ms: int) -> int:
        """Returns how many of the pending items are due."""
        self.schedule.leases.expire(now_ms)
        due = self.count_until(now_ms) - self.schedule.leases.due(now_ms)
        return min(due, self.pending)

    def count_until(self, time_ms: int) -> int:
        """Returns how many items, including lent ones, have a deadline up to a time.

        Items in bad blocks are still in the sum over the runs.
        """
        memory = sum(segment.due(time_ms) for segment in self.segments)
        return memory + sum(each.due_count(time_ms) for each in self.view.sets)

    def find(self, key: KeyTuple) -> tuple[Item, int] | None:
        """Returns a live item, and how often it was dequeued; None if there is none.

        A bad block is skipped: calls that take items report it.
        """
        count = max(segment.dequeue_count(*key) for segment in self.segments)
        for segment in self.segments:
            state = segment.state(*key)
            if state == TOMBSTONE:
                return None
            if state == ITEM:
                return _as_entry(segment.row(segment.find(*key))), count
        found: Item | None = None
        for each in self.view.sets:
            for kind, file in each.files.items():
                try:
                    entry = file.run.find(Key(*key))
                except Damaged:
                    continue
                if isinstance(entry, Tombstone):
                    return None
                if entry is None:
                    continue
                count = max(count, entry.stats.dequeue_count)
                if kind is FileKind.PENDING_RUN:
                    found = entry
        return (found, count) if found is not None else None

    def find_id(self, id: int) -> tuple[Item, int] | None:
        """Returns the item with an id, pending, lent or buried; None if there is none.

        Raises `Damaged` if it is not found, and may be in a bad block.
        """
        keys = {key for segment in self.segments for key in segment.keys_of(id)}
        bad: Damaged | None = None
        for each in self.view.sets:
            file = each.files.get(FileKind.PENDING_RUN)
            if file is not None:
                try:
                    keys |= {(entry.key.deadline_ms, id) for entry in file.run.find_id(id)}
                except Damaged as error:
                    bad = error
        found = (self.find(key) for key in sorted(keys, reverse=True))
        pair = next((pair for pair in found if pair is not None), None)
        if pair is None and bad is not None:
            raise bad
        return pair

    def live(
        self, start: KeyTuple = (0, 0), damage: BadBlocks | None = None
    ) -> Iterator[list[DeadlineItem]]:
        """Yields all live items by key, including lent and buried ones, some at a time.

        Nothing may change meanwhile. Bad blocks are left out, and go to `damage`: they come after
        the items of the batch that was yielded last.
        """
        bad: BadBlocks = [] if damage is None else damage
        runs = cursors_between(self.view.sets, start, LAST_KEY, bad)
        live = LiveItems(runs, self.segments, start, LAST_KEY, bad)
        return in_batches(partial(live.items, _ITEMS_AT_ONCE), bad)

    def browse(self, start: KeyTuple = (0, 0)) -> Iterator[DeadlineItem]:
        """Yields all live items from a key on; see `live`."""
        for items in self.live(start):
            yield from items

    def hand_over(self, number: int) -> Memory:
        """Begins a new segment; returns the previous one, which no longer changes."""
        before = self.current
        self.segments.insert(0, Memory(number))
        return before

    def settle(self, segment: Memory, frozen: RunSet | None) -> None:
        """Reads a segment from its runs from now on; None: nothing was left of it."""
        if frozen is not None:
            self.view.add(frozen)
        self.segments.remove(segment)

    def replace(self, old: list[RunSet], new: RunSet) -> None:
        """Reads from now on the result of a merge instead of its sets."""
        self.view.replace(old, new)
        self.schedule.view = self.view.runs

    def low_waters(self) -> dict[int, KeyTuple]:
        """Returns for each set the key below which nothing is left of it."""
        back = self.schedule.leases.lowest()
        return {each.number: min(self.view.low_water(each), back) for each in self.view.sets}

    def recount(self) -> None:
        """Counts the items by iterating over all keys, after damage has made the sums wrong.

        If the tombstone of a copy is lost, an item is there twice: the newer one counts, and the
        key of the other goes to `revived`.
        """
        newest: dict[int, tuple[int, KeyTuple]] = {}
        revived: list[KeyTuple] = []
        for item in self.browse():
            copy = item.requeue_ms, item.key
            known = newest.get(item.id)
            if known is not None:
                known, copy = sorted((known, copy))
                revived.append(known[1])
            newest[item.id] = copy
        for key in revived:
            self.current.kill(*key)
        self.revived += revived
        self.schedule.buried = sum(key[0] >= BURIED_BIT for _, key in newest.values())
        self.schedule.total = len(newest) - self.schedule.buried

    def _find_back(self, deadline_ms: int, id: int) -> DeadlineItem:
        pair = self.find((deadline_ms, id))
        assert pair is not None
        return as_item(*pair)

    def tell(self, damage: list[Damage]) -> None:
        """Makes the next calls that take items raise damage, each once."""
        self.schedule.damage.extend((FileKind.WAL, each) for each in damage)

    def lacks_tombstones(self) -> bool:
        """Says whether a block of tombstones is bad; reads all of them."""
        files = [each.files.get(FileKind.TOMBSTONE_RUN) for each in self.view.sets]
        return any(
            isinstance(file.run.load(row), Damage)
            for file in files
            if file is not None
            for row in range(len(file.run.places))
        )

    def lost_in(self, kind: FileKind, damage: Damage) -> Damage:
        """Returns the damage of a block with what it costs.

        Some of the items that were in it are gone: those whose tombstones match no item any more.
        """
        found = cost_of(kind, damage)
        place = self._place(damage)
        if kind is not FileKind.PENDING_RUN or damage.count is None or place is None:
            return found
        start, end = place
        met: set[KeyTuple] = set()
        dead: set[KeyTuple] = set()
        for each in self.view.sets:
            for file in each.files.values():
                cursor = start_cursor(file, start, [])
                while (cursor.deadline, cursor.id) < end:
                    key = (cursor.deadline, cursor.id)
                    if file.kind is FileKind.TOMBSTONE_RUN:
                        dead.add(key)
                    elif file.kind is FileKind.PENDING_RUN:
                        met.add(key)
                    cursor.advance()
        for segment in self.segments:
            rows = segment.sorted(TOMBSTONE)
            dead.update(key for key in map(segment.key, rows) if start <= key < end)
        return replace(found, count=max(damage.count - len(dead - met), 0))

    def _place(self, damage: Damage) -> tuple[KeyTuple, KeyTuple] | None:
        """Returns the keys between which a bad block lies."""
        for each in self.view.sets:
            for file in each.files.values():
                if file.run.path == damage.path:
                    positions = list(file.run.places.positions)
                    if damage.position not in positions:
                        return None
                    row = positions.index(damage.position)
                    first = file.run.places[row].key
                    last = (1 << 48, 0)
                    if row + 1 < len(positions):
                        following = file.run.places[row + 1].key
                        last = (following.deadline_ms, following.id)
                    return (first.deadline_ms, first.id), last
        return None

    def _tell_damage(self) -> None:
        kind, damage = self.schedule.damage.pop(0)
        if kind is FileKind.WAL:
            raise Damaged(damage, "the next call goes on after it")
        found = self.lost_in(kind, damage)
        self.damaged += found.count or 0
        if kind is not FileKind.DEQUEUED_RUN:
            self.recount()
        if found.count == 0:
            return
        if self._losses is None or self._losses.note(found):
            raise Damaged(found, "the next call goes on after it")


def in_batches(take: Callable[[], list[_Live]], damage: BadBlocks) -> Iterator[list[_Live]]:
    """Yields live items, batch by batch; an empty one if there is damage before the first."""
    if damage:
        yield []
    while True:
        known = len(damage)
        found = take()
        if not found and len(damage) == known:
            return
        yield found


def _as_entry(row: Row) -> Item:
    item = decode_row(row)
    assert isinstance(item, Item)
    return item
