"""How events get out of an event queue: handed out in batches, settled in any order.

Reading of the disk is done under a lock of its own, so that it does not hold up those who put.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from forebay.errors import Closed, Damaged, LeaseLost, Overtaken
from forebay.formats.beats_events import Event
from forebay.frames import Damage
from forebay.queues.deliveries import Deliveries, Delivery
from forebay.queues.event_batch import EventBatch
from forebay.queues.event_cursor import EventCursor, Lost, Taken
from forebay.queues.event_room import Room
from forebay.queues.event_segments import UNREADABLE, Access
from forebay.queues.event_writer import EventWriter
from forebay.queues.places import End, Place
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses
from forebay.storage.segments import SegmentList

_logger = logging.getLogger(__name__)


class Reading:
    """The events of a queue that are to be handed out. Any thread may call it."""

    def __init__(
        self,
        directory: Directory,
        writer: EventWriter,
        deliveries: Deliveries,
        room: Room,
        losses: Losses,
        access: Access,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._deliveries = deliveries
        self._room = room
        self._losses = losses
        self._access = access
        self._mutex = threading.Lock()
        self._closed = False
        self._cursor = EventCursor(directory, access, deliveries.place)
        self._notes: list[Damage] = []
        self.damage: list[Damage] = []

    def deliver(self, count: int) -> EventBatch | None:
        """Hands out up to `count` events; None if there are none now. Raises what is lost, once."""
        try:
            with self._mutex:
                return self._deliver(count)
        finally:
            self._tell_notes()

    def settle(self, delivery: Delivery, acknowledged: bool) -> None:
        """Takes events as done with, or back. If it raises an error, they are still handed out.

        What is done with is not taken back: that raises `LeaseLost`.
        """
        if acknowledged and delivery.done:
            return
        if acknowledged and not self._is_durable(delivery):
            # A saved place must not point at events that a power cut could still take.
            self._writer.sync()
        with self._writer.lock:
            self._writer.check()
            if acknowledged:
                self._room.save(self._deliveries.reach(delivery))
                self._deliveries.acknowledge(delivery)
                self._room.remove()
            else:
                if delivery.done:
                    raise LeaseLost(f"{self._directory.path}: these events are acknowledged")
                self._room.restore()
                self._room.count_dropped(self._deliveries.give_back(delivery))
            self._writer.changes.announce()
        self.log()

    def log(self) -> None:
        """Logs what happened under the lock. Called without it: a handler may use the queue."""
        while self._room.messages:
            _logger.warning("%s", self._room.messages.pop(0))

    def close(self) -> None:
        """Closes its files; nothing is handed out any more."""
        with self._mutex:
            self._closed = True
            self._cursor.close()

    def abandon(self) -> None:
        """Gives up the lock of the parent, in the child of a fork."""
        self._mutex = threading.Lock()

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
            # Dropped to make room while it was being read: the next look tells.
            if self._is_told(item):
                self._save_losses()
                raise item.error

    def _check(self) -> None:
        """Raises what is to be told before anything is handed out. Lock held."""
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
        """Hands out what comes next. Interrupted anywhere, the next call finds it again."""
        start = self._cursor.place
        delivery: Delivery | None = None
        batch: EventBatch | None = None
        try:
            item = self._cursor.take(segments, end, count)
            if isinstance(item, Taken):
                delivery = Delivery(item.start, item.end, item.counts)
                batch = EventBatch(item.events, delivery, self.settle)
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
        """Lets the next call find what was taken and not handed out."""
        with self._writer.lock:
            if delivery is not None and self._deliveries.is_out(delivery):
                self._deliveries.give_back(delivery)
            else:
                self._cursor.move_to(start)

    def _is_told(self, item: Lost) -> bool:
        """Takes note of what is lost; says whether to raise it."""
        with self._writer.lock:
            if item.start.segment < self._deliveries.place.segment:
                # Dropped to make room while it was being read.
                return False
            told = self._losses.note(item.damage)
            self.damage.append(item.damage)
            if item.end.segment > item.start.segment or item.damage.reason.startswith(UNREADABLE):
                # Nobody has seen what is in it: another program, or another disk, may.
                self._room.unseen.add(item.start.segment)
            self._deliveries.skip(item.start, item.end)
            return told

    def _save_losses(self) -> None:
        # What cannot be written down now is before its segment goes.
        with contextlib.suppress(OSError), self._writer.lock:
            self._losses.save()

    def _tell_notes(self) -> None:
        """Logs what costs nothing and is worth telling; no lock is held."""
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
                return EventBatch(events, returned, self.settle)
        except BaseException:
            with self._writer.lock:
                self._deliveries.give_back(returned)
            raise
        finally:
            cursor.close()

    def _lose_again(self, returned: Delivery, item: Lost) -> None:
        """Raises damage in what was handed out before, if it was not told then."""
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
