"""No verb that is called all the time waits for the disk with the lock of its queue.

Who holds it over a sync holds up all who put, take or look. What is rare may do it: a new file, a
file that is full, what is removed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forebay import BeatsQueue, EventBatch, Full, Log
from forebay.queues.shared.signal import ALL, Seat
from tests.kinds import KINDS, POLICIES
from tests.queues.helpers import numbered, wait_until
from tests.support.clocks import SteppingClock
from tests.support.disk import SYNCS, SlowDisk
from tests.support.inside import lock_of

ROUNDS = 20


class Watch:
    """Notes the syncs of a disk: all of them, and those that a held lock waits for."""

    def __init__(self) -> None:
        self.disk = SlowDisk()
        self.syncs: list[str] = []
        self.under_lock: list[str] = []

    @contextlib.contextmanager
    def watching(self, queue: Any) -> Iterator[None]:
        lock = lock_of(queue)

        def visit(call: str, path: str, over: bool) -> None:
            if call in SYNCS and not over:
                self.syncs.append(path)
                if lock.locked():
                    self.under_lock.append(path)

        self.disk.on_visit = visit
        yield
        self.disk.on_visit = None


Rounds = Callable[[Any], Iterator[object]]


def log_append(log: Any) -> Iterator[object]:
    for value in numbered(ROUNDS):
        yield log.append(value)


def log_append_many(log: Any) -> Iterator[object]:
    for value in numbered(ROUNDS):
        yield log.append_many([value, value])


def log_commit(log: Any) -> Iterator[object]:
    consumer = log.consumer("a", start=0)
    consumer.commit()
    yield None
    while consumer.read(1):
        yield consumer.commit()


def log_take(log: Any) -> Iterator[object]:
    consumer = log.consumer("a", start=0)
    consumer.commit()
    yield None
    for _ in range(ROUNDS):
        with consumer.take() as record:
            pass
        yield record


def fifo_push(fifo: Any) -> Iterator[object]:
    for value in numbered(ROUNDS):
        yield fifo.push(value)


def fifo_push_many(fifo: Any) -> Iterator[object]:
    for value in numbered(ROUNDS):
        yield fifo.push_many([value, value])


def fifo_pop(fifo: Any) -> Iterator[object]:
    for _ in range(ROUNDS):
        yield fifo.pop()


def fifo_take(fifo: Any) -> Iterator[object]:
    for _ in range(ROUNDS):
        with fifo.take() as entry:
            pass
        yield entry


def deadline_enqueue(later: Any) -> Iterator[object]:
    for value in numbered(ROUNDS):
        yield later.enqueue(value)


def deadline_dequeue(later: Any) -> Iterator[object]:
    for _ in range(ROUNDS):
        yield later.dequeue()


def deadline_release(later: Any) -> Iterator[object]:
    for item in later.dequeue_many(ROUNDS):
        yield later.release(item)


def deadline_requeue(later: Any) -> Iterator[object]:
    for item in later.dequeue_many(ROUNDS):
        yield later.requeue(item)


def deadline_take(later: Any) -> Iterator[object]:
    for _ in range(ROUNDS):
        with later.take() as item:
            pass
        yield item


def beats_put(events: Any) -> Iterator[object]:
    for value in numbered(ROUNDS):
        yield KINDS["beats"].put(events, value)


def beats_read(events: Any) -> Iterator[object]:
    for _ in range(ROUNDS):
        yield events.read(1)


def beats_ack(events: Any) -> Iterator[object]:
    for _ in range(ROUNDS):
        yield events.read(1).ack()


def beats_nack(events: Any) -> Iterator[object]:
    for _ in range(ROUNDS):
        yield events.read(1).nack()


def beats_take(events: Any) -> Iterator[object]:
    for _ in range(ROUNDS):
        with events.take() as event:
            pass
        yield event


VERBS = [
    ("log", log_append),
    ("log", log_append_many),
    ("log", log_commit),
    ("log", log_take),
    ("fifo", fifo_push),
    ("fifo", fifo_push_many),
    ("fifo", fifo_pop),
    ("fifo", fifo_take),
    ("deadline", deadline_enqueue),
    ("deadline", deadline_dequeue),
    ("deadline", deadline_release),
    ("deadline", deadline_requeue),
    ("deadline", deadline_take),
    ("beats", beats_put),
    ("beats", beats_read),
    ("beats", beats_ack),
    ("beats", beats_nack),
    ("beats", beats_take),
]


@pytest.mark.parametrize("sync", POLICIES)
@pytest.mark.parametrize(("kind", "rounds"), VERBS, ids=lambda it: getattr(it, "__name__", it))
def test_no_hot_verb_syncs_with_the_lock_of_its_queue(kind: str, rounds: Rounds, sync: str) -> None:
    watch = Watch()
    queue = KINDS[kind].queue(
        "/q", filesystem=watch.disk, clock=SteppingClock(), sync=sync, background=False
    )
    KINDS[kind].put_many(queue, numbered(2 * ROUNDS))
    KINDS[kind].put(queue, b"the file for singles is there")
    calls = rounds(queue)
    next(calls)

    with watch.watching(queue):
        made = sum(1 for _ in calls)

    queue.close()
    assert made >= ROUNDS - 1
    assert watch.under_lock == []


def test_who_finds_a_place_being_saved_gets_room_when_it_is() -> None:
    watch = Watch()
    queue = BeatsQueue(
        "/q", filesystem=watch.disk, segment_bytes=1_000, max_bytes=3_000, background=False
    )
    batches = fill_up(queue)
    putter = threading.Thread(target=lambda: KINDS["beats"].put(queue, bytes(400)))

    def put_meanwhile(call: str, path: str, over: bool) -> None:
        if call == "sync" and path.endswith("state.dat.new") and not putter.ident:
            putter.start()
            wait_until(lambda: queue.changes.is_watched)

    watch.disk.on_visit = put_meanwhile
    for batch in batches:
        batch.ack()

    putter.join(30)
    waits = putter.is_alive()
    queue.close()
    assert not waits


def fill_up(queue: BeatsQueue) -> list[EventBatch]:
    """Puts and reads events until the queue is full; returns the batches, one an event."""
    batches = []
    with contextlib.suppress(Full):
        while True:
            queue.put({"fields": {"value": bytes(400)}}, timeout=0)
            batches.append(queue.read(1))
    return batches


def test_a_record_can_be_read_when_those_who_wait_for_it_are_woken() -> None:
    log = Log("/q", filesystem=SlowDisk(), background=False)
    ends: list[int] = []

    class Waker:
        def set(self) -> None:
            ends.append(log.durable)

    waker = Waker()
    Seat(log.changes, waker, ALL).join()
    log.append(b"one")

    log.close()
    assert ends[0] == 1
