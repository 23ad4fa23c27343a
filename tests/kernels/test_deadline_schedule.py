"""The changes of a deadline queue: in the log and in memory, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import NoReturn

import pytest

from forebay.errors import InvalidOption, LeaseLost, RecordTooLarge
from forebay.formats.deadline.items import VALUE_BYTES_MAX
from forebay.formats.deadline.wal import Batches, Header, scan_wal
from forebay.kernels.deadline import RunView
from forebay.queues.deadline.schedule import FULL, DeadlineItem, Memory, Schedule

NOW = 1_700_000_000_000
HEADER = Header(1, bytes(8))


class Counter:
    """A schedule at a fixed time, with a log of some bytes."""

    def __init__(
        self, size: int = 10_000, *, revocable: bool = False, attempts_max: int = 0
    ) -> None:
        self.now_ms = NOW
        self.memory = Memory()
        self.schedule = Schedule(
            self.memory,
            RunView(),
            [],
            self.find,
            self.refuse,
            next_id=1,
            items_max=50,
            attempts_max=attempts_max,
            hides=revocable,
            now_ms=lambda: self.now_ms,
        )
        self.schedule.ids_end = 100
        self.open(size, revocable=revocable)

    def open(self, size: int, *, revocable: bool = False, number: int = 0, stored: int = 0) -> None:
        self.log = bytearray(size)
        seed = Batches(HEADER).seed
        self.schedule.open(self.log, 0, size, number, seed, stored, revocable)

    def find(self, deadline_ms: int, id: int) -> DeadlineItem:
        return self.memory.item(self.memory.find(deadline_ms, id), 0)

    def refuse(self, *_: int) -> NoReturn:
        raise AssertionError("nothing is damaged")

    def records(self) -> list[str]:
        data = HEADER.encode() + self.log[: self.schedule.position]
        return [type(record).__name__ for record in scan_wal(data, "log")]

    def enqueue(self, value: bytes = b"a", deadline_ms: int | None = None) -> int:
        id = self.schedule.enqueue(value, None, None, deadline_ms)
        assert id is not FULL
        return id

    def dequeue(self, count: int = 9) -> list[DeadlineItem]:
        items = self.schedule.dequeue(count, 1000)
        assert items is not FULL
        return items

    def facts(self) -> tuple[object, ...]:
        schedule, leases = self.schedule, self.schedule.leases
        rows = sorted(self.memory.row(at) for at in self.memory.sorted(1))
        counts = (schedule.total, schedule.buried, schedule.next_id, leases.working)
        return rows, counts, self.memory.bytes, self.memory.pending, self.memory.buried


def test_what_happens_is_in_the_log() -> None:
    counter = Counter()
    schedule = counter.schedule

    assert [schedule.enqueue(value, 0, None, None) for value in (b"a", b"b")] == [1, 2]
    first, second = counter.dequeue()
    schedule.requeue(first, b"anew", 0.25, None, None, "")
    schedule.release([second, second])

    assert counter.records() == ["Item"] * 2 + ["Dequeued"] * 2 + ["Tombstone", "Item", "Tombstone"]
    assert (schedule.total, schedule.number, counter.memory.count) == (1, 5, 1)
    assert counter.dequeue() == []
    counter.now_ms += 250
    (again,) = counter.dequeue()
    assert (again.value, again.dequeue_count, again.deadline_ms) == (b"anew", 2, NOW + 250)


@pytest.mark.parametrize("delay", [-1, True, 1e11, 10**400, float("nan"), "1", None.__class__])
def test_an_odd_delay_is_refused(delay: object) -> None:
    counter = Counter()

    with pytest.raises(InvalidOption, match=r"delay = .*: must be a number of seconds from 0"):
        counter.schedule.enqueue(b"a", delay, None, None)
    assert counter.schedule.position == 0


@pytest.mark.parametrize("delay", [1, 1.0, Fraction(1)])
def test_any_number_is_a_delay(delay: object) -> None:
    counter = Counter()

    counter.schedule.enqueue(b"a", delay, None, None)

    counter.now_ms += 1000
    assert [item.deadline_ms for item in counter.dequeue()] == [NOW + 1000]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((None, None, 1 << 47), "deadline_ms = 1407.*: must be below"),
        ((None, None, 1 << 70), "deadline_ms = 118.*: must be below"),
        ((None, None, NOW // 1000), "looks like seconds"),
        ((None, None, True), "deadline_ms = True: must be a whole number"),
        ((None, None, 1.5), "deadline_ms = 1.5: must be a whole number"),
        ((None, NOW, None), "deadline = 17.*: must be a datetime.*; deadline_ms takes"),
        ((None, datetime(2026, 1, 1), None), "must have a time zone"),
        ((1, None, NOW), "give one of them"),
        ((None, datetime.now(UTC), NOW), "give one of them"),
    ],
)
def test_an_odd_deadline_is_refused(times: tuple[object, object, object], message: str) -> None:
    counter = Counter()

    with pytest.raises(InvalidOption, match=message):
        counter.schedule.enqueue(b"a", *times)
    with pytest.raises(InvalidOption, match=message):
        counter.schedule.enqueue_many([b"a"], *times)
    assert counter.schedule.position == 0


def test_a_deadline_before_1970_is_that_of_1970() -> None:
    counter = Counter()

    counter.enqueue(deadline_ms=-5)
    counter.enqueue(deadline_ms=-(1 << 70))

    assert [item.deadline_ms for item in counter.dequeue()] == [0, 0]


def test_a_batch_is_the_same_in_the_log_as_one_by_one() -> None:
    values, deadlines = [b"a", b"", b"ccc"], [NOW + 5, NOW - 5, NOW]
    many, single = Counter(), Counter()
    many.schedule.floor_ms = single.schedule.floor_ms = NOW - 2

    ids = many.schedule.enqueue_many(list(values), None, None, deadlines)

    assert ids == [1, 2, 3]
    assert [single.enqueue(*pair) for pair in zip(values, deadlines, strict=True)] == ids
    assert (many.schedule.total, many.schedule.next_id, many.schedule.number) == (3, 4, 1)
    assert many.records() == single.records() == ["Item"] * 3
    for counter in (many, single):
        counter.now_ms += 5
    assert many.dequeue() == single.dequeue()


def test_a_batch_may_have_one_deadline_or_delay_for_all() -> None:
    counter = Counter()
    schedule = counter.schedule

    assert schedule.enqueue_many([b"a", bytearray(b"b")], 0.25, None, None) == [1, 2]
    assert schedule.enqueue_many([b"c"], None, None, NOW + 3) == [3]
    assert schedule.enqueue_many([b"d"], None, None, None) == [4]
    moment = datetime.fromtimestamp(NOW / 1000, UTC)
    assert schedule.enqueue_many([b"e"], None, [moment], None) == [5]

    counter.now_ms += 250
    items = counter.dequeue()
    assert [(item.value, item.deadline_ms - NOW) for item in items] == [
        *((b"d", 0), (b"e", 0), (b"c", 3), (b"a", 250), (b"b", 250))
    ]


@pytest.mark.parametrize(
    "batch",
    [
        ([b"a"], 1, None, [NOW]),
        ([b"a", b"b"], None, None, [NOW]),
        ([b"a"], None, [datetime.now(UTC)], [NOW]),
        *(([b"a", b"b"], None, None, [NOW, odd]) for odd in (1 << 47, 1 << 70, True, 1.5, None)),
    ],
)
def test_an_odd_batch_is_refused(batch: tuple[list[object], object, object, object]) -> None:
    counter = Counter()

    with pytest.raises(InvalidOption):
        counter.schedule.enqueue_many(*batch)
    assert counter.facts() == Counter().facts()


def test_a_value_that_is_too_large_or_no_bytes_is_refused() -> None:
    counter = Counter()

    with pytest.raises(TypeError, match="an item is bytes, not str"):
        counter.schedule.enqueue("a", None, None, None)
    with pytest.raises(RecordTooLarge, match="at most"):
        counter.schedule.enqueue(bytes(VALUE_BYTES_MAX + 1), None, None, None)
    assert counter.schedule.position == 0


def test_without_room_nothing_happens_and_the_need_is_told() -> None:
    counter = Counter(size=100)
    schedule = counter.schedule
    counter.enqueue(bytes(60))

    assert schedule.enqueue(b"", None, None, NOW) is FULL
    assert (schedule.needed, schedule.needed_ids) == (33, 1)
    assert schedule.enqueue_many([b"", b""], None, None, NOW) is FULL
    assert (schedule.needed, schedule.needed_ids) == (58, 2)
    assert schedule.dequeue(2, 1000) is FULL
    assert (schedule.needed, schedule.needed_ids) == (58, 0)
    counter.open(40, number=1)
    (item,) = counter.dequeue(1)
    assert schedule.release([item]) is FULL
    assert schedule.requeue(item, None, None, None, None, "") is FULL
    assert schedule.bury(item, "why") is FULL
    assert schedule.remove(item.deadline_ms, item.id) is FULL
    assert (schedule.total, schedule.leases.working, schedule.number) == (1, 1, 2)


def test_an_idle_dequeue_needs_no_room() -> None:
    counter = Counter(size=0)

    assert counter.schedule.dequeue(5, 1000) == []


def test_an_item_that_is_not_held_is_refused_and_all_with_it() -> None:
    counter = Counter()
    schedule = counter.schedule
    for _ in range(2):
        counter.enqueue()
    one, other = counter.dequeue()
    schedule.release([one])

    with pytest.raises(LeaseLost):
        schedule.release([other, one])
    with pytest.raises(LeaseLost):
        schedule.bury(one, "")
    with pytest.raises(LeaseLost):
        schedule.touch(one, 10)
    with pytest.raises(LeaseLost):
        schedule.requeue(one, None, None, None, None, "")
    counter.now_ms += 1000
    with pytest.raises(LeaseLost):
        schedule.release([other])
    assert (schedule.total, schedule.leases.working) == (1, 0)


@pytest.mark.parametrize("limit", ["items_max", "ids_end", "fresh_end"])
def test_new_items_have_limits_of_their_own(limit: str) -> None:
    counter = Counter()
    schedule = counter.schedule
    counter.enqueue()
    bound = {"items_max": 1, "ids_end": 2, "fresh_end": schedule.position + 10}[limit]
    setattr(schedule, limit, bound)

    assert schedule.enqueue(b"b", None, None, NOW) is FULL
    assert schedule.enqueue_many([b"b"], None, None, NOW) is FULL
    (item,) = counter.dequeue()
    assert schedule.requeue(item, None, None, None, None, "") is None
    assert schedule.total == 1


def test_an_item_that_was_given_out_too_often_is_put_aside() -> None:
    counter = Counter(attempts_max=1)
    schedule = counter.schedule
    for value in (b"a", b"b", b"c"):
        counter.enqueue(value)
    one, other, _ = counter.dequeue()

    schedule.requeue(one, b"new", None, None, None, "it failed")
    schedule.requeue(other, None, None, None, None, "max_attempts")
    counter.now_ms += 1000

    # The third comes back without a word.
    assert counter.dequeue() == []
    assert (schedule.total, schedule.buried) == (0, 3)
    rows = [counter.memory.row(at) for at in counter.memory.sorted(1)]
    assert [row[-2:] for row in rows] == [
        *((b"it failed", b"new"), (b"max_attempts", b"b"), (b"max_attempts", b"c"))
    ]


def test_nobody_is_given_an_item_before_its_batch_is_durable() -> None:
    counter = Counter(revocable=True)
    schedule = counter.schedule
    counter.enqueue(b"a")
    end = schedule.position
    schedule.enqueue_many([b"b", b"c"], None, None, [NOW, NOW + 1])
    before = counter.dequeue()

    schedule.show(end)
    first = counter.dequeue()
    schedule.show(schedule.position)
    counter.now_ms += 1
    rest = counter.dequeue()

    assert before == []
    assert [item.value for item in first + rest] == [b"a", b"b", b"c"]


def test_undo_takes_back_all_that_is_in_the_buffer() -> None:
    counter = Counter(revocable=True)
    schedule = counter.schedule
    for value in (b"held", b"pending", b"buried", b"requeued", b"freed"):
        counter.enqueue(value)
    schedule.show(schedule.position)
    held, pending, buried, requeued, freed = counter.dequeue()
    schedule.bury(buried, "why")
    aside = counter.find(*max(map(counter.memory.key, counter.memory.sorted(1))))
    schedule.give_back([pending, freed])
    stored = schedule.position
    schedule.show(stored)
    counter.open(1000, revocable=True, number=schedule.number, stored=stored)
    before = counter.facts()

    counter.enqueue(b"new")
    schedule.release([held])
    schedule.requeue(requeued, b"other", None, None, None, "")
    schedule.remove(freed.deadline_ms, freed.id)
    schedule.kick(
        DeadlineItem(aside.id, aside.value, aside.deadline_ms & ~(1 << 47), 0, 0, 1, True)
    )
    (lent,) = counter.dequeue()
    schedule.undo()

    assert counter.facts() == before
    assert lent.id == pending.id
    # What was lent out still is, and what was pending is given out again.
    schedule.touch(held, 10)
    schedule.touch(requeued, 10)
    again = counter.dequeue()
    assert [(item.id, item.dequeue_count) for item in again] == [(pending.id, 2), (freed.id, 2)]
    # The ids are used again, and nobody sees an item because an older one had its key.
    counter.open(1000, revocable=True, number=schedule.number, stored=stored)
    assert counter.enqueue(b"newer") == 6
    schedule.show(stored + 1)
    assert counter.dequeue() == []


def test_a_schedule_that_has_stopped_changes_nothing() -> None:
    counter = Counter()
    schedule = counter.schedule
    counter.enqueue()
    (item,) = counter.dequeue()
    schedule.stop()

    assert schedule.enqueue(b"b", None, None, None) is FULL
    assert schedule.dequeue(1, 1000) is FULL
    assert schedule.release([item]) is FULL
    assert schedule.requeue(item, None, None, None, None, "") is FULL
