"""What every suite asks of a kind of queue: how it is opened, and its verbs in terms of values.

Values are bytes. A kind whose records are something else wraps and unwraps them. The suites ask the
table of `tests/kinds`; none of them knows a kind by name unless it is about what only that one has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import forebay
from forebay.queues import kinds
from forebay.storage.filesystem import Filesystem
from tests.kinds.ledger import Found

if TYPE_CHECKING:
    from tests.kinds.session import Session

# A batch that fills at least one file of the small ones.
BATCH_COUNT = 9
# More rounds than any queue of a test has values and damage.
_ROUNDS_MAX = 1_000

Verb = Callable[["Session"], object]
Fetched = tuple[list[bytes], Callable[[], Awaitable[object]]]


async def nothing() -> None:
    """Takes for good what is gone already."""


class Kind(ABC):
    """A kind of queue.

    `one` and `many` are the names of its verbs that put, of the asyncio queue as well. `small` are
    options that make small files, `at_once` those with which an error of the disk is raised at once
    and not after some tries. `ordered`: values come in the order in which they were put.
    `adopts`: other processes may leave batches in its inbox. `back_at_once` are options with which
    what a `take` gives back can be taken at once. `reads_on_threads`: what a cancelled task of a
    loop was reading is back when a thread has finished.
    """

    name: str
    one: str
    many: str
    small: Mapping[str, Any]
    at_once: Mapping[str, Any] = {}
    ordered = True
    adopts = False
    back_at_once: Mapping[str, Any] = {}
    reads_on_threads = False

    @cached_property
    def record(self) -> kinds.Kind:
        """What Forebay itself knows of the kind."""
        return next(record for record in kinds.KINDS if record.name == self.name)

    @property
    def queue(self) -> Any:
        """The class of its queues."""
        return self.record.queue_class

    @property
    def bounded(self) -> dict[str, Any]:
        """Options of a queue that is soon full."""
        return {**self.small, "max_bytes": 4_000}

    def open(self, path: Any, **options: Any) -> Any:
        """Opens a queue with small files."""
        return self.queue(path, **{**self.small, **options})

    def wrap(self, value: bytes) -> Any:
        """Returns what is put for a value."""
        return value

    def unwrap(self, record: Any) -> bytes:
        """Returns the value of a record that was read."""
        value: bytes = record.value
        return value

    def put(self, queue: Any, value: bytes) -> Any:
        return getattr(queue, self.one)(self.wrap(value))

    def post(self, queue: Any, value: bytes) -> Any:
        return queue.post(self.wrap(value))

    def put_many(self, queue: Any, values: list[bytes]) -> Any:
        return getattr(queue, self.many)([self.wrap(value) for value in values])

    @abstractmethod
    def rest(self, queue: Any) -> list[bytes]:
        """Takes the next values for good; nothing if there are none. What is raised passes."""

    def drain(self, queue: Any) -> list[bytes]:
        """Takes everything for good, past what was dropped."""
        values: list[bytes] = []
        while True:
            try:
                part = self.rest(queue)
            except forebay.Overtaken:
                continue
            if not part:
                return values
            values += part

    def find_rest(self, queue: Any) -> Found:
        """Takes everything for good; damage is told, and read past."""
        values: list[bytes] = []
        told: list[str] = []
        for _ in range(_ROUNDS_MAX):
            try:
                part = self.rest(queue)
            except (forebay.Damaged, forebay.Overtaken, forebay.UndecodableEvent) as error:
                told.append(f"{type(error).__name__}: {error}")
                continue
            values += part
            if not part:
                return Found(values, told)
        raise AssertionError(f"no end of it: {told[:3]}")

    def values_of(self, reader: Any) -> list[bytes]:
        """Returns all values that a reader sees."""
        return [self.unwrap(record) for record in reader]

    def look(self, path: Any, filesystem: Filesystem | None = None) -> list[bytes]:
        """Reads everything without the lock."""
        with kinds.kind_of(path).open_reader(path, filesystem=filesystem) as reader:
            return self.values_of(reader)

    def on_loop(self, path: Any, **options: Any) -> Any:
        """Returns a queue for asyncio, not open yet. `put` and `put_many` work on it, awaited."""
        return self.record.loop_class(path, **options)

    async def source_of(self, queue: Any) -> Any:
        """Returns what the tasks of a loop take values from."""
        return queue

    @abstractmethod
    async def fetch(self, source: Any, count: int | None, timeout: float | None) -> Fetched:
        """Takes values on a loop, by the verb for one if `count` is None.

        They may still be lent out: what is returned with them takes them for good.
        """

    @abstractmethod
    def take_for(self, session: Session, count: int, *, timeout: float | None = None) -> int:
        """Takes up to `count` values for good, noted in the ledger; returns how many."""

    @abstractmethod
    def give_back(self, session: Session) -> None:
        """Takes a value and gives it back."""

    def others(self) -> dict[str, Verb]:
        """Returns the verbs that only this kind has, and those that look."""
        return {}

    def verbs(self) -> dict[str, Verb]:
        """Returns all verbs, by name."""
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
