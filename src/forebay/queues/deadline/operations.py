"""The changes of a deadline queue: each is a batch in the log first, and in memory then.

Any thread may call the public methods; each takes the queue's lock for the change and waits for its
sync without it. What belongs together is one batch: a requeued item and the tombstone of its old
copy are there both or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forebay.clock import SteadyClock
from forebay.errors import Full, LeaseLost, RecordTooLarge
from forebay.formats.deadline.items import (
    BURIED_BIT,
    REASON_BYTES_MAX,
    VALUE_BYTES_MAX,
    Item,
    Key,
    KeyTuple,
    Stats,
    Tombstone,
    check_entry,
)
from forebay.queues.deadline.item import DeadlineItem, as_item
from forebay.queues.deadline.journal import Journal
from forebay.queues.deadline.manifest import ManifestFile
from forebay.queues.deadline.recovery import IDS_AT_ONCE
from forebay.queues.deadline.state import State
from forebay.queues.shared.options import DeadlineOptions
from forebay.queues.shared.owner import fatal_when_interrupted

# Makes of the time now the deadlines that a caller asks for, in ms.
Wanted = Callable[[int], list[int]]
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
    ) -> None:
        self._journal = journal
        self._state = state
        self._schedule = state.schedule
        self._manifest = manifest
        self._options = options
        self._clock = clock
        self.always = options.sync == "always"

    def fail(self, error: BaseException) -> None:
        """Ends the handle, whose memory may not be what the log says."""
        self._journal.fail(error)

    def enqueue(self, values: list[bytes], wanted: Wanted) -> list[int]:
        """Takes in new items with the deadlines that `wanted` makes of the time; returns ids."""
        largest = max(map(len, values))
        if largest > VALUE_BYTES_MAX:
            raise RecordTooLarge(f"a value of {largest} bytes; at most {VALUE_BYTES_MAX}")
        with self._journal.lock:
            end, ids = self._enqueue(values, wanted)
        self._settle(end)
        return ids

    def dequeue(self, count: int, lease_seconds: float | None) -> list[DeadlineItem]:
        """Returns up to `count` items that are due, in the order of their keys."""
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
            end = self._remove(list(dict.fromkeys(item.key for item in items)))
        self._settle(end)

    def requeue(
        self, item: DeadlineItem, wanted: Callable[[int], int], value: bytes | None
    ) -> None:
        """Returns an item back under a new deadline; with too many attempts it is buried."""
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
            end = self._change(copy, item.key)
        self._settle(end)

    def touch(self, item: DeadlineItem, lease_seconds: float | None) -> None:
        """Restarts the lease of an item."""
        seconds = self._options.lease_seconds if lease_seconds is None else lease_seconds
        with self._journal.lock:
            self._check_leases([item])
            self._schedule.leases.extend(*item.key, self._clock.now_ms() + round(seconds * 1000))

    def bury(self, item: DeadlineItem, reason: str, value: bytes | None = None) -> None:
        """Puts an item aside that the caller holds."""
        with self._journal.lock:
            self._check_leases([item])
            stored = item.value if value is None else value
            end = self._bury(item, stored, reason)
        self._settle(end)

    def reclaim(self, id: int, dequeue_count: int, lease_seconds: float | None) -> DeadlineItem:
        """Returns an item to who took it before, as long as nobody else did since."""
        seconds = self._options.lease_seconds if lease_seconds is None else lease_seconds
        with self._journal.lock:
            self._journal.check()
            now = self._clock.now_ms()
            self._schedule.leases.expire(now)
            found = self._state.find_id(id)
            if found is None or found[0].buried or found[1] != dequeue_count:
                raise _lost(id, dequeue_count)
            item = as_item(*found)
            if not self._schedule.leases.holds(*item.key, dequeue_count):
                self._schedule.leases.lend(*item.key, dequeue_count, now + round(seconds * 1000))
            return item

    def kick(self, items: Iterable[DeadlineItem]) -> int:
        """Makes buried items pending again, now, with all their attempts; returns how many."""
        end = count = 0
        with self._journal.lock:
            self._journal.check()
            now = self._clock.now_ms()
            for item in items:
                if self._state.find(item.key) is None:
                    continue
                deadline_ms = max(self._no_earlier(now, now), item.deadline_ms + 1)
                copy = Item(Key(deadline_ms, item.id), item.value, Stats(item.enqueue_ms, now))
                end = self._change(copy, item.key)
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
            end = self._remove([(key.deadline_ms, key.id)])
        self._settle(end)
        return True

    def reserve_from(self, next_id: int, count: int) -> None:
        """Reserves so many ids, so that none of them is used again after a crash."""
        if next_id + count > self._manifest.manifest.next_id:
            self._manifest.reserve_ids(next_id + count + IDS_AT_ONCE)
        self._schedule.ids_end = self._manifest.manifest.next_id

    def forget_revived(self) -> None:
        """Writes to the log that copies are gone whose tombstones are lost."""
        with self._journal.lock:
            keys = list(self._state.revived)
            if keys:
                self._journal.check()
                self._journal.append([Tombstone(Key(*key)) for key in keys])
                self._state.revived.clear()

    @fatal_when_interrupted
    def _enqueue(self, values: list[bytes], wanted: Wanted) -> tuple[int, list[int]]:
        self._journal.check()
        batches = self._journal.wal.batches
        size = batches.fresh_size(values)
        self._check_room(size)
        now = self._clock.now_ms()
        least = min(now, self._schedule.floor_ms)
        deadlines = wanted(now)
        if min(deadlines) < least:
            deadlines = [max(deadline_ms, least) for deadline_ms in deadlines]
        first = self._schedule.next_id
        self.reserve_from(first, len(values))
        buffer = bytearray(size)
        batches.encode_fresh(values, deadlines, buffer, first, now, self._journal.next_batch)
        end = self._journal.append_bytes(buffer)
        self._schedule.next_id = first + len(values)
        self._schedule.total += len(values)
        ids = list(range(first, first + len(values)))
        self._state.current.add_fresh(values, deadlines, first, now, not self.always)
        if self.always:
            self._show_when_durable(list(zip(deadlines, ids, strict=True)), end)
        else:
            self._journal.note_written()
            self._journal.changes.announce()
        return end, ids

    @fatal_when_interrupted
    def _dequeue(self, count: int, lease_ms: int) -> tuple[int, list[DeadlineItem]]:
        self._journal.check()
        schedule, now = self._schedule, self._clock.now_ms()
        items: list[DeadlineItem] = []
        end = 0
        try:
            while True:
                items += schedule.choose(count - len(items), now, lease_ms)
                if schedule.exhausted is None:
                    break
                # It came back without a word: its lease ended, or its taker died.
                self._bury(schedule.exhausted, schedule.exhausted.value, TOO_MANY_ATTEMPTS)
            if items:
                batches = self._journal.wal.batches
                deadlines = [item.deadline_ms for item in items]
                ids, counts = zip(*(item.token for item in items), strict=True)
                number = self._journal.next_batch
                end = self._journal.append_taken(
                    batches.encode_dequeued(deadlines, list(ids), list(counts), now, number)
                )
        except BaseException:
            schedule.give_back(items)
            raise
        schedule.mark(items, now)
        self._journal.note_written()
        return end, items

    @fatal_when_interrupted
    def _remove(self, gone: list[KeyTuple]) -> int:
        """Writes tombstones in one batch, then takes note of them. Lock held."""
        deadlines, ids = zip(*gone, strict=True)
        number = self._journal.next_batch
        data = self._journal.wal.batches.encode_tombstones(list(deadlines), list(ids), number)
        end = self._journal.append_taken(data)
        for key in gone:
            self._schedule.kill(*key)
        self._journal.note_written()
        self._journal.changes.announce()
        return end

    @fatal_when_interrupted
    def _bury(self, item: DeadlineItem, value: bytes, reason: str) -> int:
        now = self._clock.now_ms()
        deadline_ms = max(now, item.deadline_ms + 1) | BURIED_BIT
        text = reason.encode(errors="replace")[:REASON_BYTES_MAX]
        stats = Stats(item.enqueue_ms, now, item.dequeue_count)
        copy = Item(Key(deadline_ms, item.id), value, stats, True, text)
        return self._change(copy, item.key)

    @fatal_when_interrupted
    def _change(self, item: Item, gone: KeyTuple) -> int:
        """Writes an item and the tombstone of its old copy in one batch. Lock held."""
        check_entry(item)
        end = self._journal.append([item, Tombstone(Key(*gone))])
        self._schedule.kill(*gone)
        self._state.add(item)
        key = (item.key.deadline_ms, item.key.id)
        if self.always:
            self._show_when_durable([key], end)
        else:
            self._state.current.show(*key)
            self._journal.note_written()
            self._journal.changes.announce()
        return end

    def _show_when_durable(self, keys: list[KeyTuple], end: int) -> None:
        """Lets items be given out when they are durable. Lock held."""
        segment = self._state.current

        def show() -> None:
            for key in keys:
                segment.show(*key)

        self._journal.when_durable(end, show)

    def _check_leases(self, items: Sequence[DeadlineItem]) -> None:
        self._journal.check()
        self._schedule.leases.expire(self._clock.now_ms())
        for item in items:
            if not self._schedule.leases.holds(*item.key, item.dequeue_count):
                raise _lost(item.id, item.dequeue_count)

    def _check_room(self, size: int) -> None:
        limit = self._options.max_bytes
        if limit is None:
            return
        if size > limit:
            raise RecordTooLarge(f"a batch of {size} bytes does not fit into max_bytes = {limit}")
        if self.used_bytes() + size > limit:
            raise NoRoom

    def used_bytes(self) -> int:
        """Returns what runs and logs take. Lock held."""
        frozen = sum(segment.bytes for segment in self._state.frozen)
        sets = sum(each.size for each in self._state.view.sets)
        return sets + frozen + self._journal.position + self._journal.kept_bytes

    def _no_earlier(self, wanted_ms: int, now_ms: int) -> int:
        """Lets no deadline fall behind what was given out, unless the clock itself did."""
        return max(wanted_ms, min(now_ms, self._schedule.floor_ms))

    def _settle(self, end: int) -> None:
        if self.always:
            self._journal.wait(end)


def _lost(id: int, dequeue_count: int) -> LeaseLost:
    return LeaseLost(
        f"item {id} with dequeue count {dequeue_count} is no longer the caller's: "
        "its lease has ended, or it is done with"
    )
