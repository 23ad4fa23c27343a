"""The changes of a deadline queue: each is a batch in the log first, and in memory then.

Any thread may call the public methods; each takes the queue's lock for the change and waits for its
sync without it. What belongs together is one batch: a requeued item and the tombstone of its old
copy are there both or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forebay.clock import SteadyClock
from forebay.errors import Full, LeaseLost, RecordTooLarge
from forebay.formats.deadline import (
    BURIED_BIT,
    REASON_BYTES_MAX,
    VALUE_BYTES_MAX,
    Item,
    Key,
    Stats,
    Tombstone,
    check_entry,
)
from forebay.formats.deadline_wal import Dequeued, Record
from forebay.queues.deadline_item import DeadlineItem, as_item
from forebay.queues.deadline_journal import Journal
from forebay.queues.deadline_manifest import ManifestFile
from forebay.queues.deadline_recovery import IDS_AT_ONCE
from forebay.queues.deadline_segment import KeyTuple
from forebay.queues.deadline_state import State
from forebay.queues.options import DeadlineOptions
from forebay.queues.unbroken import unbroken

TOO_MANY_ATTEMPTS = "max_attempts"


class NoRoom(Full):
    """A batch would take more than is left; dead items may make room for it."""


class Verbs:
    """What can be done with a queue that this process owns."""

    def __init__(
        self,
        journal: Journal,
        state: State,
        manifest: ManifestFile,
        options: DeadlineOptions,
        clock: SteadyClock,
        next_id: int,
    ) -> None:
        self._journal = journal
        self._state = state
        self._manifest = manifest
        self._options = options
        self._clock = clock
        self.always = options.sync == "always"
        self.next_id = next_id

    def fail(self, error: BaseException) -> None:
        """Ends the handle, whose memory may not be what the log says."""
        self._journal.fail(error)

    def enqueue(self, values: list[bytes], wanted: Callable[[int], int]) -> list[int]:
        """Takes in new items, all with the deadline that `wanted` makes of the time; gives ids."""
        largest = max(map(len, values))
        if largest > VALUE_BYTES_MAX:
            raise RecordTooLarge(f"a value of {largest} bytes; at most {VALUE_BYTES_MAX}")
        with self._journal.lock:
            end, ids = self._enqueue(values, wanted)
        self._settle(end)
        return ids

    def dequeue(self, count: int, lease_seconds: float | None) -> list[DeadlineItem]:
        """Gives out up to `count` items that are due, in the order of their keys."""
        seconds = self._options.lease_seconds if lease_seconds is None else lease_seconds
        with self._journal.lock:
            end, items = self._dequeue(count, round(seconds * 1000))
        if items:
            self._settle(end)
        return items

    def release(self, items: Sequence[DeadlineItem]) -> None:
        """Takes items away for good that the caller holds."""
        with self._journal.lock:
            self._check_leases(items)
            end = self._change([], list(dict.fromkeys(item.key for item in items)))
        self._settle(end)

    def requeue(
        self, item: DeadlineItem, wanted: Callable[[int], int], value: bytes | None
    ) -> None:
        """Gives an item back under a new deadline; with too many attempts it is buried."""
        stored = item.value if value is None else value
        most = self._options.max_attempts
        if most is not None and item.dequeue_count >= most:
            self.bury(item, TOO_MANY_ATTEMPTS, stored)
            return
        with self._journal.lock:
            self._check_leases([item])
            now = self._clock.now_ms()
            deadline_ms = max(self._no_earlier(wanted(now), now), item.deadline_ms + 1)
            stats = Stats(item.enqueue_ms, now, item.dequeue_count)
            copy = Item(Key(deadline_ms, item.id), stored, stats)
            end = self._change([copy], [item.key])
        self._settle(end)

    def touch(self, item: DeadlineItem, lease_seconds: float | None) -> None:
        """Lets the lease of an item start anew."""
        seconds = self._options.lease_seconds if lease_seconds is None else lease_seconds
        with self._journal.lock:
            self._check_leases([item])
            self._state.extend(item.key, self._clock.now_ms() + round(seconds * 1000))

    def reclaim(self, id: int, dequeue_count: int, lease_seconds: float | None) -> DeadlineItem:
        """Gives a pending item out that was given out for the `dequeue_count`th time, uncounted."""
        seconds = self._options.lease_seconds if lease_seconds is None else lease_seconds
        with self._journal.lock:
            self._journal.check()
            now = self._clock.now_ms()
            found = self._state.find_id(id)
            if found is None or found[0].buried or found[1] != dequeue_count:
                raise LeaseLost(
                    f"item {id}, given out for the {dequeue_count}. time, is no longer the "
                    "caller's: it was given out again, is buried, or is done with"
                )
            item = as_item(*found)
            if self._state.lease(item.key, dequeue_count, now) is None:
                self._state.lend(item.key, dequeue_count, now + round(seconds * 1000))
            return item

    def bury(self, item: DeadlineItem, reason: str, value: bytes | None = None) -> None:
        """Puts an item aside that the caller holds."""
        with self._journal.lock:
            self._check_leases([item])
            stored = item.value if value is None else value
            end = self._bury(item, stored, reason)
        self._settle(end)

    def kick(self, items: Iterable[DeadlineItem]) -> int:
        """Makes buried items pending again, now, with all their attempts; gives how many."""
        end = count = 0
        with self._journal.lock:
            self._journal.check()
            now = self._clock.now_ms()
            for item in items:
                if self._state.find(item.key) is None:
                    continue
                deadline_ms = max(self._no_earlier(now, now), item.deadline_ms + 1)
                copy = Item(Key(deadline_ms, item.id), item.value, Stats(item.enqueue_ms, now))
                end = self._change([copy], [item.key])
                count += 1
        if count:
            self._settle(end)
        return count

    def delete(self, id: int) -> bool:
        """Takes an item away, whoever holds it; False if there is none."""
        with self._journal.lock:
            self._journal.check()
            found = self._state.find_id(id)
            if found is None:
                return False
            key = found[0].key
            end = self._change([], [(key.deadline_ms, key.id)])
        self._settle(end)
        return True

    def reserve_from(self, next_id: int, count: int) -> None:
        """Sees to it that so many ids may be given out, and none of them again after a crash."""
        if next_id + count > self._manifest.manifest.next_id:
            self._manifest.reserve_ids(next_id + count + IDS_AT_ONCE)

    @unbroken
    def _enqueue(self, values: list[bytes], wanted: Callable[[int], int]) -> tuple[int, list[int]]:
        self._journal.check()
        batches = self._journal.wal.batches
        size = batches.fresh_size(values)
        self._check_room(size)
        now = self._clock.now_ms()
        deadline_ms = self._no_earlier(wanted(now), now)
        self.reserve_from(self.next_id, len(values))
        first = self.next_id
        buffer = bytearray(size)
        deadlines = [deadline_ms] * len(values)
        number = self._journal.wal.next_batch
        batches.encode_fresh(values, deadlines, buffer, first, now, number)
        end = self._journal.append_bytes(buffer)
        self.next_id = first + len(values)
        stats = Stats(now)
        ids = list(range(first, self.next_id))
        for id, value in zip(ids, values, strict=True):
            self._state.add(Item(Key(deadline_ms, id), value, stats))
        self._show([(deadline_ms, id) for id in ids], end)
        return end, ids

    @unbroken
    def _dequeue(self, count: int, lease_ms: int) -> tuple[int, list[DeadlineItem]]:
        self._journal.check()
        state = self._state
        now = self._clock.now_ms()
        state.expire(now)
        items: list[DeadlineItem] = []
        end = 0
        try:
            while len(items) < count:
                key = state.head()
                if key is None or key[0] > now:
                    break
                stored, before = state.load_head(key)
                if before >= (self._options.max_attempts or before + 1):
                    # It came back without a word: its lease ended, or its taker died.
                    self._bury(as_item(stored, before), stored.value, TOO_MANY_ATTEMPTS)
                    continue
                state.lend(key, before + 1, now + lease_ms)
                items.append(as_item(stored, before + 1))
            if items:
                marks = [Dequeued(Key(*item.key), item.dequeue_count, now) for item in items]
                end = self._journal.append(marks)
        except BaseException:
            for item in items:
                state.give_back(item.key)
            raise
        for item in items:
            state.mark(item.key, item.dequeue_count, now)
        return end, items

    @unbroken
    def _bury(self, item: DeadlineItem, value: bytes, reason: str) -> int:
        now = self._clock.now_ms()
        deadline_ms = max(now, item.deadline_ms + 1) | BURIED_BIT
        text = reason.encode(errors="replace")[:REASON_BYTES_MAX]
        stats = Stats(item.enqueue_ms, now, item.dequeue_count)
        copy = Item(Key(deadline_ms, item.id), value, stats, True, text)
        return self._change([copy], [item.key])

    @unbroken
    def _change(self, items: list[Item], gone: list[KeyTuple]) -> int:
        """Writes items and tombstones in one batch, then takes note of them. Lock held."""
        for item in items:
            check_entry(item)
        records: list[Record] = [*items, *(Tombstone(Key(*key)) for key in gone)]
        end = self._journal.append(records)
        for key in gone:
            self._state.kill(key)
        for item in items:
            self._state.add(item)
        if items:
            self._show([(item.key.deadline_ms, item.key.id) for item in items], end)
        else:
            self._journal.changes.announce()
        return end

    def _show(self, keys: list[KeyTuple], end: int) -> None:
        """Lets items be given out: under "always", when they are durable. Lock held."""
        segment = self._state.current

        def show() -> None:
            for key in keys:
                segment.show(key)

        self._journal.when_durable(end if self.always else 0, show)
        if not self.always:
            self._journal.changes.announce()

    def _check_leases(self, items: Sequence[DeadlineItem]) -> None:
        self._journal.check()
        now = self._clock.now_ms()
        for item in items:
            if self._state.lease(item.key, item.dequeue_count, now) is None:
                raise LeaseLost(
                    f"item {item.id}, given out for the {item.dequeue_count}. time, is no longer "
                    "the caller's: its lease has ended, or it is done with"
                )

    def _check_room(self, size: int) -> None:
        limit = self._options.max_bytes
        if limit is None:
            return
        if size > limit:
            raise RecordTooLarge(f"a batch of {size} bytes does not fit into max_bytes = {limit}")
        if self.used_bytes() + size > limit:
            raise NoRoom

    def used_bytes(self) -> int:
        """Gives what runs and logs take. Lock held."""
        frozen = sum(segment.bytes for segment in self._state.frozen)
        sets = sum(each.size for each in self._state.view.sets)
        return sets + frozen + self._journal.wal.position

    def _no_earlier(self, wanted_ms: int, now_ms: int) -> int:
        """Lets no deadline fall behind what was given out, unless the clock itself did."""
        return max(wanted_ms, min(now_ms, self._state.floor_ms))

    def _settle(self, end: int) -> None:
        if self.always:
            self._journal.wait(end)
