"""How the queues under test are made: a story for each kind, with what must be there afterwards.

Each story has several files, places that were saved, and records that have left the queue, so that
every file of the kind is there and holds something. `Truth` says what an owner must give out.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import forebay
from forebay.damage import Damage
from forebay.errors import Damaged, Overtaken
from forebay.storage.cursors import Cursor
from forebay.storage.filesystem import DiskFilesystem
from tests.harm.machine import START_MS, SteadyMachine
from tests.harm.values import ONE_MORE, OURS, number_of, value_of
from tests.kinds import KINDS, Kind
from tests.queues.helpers import publish, write_part
from tests.support.clocks import SteppingClock

Snapshot = Callable[[], None]
# More rounds than any queue here has records and damage: beyond it a call repeats itself for ever.
ROUNDS_MAX = 400


@dataclass(slots=True)
class Truth:
    """What is in a queue: the numbers that an owner gives out, in order; those that have left it.

    `places` are those of the consumers of a log, by offset. `aside` are those of `there` that come
    only when they are asked for: buried items. `moved` are those that were given a later place,
    `lent` those that somebody has, and that come when the queue is opened again.
    """

    there: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    aside: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    lent: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Seen:
    """What one look at a queue gave: numbers in order, and what it told of losses."""

    what: str
    given: list[int] = field(default_factory=list)
    told: list[Damage] = field(default_factory=list)
    overtaken: int = 0
    wrong: list[str] = field(default_factory=list)
    # Told of it while it grows.
    listener: ClassVar[Callable[[Seen], None]] = lambda seen: None

    def add(self, value: bytes) -> None:
        try:
            self.given.append(number_of(value))
        except ValueError as error:
            self.wrong.append(str(error))


class Recipe(ABC):
    """A kind of queue, with the story that makes one and the verbs that empty it."""

    def __init__(self, kind: Kind, **options: Any) -> None:
        self.kind = kind
        self.name = kind.name
        self.options = {**kind.at_once, **options}

    def open(self, path: Path, policy: str, letter: str = OURS, **more: Any) -> Any:
        """Opens it for its story: always the same bytes."""
        machine = SteadyMachine(f"{self.name} {policy} {letter}")
        options = {**self.options, "sync": policy, "background": False, **more}
        return self.kind.queue(path, filesystem=machine, clock=SteppingClock(START_MS), **options)

    def open_later(self, path: Path, policy: str) -> Any:
        """Opens it as an owner does who knows nothing of the story."""
        return self.kind.queue(path, sync=policy, background=False, **self.options)

    @abstractmethod
    def write(self, queue: Any, letter: str = OURS, *, snapshot: Snapshot) -> Truth:
        """Does the story; `snapshot` is called between its parts."""

    def put(self, queue: Any, numbers: list[int], letter: str = OURS) -> None:
        """Puts values: one of them singly, several as a batch."""
        values = [value_of(number, letter) for number in numbers]
        if len(values) == 1:
            self.kind.put(queue, values[0])
        else:
            self.kind.put_many(queue, values)

    @abstractmethod
    def take_all(self, queue: Any, truth: Truth) -> list[Seen]:
        """Takes everything out of it, round all damage."""

    @abstractmethod
    def put_and_take(self, queue: Any) -> bytes | None:
        """Puts one more and takes it."""

    def left(self, queue: Any) -> int:
        """How many records it says that it still has for its owner."""
        return len(queue)

    def read_all(self, path: Path, *, salvage: bool) -> Seen:
        """Reads everything without owning it."""
        seen = Seen("salvage" if salvage else "read")
        with forebay.read(path, salvage=salvage, **self.reading) as reader:
            try:
                for record in reader:
                    seen.add(self.value(record))
            finally:
                seen.told += reader.damage
        return seen

    @property
    def reading(self) -> dict[str, Any]:
        return {}

    def value(self, record: Any) -> bytes:
        value: bytes = record.value
        return value


def _go_on(seen: Seen, step: Callable[[], bool]) -> None:
    """Calls a verb until it says that there is no more; what it raises of losses is noted."""
    for _ in range(ROUNDS_MAX):
        try:
            if not step():
                return
        except Damaged as error:
            seen.told.append(error.damage)
        except Overtaken as error:
            seen.overtaken += error.lost
        Seen.listener(seen)
    seen.wrong.append("it never comes to an end")


class LogRecipe(Recipe):
    """Segments of about ten records; trimmed; three consumers; a cursor; an adopted batch."""

    def write(self, queue: Any, letter: str = OURS, *, snapshot: Snapshot) -> Truth:
        def add(first: int, count: int) -> None:
            queue.append_many([value_of(n, letter) for n in range(first, first + count)])

        add(0, 40)
        places = {"early": 24, "late": 70, "idle": 40}
        for name, first in (("early", 24), ("idle", 40)):
            consumer = queue.consumer(name)
            consumer.read(first)
            consumer.commit()
        snapshot()
        queue.trim()
        self._hand_in(Path(queue.path), [value_of(n, letter) for n in range(40, 46)])
        queue.adopt()
        _save_cursor(queue.path, 30)
        snapshot()
        for number in range(46, 60):
            queue.append(value_of(number, letter))
        add(60, 15)
        late = queue.consumer("late")
        late.seek(70)
        late.commit()
        snapshot()
        for number in range(75, 80):
            queue.append(value_of(number, letter))
        queue.sync()
        snapshot()
        for number in range(80, 86):
            queue.append(value_of(number, letter))
        return Truth(list(range(queue.begin, 86)), list(range(queue.begin)), places)

    def left(self, queue: Any) -> int:
        lag: int = queue.consumer("new").lag
        return lag

    def take_all(self, queue: Any, truth: Truth) -> list[Seen]:
        all_seen = [self._read(queue, "consumer new", "new", "earliest")]
        for name in truth.places:
            all_seen.append(self._read(queue, f"consumer {name}", name, "latest"))
        return all_seen

    def put_and_take(self, queue: Any) -> bytes | None:
        consumer = queue.consumer("new")
        queue.append(value_of(ONE_MORE))
        records = consumer.read()
        consumer.commit()
        return records[-1].value if records else None

    def _read(self, queue: Any, what: str, name: str, start: str) -> Seen:
        seen = Seen(what)
        consumer: list[Any] = []

        def step() -> bool:
            if not consumer:
                consumer.append(queue.consumer(name, start=start))
            records = consumer[0].read(7)
            for record in records:
                seen.add(record.value)
                if record.value == value_of(record.offset):
                    continue
                seen.wrong.append(f"offset {record.offset} has {record.value[:9]!r}")
            return bool(records)

        _go_on(seen, step)
        if consumer:
            consumer[0].commit()
        return seen

    def _hand_in(self, path: Path, values: list[bytes]) -> None:
        publish(path, "w-1", 1, [write_part(path, "w-1-0.part", values)])


def _save_cursor(path: str, offset: int) -> None:
    directory = DiskFilesystem().open_directory(path)
    cursor = Cursor.open(directory, "stream", start=0, incarnation=1)
    cursor.advance(offset, 1)
    cursor.close()
    directory.close()


class FifoRecipe(Recipe):
    """Files of a kilobyte; popped, taken, given back, one lent out."""

    def write(self, queue: Any, letter: str = OURS, *, snapshot: Snapshot) -> Truth:
        queue.push_many([value_of(n, letter) for n in range(30)])
        for _ in range(5):
            queue.pop()
        snapshot()
        queue.pop_many(8)
        with queue.take():
            pass
        queue.push_many([value_of(n, letter) for n in range(30, 36)])
        snapshot()
        for number in range(36, 46):
            queue.push(value_of(number, letter))
        # Lent out for good: it comes again when the queue is opened again.
        self.lent = queue.take()
        self.lent.__enter__()
        queue.sync()
        snapshot()
        queue.pop_many(2)
        with contextlib.suppress(KeyError), queue.take():
            raise KeyError
        for number in range(46, 52):
            queue.push(value_of(number, letter))
        return Truth([14, *range(17, 52)], [*range(14), 15, 16], lent=[14])

    def take_all(self, queue: Any, truth: Truth) -> list[Seen]:
        seen = Seen("owner")

        def step() -> bool:
            value = queue.pop()
            if value is not None:
                seen.add(value)
            return value is not None

        _go_on(seen, step)
        return [seen]

    def put_and_take(self, queue: Any) -> bytes | None:
        queue.push(value_of(ONE_MORE))
        value: bytes | None = queue.pop()
        return value


class BeatsRecipe(Recipe):
    """Segments of some events; acknowledged, given back, handed out and left; in one version."""

    # The queue of the last story, and the batch that is out.
    out: tuple[Any, Any] = (None, None)

    def write(self, queue: Any, letter: str = OURS, *, snapshot: Snapshot) -> Truth:
        def event(number: int) -> dict[str, Any]:
            return _event(number, letter)

        queue.put_many([event(n) for n in range(30)])
        queue.read(8).ack()
        snapshot()
        for number in range(30, 45):
            queue.put(event(number))
        queue.read(4).nack()
        queue.read(3).ack()
        snapshot()
        queue.sync()
        self.out = queue, queue.read(5)
        for number in range(45, 56):
            queue.put(event(number))
        return Truth(list(range(11, 56)), list(range(11)))

    def put(self, queue: Any, numbers: list[int], letter: str = OURS) -> None:
        if len(numbers) == 1:
            queue.put(_event(numbers[0], letter))
        else:
            queue.put_many([_event(number, letter) for number in numbers])

    def take_all(self, queue: Any, truth: Truth) -> list[Seen]:
        seen = Seen("owner")
        owner, batch = self.out
        if owner is queue:
            # While it is out, no place after it is saved: all of it would come again.
            batch.nack()

        def step() -> bool:
            batch = queue.read(4)
            for event in batch:
                seen.add(self.value(event))
            batch.ack()
            return len(batch) > 0

        _go_on(seen, step)
        return [seen]

    def put_and_take(self, queue: Any) -> bytes | None:
        queue.put({"fields": {"message": value_of(ONE_MORE).decode()}})
        batch = queue.read(4)
        values = [self.value(event) for event in batch]
        batch.ack()
        return values[0] if len(values) == 1 else None

    def left(self, queue: Any) -> int:
        outstanding: int = queue.info().outstanding
        return outstanding

    def value(self, record: Any) -> bytes:
        return str(record.fields.get("message")).encode()


def _event(number: int, letter: str = OURS) -> dict[str, Any]:
    text = value_of(number, letter).decode()
    return {"timestamp_ns": START_MS * 1_000_000 + number, "fields": {"message": text}}


class DeadlineRecipe(Recipe):
    """Runs of items and of tombstones, logs; released, requeued, buried, deleted items."""

    def write(self, queue: Any, letter: str = OURS, *, snapshot: Snapshot) -> Truth:
        due = [_due(n) for n in range(2000)]

        def add(first: int, count: int) -> list[int]:
            numbers = range(first, first + count)
            values = [value_of(n, letter) for n in numbers]
            ids: list[int] = queue.enqueue_many(values, deadline_ms=[due[n] for n in numbers])
            return ids

        ids = add(0, 10) + add(10, 10) + add(20, 10)
        queue.release_many(queue.dequeue_many(4))
        queue.freeze()
        snapshot()
        ids += add(30, 10)
        queue.release_many(queue.dequeue_many(3))
        queue.bury(queue.dequeue(), "because")
        queue.delete(ids[20])
        queue.requeue(queue.dequeue(), deadline_ms=due[1000])
        queue.freeze()
        snapshot()
        ids += add(40, 10)
        for number in range(50, 56):
            ids.append(queue.enqueue(value_of(number, letter), deadline_ms=due[number]))
        queue.release(queue.dequeue())
        queue.sync()
        snapshot()
        queue.requeue(queue.dequeue(), deadline_ms=due[1001])
        # Given out and not released: it comes again, in its old place.
        queue.dequeue()
        queue.delete(ids[45])
        for number in range(56, 62):
            ids.append(queue.enqueue(value_of(number, letter), deadline_ms=due[number]))
        gone = [*range(7), 20, 9, 45]
        there = [n for n in range(62) if n not in (*gone, 7, 8, 10)] + [8, 10, 7]
        return Truth(there, gone, aside=[7], moved=[7, 8, 10], lent=[11])

    def put(self, queue: Any, numbers: list[int], letter: str = OURS) -> None:
        values = [value_of(number, letter) for number in numbers]
        deadlines = [_due(2000 + number) for number in numbers]
        if len(numbers) == 1:
            queue.enqueue(values[0], deadline_ms=deadlines[0])
        else:
            queue.enqueue_many(values, deadline_ms=deadlines)

    def take_all(self, queue: Any, truth: Truth) -> list[Seen]:
        seen = Seen("owner")

        def step() -> bool:
            items = queue.dequeue_many(3)
            for item in items:
                seen.add(item.value)
            queue.release_many(items)
            return bool(items)

        _go_on(seen, step)
        try:
            queue.kick(count=100)
        except Damaged as error:
            seen.told.append(error.damage)
        _go_on(seen, step)
        return [seen]

    def put_and_take(self, queue: Any) -> bytes | None:
        queue.enqueue(value_of(ONE_MORE))
        item = queue.dequeue()
        if item is not None:
            queue.release(item)
        return None if item is None else item.value


def _due(number: int) -> int:
    return START_MS - 10_000_000 + number * 1000


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        LogRecipe(KINDS["log"], segment_bytes=1300, staging_bytes=4096),
        FifoRecipe(KINDS["fifo"], file_bytes=1400, staging_bytes=4096),
        BeatsRecipe(KINDS["beats"], segment_bytes=1500, version="v2"),
        DeadlineRecipe(KINDS["deadline"], segment_items=1000, staging_bytes=4096),
    )
}
