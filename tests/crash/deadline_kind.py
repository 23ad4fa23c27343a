"""A deadline queue under test, the model of what it promised, and the check of what a crash left.

Every change is one batch of the log, so what a crash leaves is the content after some change, no
earlier than the last one that was promised. The model keeps the content after each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from forebay.errors import ForebayError, NotAQueue
from forebay.queues.deadline.item import DeadlineItem
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.deadline.reader import DeadlineReader
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.workload import PATH, Broken, Promise, SteppingClock

AFTER = b"after the crash"
SIZES = (3, 20, 90, 200, 600, 1500)
FAR_MS = 10**9
# The highest id that was given out.
IDS = "ids"
# By id: value, how often it was given out, and whether it is buried.
Content = dict[int, tuple[bytes, int, bool]]


@dataclass
class Model:
    """The content after each change, and the highest id that was given out."""

    contents: list[Content] = field(default_factory=lambda: [{}])
    highest_id: int = 0


class DeadlineWorkload:
    """Operations on a deadline queue, each followed by its promise."""

    def __init__(
        self, filesystem: ForgetfulFilesystem, seed: int, model: Model | None = None, **options: Any
    ) -> None:
        self.filesystem = filesystem
        self.random = Random(seed)
        self.options = {
            "segment_items": 6,
            "lease_seconds": 3600,
            "staging_bytes": 4096,
            **options,
        }
        self.model = model or Model()
        self.clock = SteppingClock()
        self.stored = 0
        self.queue = open_queue(self.filesystem, self.options, self.clock)

    @property
    def trouble(self) -> ForebayError | None:
        return self.queue._journal.error

    @property
    def always(self) -> bool:
        return bool(self.options.get("sync", "always") == "always")

    def append(self, size: int | None = None) -> None:
        self.append_many(1, size)

    def append_many(self, count: int, size: int | None = None) -> None:
        values = [
            self.random.randbytes(self.random.choice(SIZES) if size is None else size)
            for _ in range(count)
        ]
        with self._change() as content:
            delay = self.random.choice((0, 0, 0.02))
            if count == 1:
                ids = [self.queue.enqueue(values[0], delay=delay)]
            else:
                ids = self.queue.enqueue_many(values, delay=delay)
            content.update({id: (v, 0, False) for id, v in zip(ids, values, strict=True)})
            if ids[0] <= self.model.highest_id:
                raise Broken(f"id {ids[0]} was given out before")
            self.model.highest_id = ids[-1]
            self.filesystem.acknowledge(Promise(consumer=IDS, position=ids[-1]))

    def sync(self) -> None:
        self.queue.sync()
        self._promise(durable=True)

    def drain(self) -> None:
        """Freezes what memory has too much of, and merges what is worth it."""
        self.clock.ms += 2000
        self.queue.maintain()

    def hand_over(self) -> None:
        """Begins a freeze: what comes now goes to the next log, before the runs are written."""
        self.queue._upkeep._hand_over()

    def trim(self) -> None:
        """Freezes and merges everything."""
        self.queue.freeze()
        self.queue.merge()

    def read_and_commit(self, name: str, count: int) -> None:
        """Takes items; "a" releases them, "b" draws what becomes of each, others do one thing."""
        for item in self._dequeue(count):
            what = self.random.choice("arkdl") if name == "b" else name
            if what == "a":
                with self._change() as content:
                    self.queue.release(item)
                    del content[item.id]
            elif what == "r":
                with self._change() as content:
                    self.queue.requeue(item, delay=0.005, value=b"anew")
                    content[item.id] = (b"anew", item.dequeue_count, False)
            elif what == "k":
                self._bury_and_kick(item)
            elif what == "d":
                with self._change() as content:
                    self.queue.delete(item.id)
                    del content[item.id]

    def _dequeue(self, count: int) -> list[DeadlineItem]:
        self.clock.ms += 100
        with self._change() as content:
            items = self.queue.dequeue_many(count)
            content.update({i.id: (i.value, i.dequeue_count, False) for i in items})
        return items

    def _bury_and_kick(self, item: DeadlineItem) -> None:
        with self._change() as content:
            self.queue.bury(item, "no good")
            content[item.id] = (item.value, item.dequeue_count, True)
        if self.random.random() < 0.5:
            with self._change() as content:
                self.queue.kick(item.id)
                content[item.id] = (item.value, 0, False)

    def reopen(self) -> None:
        self.queue.close()
        self._promise(durable=True)
        self.queue = open_queue(self.filesystem, self.options, self.clock)

    def kill(self) -> None:
        """Kills the process and opens the queue again: everything acknowledged must be there."""
        self.forget()
        self.filesystem = self.filesystem.kill()
        self.queue = open_queue(self.filesystem, self.options, self.clock)
        found = self._content()
        if found not in self.model.contents[self.stored :]:
            raise Broken(f"kill -9: {brief(found)}, not {brief(self.model.contents[-1])}")
        # What was recovered is served: from now on a power cut must not take it.
        if found != self.model.contents[-1]:
            self.model.contents.append(found)
        self.stored = len(self.model.contents) - 1
        self._promise(durable=True)

    def forget(self) -> None:
        self.queue._closed = True

    def _content(self) -> Content:
        with self.filesystem.undisturbed():
            return content_of(self.queue)

    def go_on(self) -> None:
        self.append(20)

    @contextlib.contextmanager
    def _change(self) -> Iterator[Content]:
        """Lets an operation change the content; what fails may have happened or not."""
        content = dict(self.model.contents[-1])
        try:
            yield content
        except (OSError, ForebayError):
            left = self._content()
            if left != self.model.contents[-1]:
                self.model.contents.append(left)
            raise
        found = self._content()
        if found != content:
            raise Broken(f"{brief(found)} is there, not {brief(content)}")
        self.model.contents.append(content)
        self.stored = len(self.model.contents) - 1
        self._promise()

    def _promise(self, *, durable: bool = False) -> None:
        end = self.stored if self.always or durable else 0
        self.filesystem.acknowledge(Promise(end, seen=self.stored))


def open_queue(
    machine: ForgetfulFilesystem, options: dict[str, Any], clock: SteppingClock | None = None
) -> DeadlineQueue:
    return DeadlineQueue(
        PATH, filesystem=machine, clock=clock or SteppingClock(), background=False, **options
    )


def content_of(queue: DeadlineQueue) -> Content:
    """Returns what memory and runs hold, even of a handle that has ended."""
    return {item.key.id: (item.value, count, item.buried) for item, count in queue._state.browse()}


def seen_by_a_reader(machine: ForgetfulFilesystem) -> Content | None:
    """Returns what a reader sees that leaves everything as it is; None if there is no queue."""
    with (
        contextlib.suppress(FileNotFoundError, NotAQueue),
        DeadlineReader(PATH, filesystem=machine) as reader,
    ):
        return {item.id: (item.value, item.dequeue_count, item.buried) for item in reader}
    return None


def brief(content: Content) -> dict[int, tuple[int, int, bool]]:
    return {id: (len(value), count, buried) for id, (value, count, buried) in content.items()}


@dataclass(frozen=True, slots=True)
class Found:
    """What a machine had, and its counts: pending and buried."""

    content: Content
    counts: tuple[int, int]


def check_machine(
    machine: ForgetfulFilesystem,
    kept: list[Promise],
    model: Model,
    *,
    options: dict[str, Any],
    where: str,
    go_on: bool = False,
    killed: bool = False,
) -> Found:
    """Opens the queue on a machine, and raises `Broken` if a promise does not hold."""
    seen = seen_by_a_reader(machine)
    queue = open_queue(machine, options)
    found = Found(content_of(queue), (queue.pending, queue.buried))
    if seen is not None and seen != found.content:
        raise Broken(f"{where}: a reader saw {brief(seen)}, the owner has {brief(found.content)}")
    if queue.damage:
        raise Broken(f"{where}: damage after a crash: {queue.damage}")
    hold_promises(found, kept, model, where=where)
    if go_on:
        check_going_on(queue, machine, found.content, kept, options, where)
    else:
        queue._closed = True
    return found


def hold_promises(found: Found, kept: list[Promise], model: Model, *, where: str) -> None:
    """Raises `Broken` if what was found does not keep a promise."""
    buried = sum(row[2] for row in found.content.values())
    if found.counts != (len(found.content) - buried, buried):
        raise Broken(f"{where}: counts {found.counts} of {brief(found.content)}")
    end = max((promise.end for promise in kept), default=0)
    if found.content not in model.contents[end:]:
        expected = [brief(content) for content in model.contents[end:]]
        raise Broken(f"{where}: {brief(found.content)} is none of {expected}")


def check_going_on(
    queue: DeadlineQueue,
    machine: ForgetfulFilesystem,
    content: Content,
    kept: list[Promise],
    options: dict[str, Any],
    where: str,
) -> None:
    """Enqueues, freezes, closes, opens again and takes everything: it must be whole, then empty."""
    id = queue.enqueue(AFTER)
    if id <= max((promise.position for promise in kept if promise.consumer == IDS), default=0):
        raise Broken(f"{where}: id {id} was given out before")
    queue.freeze()
    queue.close()
    clock = SteppingClock()
    clock.ms += FAR_MS
    with open_queue(machine, options, clock) as again:
        items = again.dequeue_many(10_000)
        there = {item.id: (item.value, item.dequeue_count - 1, False) for item in items}
        expected = {key: row for key, row in content.items() if not row[2]}
        if there != {**expected, id: (AFTER, 0, False)} or len(items) != len(there):
            raise Broken(f"{where}: {brief(expected)} became {brief(there)}")
        if [item.key for item in items] != sorted(item.key for item in items):
            raise Broken(f"{where}: out of order")
        again.release_many(items)
        again.freeze()
        again.merge()
        if again.dequeue() is not None or len(again) != len(content) - len(expected):
            raise Broken(f"{where}: a queue that was emptied is not empty")
