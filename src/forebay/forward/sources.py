"""Queues as a forwarder reads them: records in order, and the gaps between them.

A source numbers its records: offsets of a log, ids of a fifo, places of events. Numbers rise. It
hands out records from `seek` on, and is told by `commit` below which number all is settled; that
may be late, and happens again after a crash. One thread at a time may use a source.
"""

from __future__ import annotations

import contextlib
import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import forebay
from forebay.damage import Damage
from forebay.errors import (
    Closed,
    Damaged,
    DataLoss,
    Empty,
    InvalidOption,
    NotAQueue,
    Overtaken,
    ServerGone,
    UndecodableEvent,
)
from forebay.forward.outputs import EventRecord, Gap, Record
from forebay.queues.shared.verbs import Loan, run
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.tail import NAME as TAIL
from forebay.storage.tail import TailFile

_logger = logging.getLogger(__name__)
LENT_MAX = 128
# How many events are read at once; the bound in bytes is that of the scan.
_EVENTS = 128
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Bounds:
    """What to read: so many records of so many bytes, but at least `least`; numbers below `end`."""

    count: int
    size: int
    least: int = 1
    end: int | None = None


class Found(NamedTuple):
    """What a source has read; `more`: a bound ended it, so that more can be read at once."""

    records: list[Record]
    gap: Gap | None = None
    more: bool = False
    # The bytes of the values.
    size: int = 0


class Source(Protocol):
    """A queue, for a forwarder."""

    path: str
    kind: str
    # None: the directory has no id, and the forwarder makes one.
    queue_id: bytes | None
    incarnation: int
    records_max: int | None
    # Whether a number that is missing between two others is a missing record.
    dense: bool
    # Whether the queue must be told of each batch at once: it has lent what it can.
    eager: bool

    def start(self) -> tuple[int, int]:
        """Returns where a new forwarder begins to count, and where it begins to read."""
        ...

    def seek(self, place: int) -> None:
        """Goes to a saved place; raises `DataLoss` if the queue cannot have it."""
        ...

    def read(self, bounds: Bounds) -> Found:
        """Returns the next records, or the gap that comes first; neither if nothing is there.

        What is returned is durable.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Returns when there may be more to read, or after some seconds."""
        ...

    def commit(self, place: int) -> None:
        """Tells the queue that all below a number is settled; durable on return."""
        ...

    def unsent(self) -> tuple[int, int]:
        """Returns how many entries were dropped, and destroyed, unseen since a fifo was created."""
        ...

    def lag(self, place: int) -> int | None:
        """Returns how many records wait from a place on; None if counting them takes long."""
        ...

    def close(self) -> None:
        """Closes what the source has opened."""
        ...


class _Ready:
    """Records and gaps that were read and not handed out yet, in their order."""

    def __init__(self) -> None:
        self._items: deque[Record | Gap] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: Record | Gap) -> None:
        """Adds the next one."""
        self._items.append(item)

    def take(self, bounds: Bounds) -> Found:
        """Returns what `Source.read` returns."""
        items, records, left = self._items, list[Record](), bounds.size
        while items and len(records) < bounds.count:
            item = items[0]
            if isinstance(item, Gap):
                if records:
                    break
                items.popleft()
                return Found([], item, more=True)
            if left < len(item.value) and len(records) >= bounds.least:
                break
            if bounds.end is not None and item.offset >= bounds.end:
                break
            left -= len(item.value)
            records.append(item)
            items.popleft()
        return Found(records, None, bool(items), bounds.size - left)


class _Run:
    """Records that were read at once, from a place in them on, and the sums of their sizes."""

    def __init__(self, records: list[Record]) -> None:
        # If something is missing between them, they are taken one by one.
        self._dense = not records or records[-1].offset - records[0].offset < len(records)
        self.records = records
        self.place = 0
        self._ends = list(accumulate([len(each.value) for each in records], initial=0))

    def __bool__(self) -> bool:
        return self.place < len(self.records)

    def take(self, count: int, size: int, least: int) -> tuple[list[Record], int]:
        """Returns up to `count` records of so many bytes, but at least `least`; and their bytes."""
        begin, ends = self.place, self._ends
        count = count if self._dense else min(count, 1)
        end = (
            bisect_right(ends, ends[begin] + size, begin, min(begin + count, len(ends) - 1) + 1) - 1
        )
        end = min(max(end, begin + least), begin + count, len(self.records))
        self.place = end
        return self.records[begin:end], ends[end] - ends[begin]


class LogSource:
    """A log, read by a consumer; its own, or one that a server has."""

    kind = "log"
    records_max: int | None = None
    dense = True
    eager = False

    def __init__(self, log: forebay.Log, name: str) -> None:
        self._log = log
        self.path = log.path
        self._consumer = log.consumer(name)
        mark = _mark_of(log.path)
        self.queue_id: bytes | None = mark[0]
        self.incarnation = mark[1]
        # What was read ahead.
        self._held = _Run([])
        # What was read and is not durable yet.
        self._found = Found([])
        self._next = self._consumer.committed

    def start(self) -> tuple[int, int]:
        """Returns the place of the consumer, twice."""
        return self._consumer.committed, self._consumer.committed

    def seek(self, place: int) -> None:
        """Goes to a saved place, which is at or after that of the consumer."""
        committed, end = self._consumer.committed, self._log.end
        if committed > place:
            raise DataLoss(
                f"{self.path}: consumer {self._consumer.name!r} is at {committed}, past {place}, "
                "where the forwarder is: another program has moved it. Move it back, or begin with "
                "a new state directory"
            )
        if place > end:
            raise DataLoss(
                f"{self.path} ends at {end}, before {place}, where the forwarder is: it is an "
                "older copy. Begin with a new state directory"
            )
        begin = self._log.begin
        self._next, self._held = place, _Run([])
        self._found = Found([])
        self._consumer.seek(max(place, begin))

    def read(self, bounds: Bounds) -> Found:
        """Returns the next records, or the gap that comes first."""
        if not self._found.records:
            self._found = self._look(bounds)
        if self._found.records and self._log.durable < self._next:
            # An offset that was sent must never be assigned again. If the server is gone, the
            # records are returned by the next call.
            self._log.sync()
        found, self._found = self._found, Found([])
        return found

    def _look(self, bounds: Bounds) -> Found:
        records: list[Record] = []
        size, more = 0, False
        while len(records) < bounds.count and not more:
            try:
                self._held = self._held or self._pull()
            except Exception:
                if records:
                    # The error comes again with the next call.
                    break
                raise
            if not self._held:
                break
            first = self._held.records[self._held.place]
            if first.offset != self._next:
                if not records:
                    return Found([], self._gap(first.offset), more=True)
                more = True
                break
            most = bounds.count - len(records)
            if bounds.end is not None:
                most = min(most, bounds.end - self._next)
            least = max(0, bounds.least - len(records))
            taken, bytes_taken = self._held.take(most, bounds.size - size, least)
            more = bool(self._held)
            records += taken
            size += bytes_taken
            self._next += len(taken)
        if not records and not self._held and self._consumer.position > self._next:
            # What is missing is at the end.
            return Found([], self._gap(self._consumer.position), more=True)
        return Found(records, None, more or len(records) == bounds.count, size)

    def wait(self, seconds: float) -> None:
        """Returns when a record has come."""
        if self._held:
            return
        try:
            self._held = _Run(list(self._consumer.read(1, timeout=seconds)))
        except Empty:
            pass
        except (Damaged, Overtaken) as error:
            _logger.warning("%s", error)

    def commit(self, place: int) -> None:
        """Saves the place of the consumer."""
        self._consumer.commit(before=place)

    def unsent(self) -> tuple[int, int]:
        """Returns zeros: a gap shows in the offsets."""
        return 0, 0

    def lag(self, place: int) -> int | None:
        """Returns how many records wait."""
        return max(0, self._log.end - max(place, self._log.begin))

    def close(self) -> None:
        """Frees the name of the consumer."""
        self._consumer.close()

    def _pull(self) -> _Run:
        """Returns records that are there; what is missing before them shows in their offsets.

        What one scan has read: so much is in memory, whatever the size of the records.
        """
        while True:
            try:
                return _Run(list(run(self._consumer._next_run())))
            except (Damaged, Overtaken) as error:
                # Raised once; the next look goes on after it.
                _logger.warning("%s", error)

    def _gap(self, end: int) -> Gap:
        """Passes over missing records, up to an offset."""
        first, begin = self._next, self._log.begin
        # Damage and drops may come together: what is below the beginning was dropped.
        dropped = first < begin
        self._next = min(begin, end) if dropped else end
        return Gap(self._next - first, dropped, first, self._next)


class FifoSource:
    """A fifo: entries are lent, and removed once they are settled."""

    kind = "fifo"
    # One batch on its way, and the next.
    records_max: int | None = LENT_MAX // 2
    dense = False
    eager = True

    def __init__(self, fifo: forebay.Fifo) -> None:
        if fifo.options.max_attempts is not None:
            raise InvalidOption(
                f"{fifo.path}: max_attempts = {fifo.options.max_attempts}: a forwarder needs a "
                "fifo without it, because every restart would count as an attempt"
            )
        self._fifo = fifo
        self.path = fifo.path
        mark = _mark_of(fifo.path, "fifo-tail")
        self.queue_id: bytes | None = mark[0]
        # Ids are never assigned again.
        self.incarnation = 0
        self._lent: deque[tuple[int, Loan[list[forebay.Entry]]]] = deque()
        self._count = 0
        self._place = 0
        # The last id that was read: what comes back after the end of a server is not read again.
        self._seen = -1
        self._waiting = _Ready()

    def start(self) -> tuple[int, int]:
        """Returns how many entries have left before, and 0: the oldest entry."""
        return self._fifo.info().begin, 0

    def seek(self, place: int) -> None:
        """Skips entries up to a place: they are settled, and only their removal was missing."""
        self._place = place

    def read(self, bounds: Bounds) -> Found:
        """Returns the next entries."""
        if not self._waiting:
            self._lend(min(bounds.count, LENT_MAX - self._count))
        return self._waiting.take(bounds)

    def wait(self, seconds: float) -> None:
        """Returns when an entry has come."""
        if not self._waiting and self._count < LENT_MAX:
            self._lend(LENT_MAX - self._count, seconds)

    def commit(self, place: int) -> None:
        """Removes the entries below a place."""
        self._place = max(self._place, place)
        while self._lent and self._lent[0][0] < place:
            try:
                run(self._lent[0][1].finish())
            except (ServerGone, Closed):
                # All that was lent came back; it is lent again, and recognised by its ids.
                self._lent.clear()
                self._count = 0
                raise
            self._count -= len(self._lent.popleft()[1].value)

    def unsent(self) -> tuple[int, int]:
        """Returns how many entries expired or were dropped, and how many were destroyed."""
        info = self._fifo.info()
        return info.expired + info.dropped, info.damaged

    def lag(self, place: int) -> int | None:
        """Returns how many entries wait, those that are lent included."""
        return len(self._fifo) + self._count

    def close(self) -> None:
        """Gives back what is lent."""
        while self._lent:
            _, loan = self._lent.pop()
            with contextlib.suppress(forebay.ForebayError):
                run(loan.give_back(Closed("the forwarder was closed")))

    def _lend(self, count: int, timeout: float | None = None) -> None:
        """Lends entries until some are new, or there are no more."""
        steps: Any = type(self._fifo).take_many
        while count > 0:
            try:
                loan = run(steps.steps(self._fifo, count, timeout))
            except Empty:
                return
            except Damaged:
                # Counted by the queue, and told as a gap.
                continue
            entries = loan.value
            if entries[-1].id < self._place:
                # They are settled: a crash came before their removal.
                run(loan.finish())
                continue
            self._lent.append((entries[-1].id, loan))
            self._count += len(entries)
            count -= len(entries)
            new = [entry for entry in entries if entry.id > self._seen and entry.id >= self._place]
            if new:
                self._seen = new[-1].id
                for entry in new:
                    self._waiting.add(_Lent(entry))
                return


class _Lent:
    """An entry of a fifo as a record."""

    __slots__ = ("offset", "time_ms", "value")

    def __init__(self, entry: forebay.Entry) -> None:
        self.offset = entry.id
        self.time_ms: int | None = entry.time_ms
        self.value = entry.value


class BeatsSource:
    """A Beats queue that this process owns: events are acknowledged."""

    kind = "beats"
    records_max: int | None = None
    dense = False
    eager = False

    def __init__(self, queue: forebay.BeatsQueue) -> None:
        self._queue = queue
        self.path = queue.path
        self.queue_id: bytes | None = None
        self.incarnation = 0
        self._batches: deque[tuple[int, forebay.EventBatch]] = deque()
        self._waiting = _Ready()
        self._place = 0

    def start(self) -> tuple[int, int]:
        """Returns the number of the first event that is not acknowledged, twice."""
        from forebay.queues.beats.place import offset_of

        position = self._queue.info().position
        place = offset_of(position["segment"], position["index"])
        return place, place

    def seek(self, place: int) -> None:
        """Skips events below a place: they are settled, and only the acknowledgement is missing."""
        self._place = place

    def read(self, bounds: Bounds) -> Found:
        """Returns the next events, or the gap that comes first."""
        if not self._waiting:
            self._fetch(None)
        return self._waiting.take(bounds)

    def wait(self, seconds: float) -> None:
        """Returns when an event has come."""
        if not self._waiting:
            self._fetch(seconds)

    def commit(self, place: int) -> None:
        """Acknowledges the events below a place."""
        while self._batches and self._batches[0][0] < place:
            self._batches.popleft()[1].ack()

    def unsent(self) -> tuple[int, int]:
        """Returns zeros: the queue reports gaps as it reads."""
        return 0, 0

    def lag(self, place: int) -> int | None:
        """Returns how many events are not acknowledged."""
        return len(self._queue)

    def close(self) -> None:
        """Gives back what was read and not acknowledged."""
        while self._batches:
            with contextlib.suppress(forebay.ForebayError):
                self._batches.pop()[1].nack()

    def _fetch(self, timeout: float | None) -> None:
        while True:
            try:
                batch = self._queue.read(_EVENTS, timeout=timeout)
            except Empty:
                return
            except (Overtaken, UndecodableEvent, Damaged) as error:
                _logger.warning("%s", error)
                count = error.lost if isinstance(error, Overtaken) else 1
                if isinstance(error, Damaged):
                    count = error.damage.count or 1
                self._waiting.add(Gap(count, dropped=isinstance(error, Overtaken)))
                return
            if not batch.events:
                return
            records = [each for each in _records_of(batch) if each.offset >= self._place]
            if records:
                break
            batch.ack()
        self._batches.append((records[-1].offset, batch))
        for record in records:
            self._waiting.add(record)


class BeatsFiles:
    """A Beats queue that another program owns: its files are read, and nothing is changed."""

    kind = "beats"
    records_max: int | None = None
    dense = False
    eager = False

    def __init__(self, path: str, *, key_file: str | None = None) -> None:
        # Imported here: only this needs the libraries for events.
        from forebay.formats.beats.text import TextDecoder
        from forebay.queues.beats.place import Place, offset_of, split_offset
        from forebay.queues.beats.reader import BeatsReader

        self._reader = BeatsReader(path, salvage=True, key_file=key_file)
        self._decoder = TextDecoder()
        self._offset_of, self._split, self._place_type = offset_of, split_offset, Place
        self.path = self._reader.path
        self.queue_id: bytes | None = None
        self.incarnation = 0
        self._items: Iterator[None] = iter(())
        self._place = self._reader.place()
        self._waiting = _Ready()

    def start(self) -> tuple[int, int]:
        """Returns the number of the first event that is not acknowledged, twice."""
        place = self._offset_of(self._place.segment, self._place.frame_index)
        return place, place

    def seek(self, place: int) -> None:
        """Goes to a saved place."""
        segment, index = self._split(place)
        bases = self._reader.numbers
        if bases and segment > bases[-1] + 1:
            raise DataLoss(
                f"{self.path} ends with segment {bases[-1]}, before {segment}, where the forwarder "
                "is: it is another directory, or an older copy. Begin with a new state directory"
            )
        if (self._place.segment, self._place.frame_index) != (segment, index):
            self._place = self._place_type(segment, 0, 0)
            self._skip_below = place
        self._items = self._scan()

    _skip_below = 0

    def read(self, bounds: Bounds) -> Found:
        """Returns the next events, or the gap that comes first."""
        if not self._waiting:
            self._fetch()
        return self._waiting.take(bounds)

    def wait(self, seconds: float) -> None:
        """Looks into the directory again, after some seconds."""
        if self._waiting:
            return
        time.sleep(min(seconds, _LOOK_SECONDS))
        self._reader.refresh()
        self._items = self._scan()

    def commit(self, place: int) -> None:
        """Does nothing: the place is in the state of the forwarder only."""

    def unsent(self) -> tuple[int, int]:
        """Returns zeros: gaps are found as the files are read."""
        return 0, 0

    def lag(self, place: int) -> int | None:
        """Returns None: the events are not counted before they are read."""
        return None

    def close(self) -> None:
        """Closes the files."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
        self._reader.close()

    def _scan(self) -> Iterator[None]:
        """Reads what follows the place, a piece for each item that it yields."""
        for segment in self._reader.numbers:
            if segment < self._place.segment:
                continue
            start = self._place if segment == self._place.segment else self._place_type(segment)
            for item in self._reader.scan_segment(segment, start):
                if isinstance(item, Damage):
                    self._pass(segment, item)
                else:
                    self._take(item)
                yield

    def _fetch(self) -> None:
        for _ in self._items:
            if self._waiting:
                return

    def _take(self, item: Any) -> None:
        for number, payload in enumerate(item.payloads):
            offset = self._offset_of(item.segment, item.index + number)
            if offset < self._skip_below:
                continue
            try:
                nanoseconds, _, meta, fields = self._decoder.decode(payload)
            except UndecodableEvent as error:
                _logger.warning("%s, event %d: %s", item.path, item.index + number, error)
                self._waiting.add(Gap(1, False, offset, offset + 1))
                continue
            self._waiting.add(_record_of(offset, nanoseconds, meta, fields))
        end = item.index + len(item.payloads)
        self._place = self._place_type(item.segment, item.end_position, end)

    def _pass(self, segment: int, damage: Damage) -> None:
        if damage.torn or damage.count == 0:
            return
        first = self._offset_of(segment, damage.offset or 0)
        end = first + (damage.count or 1)
        if end > self._skip_below:
            _logger.warning("%s, byte %d: %s", damage.path, damage.position, damage.reason)
            self._waiting.add(Gap(damage.count or 1, False, first, end))


def open_source(queue: object, name: str) -> Source:
    """Returns the source that reads an open queue; refuses kinds that cannot be forwarded."""
    if isinstance(queue, forebay.Log):
        return LogSource(queue, name)
    if isinstance(queue, forebay.Fifo):
        return FifoSource(queue)
    if isinstance(queue, forebay.BeatsQueue):
        return BeatsSource(queue)
    if isinstance(queue, forebay.DeadlineQueue):
        raise refusal_of(queue.path)
    raise InvalidOption(f"queue = {queue!r:.80}: must be a path, or an open queue")


def refusal_of(path: str) -> InvalidOption:
    """Returns the error that says why a deadline queue cannot be forwarded."""
    return InvalidOption(
        f"{path} is a deadline queue, which cannot be forwarded: its items come by deadline and "
        "their leases end during an outage, so that a batch could not be repeated with the same "
        "bytes. Dequeue its items and append them to a log"
    )


def _mark_of(path: str, name: str = TAIL) -> tuple[bytes, int]:
    """Returns the id of a queue and the incarnation of its offsets."""
    with contextlib.closing(DiskFilesystem().open_directory(path)) as directory:
        file = TailFile.open(directory, write=False, name=name)
        if file is None:
            raise NotAQueue(
                f"{path}: its {name!r} is missing; open the queue, which makes it again"
            )
        with contextlib.closing(file):
            tail = file.read()
    if tail is None:
        raise NotAQueue(f"{path}: its {name!r} is damaged; close and open the queue")
    return tail.queue_id, tail.incarnation


def _records_of(batch: forebay.EventBatch) -> Iterator[EventRecord]:
    from forebay.formats.beats.text import event_document, json_text
    from forebay.queues.beats.place import offset_of

    delivery = batch.delivery
    assert delivery is not None
    events = iter(batch.events)
    for segment, count in delivery.counts.items():
        first = delivery.start.frame_index if segment == delivery.start.segment else 0
        for index in range(first, first + count):
            event = event_document(next(events))
            meta, fields = (json_text(event[part]).encode() for part in ("meta", "fields"))
            yield _record_of(offset_of(segment, index), event["timestamp_ns"], meta, fields)


def _record_of(offset: int, nanoseconds: int, meta: bytes, fields: bytes) -> EventRecord:
    """Returns an event as the document that Filebeat sends."""
    milliseconds = nanoseconds // 1_000_000
    head = b'{"@timestamp":"%b"' % time_text(milliseconds)
    document = head + (b"}" if fields == b"{}" else b"," + fields[1:])
    return EventRecord(offset, milliseconds, document, meta)


def time_text(milliseconds: int) -> bytes:
    """Returns a time as Beats writes it: UTC, with milliseconds."""
    seconds, rest = divmod(milliseconds, 1000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment.isoformat()[:19]}.{rest:03}Z".encode()
