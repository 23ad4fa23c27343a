"""How events get out of an event queue: handed out in batches, settled in any order.

Reading of the disk is done under a lock of its own, so that it does not hold up those who put.
"""

from __future__ import annotations

import threading

from forebay.errors import Overtaken
from forebay.formats.beats_events import Event
from forebay.frames import Damage
from forebay.queues.deliveries import Deliveries, Delivery
from forebay.queues.event_batch import EventBatch
from forebay.queues.event_cursor import EventCursor, Lost
from forebay.queues.event_room import Room
from forebay.queues.event_segments import Access
from forebay.queues.event_writer import EventWriter
from forebay.queues.places import End
from forebay.storage.filesystem import Directory
from forebay.storage.segments import SegmentList


class Reading:
    """The events of a queue that are to be handed out. Any thread may call it."""

    def __init__(
        self,
        directory: Directory,
        writer: EventWriter,
        deliveries: Deliveries,
        room: Room,
        access: Access,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._deliveries = deliveries
        self._room = room
        self._access = access
        self._mutex = threading.Lock()
        self._cursor = EventCursor(directory, access, deliveries.place)
        self.damage: list[Damage] = []

    def deliver(self, count: int) -> EventBatch | None:
        """Hands out up to `count` events; None if there are none now. Raises what is lost, once."""
        with self._mutex:
            while True:
                try:
                    return self._deliver(count)
                except FileNotFoundError:
                    # Dropped to make room while it was being read: the next look tells.
                    with self._writer.lock:
                        if self._cursor.place.segment in self._writer.segments.names:
                            raise

    def settle(self, delivery: Delivery, acknowledged: bool) -> None:
        """Takes events as done with, or back."""
        if acknowledged and not self._is_durable(delivery):
            # A saved place must not point at events that a power cut could still take.
            self._writer.sync()
        with self._writer.lock:
            self._writer.check()
            if acknowledged:
                self._deliveries.acknowledge(delivery)
                self._room.settle()
            else:
                self._deliveries.give_back(delivery)
            self._writer.changes.announce()

    def close(self) -> None:
        """Closes its files."""
        with self._mutex:
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
        with self._writer.lock:
            self._writer.check()
            if self._room.overtaken:
                lost, self._room.overtaken = self._room.overtaken, 0
                raise Overtaken(self._directory.path, lost)
            end, segments = self._writer.readable, self._writer.segments.copy()
            returned = self._deliveries.take_returned()
            place = self._deliveries.place
        if returned is not None:
            return self._deliver_again(returned, segments, end, count)
        if self._cursor.place < place:
            self._cursor.move_to(place)
        start = self._cursor.place
        item = self._cursor.take(segments, end, count)
        with self._writer.lock:
            self.damage += self._cursor.notes
            self._cursor.notes.clear()
            if item is None:
                if self._cursor.place != start:
                    self._deliveries.skip(start, self._cursor.place)
                return None
            if isinstance(item, Lost):
                self.damage.append(item.damage)
                self._deliveries.skip(item.start, item.end)
                raise item.error
            delivery = self._deliveries.add(item.start, item.end, len(item.events))
            return EventBatch(item.events, delivery, self.settle)

    def _deliver_again(
        self, returned: Delivery, segments: SegmentList, end: End, count: int
    ) -> EventBatch | None:
        cursor = EventCursor(self._directory, self._access, returned.start)
        events: list[Event] = []
        wanted = min(count, returned.count)
        try:
            while len(events) < wanted:
                item = cursor.take(segments, end, wanted - len(events))
                if item is None:
                    break
                # What is lost in between was told when the events were handed out first.
                events += item.events if not isinstance(item, Lost) else []
        except BaseException:
            with self._writer.lock:
                self._deliveries.give_back(returned)
            raise
        finally:
            cursor.close()
        with self._writer.lock:
            if not events:
                self._deliveries.acknowledge(returned)
                return None
            self._deliveries.split(returned, cursor.place, len(events))
            return EventBatch(events, returned, self.settle)
