"""What the crash tests of all kinds of queue share: a workload, its promises, and the check.

A `Kind` runs operations on a forgetful file system, one thread, no background work, and logs every
promise as an acknowledgement; then it opens what a power cut left and holds it against the promises
made before it. `log_kind.py`, `beats_kind.py`, `fifo_kind.py` and `deadline_kind.py` are the kinds;
the scenarios, the campaign, the failing disk and the planted bugs know none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from forebay.errors import ForebayError
from tests.crash.forgetful import CrashState, ForgetfulFilesystem

PATH = "/queue"


class SteppingClock:
    """A clock that goes on by a millisecond at each look."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self.ms = start_ms

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms

    def monotonic(self) -> float:
        self.ms += 1
        return self.ms / 1000

    def boot_ms(self) -> int:
        return self.now_ms()


class Broken(AssertionError):
    """A promise was broken; the message tells which and where."""


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


class Workload(Protocol):
    """Operations on a queue, each followed by its promise."""

    filesystem: ForgetfulFilesystem
    random: Random
    options: dict[str, Any]
    model: Any
    stored: int

    def __init__(
        self, filesystem: ForgetfulFilesystem, seed: int, model: Any = None, **options: Any
    ) -> None: ...

    @property
    def trouble(self) -> ForebayError | None:
        """Why the handle can no longer be used; None if it can."""
        ...

    def append(self, size: int | None = None) -> None: ...

    def append_many(self, count: int, size: int | None = None) -> None: ...

    def sync(self) -> None: ...

    def drain(self) -> None: ...

    def read_and_commit(self, name: str, count: int) -> None: ...

    def trim(self) -> None: ...

    def reopen(self) -> None: ...

    def kill(self) -> None: ...

    def forget(self) -> None:
        """Drops the handle without closing it."""
        ...

    def go_on(self) -> None:
        """Puts a record on a disk that is well again, and takes note of it."""
        ...


class Check(Protocol):
    """Opens the queue on a machine, and raises `Broken` if a promise does not hold.

    `killed` says that only the process died: then a reader sees what was published, and the owner
    may find more, which was not acknowledged. Gives what was found, for `Hold`.
    """

    def __call__(
        self,
        machine: ForgetfulFilesystem,
        kept: list[Promise],
        model: Any,
        *,
        options: dict[str, Any],
        where: str,
        go_on: bool = False,
        killed: bool = False,
    ) -> Any: ...


class Hold(Protocol):
    """Holds what a check found against promises, without opening anything."""

    def __call__(self, found: Any, kept: list[Promise], model: Any, *, where: str) -> None: ...


def check_state(
    check: Check,
    state: CrashState,
    promises: list[Promise],
    model: Any,
    *,
    options: dict[str, Any],
) -> None:
    """Opens what is left, and raises `Broken` if a promise does not hold."""
    check(state.restore(), promises, model, options=options, where=place_of(state))


def place_of(state: CrashState) -> str:
    """Tells a state from the others of its run."""
    return f"point {state.point}, {state.description}"


def promises_of(state: CrashState, filesystem: ForgetfulFilesystem) -> list[Promise]:
    """Returns the promises that were made before a power cut."""
    made = filesystem.acknowledgements[: state.acknowledged]
    return [promise for promise in made if isinstance(promise, Promise)]
