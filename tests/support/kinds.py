"""The kinds of queue as one, for suites that run on all of them: verbs, and the sum of the values.

A `Session` is an open queue and the ledger of what it was given and what it gave back. Its verbs
are those of the public API; each notes in the ledger what the queue has promised when it returns.
`Ledger.check` then compares what a later open finds:

* given out + told lost = what was there: what was promised is there, unless somebody took it;
* nothing that was never put, nothing twice, each writer's values in their order;
* what was taken for good, durably, does not come again.

Values tell who put them and in which order: `b"w3-000017..."`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import forebay
from forebay.clock import SystemClock
from forebay.storage import inbox
from forebay.storage.filesystem import DiskFilesystem, Filesystem
from tests.crash.handing_in import write_parts

POLICIES = ("always", "interval", "os")
VALUE_BYTES = 100
# A batch that fills at least one file of the small ones below.
BATCH_COUNT = 9

Verb = Callable[["Session"], object]


@dataclass
class Ledger:
    """What a queue was given, has promised and gave back. Any thread may write it."""

    offered: dict[bytes, None] = field(default_factory=dict)
    put: dict[bytes, None] = field(default_factory=dict)
    durable: dict[bytes, None] = field(default_factory=dict)
    # Somebody has begun to take these for good, has done so, and that is durable.
    taking: dict[bytes, None] = field(default_factory=dict)
    taken: dict[bytes, None] = field(default_factory=dict)
    gone: dict[bytes, None] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def make(self, writer: int, count: int) -> list[bytes]:
        """Makes values that nobody has put yet, and notes that they may be there from now on."""
        with self.mutex:
            first = self.numbers.get(writer, 0)
            self.numbers[writer] = first + count
            values = [value_of(writer, number) for number in range(first, first + count)]
            self.offered.update(dict.fromkeys(values))
            return values

    def note_put(self, values: list[bytes], *, durable: bool) -> None:
        with self.mutex:
            self.put.update(dict.fromkeys(values))
            if durable:
                self.durable.update(dict.fromkeys(values))

    def note_taking(self, values: list[bytes]) -> None:
        with self.mutex:
            self.taking.update(dict.fromkeys(values))

    def note_back(self, values: list[bytes]) -> None:
        """Notes that the queue took values back: they have to come again."""
        with self.mutex:
            for value in values:
                self.taking.pop(value, None)

    def note_taken(self, values: list[bytes], *, durable: bool) -> None:
        with self.mutex:
            self.taking.update(dict.fromkeys(values))
            self.taken.update(dict.fromkeys(values))
            if durable:
                self.gone.update(dict.fromkeys(values))

    def snapshot(self) -> tuple[dict[bytes, None], dict[bytes, None]]:
        with self.mutex:
            return dict(self.put), dict(self.taken)

    def note_synced(self, before: tuple[dict[bytes, None], dict[bytes, None]]) -> None:
        with self.mutex:
            self.durable.update(before[0])
            self.gone.update(before[1])

    def promises(self, *, power_cut: bool) -> Promises:
        """Returns what a crash from now on must keep; to be asked for before the crash."""
        with self.mutex:
            there = self.durable if power_cut else self.put
            gone = self.gone if power_cut else self.taken
            return Promises(dict(there), dict(gone))

    def check(
        self,
        found: Found,
        promises: Promises,
        *,
        ordered: bool,
        once: bool = True,
        patience: float = 0.0,
    ) -> None:
        """Takes the sum of what is there after a crash, or after a clean close.

        `once`: what was taken for good must not come again. `patience`: how many seconds a value
        that is missing may take to be noted, by the thread that was just taking it.
        """
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and self._missing(found, promises):
            time.sleep(0.005)
        promised, gone = promises.there, promises.gone
        missing = self._missing(found, promises)
        with self.mutex:
            there = dict.fromkeys(found.values)
            phantom = [v for v in there if v not in self.offered]
            again = [v for v in gone if v in there] if once else []
            problems = [f"told: {text}" for text in found.told]
            if len(there) != len(found.values):
                twice = sorted({v for v in found.values if found.values.count(v) > 1})
                problems.append(f"{len(twice)} came twice: {_short(twice)}")
            if missing:
                problems.append(f"{len(missing)} of {len(promised)} are lost: {_short(missing)}")
            if phantom:
                problems.append(f"{len(phantom)} were never put: {_short(phantom)}")
            if again:
                problems.append(f"{len(again)} that were taken came again: {_short(again)}")
            if ordered:
                problems += _out_of_order(found.values)
        if problems:
            raise AssertionError("; ".join(problems))

    def _missing(self, found: Found, promises: Promises) -> list[bytes]:
        there = dict.fromkeys(found.values)
        with self.mutex:
            return [v for v in promises.there if v not in there and v not in self.taking]


@dataclass(frozen=True, slots=True)
class Promises:
    """What has to be there, unless somebody has begun to take it, and what must not be."""

    there: dict[bytes, None]
    gone: dict[bytes, None]


def _short(values: list[bytes]) -> str:
    names = [value.rstrip(b".").decode(errors="replace") for value in values[:4]]
    return ", ".join(names) + (", ..." if len(values) > 4 else "")


def _out_of_order(values: list[bytes]) -> list[str]:
    last: dict[bytes, bytes] = {}
    for value in values:
        writer = value.partition(b"-")[0]
        if value < last.get(writer, b""):
            return [f"out of order: {_short([last[writer], value])}"]
        last[writer] = value
    return []


def value_of(writer: int, number: int) -> bytes:
    return (b"w%d-%06d" % (writer, number)).ljust(VALUE_BYTES, b".")


@dataclass(frozen=True, slots=True)
class Found:
    """What an open queue gave: its values in order, and what it said of damage."""

    values: list[bytes]
    told: list[str]


class Kind(ABC):
    """A kind of queue: how it is opened, and its verbs in terms of values."""

    name: str
    make: Callable[..., Any]
    small: dict[str, Any]
    ordered = True
    adopts = False

    def open(self, path: str, **options: Any) -> Any:
        """Opens a queue with small files."""
        if self.name != "events":
            # The others do not try again.
            options.pop("retry_seconds", None)
        return type(self).make(path, **{**self.small, **options})

    @abstractmethod
    def put(self, queue: Any, value: bytes) -> None: ...

    @abstractmethod
    def put_many(self, queue: Any, values: list[bytes]) -> None: ...

    @abstractmethod
    def take(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        """Takes up to `count` values for good, noted in the ledger; gives how many."""

    @abstractmethod
    def give_back(self, session: Session) -> None:
        """Takes a value and gives it back."""

    @abstractmethod
    def rest(self, queue: Any) -> list[bytes]:
        """Returns everything that is there, damage passed on as it is raised."""

    def look(self, path: str, filesystem: Filesystem | None = None) -> list[bytes]:
        """Reads everything without the lock."""
        with forebay.read(path, filesystem=filesystem) as reader:
            return self.values_of(reader)

    def values_of(self, reader: Any) -> list[bytes]:
        return list(reader.values())

    def others(self) -> dict[str, Verb]:
        """The verbs that only this kind has, and those that look."""
        return {}

    def verbs(self) -> dict[str, Verb]:
        """All verbs, by name."""
        verbs: dict[str, Verb] = {
            "put": lambda session: session.put(),
            "put_many": lambda session: session.put_many(),
            "take": lambda session: session.take(),
            "take_many": lambda session: session.take(BATCH_COUNT),
            "wait": lambda session: session.wait(),
            "give_back": lambda session: session.give_back(),
            "sync": lambda session: session.sync(),
            "maintain": lambda session: session.queue.maintain(),
            "info": lambda session: session.queue.info(),
        }
        if self.adopts:
            verbs["adopt"] = lambda session: session.adopt()
        return {**verbs, **self.others(), "close": lambda session: session.close()}

    def find_rest(self, queue: Any) -> Found:
        """Returns everything that is there; damage is told, and read past."""
        values: list[bytes] = []
        told: list[str] = []
        for _ in range(1_000):
            try:
                part = self.rest(queue)
            except (forebay.Damaged, forebay.Overtaken, forebay.UndecodableEvent) as error:
                told.append(f"{type(error).__name__}: {error}")
                continue
            values += part
            if not part:
                return Found(values, told)
        raise AssertionError(f"no end of it: {told[:3]}")


class Session:
    """An open queue and its ledger. Any thread may use it, as its own writer."""

    def __init__(self, kind: Kind, path: str, ledger: Ledger | None = None, **options: Any) -> None:
        self.kind = kind
        self.path = path
        self.ledger = ledger or Ledger()
        self.filesystem: Filesystem | None = options.get("filesystem")
        self.queue: Any = kind.open(path, **options)
        self.always = self.queue.options.sync == "always"
        self.disk_fails = False
        self.state: dict[str, Any] = {}
        self.state_mutex = threading.Lock()
        self._writers = threading.local()
        self._writers_made = 0
        self._batches = 0

    def put(self) -> None:
        values = self.ledger.make(self.writer, 1)
        self.kind.put(self.queue, values[0])
        self.ledger.note_put(values, durable=self.always)

    def put_many(self, count: int = BATCH_COUNT) -> None:
        values = self.ledger.make(self.writer, count)
        self.kind.put_many(self.queue, values)
        self.ledger.note_put(values, durable=self.always)

    def take(self, count: int = 1) -> int:
        return self.kind.take(self, count)

    def wait(self) -> None:
        """Takes what is there, and waits for more until the time runs out."""
        self.kind.take(self, 1_000)
        with contextlib.suppress(forebay.Empty):
            self.kind.take(self, 1, timeout=0.01)

    def give_back(self) -> None:
        self.kind.give_back(self)

    def sync(self) -> None:
        before = self.ledger.snapshot()
        self.queue.sync()
        self.ledger.note_synced(before)

    def close(self) -> None:
        with self.state_mutex:
            first = not self.state.get("closing")
            self.state["closing"] = True
        before = self.ledger.snapshot()
        self.queue.close()
        # A handle that an error of the disk has ended promises nothing more, and a second close
        # does not wait for the first.
        if first and not self.disk_fails:
            self.ledger.note_synced(before)

    def hand_in(self, count: int = 3) -> None:
        """Leaves a batch in `inbox/`, as another process does; it is durable there."""
        with self.state_mutex:
            self._batches += 1
            batch = self._batches
        values = self.ledger.make(1_000 + batch, count)
        filesystem = self.filesystem or DiskFilesystem()
        with getattr(filesystem, "quietly", contextlib.nullcontext)():
            self._publish(filesystem, batch, values)
        self.ledger.note_put(values, durable=True)

    def _publish(self, filesystem: Filesystem, batch: int, values: list[bytes]) -> None:
        directory = filesystem.open_directory(self.path)
        try:
            stem = f"batch{batch}"
            parts = write_parts(filesystem, SystemClock(), directory, stem, [values])
            inbox.publish(directory, stem, inbox.Manifest("w", batch, parts))
        finally:
            directory.close()

    def adopt(self) -> None:
        self.hand_in()
        self.queue.adopt()

    @property
    def writer(self) -> int:
        """The number of the thread that calls."""
        number: int | None = getattr(self._writers, "number", None)
        if number is None:
            with self.state_mutex:
                self._writers_made += 1
                number = self._writers.number = self._writers_made
        return number


class LogKind(Kind):
    name = "log"
    make = forebay.Log
    small = {"segment_bytes": 1_000}  # noqa: RUF012 - read only
    adopts = True

    def put(self, queue: Any, value: bytes) -> None:
        queue.append(value)

    def put_many(self, queue: Any, values: list[bytes]) -> None:
        queue.append_many(values)

    def take(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        with self._consumer(session) as consumer:
            records = consumer.read(count, timeout=timeout)
            # Before the commit: from then on a trim may take them.
            read = session.state.setdefault("read", {})
            read.update(dict.fromkeys(record.value for record in records))
            consumer.commit()
            return len(records)

    def give_back(self, session: Session) -> None:
        with self._consumer(session) as consumer:
            place = consumer.position
            consumer.read(1)
            consumer.seek(place)

    def others(self) -> dict[str, Verb]:
        return {
            "trim": self._trim,
            "consumer": lambda session: session.queue.consumer("other", start="latest"),
            "resolve": lambda session: session.queue.resolve("latest"),
            "len": lambda session: len(session.queue),
        }

    def rest(self, queue: Any) -> list[bytes]:
        consumer = getattr(queue, "_sum", None) or queue.consumer("the sum")
        queue._sum = consumer
        values = [record.value for record in consumer.read(1_000)]
        if not values:
            consumer.close()
        return values

    def _trim(self, session: Session) -> None:
        # Segments that all consumers have read go: from now on their records may be missing; also
        # of those that are read before the trim has looked.
        session.ledger.note_taking(list(session.state.get("read", {})))
        try:
            session.queue.trim()
        finally:
            session.ledger.note_taking(list(session.state.get("read", {})))

    @contextlib.contextmanager
    def _consumer(self, session: Session) -> Iterator[Any]:
        """Lends the consumer to one thread at a time, as it asks for."""
        lock = session.state.setdefault("lock", threading.Lock())
        with lock:
            if "consumer" not in session.state:
                session.state["consumer"] = session.queue.consumer("taker")
            yield session.state["consumer"]


class EventKind(Kind):
    name = "events"
    make = forebay.BeatsQueue
    small = {"segment_bytes": 1_000, "version": "v2"}  # noqa: RUF012 - read only

    def open(self, path: str, **options: Any) -> Any:
        return super().open(path, **{"retry_seconds": 0.05, **options})

    def put(self, queue: Any, value: bytes) -> None:
        queue.put(_event(value))

    def put_many(self, queue: Any, values: list[bytes]) -> None:
        queue.put_many([_event(value) for value in values])

    def take(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        batch = session.queue.read(count, timeout=timeout)
        values = [event.fields["value"] for event in batch]
        session.ledger.note_taking(values)
        try:
            batch.ack()
        except BaseException:
            # Who was not told that it is done may give it back; then it has to come again. An
            # interrupt may have come when it was settled already.
            settled = "settled" in repr(batch)
            with contextlib.suppress(forebay.Closed, forebay.LeaseLost, OSError):
                batch.nack()
                if not settled:
                    session.ledger.note_back(values)
            raise
        session.ledger.note_taken(values, durable=True)
        return len(values)

    def give_back(self, session: Session) -> None:
        session.queue.read(1).nack()

    def others(self) -> dict[str, Verb]:
        return {"damage": lambda session: session.queue.damage}

    def rest(self, queue: Any) -> list[bytes]:
        return [event.fields["value"] for event in queue.read(1_000)]

    def values_of(self, reader: Any) -> list[bytes]:
        return [event.fields["value"] for event in reader]


class FifoKind(Kind):
    name = "fifo"
    make = forebay.Fifo
    small = {"file_bytes": 1_000}  # noqa: RUF012 - read only

    def put(self, queue: Any, value: bytes) -> None:
        queue.push(value)

    def put_many(self, queue: Any, values: list[bytes]) -> None:
        queue.push_many(values)

    def take(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        if count == 1:
            return self._take_one(session, timeout)
        # What a pop gives cannot be known before: nothing of what was put has to come again.
        session.ledger.note_taking(list(session.ledger.snapshot()[0]))
        values = session.queue.pop_many(count, timeout=timeout)
        session.ledger.note_taken(values, durable=session.always)
        return len(values)

    def give_back(self, session: Session) -> None:
        with contextlib.suppress(forebay.Empty, _Back), session.queue.take() as _:
            raise _Back

    def others(self) -> dict[str, Verb]:
        return {
            "pop": self._pop,
            "peek": lambda session: session.queue.peek(),
            "len": lambda session: len(session.queue),
        }

    def rest(self, queue: Any) -> list[bytes]:
        values: list[bytes] = queue.pop_many(1_000)
        return values

    def _take_one(self, session: Session, timeout: float | None) -> int:
        try:
            with session.queue.take(timeout=timeout) as entry:
                session.ledger.note_taking([entry.value])
        except forebay.Empty:
            return 0
        session.ledger.note_taken([entry.value], durable=session.always)
        return 1

    def _pop(self, session: Session) -> None:
        first = session.queue.peek()
        if first is not None:
            session.ledger.note_taking([first.value])
        value = session.queue.pop()
        if value is not None:
            session.ledger.note_taking([value])
            session.ledger.note_taken([value], durable=session.always)


class _Back(Exception):
    """Has an entry given back."""


class DeadlineKind(Kind):
    name = "deadline"
    make = forebay.DeadlineQueue
    small = {"segment_items": 16}  # noqa: RUF012 - read only
    ordered = False

    def put(self, queue: Any, value: bytes) -> None:
        queue.enqueue(value)

    def put_many(self, queue: Any, values: list[bytes]) -> None:
        queue.enqueue_many(values)

    def take(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        items = session.queue.dequeue_many(count, timeout)
        values = [item.value for item in items]
        session.ledger.note_taking(values)
        try:
            session.queue.release_many(items)
        except BaseException:
            with contextlib.suppress(forebay.Closed, forebay.LeaseLost, OSError):
                for item in items:
                    session.queue.requeue(item)
                    session.ledger.note_back([item.value])
            raise
        session.ledger.note_taken(values, durable=session.always)
        return len(values)

    def give_back(self, session: Session) -> None:
        item = session.queue.dequeue()
        if item is not None:
            session.queue.requeue(item)

    def others(self) -> dict[str, Verb]:
        return {
            "freeze": lambda session: session.queue.freeze(),
            "merge": lambda session: session.queue.merge(),
            "bury": self._bury,
            "peek": lambda session: session.queue.peek(),
            "browse": lambda session: session.queue.browse(),
            "len": lambda session: len(session.queue),
        }

    def rest(self, queue: Any) -> list[bytes]:
        queue.kick(count=1_000)
        items = queue.dequeue_many(1_000)
        for _ in range(200):
            if items or not queue.pending:
                break
            # One that was given back is due a millisecond later than before.
            time.sleep(0.001)
            items = queue.dequeue_many(1_000)
        queue.release_many(items)
        return [item.value for item in items]

    def _bury(self, session: Session) -> None:
        item = session.queue.dequeue()
        if item is not None:
            session.queue.bury(item)
            session.queue.kick(item.id)


def _event(value: bytes) -> dict[str, Any]:
    return {"fields": {"value": value}}


KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (LogKind(), EventKind(), FifoKind(), DeadlineKind())
}
EACH = [(name, policy) for name in KINDS for policy in POLICIES]
