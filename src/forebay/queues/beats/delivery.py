"""How events get out of a Beats queue: read in batches, settled in any order.

The disk is read under a separate lock, so that reading does not hold up puts. `EventCursor` walks
forward over the events, a few at a time, and holds one segment open; one thread at a time may use
it. What cannot be read is returned once, where it occurs, as `Lost`; then the walk goes on after
it. This includes whole segments: damaged, missing, of another key, or of a version that cannot be
read.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from forebay.damage import Damage
from forebay.errors import Closed, Damaged, ForebayError, LeaseLost, Overtaken, UndecodableEvent
from forebay.formats.beats.events import Event, decode_event
from forebay.formats.beats.frames import FRAME_BYTES
from forebay.queues.beats.batch import EventBatch
from forebay.queues.beats.deliveries import Deliveries, Delivery
from forebay.queues.beats.place import End, Place
from forebay.queues.beats.segments import (
    UNREADABLE,
    Access,
    EventSegment,
    damage_of,
    index_after,
    is_foreign,
    is_harmless,
)
from forebay.queues.beats.state import StateFile
from forebay.queues.beats.trimming import Room
from forebay.queues.beats.writer import BeatsWriter
from forebay.queues.shared.verbs import Steps, Work
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses
from forebay.storage.readable import Store
from forebay.storage.segments import Batch, SegmentList


@dataclass(frozen=True, slots=True)
class Lost:
    """A part of the queue that yields no events: damage, or a frame that holds no event."""

    start: Place
    end: Place
    error: ForebayError
    damage: Damage


@dataclass(frozen=True, slots=True)
class Taken:
    """Consecutive events, perhaps of several segments; `counts` has the number of each segment."""

    start: Place
    end: Place
    events: list[Event]
    counts: dict[int, int]


@dataclass(slots=True)
class _Found:
    """Frames of one segment that were scanned and not delivered yet."""

    place: Place
    payloads: list[bytes]
    sizes: list[int] | None

    def place_behind(self, count: int) -> Place:
        sizes = self.sizes
        if sizes is None:
            passed = sum(map(len, islice(self.payloads, count))) + count * FRAME_BYTES
        else:
            passed = sum(islice(sizes, count))
        return Place(
            self.place.segment, self.place.position + passed, self.place.frame_index + count
        )

    def drop(self, count: int) -> None:
        self.place = self.place_behind(count)
        del self.payloads[:count]
        if self.sizes is not None:
            del self.sizes[:count]


class EventCursor:
    """Reads the events of a queue from a place on."""

    def __init__(self, store: Store, access: Access, place: Place) -> None:
        self._store = store
        self._access = access
        self._segment: EventSegment | None = None
        self._scan: Iterator[Batch | Damage] = iter(())
        self._found: _Found | None = None
        self._lost: Lost | None = None
        self.place = place
        # Damage that costs no existing event but is worth reporting, such as a false count.
        self.notes: list[Damage] = []
        self._counts: dict[int, int] = {}

    def take(self, segments: SegmentList, end: End, count: int) -> Taken | Lost | None:
        """Returns up to `count` events below `end`, or what is lost next; None at `end`."""
        start = self.place
        events: list[Event] = []
        self._counts = {}
        try:
            while len(events) < count:
                if self._found is None and not self._fetch(segments, end):
                    break
                if self._found is not None and not self._decode(self._found, count, events):
                    break
        except BaseException:
            # The events taken so far are not delivered: the next call must find them again.
            self.move_to(start)
            raise
        if events:
            return Taken(start, self.place, events, self._counts)
        lost, self._lost = self._lost, None
        if lost is not None:
            self.place = lost.end
        return lost

    def move_to(self, place: Place) -> None:
        """Continues from another place."""
        self.close()
        self.place = place

    def close(self) -> None:
        """Closes the segment that it holds open."""
        if self._segment is not None:
            self._segment.close()
        self._segment = self._found = self._lost = None
        self._scan = iter(())

    def _decode(self, found: _Found, count: int, events: list[Event]) -> bool:
        """Decodes events of what was found; returns False if one cannot be decoded."""
        wanted = min(count - len(events), len(found.payloads))
        done = 0
        try:
            for payload in islice(found.payloads, wanted):
                events.append(decode_event(payload))
                done += 1
        except UndecodableEvent as error:
            if not events:
                self._lose_frame(found, error)
                return False
        if done:
            segment = found.place.segment
            self._counts[segment] = self._counts.get(segment, 0) + done
            found.drop(done)
            self.place = found.place
        if not found.payloads:
            self._found = None
        return done == wanted

    def _lose_frame(self, found: _Found, error: UndecodableEvent) -> None:
        assert self._segment is not None
        start = found.place
        found.drop(1)
        if not found.payloads:
            self._found = None
        end = found.place
        path = self._segment.path
        damage = Damage(path, start.position, end.position - start.position, str(error), count=1)
        damage = self._segment.in_file(damage)
        trouble = UndecodableEvent(f"{path}, byte {damage.position}: {error}")
        self._lost = Lost(start, end, trouble, damage)

    def _fetch(self, segments: SegmentList, end: End) -> bool:
        """Scans on; returns False if there is nothing more now, or something lost comes first."""
        while self._lost is None:
            if self._segment is None and not self._open(segments, end):
                return False
            segment = self._segment
            if segment is None:
                continue
            item = next(self._scan, None)
            if isinstance(item, Batch):
                place = Place(segment.id, item.position, item.index)
                self._found = _Found(place, list(item.values), segment.stored_sizes(item))
                return True
            if isinstance(item, Damage):
                self._judge(segment, item)
            elif not self._go_on(segment, segments, end):
                return False
        return False

    def _judge(self, segment: EventSegment, damage: Damage) -> None:
        """Notes damage; damage that costs no known event does not stop the walk."""
        told = segment.in_file(damage)
        if is_harmless(damage):
            self.notes.append(told)
            return
        # Never move back: the place may lie past the end of a segment that was cut.
        position = max(damage.position + damage.length, self.place.position)
        end = Place(segment.id, position, index_after(damage))
        self._lost = Lost(self.place, end, Damaged(told), told)

    def _go_on(self, segment: EventSegment, segments: SegmentList, end: End) -> bool:
        """Continues where a scan ended: in the same segment if it has grown, or in the next."""
        raw_size = end.raw_size if segment.id == end.segment else None
        if segment.id >= end.segment and segment.raw.bound == raw_size:
            return False
        if segment.raw.bound is not None:
            segment.grow(raw_size)
            segment.held = self._access.held.get(segment.id)
            self._scan = segment.scan(self.place, finished=raw_size is None)
            return True
        following = segments.after(segment.id)
        if following is None or following > end.segment:
            return False
        self.move_to(Place(following))
        return True

    def _open(self, segments: SegmentList, end: End) -> bool:
        """Opens the segment of the place, or the next one that exists; False after the end."""
        segment_id = self.place.segment
        if segment_id not in segments.names:
            following = segments.after(segment_id)
            if following is None or following > end.segment:
                return False
            self.place = Place(following)
            segment_id = following
        if segment_id > end.segment:
            return False
        raw_size = end.raw_size if segment_id == end.segment else None
        name = segments.names[segment_id]
        try:
            self._segment = EventSegment(self._store, segment_id, name, self._access, raw_size)
        except (ForebayError, FileNotFoundError) as error:
            # A segment that the owner has written itself has no unfinished end.
            newest = raw_size is None and segment_id == segments.bases[-1]
            self._pass_over(segments, segment_id, error, newest=newest)
            return True
        if self._segment.header.repaired:
            reason = "the header was damaged; its frames tell what it is"
            size = self._segment.start.position
            self.notes.append(Damage(self._segment.path, 0, size, reason, count=0))
        self._scan = self._segment.scan(self.place, finished=raw_size is None)
        return True

    def _pass_over(
        self,
        segments: SegmentList,
        segment_id: int,
        error: ForebayError | FileNotFoundError,
        *,
        newest: bool,
    ) -> None:
        """Counts a whole segment as lost; a foreign one is reported by its own error."""
        path = f"{self._store.path}/{segments.names[segment_id]}"
        held = self._access.held.get(segment_id)
        damage = damage_of(error, path, held, newest=newest)
        done = self.place.frame_index if self.place.segment == segment_id else 0
        if damage.count is not None:
            damage = replace(damage, count=max(0, damage.count - done))
        start, end = self.place, Place(segment_id + 1)
        if is_harmless(damage):
            self.notes.append(damage)
            self.place = end
            return
        foreign = error if is_foreign(error) else None
        told = foreign if isinstance(foreign, ForebayError) else Damaged(damage)
        self._lost = Lost(start, end, told, damage)


_logger = logging.getLogger(__name__)


class Reading:
    """Delivers the events of a queue. Any thread may call it."""

    def __init__(
        self,
        directory: Directory,
        writer: BeatsWriter,
        deliveries: Deliveries,
        room: Room,
        state: StateFile,
        losses: Losses,
        access: Access,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._deliveries = deliveries
        self._room = room
        self._state = state
        self._losses = losses
        self._access = access
        self._mutex = threading.Lock()
        self._closed = False
        self._cursor = EventCursor(directory, access, deliveries.place)
        self._notes: list[Damage] = []
        self.damage: list[Damage] = []

    def deliver(self, count: int) -> EventBatch | None:
        """Delivers up to `count` events; None if there are none now. Raises each loss once."""
        try:
            with self._mutex:
                return self._deliver(count)
        finally:
            self._tell_notes()

    def take_back(self, batch: EventBatch | None) -> None:
        """Makes the next read find the events of a batch that did not reach its caller."""
        if batch is not None and batch.delivery is not None:
            with self._writer.lock:
                self._room.count_dropped(self._deliveries.give_back(batch.delivery))
                self._writer.changes.announce()

    def settling(self, delivery: Delivery, *, acknowledged: bool) -> Steps[None]:
        """Acknowledges events, or takes them back. If it raises, they are still delivered.

        Acknowledged events cannot be taken back: that raises `LeaseLost`.
        """
        if acknowledged and delivery.done:
            return
        if acknowledged and not self._is_durable(delivery):
            # A saved place must not point at events that a power cut could still take.
            yield self._writer.ticket()
        yield Work(lambda: self._settle(delivery, acknowledged=acknowledged))
        self.log()

    def _settle(self, delivery: Delivery, *, acknowledged: bool) -> None:
        try:
            with self._state.lock:
                if acknowledged:
                    self._room.acknowledge(delivery)
                else:
                    self._give_back(delivery)
        finally:
            # Also after an error: a put that needs room may be waiting for this save to end.
            self._writer.changes.answer()

    def _give_back(self, delivery: Delivery) -> None:
        with self._writer.lock:
            self._writer.check()
            if delivery.done:
                raise LeaseLost(f"{self._directory.path}: these events are acknowledged")
            self._room.restore()
            self._room.count_dropped(self._deliveries.give_back(delivery))

    def log(self) -> None:
        """Logs what happened under the lock; called without it: a log handler may use the queue."""
        while self._room.messages:
            _logger.warning("%s", self._room.messages.pop(0))

    def close(self) -> None:
        """Closes its files; nothing is delivered any more."""
        with self._mutex:
            self._closed = True
            self._cursor.close()

    def abandon(self) -> None:
        """Replaces the locks, which the parent may hold, in the child of a fork."""
        self._mutex = threading.Lock()
        self._state.abandon()

    def _is_durable(self, delivery: Delivery) -> bool:
        with self._writer.lock:
            durable = self._writer.durable
        end = delivery.end
        if end.segment != durable.segment:
            return end.segment < durable.segment
        return durable.raw_size is None or end.position <= durable.position

    def _deliver(self, count: int) -> EventBatch | None:
        while True:
            with self._writer.lock:
                self._check()
                end, segments = self._writer.readable, self._writer.segments.copy()
                place = self._deliveries.place
                returned = self._deliveries.take_returned()
            if returned is not None:
                batch = self._deliver_again(returned, segments, end, count)
                if batch is not None:
                    return batch
                continue
            if self._cursor.place < place:
                self._cursor.move_to(place)
            item = self._take_next(segments, end, count)
            if not isinstance(item, Lost):
                return item
            # If it was dropped to make room while it was being read, the next look raises that.
            if self._is_told(item):
                self._save_losses()
                raise item.error

    def _check(self) -> None:
        """Raises what must be reported before anything is delivered. Lock held."""
        self._writer.check()
        if self._closed:
            raise Closed(f"{self._directory.path} is closed")
        if self._room.overtaken:
            lost, self._room.overtaken = self._room.overtaken, 0
            raise Overtaken(self._directory.path, lost)
        if self._losses.waiting:
            damage = self._losses.next_pending()
            if damage is not None:
                raise Damaged(damage)

    def _take_next(self, segments: SegmentList, end: End, count: int) -> EventBatch | Lost | None:
        """Delivers what comes next. If it is interrupted, the next call finds the same again."""
        start = self._cursor.place
        delivery: Delivery | None = None
        batch: EventBatch | None = None
        try:
            item = self._cursor.take(segments, end, count)
            if isinstance(item, Taken):
                delivery = Delivery(item.start, item.end, item.counts)
                batch = EventBatch(item.events, delivery, self)
            with self._writer.lock:
                self._notes += self._cursor.notes
                self.damage += self._cursor.notes
                self._cursor.notes.clear()
                if isinstance(item, Lost):
                    return item
                if delivery is None:
                    if self._cursor.place != start:
                        self._deliveries.skip(start, self._cursor.place)
                    return None
                self._deliveries.add(delivery)
                return batch
        except BaseException:
            self._take_back(delivery, start)
            raise

    def _take_back(self, delivery: Delivery | None, start: Place) -> None:
        """Makes the next call find what was taken and not delivered."""
        with self._writer.lock:
            if delivery is not None and self._deliveries.is_out(delivery):
                self._deliveries.give_back(delivery)
            else:
                self._cursor.move_to(start)

    def _is_told(self, item: Lost) -> bool:
        """Records a loss; says whether to raise it."""
        with self._writer.lock:
            if item.start.segment < self._deliveries.place.segment:
                # It was dropped to make room while it was being read.
                return False
            told = self._losses.note(item.damage)
            self.damage.append(item.damage)
            if item.end.segment > item.start.segment or item.damage.reason.startswith(UNREADABLE):
                # The content was never read: another program, or another disk, may read it.
                self._room.unseen.add(item.start.segment)
            self._deliveries.skip(item.start, item.end)
            return told

    def _save_losses(self) -> None:
        # If the record cannot be saved now, it is saved before the segment is removed.
        with contextlib.suppress(OSError), self._writer.lock:
            self._losses.save()

    def _tell_notes(self) -> None:
        """Logs the notes on harmless damage; no lock is held."""
        while self._notes:
            note = self._notes.pop(0)
            _logger.warning("%s, byte %d: %s", note.path, note.position, note.reason)
        self.log()

    def _deliver_again(
        self, returned: Delivery, segments: SegmentList, end: End, count: int
    ) -> EventBatch | None:
        cursor = EventCursor(self._directory, self._access, returned.start)
        events: list[Event] = []
        counts: dict[int, int] = {}
        last = returned.start
        wanted = min(count, returned.count)
        try:
            while len(events) < wanted and cursor.place < returned.end:
                item = cursor.take(segments, end, wanted - len(events))
                if isinstance(item, Lost):
                    if events:
                        break
                    self._lose_again(returned, item)
                    wanted = min(wanted, returned.count)
                elif item is None:
                    break
                else:
                    events += item.events
                    last = item.end
                    for segment, number in item.counts.items():
                        counts[segment] = counts.get(segment, 0) + number
            with self._writer.lock:
                if not events:
                    self._deliveries.acknowledge(returned)
                    return None
                self._deliveries.split(returned, last, counts)
                return EventBatch(events, returned, self)
        except BaseException:
            with self._writer.lock:
                self._deliveries.give_back(returned)
            raise
        finally:
            cursor.close()

    def _lose_again(self, returned: Delivery, item: Lost) -> None:
        """Raises damage in events that were delivered before, if it was not raised then."""
        with self._writer.lock:
            if not self._losses.note(item.damage):
                return
            self.damage.append(item.damage)
            segment = item.start.segment
            whole = item.end.segment > segment
            lost = None if whole else item.damage.count or 1
            self._deliveries.lose(returned, segment, lost)
        self._save_losses()
        raise item.error
