"""A deadline queue against a dictionary, with freezes, merges, kills, power cuts and clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from forebay.errors import LeaseLost
from forebay.queues.deadline import compaction as deadline_upkeep
from forebay.queues.deadline.item import DeadlineItem
from forebay.queues.deadline.queue import DeadlineQueue
from tests.counting import Count
from tests.queues.fifo_helpers import DAY_MS
from tests.queues.model import PATH, TimedModel, chances, check_model, check_model_for_long
from tests.support.inside import hand_over, state_of

LEASE_MS = 10_000

sizes = st.sampled_from((0, 3, 20, 100, 400, 1_500))
delays = st.sampled_from((0, 0, 0.001, 1, 9, 60, 100_000))


@dataclass(frozen=True)
class Row:
    """What the model knows of an item; `until_ms` 0: nobody has it."""

    id: int
    deadline_ms: int
    value: bytes
    count: int = 0
    buried: bool = False
    until_ms: int = 0

    @property
    def shown(self) -> tuple[int, int, bytes, int, bool]:
        return self.id, self.deadline_ms, self.value, self.count, self.buried


class DeadlinesAgainstADictionary(TimedModel[DeadlineQueue]):
    """`rows` are the items that are there, by id; `held` are all that were ever given out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, Row] = {}
        self.history: list[dict[int, Row]] = [{}]
        self.durable = 0
        self.held: list[DeadlineItem] = []
        self.highest_id = 0
        self.floor_ms = 0

    def make(self) -> DeadlineQueue:
        return DeadlineQueue(
            PATH,
            filesystem=self.filesystem,
            clock=self.clock,
            background=False,
            sync=self.sync_policy,
            lease_seconds=LEASE_MS / 1000,
            segment_items=12,
            staging_bytes=4096,
        )

    def note(self, *, durable: bool = False) -> None:
        """Keeps what is there now: a power cut leaves this, or something that was there before."""
        self.history.append(dict(self.rows))
        if durable or self.sync_policy == "always":
            self.history = self.history[-1:]

    def working(self) -> list[Row]:
        return [row for row in self.rows.values() if row.until_ms > self.now_ms]

    def waiting(self) -> list[Row]:
        """Returns the pending items in the order of giving out."""
        rows = [r for r in self.rows.values() if not r.buried and r.until_ms <= self.now_ms]
        return sorted(rows, key=lambda row: (row.deadline_ms, row.id))

    def no_earlier(self, wanted_ms: int) -> int:
        return max(wanted_ms, min(self.now_ms, self.floor_ms))

    @rule(batch=st.lists(sizes, min_size=1, max_size=6), delay=delays)
    def enqueue(self, batch: list[int], delay: float) -> None:
        values = [self.random.randbytes(size) for size in batch]

        if len(batch) == 1:
            ids = [self.queue.enqueue(values[0], delay=delay)]
        else:
            ids = self.queue.enqueue_many(values, delay=delay)

        assert ids[0] > self.highest_id
        assert ids == list(range(ids[0], ids[0] + len(batch)))
        self.highest_id = ids[-1]
        deadline_ms = self.no_earlier(self.now_ms + round(delay * 1000))
        for id, value in zip(ids, values, strict=True):
            self.rows[id] = Row(id, deadline_ms, value)
        self.note()

    @rule(back_ms=st.sampled_from((1, 5_000, 2 * DAY_MS)))
    def enqueue_in_the_past(self, back_ms: int) -> None:
        id = self.queue.enqueue(b"late", deadline_ms=self.now_ms - back_ms)

        assert id > self.highest_id
        self.highest_id = id
        self.rows[id] = Row(id, self.no_earlier(self.now_ms - back_ms), b"late")
        self.note()

    @rule(count=st.integers(1, 12))
    def dequeue(self, count: int) -> None:
        items = self.queue.dequeue_many(count)

        due = [row for row in self.waiting() if row.deadline_ms <= self.now_ms][:count]
        expected = [replace(row, count=row.count + 1) for row in due]
        assert [shown(item) for item in items] == [row.shown for row in expected]
        for row in expected:
            self.rows[row.id] = replace(row, until_ms=self.now_ms + LEASE_MS)
            self.floor_ms = max(self.floor_ms, row.deadline_ms)
        self.held += items
        self.note()

    @rule(pick=chances)
    def reclaim(self, pick: int) -> None:
        item = self.pick(pick)
        if item is None:
            return
        row = self.rows.get(item.id)
        if row is None or row.buried or row.count != item.dequeue_count:
            with pytest.raises(LeaseLost):
                self.queue.reclaim(*item.token)
            return
        again = self.queue.reclaim(*item.token)

        assert shown(again) == row.shown
        if row.until_ms <= self.now_ms:
            self.rows[row.id] = replace(row, until_ms=self.now_ms + LEASE_MS)
            self.held.append(again)

    def holds(self, item: DeadlineItem) -> bool:
        row = self.rows.get(item.id)
        return row is not None and row.until_ms > self.now_ms and row.shown == shown(item)

    def pick(self, pick: int) -> DeadlineItem | None:
        return self.held[-1 - pick % min(len(self.held), 12)] if self.held else None

    @rule(pick=chances)
    def release(self, pick: int) -> None:
        item = self.pick(pick)
        if item is None:
            return
        if not self.holds(item):
            with pytest.raises(LeaseLost):
                self.queue.release(item)
            return
        self.queue.release(item)
        del self.rows[item.id]
        self.note()

    @rule()
    def release_all(self) -> None:
        mine = {item.id: item for item in self.held if self.holds(item)}
        self.queue.release_many(list(mine.values()))
        for id in mine:
            del self.rows[id]
        self.note()

    @rule(pick=chances, delay=delays, anew=st.booleans())
    def requeue(self, pick: int, delay: float, anew: bool) -> None:
        item = self.pick(pick)
        if item is None:
            return
        value = b"anew" if anew else None
        if not self.holds(item):
            with pytest.raises(LeaseLost):
                self.queue.requeue(item, delay=delay, value=value)
            return
        self.queue.requeue(item, delay=delay, value=value)
        wanted = self.no_earlier(self.now_ms + round(delay * 1000))
        deadline_ms = max(wanted, item.deadline_ms + 1)
        self.rows[item.id] = Row(item.id, deadline_ms, value or item.value, item.dequeue_count)
        self.note()

    @rule(pick=chances)
    def bury(self, pick: int) -> None:
        item = self.pick(pick)
        if item is None or not self.holds(item):
            return
        self.queue.bury(item, "no good")
        deadline_ms = max(self.now_ms, item.deadline_ms + 1)
        row = Row(item.id, deadline_ms, item.value, item.dequeue_count, True)
        self.rows[item.id] = row
        self.note()

    @rule(count=st.integers(1, 3))
    def kick(self, count: int) -> None:
        buried = [row for row in self.rows.values() if row.buried]
        oldest = sorted(buried, key=lambda row: (row.deadline_ms, row.id))[:count]

        assert self.queue.kick(count=count) == len(oldest)
        for row in oldest:
            deadline_ms = max(self.now_ms, row.deadline_ms + 1)
            self.rows[row.id] = Row(row.id, deadline_ms, row.value)
        # One batch each.
        if len(oldest) <= 1:
            self.note()
        else:
            self.queue.sync()
            self.note(durable=True)

    @rule(pick=chances)
    def touch(self, pick: int) -> None:
        item = self.pick(pick)
        if item is not None and self.holds(item):
            self.queue.touch(item)
            row = self.rows[item.id]
            self.rows[item.id] = replace(row, until_ms=self.now_ms + LEASE_MS)

    @rule(pick=chances)
    def delete(self, pick: int) -> None:
        id = pick % (self.highest_id + 1)

        assert self.queue.delete(id) == (id in self.rows)
        self.rows.pop(id, None)
        self.note()

    @rule(pick=chances)
    def get(self, pick: int) -> None:
        id = pick % (self.highest_id + 1)
        found = self.queue.get(id)

        row = self.rows.get(id)
        assert (None if found is None else shown(found)) == (None if row is None else row.shown)

    @rule()
    def peek(self) -> None:
        found = self.queue.peek()

        first = next(iter(self.waiting()), None)
        assert (None if found is None else shown(found)) == (None if first is None else first.shown)

    @rule()
    def freeze(self) -> None:
        self.queue.freeze()
        self.note(durable=True)

    @rule()
    def begin_to_freeze(self) -> None:
        """Goes on in the next log, while the runs of this one are still to be written."""
        hand_over(self.queue)

    @rule(size=sizes, delay=delays, count=st.integers(0, 3))
    def enqueue_and_freeze(self, size: int, delay: float, count: int) -> None:
        """Makes a run of its own, and lets the cursors go on."""
        self.enqueue([size], delay)
        self.freeze()
        if count:
            self.dequeue(count)

    @rule()
    def merge(self) -> None:
        self.queue.merge()

    @rule(pick=chances, count=st.integers(1, 3))
    def merge_some(self, pick: int, count: int) -> None:
        """Merges neighbours, whatever their size."""
        sets = state_of(self.queue).view.sets
        if sets:
            first = pick % len(sets)
            chosen = first, min(count, len(sets) - first)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(deadline_upkeep, "choose_merge", lambda sets, **_: chosen)
                self.queue.merge()

    @rule()
    def sync(self) -> None:
        self.queue.sync()
        self.note(durable=True)

    @rule(ms=st.sampled_from((1, 60, 2_000, LEASE_MS, 60_000)))
    def wait(self, ms: int) -> None:
        self.clock.pass_time(ms)

    @rule()
    def maintain(self) -> None:
        self.queue.maintain()

    @rule()
    def reopen(self) -> None:
        self.queue.close()
        self.come_back()

    @rule()
    def kill(self) -> None:
        self.die()
        self.come_back()

    @rule(choice=chances, seed=chances)
    def cut_the_power(self, choice: int, seed: int) -> None:
        self.lose_power(choice, seed)
        self.open()
        found = {item.id: shown(item) for item in self.queue.browse(10_000)}
        left = [rows for rows in self.history if {id: rows[id].shown for id in rows} == found]
        assert left, f"{found} is none of {self.history}"
        self.rows = left[-1]
        self.settle_after_a_crash()

    def come_back(self) -> None:
        self.open()
        self.settle_after_a_crash()

    def settle_after_a_crash(self) -> None:
        """What was given out is pending again, with its count; recovery makes all durable."""
        self.rows = {id: replace(row, until_ms=0) for id, row in self.rows.items()}
        self.floor_ms = state_of(self.queue).schedule.floor_ms
        self.held.clear()
        self.note(durable=True)
        self.check_content()

    def check_content(self) -> None:
        found = [shown(item) for item in self.queue.browse(10_000)]
        ordered = sorted(self.rows.values(), key=lambda r: (r.buried, r.deadline_ms, r.id))

        assert found == [row.shown for row in ordered]

    @invariant()
    def counts_are_exact(self) -> None:
        if self.opened is None:
            return
        waiting = self.waiting()
        assert self.queue.pending == len(waiting)
        assert self.queue.due == sum(row.deadline_ms <= self.now_ms for row in waiting)
        assert self.queue.working == len(self.working())
        assert self.queue.buried == sum(row.buried for row in self.rows.values())
        assert len(self.queue) == len(self.rows)

    def teardown(self) -> None:
        if self.opened is not None:
            self.check_content()
            self.opened.close()


def shown(item: DeadlineItem) -> tuple[int, int, bytes, int, bool]:
    return item.id, item.deadline_ms, item.value, item.dequeue_count, item.buried


@pytest.mark.slow
def test_a_deadline_queue_behaves_like_a_dictionary_whatever_happens() -> None:
    check_model(DeadlinesAgainstADictionary, examples=150, steps=50)


@pytest.mark.full
def test_the_model_holds_for_as_long_as_it_may_take(record_property: Count) -> None:
    check_model_for_long(DeadlinesAgainstADictionary, "deadline", steps=50, count=record_property)
