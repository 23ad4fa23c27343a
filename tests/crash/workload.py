"""What the crash tests of all kinds of queue share: a workload, its promises, and the check.

A workload runs operations on a forgetful file system, one thread, no background work, and logs
every promise as an acknowledgement; then it opens what a power cut left and holds it against the
promises made before it. `log_kind.py`, `numbered.py`, `fifo_kind.py`, `beats_kind.py` and
`deadline_kind.py` are the kinds; the scenarios, the campaign, the failing disk and the planted bugs
know none of them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from forebay.errors import Closed, ForebayError, NotAQueue
from tests.crash.forgetful import CrashState, ForgetfulFilesystem
from tests.kinds import KINDS
from tests.support.clocks import SteppingClock
from tests.support.inside import drop

PATH = "/queue"
# Long enough for everything that is done after some time.
_LATER_MS = 2000


@dataclass(frozen=True, slots=True)
class Promise:
    """What must hold from now on.

    Records below `end` are there; a consumer or cursor is at least at `position`; a reader that saw
    the records below `seen` in an incarnation is told if they go.
    """

    end: int = 0
    seen: int = 0
    incarnation: int = 1
    consumer: str | None = None
    position: int = 0
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """A machine after a crash: the options of its queue, the promises kept, and where it was."""

    machine: ForgetfulFilesystem
    options: dict[str, Any]
    kept: list[Promise]
    where: str


class Workload(ABC):
    """Operations on a queue, each followed by its promise; and what a crash must have left.

    `kind` is its name in the table of kinds, `small` are the options of its queues, `sizes` those
    of its records. `stored` tells how far the queue has come: all below it was acknowledged.
    """

    kind: ClassVar[str]
    small: ClassVar[Mapping[str, Any]]
    sizes: ClassVar[tuple[int, ...]] = (3, 20, 90, 200, 600, 1500)

    def __init__(
        self, filesystem: ForgetfulFilesystem, seed: int, model: Any = None, **options: Any
    ) -> None:
        self.filesystem = filesystem
        self.random = Random(seed)
        self.options = {**self.small, **options}
        self.model = model or self._new_model()
        self.clock = SteppingClock()
        self.stored = 0
        self.queue = self._open()

    @classmethod
    def open_on(
        cls, machine: ForgetfulFilesystem, options: dict[str, Any], clock: Any = None
    ) -> Any:
        """Opens the queue of a machine."""
        return KINDS[cls.kind].queue(
            PATH, filesystem=machine, clock=clock or SteppingClock(), background=False, **options
        )

    @classmethod
    def read_on(cls, machine: ForgetfulFilesystem, options: dict[str, Any]) -> Any:
        """Opens the queue of a machine without owning it."""
        return KINDS[cls.kind].record.open_reader(PATH, filesystem=machine)

    @property
    def always(self) -> bool:
        return bool(self.options.get("sync", "always") == "always")

    @property
    def trouble(self) -> ForebayError | None:
        """Why the handle can no longer be used; None if it can."""
        try:
            self.queue.info()
        except Closed as error:
            return error
        return None

    def append(self, size: int | None = None) -> None:
        self._put([self._value(size)], many=False)

    def append_many(self, count: int, size: int | None = None) -> None:
        self._put([self._value(size) for _ in range(count)], many=True)

    def sync(self) -> None:
        self.queue.sync()
        self._promise_synced()

    def drain(self) -> None:
        """Lets pass the time after which the background would write and clean up."""
        self.clock.ms += _LATER_MS
        self.queue.maintain()

    @abstractmethod
    def read_and_commit(self, name: str, count: int) -> None:
        """Takes records, in the way that the name stands for."""

    @abstractmethod
    def trim(self) -> None:
        """Makes room."""

    def reopen(self) -> None:
        self.queue.close()
        self._promise_synced()
        self.queue = self._open()

    def kill(self) -> None:
        """Kills the process and opens the queue again: everything acknowledged must be there."""
        self.forget()
        self.filesystem = self.filesystem.kill()
        self.queue = self._open()
        self._check_kill()

    def forget(self) -> None:
        """Drops the handle without closing it."""
        drop(self.queue)

    def go_on(self) -> None:
        """Puts a record on a disk that is well again, and takes note of it."""
        self.append(20)

    def _open(self) -> Any:
        return self.open_on(self.filesystem, self.options, self.clock)

    def _size(self, size: int | None) -> int:
        return self.random.choice(self.sizes) if size is None else size

    @abstractmethod
    def _new_model(self) -> Any:
        """Returns the model of a queue that nobody has used."""

    @abstractmethod
    def _value(self, size: int | None) -> Any:
        """Makes what is put next."""

    @abstractmethod
    def _put(self, values: list[Any], *, many: bool) -> None:
        """Puts values, singly or at once; notes them and promises them."""

    def _call_put(self, values: list[Any], *, many: bool) -> Any:
        kind = KINDS[self.kind]
        if many:
            return getattr(self.queue, kind.many)(values)
        return getattr(self.queue, kind.one)(values[0])

    @abstractmethod
    def _promise_synced(self) -> None:
        """Promises all that is stored: it is durable."""

    @abstractmethod
    def _check_kill(self) -> None:
        """Raises `Broken` if a kill took or changed something; promises the rest.

        What was recovered is served: from now on a power cut must not take it.
        """

    @classmethod
    def check(
        cls,
        machine: ForgetfulFilesystem,
        kept: list[Promise],
        model: Any,
        *,
        options: dict[str, Any],
        where: str,
        go_on: bool = False,
        killed: bool = False,
    ) -> Any:
        """Opens the queue on a machine, and raises `Broken` if a promise does not hold.

        `killed` says that only the process died: then a reader sees what was published, and the
        owner may find more, which was not acknowledged. Returns what was found, for `hold`.
        """
        # A reader that does not own the queue must see the same, before anything is recovered.
        seen = None
        with (
            contextlib.suppress(FileNotFoundError, NotAQueue),
            cls.read_on(machine, options) as reader,
        ):
            seen = cls.content_of(reader, where)
        queue = cls.open_on(machine, options)
        scene = Scene(machine, options, kept, where)
        try:
            found = cls._look(queue, seen, scene)
            cls.hold(found, kept, model, where=where, killed=killed)
            if go_on:
                cls._check_going_on(queue, found, scene)
        finally:
            # A queue that is left open after a failure would warn in whatever test runs then.
            drop(queue)
        return found

    @classmethod
    @abstractmethod
    def content_of(cls, reader: Any, where: str) -> Any:
        """Returns what a reader sees; raises `Broken` if that is damaged."""

    @classmethod
    @abstractmethod
    def _look(cls, queue: Any, seen: Any, scene: Scene) -> Any:
        """Returns what the owner has, and a reader has `seen`: None if there was no queue."""

    @classmethod
    @abstractmethod
    def hold(
        cls, found: Any, kept: list[Promise], model: Any, *, where: str, killed: bool = False
    ) -> None:
        """Raises `Broken` if what was found does not keep a promise."""

    @classmethod
    @abstractmethod
    def _check_going_on(cls, queue: Any, found: Any, scene: Scene) -> None:
        """Puts, closes and opens again: the queue must be whole, and clean."""


def place_of(state: CrashState) -> str:
    """Tells a state from the others of its run."""
    return f"point {state.point}, {state.description}"


def promises_of(state: CrashState, filesystem: ForgetfulFilesystem) -> list[Promise]:
    """Returns the promises that were made before a power cut."""
    made = filesystem.acknowledgements[: state.acknowledged]
    return [promise for promise in made if isinstance(promise, Promise)]
