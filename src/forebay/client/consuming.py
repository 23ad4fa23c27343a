"""A consumer of a shared log: reads the files of the log itself, and asks the server for the rest.

The server holds its name and saves its place. What it has read and not committed is known here
only, so that the end of a server takes nothing from it: it claims its name anew and goes on.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from forebay.client.connection import Connection, Pending, sent
from forebay.clock import Clock, SystemClock
from forebay.damage import Damage
from forebay.errors import Closed
from forebay.queues.log.consumer import Consumer, Start
from forebay.queues.log.place import Readable
from forebay.queues.log.scanner import Scanner
from forebay.queues.shared.options import Duration
from forebay.queues.shared.signal import Signal
from forebay.queues.shared.verbs import Steps
from forebay.queues.shared.waiting import countdown
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.segments import SegmentList
from forebay.wire.values import Handle

# Asks the server for a verb of the place.
Ask = Callable[..., Pending]


class ServedLog:
    """What a consumer needs of its log, as far as the server has told it."""

    def __init__(self, path: str, ask: Ask) -> None:
        self.path = path
        self.changes: Signal = _Nudges(self._nudge)
        self._clock: Clock = SystemClock()
        self._closed = False
        self._ask = ask
        self._known = Readable(0, 0, 0, [])
        self._segments = SegmentList({})
        self._waiting = 0

    @property
    def begin(self) -> int:
        """The oldest offset, when the server was asked last."""
        return self._known.begin

    @property
    def end(self) -> int:
        """The offset after the last record, now."""
        self._learn(self._asked("look", self._known.end, 0))
        return self._known.end

    def begin_now(self) -> int:
        """Returns the oldest offset now."""
        self._learn(self._asked("look", self._known.end, 0))
        return self.begin

    def _resolve(self, start: Start) -> int:
        """Returns the offset that a start means."""
        offset: int = self._asked("resolve", start)
        return offset

    def look(self, beyond: int, seconds: float) -> Steps[None]:
        """Asks for what there is beyond an offset; waits for it."""
        pending = self._ask("look", beyond, seconds)
        self._waiting += 1
        try:
            yield pending
        except BaseException:
            pending.abandon()
            raise
        finally:
            self._waiting -= 1
        self._learn(pending.result)

    def _saving(self, name: str, offset: int, *, back: bool = False) -> Steps[int]:
        pending = self._ask("save", offset, back)
        yield pending
        saved: int = pending.result
        return saved

    def _readable(self) -> tuple[int, int]:
        return self._known.end, self._known.durable

    def _segments_now(self) -> SegmentList:
        return self._segments.copy()

    def _is_news(self, damage: Damage) -> bool:
        news: bool = self._asked("note", damage)
        return news

    def _release_name(self, consumer: Consumer) -> None:
        """Has no use: the number of the place is closed."""

    def _raise_losses(self) -> None:
        """Has no use: the server raises them when it is asked."""

    def _nudge(self) -> None:
        if self._waiting:
            self._asked("nudge")

    def _asked(self, verb: str, *arguments: Any) -> Any:
        pending = self._ask(verb, *arguments)
        pending.settle()
        return pending.result

    def _learn(self, told: tuple[int, int, int, list[tuple[int, str]]]) -> None:
        self._known = Readable(*told)
        known, segments = self._known, self._segments
        gone = segments.containing(known.begin)
        segments.drop_first(bisect_left(segments.bases, gone) if gone is not None else 0)
        for base, name in known.segments:
            if base not in segments.names:
                segments.add(base, name)
        segments.begin = known.begin


class _Nudges(Signal):
    """Announces to the server that a record came back, which another call may wait for there."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        super().__init__(threading.Lock())
        self._nudge = nudge

    def answer(self) -> None:
        """Wakes the calls that wait."""
        self._nudge()


class SharedConsumer(Consumer):
    """A consumer of a shared log. One thread at a time may use it."""

    _at: tuple[Connection, int] | None = None

    def __init__(
        self, claim: Callable[[], tuple[Connection, Handle]], path: str, name: str
    ) -> None:
        """`claim` makes the server hold the name; it raises `Closed` if the log is closed."""
        self._claim = claim
        served = self._served = ServedLog(path, self._ask)
        self._directory = DiskFilesystem().open_directory(path)
        scanner = Scanner(self._directory, SegmentList({}), begin=served.begin_now)
        super().__init__(served, name, scanner)
        self._begin(self._claimed().value)

    def close(self) -> None:
        """Closes its files and frees its name for another consumer; the saved place stays."""
        if self._closed:
            return
        super().close()
        self._directory.close()
        at, self._at = self._at, None
        if at is not None:
            at[0].release(at[1])

    def __del__(self) -> None:
        super().__del__()
        self._directory.close()
        if self._at is not None:
            self._at[0].tell("close", self._at[1])

    def _wait(self, count: int, timeout: Duration | None) -> Steps[bool | None]:
        """Reads ahead what is known to be there, then what the server knows."""
        served = self._served
        seconds_left = countdown(served._clock, 0 if timeout is None else timeout)
        self._reached()
        while True:
            found = yield from self._look(count)
            left = seconds_left()
            if found:
                return found
            yield from served.look(self._ahead.end, max(left, 0.0))
            if left <= 0:
                return (yield from self._look(count))

    def _ask(self, verb: str, *arguments: Any) -> Pending:
        return sent(self._reached, verb, *arguments)[1]

    def _reached(self) -> tuple[Connection, int]:
        """Returns the connection and the number of the place, which is claimed if need be."""
        if self._closed:
            raise Closed(f"consumer {self.name!r} of {self._log.path} is closed")
        if self._at is None or not self._at[0].is_alive:
            self._claimed()
        assert self._at is not None
        return self._at

    def _claimed(self) -> Handle:
        connection, place = self._claim()
        self._at = connection, place.number
        return place
