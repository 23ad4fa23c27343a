"""Reads an event queue without owning it: no lock, nothing written, dead or alive.

Sees what is in the files at the moment of `refresh`, by the same rules as recovery; while an owner
with `sync="always"` is at work, or with `durable_only=True`, only what is durable. Damage raises
`Damaged`, or, with `salvage=True`, is counted in `damage` and read round. A missing or wrong key
always raises.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from forebay.errors import Damaged, ForebayError, NotAQueue, UndecodableEvent, WrongKey
from forebay.formats.beats import FRAME_BYTES
from forebay.formats.beats_events import Event, decode_event
from forebay.formats.beats_versions import Dialect, Header
from forebay.frames import Damage
from forebay.queues.directory_reader import DirectoryReader
from forebay.queues.event_keys import read_key
from forebay.queues.event_names import MARK_NAME, is_event_queue
from forebay.queues.event_recovery import (
    is_being_made,
    is_unfinished,
    open_newest,
)
from forebay.queues.event_segments import Access, EventSegment, list_event_segments
from forebay.queues.event_state import find_place, read_state
from forebay.queues.places import Place
from forebay.storage.filesystem import Filesystem
from forebay.storage.segments import SegmentList
from forebay.storage.tail import Tail


@dataclass(frozen=True, slots=True)
class Payloads:
    """Events as they lie one behind the other in a segment, not decoded yet.

    `positions` are those of the frames, logical; `header` is that of the segment.
    """

    segment: int
    path: str
    header: Header
    index: int
    positions: list[int]
    payloads: list[bytes]
    end_position: int

    def part(self, start: int, stop: int) -> Payloads:
        """Gives those with an index from `start` up to `stop`."""
        first, last = max(start - self.index, 0), min(stop - self.index, len(self.payloads))
        if first == 0 and last == len(self.payloads):
            return self
        end = self.positions[last] if last < len(self.payloads) else self.end_position
        return replace(
            self,
            index=self.index + first,
            positions=self.positions[first:last],
            payloads=self.payloads[first:last],
            end_position=end,
        )


class EventReader(DirectoryReader):
    """A view of an event queue's directory. One thread at a time may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        salvage: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        dialect: Dialect | None = None,
        durable_only: bool = False,
        filesystem: Filesystem | None = None,
    ) -> None:
        self._access = Access(read_key(key_file), dialect)
        self._durable_only = durable_only
        super().__init__(path, salvage=salvage, filesystem=filesystem)

    def refresh(self) -> None:
        """Looks again at what is there."""
        # The mark before the files: what it promises is in them then.
        self.tail: Tail | None = self._read_tail(MARK_NAME)
        if not is_event_queue(self._directory.names()):
            raise NotAQueue(f"{self.path} is not an event queue: it has no segments and no state")
        self.segments: SegmentList = list_event_segments(self._directory)
        self.state, self.state_damage = read_state(self._directory)

    def read_mark(self) -> Tail | None:
        """Gives what the mark says now; None if there is none, as in what Beats writes."""
        return self._tail_file.read() if self._tail_file is not None else None

    def place(self) -> Place:
        """Gives the first frame that is not acknowledged."""
        place = find_place(self._directory, self.segments, self.state, self._access)
        return place or Place(0)

    def scan(self, *, unread: bool = False) -> Iterator[Payloads | Damage]:
        """Gives the events as bytes and, in its place, each damage; `unread`: from the place on."""
        start = self.place() if unread else Place(0)
        for segment_id in list(self.segments.bases):
            if segment_id >= start.segment:
                yield from self.scan_segment(segment_id, start)

    def scan_segment(
        self, segment_id: int, start: Place | None = None
    ) -> Iterator[Payloads | Damage]:
        """Gives the events of one segment, from a place on if that lies in it."""
        segment = self.open_segment(segment_id)
        if segment is None or isinstance(segment, Damage):
            if segment is not None:
                yield segment
            return
        try:
            if segment.header.repaired:
                reason = "the header was damaged; its frames tell what it is"
                yield Damage(segment.path, 0, segment.start.position, reason, False, None, 0)
            yield from self._walk(segment, start or Place(0))
        finally:
            segment.close()

    def open_segment(self, segment_id: int) -> EventSegment | Damage | None:
        """Opens a segment, up to where it may be read; None if it is gone by now."""
        if is_being_made(segment_id, self.tail):
            return None
        name = self.segments.names[segment_id]
        path = f"{self.path}/{name}"
        try:
            return open_newest(
                self._directory,
                segment_id,
                name,
                self._access,
                self.tail,
                trusted=self._is_trusted(),
                durable_only=self._durable_only,
            )
        except FileNotFoundError:
            return None
        except Damaged as error:
            newest = segment_id == self.segments.bases[-1]
            return replace(error.damage, torn=error.damage.torn and newest)
        except WrongKey:
            raise
        except ForebayError as error:
            if not self.salvage:
                raise
            return Damage(path, 0, self.size_of(name), str(error).removeprefix(f"{path}: "))

    def size_of(self, name: str) -> int:
        """Gives how many bytes the file of a segment has; 0 if it is gone by now."""
        try:
            file = self._directory.open(name)
        except FileNotFoundError:
            return 0
        size = file.size()
        file.close()
        return size

    def events(self, *, unread: bool = False) -> Iterator[Event]:
        """Gives events one by one; damage raises, or is counted and passed over."""
        for item in self.scan(unread=unread):
            if isinstance(item, Damage):
                self._meet(item)
                continue
            for number, payload in enumerate(item.payloads):
                try:
                    yield decode_event(payload)
                except UndecodableEvent as error:
                    self._meet_undecodable(item, number, error)

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def __repr__(self) -> str:
        return f"<EventReader {self.path} {len(self.segments.bases)} segments>"

    def _is_trusted(self) -> bool:
        """Says whether what lies behind the mark may be seen: not if it is not durable yet."""
        tail = self.tail
        if tail is None or tail.boot_id != self._filesystem.boot_id():
            return False
        return tail.written != tail.durable

    def _walk(self, segment: EventSegment, start: Place) -> Iterator[Payloads | Damage]:
        unfinished = is_unfinished(segment.id, self.tail)
        place = start if start.segment == segment.id else segment.start
        expected = 0 if unfinished else segment.header.count
        for item in segment.scan(place, expected):
            if not isinstance(item, Damage):
                sizes = segment.stored_sizes(item)
                sizes = sizes or [len(value) + FRAME_BYTES for value in item.values]
                positions = [item.position]
                for size in sizes[:-1]:
                    positions.append(positions[-1] + size)
                yield Payloads(
                    segment.id,
                    segment.path,
                    segment.header,
                    item.index,
                    positions,
                    item.values,
                    item.end_position,
                )
            elif unfinished and self.tail is not None and item.position >= self.tail.position:
                # Above the durable mark the first bad frame ends the queue, whatever follows it.
                yield replace(segment.in_file(item), torn=True, count=None)
                return
            else:
                yield segment.in_file(item)

    def _meet(self, damage: Damage) -> None:
        # An unfinished end and a false count cost nothing that is known to have been there.
        if damage.torn or not damage.length:
            self.damage.append(damage)
        else:
            super()._meet(damage)

    def _meet_undecodable(self, item: Payloads, number: int, error: UndecodableEvent) -> None:
        damage = undecodable(item, number, error)
        if not self.salvage:
            raise UndecodableEvent(f"{item.path}, position {damage.position}: {error}")
        self.damage.append(damage)


def undecodable(item: Payloads, number: int, error: UndecodableEvent) -> Damage:
    """Gives the damage of a frame that verifies and holds no event."""
    size = len(item.payloads[number]) + FRAME_BYTES
    index = item.index + number
    return Damage(item.path, item.positions[number], size, str(error), False, index, 1)
