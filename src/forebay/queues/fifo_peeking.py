"""Looks at the entries of a fifo one after the other, and leaves them there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from forebay.clock import SteadyClock
from forebay.formats.entry import Entry
from forebay.frames import Damage
from forebay.queues.fifo_scanner import FifoScanner, Place
from forebay.queues.fifo_writer import FifoWriter

_ENTRIES = 256


class Peeking:
    """Where the last look was, and what was read ahead. Called with the queue's lock held.

    `meet` is told of each damage on the way, and raises it if somebody should know.
    """

    def __init__(
        self,
        scanner: FifoScanner,
        writer: FifoWriter,
        clock: SteadyClock,
        meet: Callable[[Damage], None],
    ) -> None:
        self._scanner = scanner
        self._writer = writer
        self._clock = clock
        self._meet = meet
        self._ahead: deque[Entry] = deque()
        self._place = Place(0, 0, 0)
        self._after: int | None = None

    def first(self, head: Place) -> Entry | None:
        """Returns the first entry from the head on that has not expired; it is kept for the next.

        Entries that have expired are never looked at again.
        """
        if self._place.number < head.number:
            self._ahead.clear()
            self._place = head
        now_ms = self._clock.now_ms()
        while self._ahead or self._read_on():
            while self._ahead:
                entry = self._ahead[0]
                if entry.offset >= head.number and not entry.has_expired(now_ms):
                    return entry
                self._ahead.popleft()
        return None

    def next(self, head: Place, after: int) -> Entry | None:
        """Returns the first entry from the head on after an id that has not expired.

        It is found at once if the id is that of the last look.
        """
        if after != self._after:
            self._ahead.clear()
            self._place = head
        self._after = None
        if self._place.number < head.number:
            self._place = head
        now_ms = self._clock.now_ms()
        while self._ahead or self._read_on():
            while self._ahead:
                entry = self._ahead.popleft()
                gone = entry.offset < head.number or entry.has_expired(now_ms)
                if not gone and entry.id > after:
                    self._after = entry.id
                    return entry
        return None

    def _read_on(self) -> bool:
        """Reads more entries; False if there are none."""
        if self._place.number >= self._writer.readable.number and not self._writer.always:
            self._writer.drain()
        place, readable = self._place, self._writer.readable
        if place.number >= readable.number:
            return False
        data = self._scanner.window(place, readable.position)
        if data is None:
            self._scanner.refuse_unknown(place)
            end = Place(readable.position, readable.number, 0)
            damage, self._place = self._scanner.judge(place, end)
            if damage is not None:
                self._meet(damage)
        else:
            batch = self._scanner.take(data, place, min(_ENTRIES, readable.number - place.number))
            self._ahead.extend(batch.entries())
            self._place = batch.end
        return True
