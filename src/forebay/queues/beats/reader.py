"""Reads a Beats queue without owning it: takes no lock, writes nothing, whether in use or not.

Sees what is in the files at the moment of `refresh`, by the same rules as recovery; but only what
is durable while an owner with `sync="always"` is at work, or with `durable_only=True`. Damage
raises `Damaged`; with `salvage=True` it is added to `damage` and skipped. Then a segment of another
key or of an unknown version counts as damage too, unless no segment can be read because of the key:
then `WrongKey` is raised. If the owner removes what is being read, `Overtaken` is raised, or,
before the first event, the reader begins again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, NotAQueue, Overtaken, UndecodableEvent, WrongKey
from forebay.formats.beats.events import Event, decode_event
from forebay.formats.beats.frames import FRAME_BYTES
from forebay.formats.beats.versions import Dialect, Header
from forebay.queues.beats.access import read_key
from forebay.queues.beats.contents import Held
from forebay.queues.beats.mark import Mark, MarkFile
from forebay.queues.beats.names import MARK_NAME, is_beats_queue
from forebay.queues.beats.place import Place
from forebay.queues.beats.recovery import Found, is_being_made, is_unfinished, open_newest
from forebay.queues.beats.segments import Access, EventSegment, damage_of, is_harmless
from forebay.queues.beats.state import find_place, first_of
from forebay.queues.shared.reader import DirectoryReader
from forebay.storage.readable import Stores, unopenable
from forebay.storage.segments import SegmentList

# How many times a reader looks again if an owner changes the queue between two looks.
_LOOKS_MAX = 100


@dataclass(frozen=True, slots=True)
class Payloads:
    """Consecutive events of a segment, not decoded yet.

    `positions` are the logical positions of the frames; `header` is that of the segment.
    """

    segment: int
    path: str
    header: Header
    index: int
    positions: list[int]
    payloads: list[bytes]
    end_position: int

    def part(self, start: int, stop: int) -> Payloads:
        """Returns the events with an index from `start` up to `stop`."""
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


class BeatsReader(DirectoryReader):
    """A view of a Beats queue's directory. One thread at a time may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        salvage: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        dialect: Dialect | None = None,
        durable_only: bool = False,
        filesystem: Stores | None = None,
    ) -> None:
        self._access = Access(read_key(key_file), dialect)
        self._durable_only = durable_only
        self._mark_file: MarkFile | None = None
        self._gone: int | None = None
        self.side_damage: list[Damage] = []
        self.missing: dict[int, Held] = {}
        self._readable: bool | None = None
        super().__init__(path, salvage=salvage, filesystem=filesystem)

    def refresh(self) -> None:
        """Reads the present state of the queue again."""
        for _ in range(_LOOKS_MAX):
            mark = self._look()
            now = self.read_mark()
            self._forget_removed(now)
            # What an owner did between the single looks could look like damage.
            if self._is_settled() or self._with_live(now) == mark:
                break

    def _forget_removed(self, now: Mark | None) -> None:
        """Drops from `missing` the segments that the owner has removed since the mark was read.

        The owner saves the place before it removes what is below. An owner that changes the mark
        during every look must not cause a false alarm.
        """
        if now is not None and now.places is not None:
            begin = first_of(now.places[0])
            self.missing = {base: held for base, held in self.missing.items() if base >= begin}

    def _is_settled(self) -> bool:
        """Says whether the mark and the names belong together, as far as that matters."""
        mark, bases = self.tail, self.segments.bases
        # With a segment newer than the mark, only a part of the segment before would be seen.
        newer = mark is not None and bool(bases) and bases[-1] > mark.segment
        return not (newer or self.side_damage or self.missing)

    def _look(self) -> Mark | None:
        """Looks once; returns the mark that was read first."""
        self.side_damage = []
        # Read the mark before the files: then what it promises is in them.
        self.tail: Mark | None = self.read_mark()
        if not is_beats_queue(self._directory.names()):
            raise NotAQueue(f"{self.path} is not a Beats queue: it has no segments and no state")
        access = replace(self._access, held={})
        mark = self._with_live(self.tail)
        found = Found.look(self._filesystem, self._directory, mark, access)
        self.tail = found.mark
        self._access = found.access
        self.segments: SegmentList = found.segments
        _, self.state, damage = found.read_state()
        self.missing = found.missing(found.access.held, self.state)
        self.side_damage += [damage] if damage is not None else []
        return mark

    def _with_live(self, mark: Mark | None) -> Mark | None:
        """Returns the mark with the end of what is written, if that may be seen."""
        file = self._mark_file
        if mark is None or file is None or self._durable_only:
            return mark
        return file.with_live(mark) if mark.boot_id == self._filesystem.boot_id() else mark

    @property
    def numbers(self) -> list[int]:
        """The numbers of all segments, including those that are on record but missing."""
        return sorted({*self.segments.bases, *self.missing})

    def read_mark(self) -> Mark | None:
        """Returns the present mark; None if there is none, as in a directory that Beats wrote."""
        try:
            if self._mark_file is None:
                self._mark_file = MarkFile.open(self._directory, write=False)
            return self._mark_file.read() if self._mark_file is not None else None
        except (OSError, ForebayError) as error:
            path = f"{self.path}/{MARK_NAME}"
            if isinstance(error, Damaged):
                damage = error.damage
            elif isinstance(error, OSError | NotAQueue):
                damage = unopenable(path, error)
            else:
                raise
            self.side_damage.append(replace(damage, count=0))
            return None

    def place(self) -> Place:
        """Returns the first frame that is not acknowledged."""
        place, damage = find_place(self._directory, self.segments, self.state, self._access)
        if damage is not None and damage not in self.side_damage:
            self.side_damage.append(damage)
        return place or Place(0)

    def close(self) -> None:
        """Closes its files."""
        if self._mark_file is not None:
            self._mark_file.close()
        super().close()

    def scan(self, *, unread: bool = False) -> Iterator[Payloads | Damage]:
        """Yields events as bytes, and damage between them; `unread`: only those from the place on.

        Raises `Overtaken` if segments were removed that were to come next.
        """
        begun = False
        for _ in range(_LOOKS_MAX):
            start = self._start() if unread else Place(0)
            last = -1
            for segment_id in self.numbers:
                if segment_id < start.segment:
                    continue
                last = segment_id
                for item in self.scan_segment(segment_id, start):
                    begun = begun or isinstance(item, Payloads)
                    yield item
                if self._is_gone(segment_id):
                    break
            else:
                return
            if begun:
                held = self._access.held.get(last)
                count = held.events if held is not None else None
                raise Overtaken(self.path, count or 1, exact=count is not None)
            # Nothing was yielded yet: begin again with the segments that are left.
            self.refresh()
        raise Overtaken(self.path, 1, exact=False)

    def _is_gone(self, segment_id: int) -> bool:
        """Says whether a listed segment was removed before it could be opened."""
        gone, self._gone = self._gone, None
        return gone == segment_id

    def scan_segment(
        self, segment_id: int, start: Place | None = None
    ) -> Iterator[Payloads | Damage]:
        """Yields the events of one segment, from a place on if that is in it."""
        if segment_id in self.missing:
            yield self._missing_damage(segment_id, start or Place(0))
            return
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
        """Opens a segment, up to where it may be read; returns None if it is gone."""
        if is_being_made(segment_id, self.tail, self._access.held):
            return None
        name = self.segments.names[segment_id]
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
            self._gone = segment_id
            return None
        except ForebayError as error:
            if not isinstance(error, Damaged) and (
                not self.salvage or (isinstance(error, WrongKey) and not self._can_read_some())
            ):
                raise
            return self._damage_of(segment_id, error)

    def _damage_of(self, segment_id: int, error: ForebayError) -> Damage:
        """Returns the damage of a whole segment."""
        name = self.segments.names[segment_id]
        held = self._access.held.get(segment_id)
        if held is None and self.is_unfinished(segment_id):
            # The mark promises what was durable in it.
            held = Held(self.tail.events, 0) if self.tail is not None and self.tail.events else None
        newest = segment_id == self.segments.bases[-1]
        damage = damage_of(error, f"{self.path}/{name}", held, newest=newest)
        return replace(damage, length=damage.length or self.size_of(name), offset=0)

    def _start(self) -> Place:
        """Returns where the unacknowledged events begin, those of missing segments included."""
        place, state = self.place(), self.state
        first = min(self.missing, default=None)
        if first is None or (self.segments.bases and first > place.segment):
            return place
        if state is not None and state.segment_id == first:
            return Place(first, state.byte_index, state.frame_index or 0)
        return Place(first)

    def _missing_damage(self, segment_id: int, start: Place) -> Damage:
        held = self.missing[segment_id]
        done = start.frame_index if start.segment == segment_id else 0
        count = None if held.events is None else held.events - done
        path = f"{self.path}/{segment_id}.seg"
        return Damage(path, 0, held.size, "the file is missing", False, done, count)

    def _can_read_some(self) -> bool:
        """Says whether any segment can be read; if not, the key belongs to another queue."""
        if self._readable is None:
            self._readable = False
            for segment_id in reversed(self.segments.bases):
                name = self.segments.names[segment_id]
                try:
                    EventSegment(self._directory, segment_id, name, self._access, None).close()
                except (ForebayError, FileNotFoundError):
                    continue
                self._readable = True
                break
        return self._readable

    def is_unfinished(self, segment_id: int) -> bool:
        """Says whether a segment is still being written, or was when its owner died."""
        return is_unfinished(segment_id, self.tail, self._access.held)

    def events(self, *, unread: bool = False) -> Iterator[Event]:
        """Yields events one by one; damage raises, or is added to `damage` and skipped."""
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
        """Yields all events that can be read, in their order."""
        return self.events()

    def __repr__(self) -> str:
        return f"<BeatsReader {self.path} {len(self.segments.bases)} segments>"

    def _is_trusted(self) -> bool:
        """Says whether what is after the mark may be seen: under "always" it is not durable yet.

        A mark with a slot that does not verify may be an old one: then what is after it is seen.
        """
        tail, file = self.tail, self._mark_file
        if tail is None or tail.boot_id != self._filesystem.boot_id():
            return False
        return tail.written != tail.durable or (file is not None and file.may_be_old)

    def _walk(self, segment: EventSegment, start: Place) -> Iterator[Payloads | Damage]:
        unfinished = self.is_unfinished(segment.id)
        place = start if start.segment == segment.id else segment.start
        durable = self.tail.events if unfinished and self.tail is not None else None
        for item in segment.scan(place, finished=not unfinished, durable=durable or 0):
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
            elif unfinished and self._is_above_the_mark(item):
                # Above the durable mark the first bad frame ends the queue, whatever follows it.
                yield replace(segment.in_file(item), torn=True, count=None)
                return
            else:
                yield segment.in_file(item)

    def _is_above_the_mark(self, damage: Damage) -> bool:
        mark = self.tail
        if mark is None or damage.position < mark.position:
            return False
        return not mark.events or (damage.offset or 0) >= mark.events

    def _meet(self, damage: Damage) -> None:
        if is_harmless(damage):
            self.damage.append(damage)
        else:
            super()._meet(damage)

    def _meet_undecodable(self, item: Payloads, number: int, error: UndecodableEvent) -> None:
        damage = undecodable(item, number, error)
        if not self.salvage:
            raise UndecodableEvent(f"{item.path}, position {damage.position}: {error}")
        self.damage.append(damage)


def undecodable(item: Payloads, number: int, error: UndecodableEvent) -> Damage:
    """Returns the damage of a frame that verifies but holds no event."""
    size = len(item.payloads[number]) + FRAME_BYTES
    index = item.index + number
    return Damage(item.path, item.positions[number], size, str(error), False, index, 1)
