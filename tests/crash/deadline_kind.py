"""A deadline queue under test, the model of what it promised, and the check of what a crash left.

Every change is one batch of the log, so what a crash leaves is the content after some change, no
earlier than the last one that was promised. The model keeps the content after each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from forebay.errors import ForebayError
from forebay.queues.deadline.item import DeadlineItem
from tests.crash.workload import Promise, Scene, Workload
from tests.support.clocks import SteppingClock
from tests.support.inside import hand_over, state_of
from tests.support.planting import Broken

AFTER = b"after the crash"
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


@dataclass(frozen=True, slots=True)
class Found:
    """What a machine had: as a reader saw it (None: no queue), as its owner has it, its counts.

    The counts are pending and buried; `damage` is what the owner told.
    """

    seen: Content | None
    content: Content
    counts: tuple[int, int]
    damage: list[Any]


class DeadlineWorkload(Workload):
    """Operations on a deadline queue, each followed by its promise."""

    kind = "deadline"
    small = MappingProxyType({"segment_items": 6, "lease_seconds": 3600, "staging_bytes": 4096})

    def _put(self, values: list[bytes], *, many: bool) -> None:
        with self._change() as content:
            delay = self.random.choice((0, 0, 0.02))
            if len(values) == 1:
                ids = [self.queue.enqueue(values[0], delay=delay)]
            else:
                ids = self.queue.enqueue_many(values, delay=delay)
            content.update({id: (v, 0, False) for id, v in zip(ids, values, strict=True)})
            if ids[0] <= self.model.highest_id:
                raise Broken(f"id {ids[0]} was given out before")
            self.model.highest_id = ids[-1]
            self.filesystem.acknowledge(Promise(consumer=IDS, position=ids[-1]))

    def hand_over(self) -> None:
        """Begins a freeze: what comes now goes to the next log, before the runs are written."""
        hand_over(self.queue)

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
            items: list[DeadlineItem] = self.queue.dequeue_many(count)
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

    def _check_kill(self) -> None:
        found = self._content()
        if found not in self.model.contents[self.stored :]:
            raise Broken(f"kill -9: {brief(found)}, not {brief(self.model.contents[-1])}")
        if found != self.model.contents[-1]:
            self.model.contents.append(found)
        self.stored = len(self.model.contents) - 1
        self._promise_synced()

    def _new_model(self) -> Model:
        return Model()

    def _value(self, size: int | None) -> bytes:
        return self.random.randbytes(self._size(size))

    def _content(self) -> Content:
        with self.filesystem.undisturbed():
            return content_of(self.queue)

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
        self.filesystem.acknowledge(Promise(self.stored if self.always else 0, seen=self.stored))

    def _promise_synced(self) -> None:
        self.filesystem.acknowledge(Promise(self.stored, seen=self.stored))

    @classmethod
    def content_of(cls, reader: Any, where: str) -> Content:
        return {item.id: (item.value, item.dequeue_count, item.buried) for item in reader}

    @classmethod
    def _look(cls, queue: Any, seen: Any, scene: Scene) -> Found:
        return Found(seen, content_of(queue), (queue.pending, queue.buried), queue.damage)

    @classmethod
    def hold(
        cls, found: Found, kept: list[Promise], model: Model, *, where: str, killed: bool = False
    ) -> None:
        seen, content = found.seen, found.content
        if seen is not None and seen != content:
            raise Broken(f"{where}: a reader saw {brief(seen)}, the owner has {brief(content)}")
        if found.damage:
            raise Broken(f"{where}: damage after a crash: {found.damage}")
        buried = sum(row[2] for row in content.values())
        if found.counts != (len(content) - buried, buried):
            raise Broken(f"{where}: counts {found.counts} of {brief(content)}")
        end = max((promise.end for promise in kept), default=0)
        if content not in model.contents[end:]:
            expected = [brief(content) for content in model.contents[end:]]
            raise Broken(f"{where}: {brief(content)} is none of {expected}")

    @classmethod
    def _check_going_on(cls, queue: Any, found: Found, scene: Scene) -> None:
        id = queue.enqueue(AFTER)
        if id <= max(
            (promise.position for promise in scene.kept if promise.consumer == IDS), default=0
        ):
            raise Broken(f"{scene.where}: id {id} was given out before")
        queue.freeze()
        queue.close()
        clock = SteppingClock()
        clock.ms += FAR_MS
        with cls.open_on(scene.machine, scene.options, clock) as again:
            items = again.dequeue_many(10_000)
            there = {item.id: (item.value, item.dequeue_count - 1, False) for item in items}
            expected = {key: row for key, row in found.content.items() if not row[2]}
            if there != {**expected, id: (AFTER, 0, False)} or len(items) != len(there):
                raise Broken(f"{scene.where}: {brief(expected)} became {brief(there)}")
            if [item.key for item in items] != sorted(item.key for item in items):
                raise Broken(f"{scene.where}: out of order")
            again.release_many(items)
            again.freeze()
            again.merge()
            if again.dequeue() is not None or len(again) != len(found.content) - len(expected):
                raise Broken(f"{scene.where}: a queue that was emptied is not empty")


def content_of(queue: Any) -> Content:
    """Returns what memory and runs hold, even of a handle that has ended.

    Its `browse` refuses then; but what an operation that failed has left is what a kill may show.
    """
    items = state_of(queue).browse()
    return {item.id: (item.value, item.dequeue_count, item.buried) for item in items}


def brief(content: Content) -> dict[int, tuple[int, int, bool]]:
    return {id: (len(value), count, buried) for id, (value, count, buried) in content.items()}
