"""A consumer's name and saved place, held for a consumer in another process.

That one reads the files itself; it asks here what it may read, and where to save its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forebay.damage import Damage
from forebay.errors import Closed, InvalidOption
from forebay.queues.shared.options import Duration
from forebay.queues.shared.verbs import Steps, verb
from forebay.queues.shared.waiting import countdown, when_found

if TYPE_CHECKING:
    from forebay.queues.log.consumer import Consumer, Start


class Readable(NamedTuple):
    """What may be read now: offsets, and the segments from the one that was asked about on."""

    begin: int
    end: int
    durable: int
    segments: list[tuple[int, str]]


class HeldPlace:
    """Holds the name of a consumer of this process, which reads nothing, for another process."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._log = consumer._log
        self._nudges = 0
        self.committed = consumer.committed

    @verb
    def look(self, beyond: int, timeout: Duration) -> Steps[Readable]:
        """Waits for records beyond an offset, or for a `nudge`; raises losses."""
        self._check()
        self._log._raise_losses()
        nudges = self._nudges

        def look() -> Steps[Readable | None]:
            self._check()
            found = self._readable(beyond)
            return found if found.end > beyond or self._nudges != nudges else None
            yield

        seconds_left = countdown(self._log._clock, timeout)
        found = yield from when_found(self._log.changes, look, seconds_left)
        return self._readable(beyond) if found is None else found

    @verb
    def nudge(self) -> Steps[None]:
        """Has a `look` that waits return."""
        self._nudges += 1
        self._log.changes.answer()
        return
        yield

    @verb
    def save(self, offset: int, back: bool) -> Steps[int]:
        """Saves the place, durably; returns the place that is saved then."""
        self._check()
        if not 0 <= offset <= self._log.end:
            raise InvalidOption(f"offset = {offset!r}: must be at most {self._log.end}")
        return (yield from self._log._saving(self._consumer.name, offset, back=back))

    def resolve(self, start: Start) -> int:
        """Returns the offset that a start means."""
        return self._log._resolve(start)

    def note(self, damage: Damage) -> bool:
        """Puts damage on record; says whether it is to be raised."""
        return self._log._is_news(damage)

    def close(self) -> None:
        """Frees the name."""
        self._consumer.close()

    def _readable(self, beyond: int) -> Readable:
        end, durable = self._log._readable()
        segments = self._log._segments_now()
        first = segments.containing(beyond) or 0
        named = [(base, segments.names[base]) for base in segments.bases if base >= first]
        return Readable(self._log.begin, end, durable, named)

    def _check(self) -> None:
        if self._consumer._closed:
            log, name = self._log.path, self._consumer.name
            raise Closed(f"consumer {name!r} of {log} is closed")
