"""The short way of the calls that users make most: the same as the long one, or none at all."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import NoReturn

import pytest

from forebay.formats.deadline.wal import Batches, Header, scan_wal
from forebay.queues.deadline.schedule import LoggedSchedule, Memory

NOW = 1_700_000_000_000
HEADER = Header(1, bytes(8))


class Counter:
    """A schedule at a fixed time, with a log of some bytes."""

    def __init__(self, size: int = 10_000) -> None:
        self.now_ms = NOW
        self.schedule = LoggedSchedule(
            threading.Lock(), lambda: self.now_ms, 0, self.refuse, self.refuse
        )
        self.memory = Memory()
        self.schedule.memories.append(self.memory)
        self.schedule.next_id, self.schedule.ids_end, self.schedule.items_max = 1, 100, 50
        self.log = bytearray(size)
        self.schedule.open(self.log, 0, size, 0, Batches(HEADER).seed)

    def refuse(self, *_: int) -> NoReturn:
        raise AssertionError("nothing came back, and nothing is damaged")

    def records(self) -> list[str]:
        data = HEADER.encode() + self.log[: self.schedule.position]
        return [type(record).__name__ for record in scan_wal(data, "log")]


def test_what_happens_is_in_the_log() -> None:
    counter = Counter()
    schedule = counter.schedule

    assert [schedule.enqueue(value, 0, None) for value in (b"a", b"b")] == [1, 2]
    first, second = schedule.dequeue(5, 1000) or []
    assert schedule.requeue(first, b"anew", 0.25, None)
    assert schedule.release([second, second])

    assert counter.records() == ["Item"] * 2 + ["Dequeued"] * 2 + ["Tombstone", "Item", "Tombstone"]
    assert (schedule.total, schedule.number, counter.memory.count) == (1, 5, 1)
    assert schedule.dequeue(1, 1000) == []
    counter.now_ms += 250
    (again,) = schedule.dequeue(1, 1000) or []
    assert (again.value, again.dequeue_count, again.deadline_ms) == (b"anew", 2, NOW + 250)


@pytest.mark.parametrize("delay", [-1, True, 1e11, float("nan")])
def test_an_odd_delay_takes_the_longer_way(delay: float) -> None:
    counter = Counter()

    assert counter.schedule.enqueue(b"a", delay, None) == -1
    assert counter.schedule.position == 0


@pytest.mark.parametrize("deadline", [-1, 1 << 47, True, 1.5, datetime.now(UTC)])
def test_an_odd_deadline_takes_the_longer_way(deadline: object) -> None:
    counter = Counter()

    assert counter.schedule.enqueue(b"a", None, deadline) == -1
    assert counter.schedule.enqueue(b"a", 1, NOW) == -1
    assert counter.schedule.enqueue(bytearray(b"a"), None, NOW) == -1
    assert counter.schedule.position == 0


def test_a_batch_is_the_same_in_the_log_as_one_by_one() -> None:
    values, deadlines = [b"a", b"", b"ccc"], [NOW + 5, NOW - 5, NOW]
    many, single = Counter(), Counter()
    many.schedule.floor_ms = single.schedule.floor_ms = NOW - 2

    ids = many.schedule.enqueue_many(values, None, deadlines)

    assert ids == [1, 2, 3]
    pairs = zip(values, deadlines, strict=True)
    assert [single.schedule.enqueue(value, None, deadline) for value, deadline in pairs] == ids
    assert (many.schedule.total, many.schedule.next_id, many.schedule.number) == (3, 4, 1)
    assert many.records() == single.records() == ["Item"] * 3
    for counter in (many, single):
        counter.now_ms += 5
    assert many.schedule.dequeue(9, 1000) == single.schedule.dequeue(9, 1000)


def test_a_batch_may_have_one_deadline_or_delay_for_all() -> None:
    counter = Counter()
    schedule = counter.schedule

    assert schedule.enqueue_many([b"a", b"b"], 0.25, None) == [1, 2]
    assert schedule.enqueue_many([b"c"], None, NOW + 3) == [3]
    assert schedule.enqueue_many([b"d"], None, None) == [4]

    counter.now_ms += 250
    items = schedule.dequeue(9, 1000) or []
    assert [(item.value, item.deadline_ms - NOW) for item in items] == [
        *((b"d", 0), (b"c", 3), (b"a", 250), (b"b", 250))
    ]


@pytest.mark.parametrize(
    "batch",
    [
        ([], None, None),
        ([b"a", bytearray(b"b")], None, None),
        ([b"a"], -1, None),
        ([b"a"], None, 1 << 70),
        ([b"a"], 1, [NOW]),
        ([b"a", b"b"], None, [NOW]),
        *(([b"a", b"b"], None, [NOW, odd]) for odd in (-1, 1 << 47, 1 << 70, True, 1.5, None)),
        ([bytes(200)] * 51, None, None),
        ([bytes(5_000)] * 2, None, None),
    ],
)
def test_a_batch_that_is_odd_or_too_large_takes_the_longer_way(
    batch: tuple[list[object], object, object],
) -> None:
    counter = Counter()

    assert counter.schedule.enqueue_many(*batch) is None
    assert (counter.schedule.position, counter.schedule.total, counter.schedule.next_id) == (
        0,
        0,
        1,
    )


def test_without_room_nothing_happens() -> None:
    counter = Counter(size=100)
    schedule = counter.schedule
    assert schedule.enqueue(bytes(60), None, NOW) == 1

    assert schedule.enqueue(b"", None, NOW) == -1
    assert schedule.dequeue(1, 1000) is None
    schedule.close()
    counter.log = bytearray(1000)
    schedule.open(counter.log, 0, 40, 1, 0)
    (item,) = schedule.dequeue(1, 1000) or []
    assert not schedule.release([item])
    assert not schedule.requeue(item, None, None, None)
    assert (schedule.total, schedule.leases.working, schedule.number) == (1, 1, 2)


def test_an_item_that_is_not_held_takes_the_longer_way_and_all_with_it() -> None:
    counter = Counter()
    schedule = counter.schedule
    for _ in range(2):
        schedule.enqueue(b"a", None, NOW)
    one, other = schedule.dequeue(2, 1000) or []
    assert schedule.release([one])

    assert not schedule.release([other, one])
    assert not schedule.requeue(one, None, None, None)
    counter.now_ms += 1000
    assert not schedule.release([other])
    assert (schedule.total, schedule.leases.working) == (1, 0)


def test_full_memory_no_ids_and_exhausted_items_take_the_longer_way() -> None:
    counter = Counter()
    schedule = counter.schedule
    schedule.attempts_max = 1
    schedule.enqueue(b"a", None, NOW)
    (item,) = schedule.dequeue(1, 10) or []
    assert not schedule.requeue(item, None, None, None)
    schedule.items_max = 1
    assert schedule.enqueue(b"b", None, NOW) == -1
    assert schedule.enqueue_many([b"b"], None, NOW) is None
    schedule.items_max, schedule.ids_end = 50, 2
    assert schedule.enqueue(b"b", None, NOW) == -1
    assert schedule.enqueue_many([b"b"], None, NOW) is None
    assert (schedule.total, schedule.number) == (1, 2)
