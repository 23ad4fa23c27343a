"""The room that an event queue takes: saving the place, removing what is done with, the bound.

Called with the queue's lock held. Order: the place is durable, then the files go, then the
directory is synced. The newest segment always stays: numbers go on from it, also for Beats.
"""

from __future__ import annotations

import contextlib
import logging

from forebay.errors import ForebayError, Full
from forebay.queues.deliveries import Deliveries
from forebay.queues.event_recovery import measure_segment
from forebay.queues.event_segments import Access, EventSegment
from forebay.queues.event_state import StateFile
from forebay.queues.event_writer import EventWriter
from forebay.queues.options import EventOptions
from forebay.queues.places import Place
from forebay.storage.atomic import keep_reserve
from forebay.storage.filesystem import Directory

_logger = logging.getLogger(__name__)


class Room:
    """Takes whole segments away."""

    def __init__(
        self,
        directory: Directory,
        writer: EventWriter,
        deliveries: Deliveries,
        state: StateFile,
        access: Access,
        options: EventOptions,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._deliveries = deliveries
        self._state = state
        self._access = access
        self._options = options
        self.dropped_events = 0
        # Those of them that no reader was told of yet.
        self.overtaken = 0

    def settle(self) -> int:
        """Saves the place and removes the segments below it; gives how many."""
        place = self._named_place()
        if place is None:
            return 0
        self._state.save(place)
        return self._remove_below(place.segment)

    def make_room(self, size: int) -> None:
        """Waits, refuses or drops until `size` bytes may be written."""
        limit = self._options.max_bytes
        if limit is None:
            return
        while self._writer.used_bytes + size > limit:
            if self.settle():
                continue
            if self._options.when_full == "reject":
                raise Full(
                    f"{self._directory.path} holds {self._writer.used_bytes} bytes of "
                    f"max_bytes = {limit}; nothing was written"
                )
            if self._options.when_full == "drop_oldest" and len(self._writer.segments.bases) > 1:
                self._drop_oldest()
            elif self._options.when_full == "drop_oldest":
                # What waits to be written holds the room: it goes to the files first.
                self._writer.write_pending()
                self._writer.changes.wait(0.001)
            else:
                self._writer.changes.wait(0.05)
            self._writer.check()

    def _named_place(self) -> Place | None:
        """Gives the place to save: in a segment that is there, past the ends of finished ones."""
        place = self._deliveries.place
        segments, last = self._writer.segments, self._writer.readable.segment
        while place.segment not in segments.names or self._is_end(place):
            following = segments.after(place.segment)
            if following is None or following > last:
                break
            place = Place(following)
        return place if place.segment in segments.names else None

    def _is_end(self, place: Place) -> bool:
        end = self._writer.ends.get(place.segment)
        return end is not None and place.position >= end

    def _remove_below(self, segment_id: int) -> int:
        segments = self._writer.segments
        doomed = [base for base in segments.bases if base < segment_id]
        for base in doomed:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(segments.names[base])
            segments.drop_first(1)
            self._writer.ends.pop(base, None)
        if doomed:
            self._directory.sync()
            keep_reserve(self._directory)
            self._writer.changes.announce()
        return len(doomed)

    def _drop_oldest(self) -> None:
        oldest, following = self._writer.segments.bases[:2]
        if following > self._writer.readable.segment:
            # The place may only name a segment that has events in it, durably.
            self._writer.write_pending()
            self._writer.sync_now()
        lost = self._count(oldest)
        self._deliveries.drop_below(following)
        self._state.save(Place(following))
        self._remove_below(following)
        self.dropped_events += lost
        self.overtaken += lost
        path = self._directory.path
        _logger.warning("%s is full: the %d oldest events were dropped", path, lost)

    def _count(self, segment_id: int) -> int:
        """Gives how many events of a segment were not acknowledged, as far as it can be read."""
        name = self._writer.segments.names[segment_id]
        done = self._deliveries.place
        try:
            segment = EventSegment(self._directory, segment_id, name, self._access, None)
        except ForebayError:
            return 0
        try:
            count = measure_segment(segment, None).count
        finally:
            segment.close()
        return max(0, count - (done.frame_index if done.segment == segment_id else 0))
