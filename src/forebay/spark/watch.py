"""The queues that a stream reads: which exist, and how far each is durable.

A poll checks each queue once, through its `Live`: for a log that is one `pread` of `tail`. Patterns
are matched again every ten seconds, not at every poll. Slow polls are made less often, so that an
idle stream over a thousand queues costs little: it sleeps at least nine tenths of the time.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from forebay.errors import NotAQueue
from forebay.spark import paths

DISCOVERY_SECONDS = 10.0
_IDLE_SHARE = 9
RECORD_BYTES = 256
_FILES_PER_QUEUE = 4
_logger = logging.getLogger(__name__)


class Mark(Protocol):
    """How far a queue is durable, and in which incarnation."""

    @property
    def queue_id(self) -> str:
        """An id that another queue at the same path does not have; empty if there is none."""
        ...

    @property
    def incarnation(self) -> int:
        """How often a crash of the machine lost offsets that had been assigned."""
        ...

    @property
    def durable(self) -> int:
        """The offset after the last durable record."""
        ...

    @property
    def record_bytes(self) -> int:
        """The approximate number of bytes of a record."""
        ...

    def trouble(self, place: dict[str, Any]) -> str | None:
        """Describes what a reader at a place has lost meanwhile; None if nothing."""
        ...

    def restart(self, place: dict[str, Any]) -> int:
        """Returns the first offset whose records are new to a reader that lost some."""
        ...

    def waiting(self, start: int) -> int:
        """Returns how many records follow an offset."""
        ...

    def advance(self, start: int, count: int) -> int:
        """Returns the offset after `count` of the waiting records."""
        ...


class Live(Protocol):
    """A queue that is polled."""

    def look(self) -> Mark:
        """Returns the current mark of the queue."""
        ...

    def is_same(self) -> bool:
        """Returns whether the queue at the path is certainly still the same one."""
        ...

    def fields(self, mark: Any, place: dict[str, Any], end: int) -> dict[str, Any]:
        """Returns further fields for the place at `end`, which follows `place`.

        `mark` is the result of `look` that the end was taken from.
        """
        ...

    def close(self) -> None:
        """Closes its files."""
        ...


class Watch:
    """The queues of one stream. One thread at a time may use it."""

    def __init__(
        self,
        given: Sequence[str],
        follow: Callable[[str], Live],
        passable: tuple[type[Exception], ...] = (),
    ) -> None:
        """`follow` opens a queue; it raises `NotAQueue` or `FileNotFoundError` if there is none.

        A queue for which it raises one of `passable` is skipped and tried again later.
        """
        self._given = given
        self._follow = follow
        self._passable = passable
        # Queues that exist but cannot be read now.
        self.unreadable: set[str] = set()
        self._lives: dict[str, Live] = {}
        self._marks: dict[str, Mark] = {}
        self._discovered = self._polled = self._took = float("-inf")

    def belongs(self, path: str) -> bool:
        """Returns whether a path was given or matches a given pattern."""
        return any(paths.matches(path, one) for one in self._given)

    def marks(self) -> dict[str, Mark]:
        """Returns the mark of each queue, as of now or of the last poll."""
        now = time.monotonic()
        if now - self._discovered >= DISCOVERY_SECONDS:
            self._discover()
            self._discovered = now
        elif now - self._polled < min(self._took * _IDLE_SHARE, DISCOVERY_SECONDS):
            return dict(self._marks)
        began = time.monotonic()
        for path, live in list(self._lives.items()):
            try:
                self._marks[path] = live.look()
            except (NotAQueue, FileNotFoundError):
                self._forget(path)
            except self._passable as error:
                self.pass_over(path, error)
        self._polled = time.monotonic()
        self._took = self._polled - began
        return dict(self._marks)

    def fields(self, path: str, mark: Mark, place: dict[str, Any], end: int) -> dict[str, Any]:
        """Returns further fields for the place of a queue at `end`."""
        live = self._lives.get(path)
        return {} if live is None else live.fields(mark, place, end)

    def look_again(self) -> None:
        """Makes the next poll look for queues that appeared or disappeared."""
        self._discovered = float("-inf")

    def pass_over(self, path: str, error: Exception) -> None:
        """Skips a queue until the next search."""
        self._forget(path)
        if path not in self.unreadable:
            self.unreadable.add(path)
            _logger.warning("%s cannot be read and is skipped: %s", path, error)

    def close(self) -> None:
        """Closes its files."""
        for path in list(self._lives):
            self._forget(path)

    def _discover(self) -> None:
        found = paths.find(self._given)
        _allow_open_files(len(found) * _FILES_PER_QUEUE)
        for path in set(self._lives) - set(found):
            self._forget(path)
        self.unreadable &= set(found)
        for path in found:
            if path in self._lives and self._lives[path].is_same():
                continue
            self._forget(path)
            try:
                self._lives[path] = self._follow(path)
                self.unreadable.discard(path)
            except (NotAQueue, FileNotFoundError):
                self.unreadable.discard(path)
                _logger.info("%s is not a queue (yet); skipped", path)
            except self._passable as error:
                self.pass_over(path, error)

    def _forget(self, path: str) -> None:
        live = self._lives.pop(path, None)
        if live is not None:
            live.close()
        self._marks.pop(path, None)


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count > soft:
        allowed = count * 2 if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
