"""The room that a Beats queue takes: saving the place, removing old segments, the bound.

Order: first the place is durable, then the files are removed, then the directory is synced. The
newest segment always stays: its number determines the next one, also for Beats.
"""

from __future__ import annotations

import contextlib

from forebay.errors import ForebayError, Full
from forebay.queues.beats.deliveries import Deliveries, Delivery
from forebay.queues.beats.options import BeatsOptions
from forebay.queues.beats.place import Place
from forebay.queues.beats.recovery import measure_segment
from forebay.queues.beats.segments import Access, EventSegment
from forebay.queues.beats.state import StateFile
from forebay.queues.beats.writer import BeatsWriter
from forebay.storage import quarantine
from forebay.storage.atomic import keep_reserve
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Losses


class Room:
    """Removes whole segments. Called with the queue's lock held, except `acknowledge`."""

    def __init__(
        self,
        directory: Directory,
        writer: BeatsWriter,
        deliveries: Deliveries,
        state: StateFile,
        losses: Losses,
        access: Access,
        options: BeatsOptions,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._deliveries = deliveries
        self._state = state
        self._losses = losses
        self._access = access
        self._options = options
        self.dropped_events = 0
        # How many of them have not been reported to a reader yet.
        self.overtaken = 0
        # To be logged when the lock is released: a log handler may put events itself.
        self.messages: list[str] = []
        # Whether the place is being saved while the queue's lock is free.
        self._saving = False
        # Segments that were skipped unread: they are kept in quarantine.
        self.unseen: set[int] = set()

    def settle(self) -> int:
        """Saves the place and removes the segments below it; returns how many it removed."""
        named = self._named(self._deliveries.place)
        if named is None:
            return 0
        self._state.save(named)
        return self._remove_below(named.segment)

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledges events, durably, and removes the segments below the new place.

        Called with the lock of the place held; the queue's lock is free while the disk works.
        """
        try:
            with self._writer.lock:
                self._writer.check()
                reached = map(self._named, reversed(self._deliveries.reach(delivery)))
                # A place past the newest segment cannot be saved: take the last one that can be.
                place = next(filter(None, reached), None)
                content = None if place is None else self._state.begin(place)
                self._saving = content is not None
            self._state.write(content)
            with self._writer.lock:
                if place is not None:
                    self._state.end(place, content)
                self._deliveries.acknowledge(delivery)
                self._remove()
        finally:
            self._saving = False

    def restore(self) -> None:
        """Writes the place again if the saved one may be past it.

        That happens if the last save failed half way, or if an interrupt came before the events
        below the saved place were counted as acknowledged.
        """
        place, saved = self._deliveries.place, self._state.place
        if not self._state.is_known or (saved is not None and saved > place):
            named = self._named(place)
            if named is not None:
                self._state.save(named)

    def count_dropped(self, count: int) -> None:
        """Counts events that were dropped unread."""
        self.dropped_events += count
        self.overtaken += count

    def make_room(self, size: int) -> bool:
        """Removes acknowledged segments, or drops if that is the policy; says if anything changed.

        Raises `Full` if the policy is not to wait for room.
        """
        # A thread that is saving the place announces the end of that: there may be room then.
        if not self._saving:
            if self.settle():
                return True
            if self._options.when_full == "drop_oldest":
                return self._drop()
        if self._options.when_full == "reject":
            raise Full(
                f"{self._directory.path} holds {self._writer.used_bytes} bytes of "
                f"max_bytes = {self._options.max_bytes}; {size} more were not written"
            )
        return False

    def unread(self) -> int:
        """Returns how many events are not acknowledged; reads segments that were not counted."""
        place, active = self._deliveries.place, self._writer.active_id
        finished = [base for base in self._writer.segments.bases if base != active]
        count = self._writer.active_events
        count += sum(self._count(base) for base in finished if base >= place.segment)
        return count - (place.frame_index if place.segment == active else 0)

    def _remove(self) -> None:
        """Removes the segments below the place that was saved.

        Segments that cannot be removed now are removed later: no caller waits for that.
        """
        place, saved = self._named(self._deliveries.place), self._state.place
        if place is None or saved is None:
            return
        try:
            # The place may be past the saved one: a reader may have passed lost events meanwhile.
            self._remove_below(min(place.segment, saved.segment))
        except OSError as error:
            self.messages.append(f"{self._directory.path}: segments stay for now: {error}")

    def _write_pending(self) -> bool:
        try:
            return self._writer.write_pending()
        except OSError:
            # It is tried again later: until then there is no room.
            self._writer.check()
            return False

    def _named(self, place: Place) -> Place | None:
        """Returns the place to save: in an existing segment, and past the ends of finished ones."""
        segments, last = self._writer.segments, self._writer.readable.segment
        missing = self._writer.missing
        while place.segment not in segments.names or self._is_end(place):
            following = segments.after(place.segment)
            # Not past a missing segment before that was reported to a reader.
            if following is None or following > last or following in missing:
                break
            place = Place(following)
        there = place.segment in segments.names and place.segment not in missing
        return place if there else None

    def _is_end(self, place: Place) -> bool:
        end = self._writer.ends.get(place.segment)
        return end is not None and place.position >= end

    def _remove_below(self, segment_id: int) -> int:
        segments = self._writer.segments
        doomed = [base for base in segments.bases if base < segment_id]
        if doomed:
            # Losses in them must be on record before they are removed.
            self._losses.save()
        for base in doomed:
            with contextlib.suppress(FileNotFoundError):
                self._take_away(base, segments.names[base])
            segments.drop_first(1)
            self._writer.forget(base)
        if doomed:
            # Without the sync, a segment could come back after a power cut and be read again.
            self._directory.sync()
            keep_reserve(self._directory)
            self._writer.changes.announce()
        return len(doomed)

    def _take_away(self, segment_id: int, name: str) -> None:
        """Removes a segment; one that could not be read goes to quarantine."""
        if segment_id in self.unseen:
            quarantine.keep_file(self._directory, name)
            return
        if segment_id not in self._writer.ends:
            try:
                EventSegment(self._directory, segment_id, name, self._access, None).close()
            except ForebayError:
                quarantine.keep_file(self._directory, name)
                return
        self._directory.unlink(name)

    def _drop(self) -> bool:
        if len(self._writer.segments.bases) > 1:
            return self._drop_oldest()
        # Pending events take the room: write them to the files first.
        return self._write_pending()

    def _drop_oldest(self) -> bool:
        oldest, following = self._writer.segments.bases[:2]
        if following > self._writer.readable.segment:
            # The place may only name a segment that has durable events in it.
            self._write_pending()
            self._writer.sync_now()
            if following > self._writer.readable.segment:
                return False
        lost = self._deliveries.unread_in(oldest, self._count(oldest))
        self._state.save(Place(following))
        self._deliveries.drop_below(following)
        self._remove_below(following)
        self.count_dropped(lost)
        path = self._directory.path
        self.messages.append(f"{path} is full: the {lost} oldest events were dropped")
        return True

    def _count(self, segment_id: int) -> int:
        """Returns how many events of a segment are not acknowledged, as far as it can be read."""
        name = self._writer.segments.names[segment_id]
        done = self._deliveries.place
        held = self._access.held.get(segment_id)
        count = held.events if held is not None else None
        if count is None:
            try:
                segment = EventSegment(self._directory, segment_id, name, self._access, None)
            except (ForebayError, FileNotFoundError):
                return 0
            try:
                count = measure_segment(segment, None).count
            finally:
                segment.close()
        return max(0, count - (done.frame_index if done.segment == segment_id else 0))
