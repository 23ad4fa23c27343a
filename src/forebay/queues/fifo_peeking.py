"""Looks at the entries of a fifo one after the other, and leaves them there."""

from __future__ import annotations

from forebay.clock import SteadyClock
from forebay.formats.entry import Entry
from forebay.queues.fifo_scanner import FifoScanner, Place, take_batch
from forebay.queues.fifo_writer import FifoWriter

_ENTRIES = 256


class Peeking:
    """Where the last look was, and what was read ahead. Called with the queue's lock held."""

    def __init__(self, scanner: FifoScanner, writer: FifoWriter, clock: SteadyClock) -> None:
        self._scanner = scanner
        self._writer = writer
        self._clock = clock
        self._ahead: list[Entry] = []
        self._place = Place(0, 0, 0)
        self._after: int | None = None

    def next(self, head: Place, after: int | None) -> Entry | None:
        """Gives the first entry from the head on that has not expired, or the first behind an id.

        It is found at once if the id is that of the last look. Damage is passed over in silence:
        the pop that meets it tells.
        """
        if after is None or after != self._after:
            self._ahead, self._place = [], head
        now_ms = self._clock.now_ms()
        while self._ahead or self._read_on(head):
            while self._ahead:
                entry = self._ahead.pop(0)
                gone = entry.offset < head.number or entry.has_expired(now_ms)
                if not gone and (after is None or entry.id > after):
                    self._after = entry.id
                    return entry
        self._after = None
        return None

    def _read_on(self, head: Place) -> bool:
        """Reads more entries; False if there are none."""
        if self._place.number < head.number:
            self._place = head
        if self._place.number >= self._writer.readable.number and not self._writer.always:
            self._writer.drain()
        place, readable = self._place, self._writer.readable
        if place.number >= readable.number:
            return False
        data = self._scanner.window(place, readable.position)
        if data is None:
            end = Place(readable.position, readable.number, 0)
            self._place = self._scanner.judge(place, end)[1]
        else:
            batch = take_batch(data, place, min(_ENTRIES, readable.number - place.number))
            self._ahead, self._place = batch.entries(), batch.end
        return True
