"""Opens a Beats queue's directory and brings it into order, whatever Beats or a crash left.

Promises that on return every segment is durable, that the newest one is sealed, and that nothing
acknowledged is missing. Only the newest segment can be unfinished. Its good part is copied byte by
byte into a new file, synced, and renamed over the old one: positions stay the same, nothing is ever
appended to what was found, and after a failed sync nothing is read that only the cache has. A torn
end is left out of the copy and kept in `quarantine/`. Recovery may crash at any point and run
again.

A frame does not tell which file it belongs to. So after a power cut an unencrypted segment ends at
its mark, which is synced with every commit: what comes after it may be what the disk held before.
What verifies in an encrypted segment was written there. Above the mark the first bad frame ends the
queue: what a power cut takes is a suffix. Below the mark, and in files that Beats left, bad frames
before good ones are damage; they stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, NotAQueue, WrongKey
from forebay.formats.beats.recognition import ZEROS
from forebay.formats.beats.state import State
from forebay.formats.beats.versions import COUNT_POSITION, encode_count
from forebay.queues.beats.contents import Contents, Held, read_contents
from forebay.queues.beats.mark import BeatsMark, Mark, MarkFile
from forebay.queues.beats.names import (
    CONTENTS_NAME,
    MARK_NAME,
    STATE_NAME,
    refuse_foreign,
)
from forebay.queues.beats.place import Place
from forebay.queues.beats.segments import (
    Access,
    EventSegment,
    index_after,
    is_foreign,
    list_event_segments,
)
from forebay.queues.beats.state import StateFile, find_place, first_of, read_state
from forebay.queues.shared.names import BEATS
from forebay.storage import atomic, quarantine
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.losses import Losses
from forebay.storage.readable import open_readable
from forebay.storage.segments import SegmentList, SegmentWriter

_COPY_BYTES = 1 << 20


@dataclass(slots=True)
class Opened:
    """A recovered directory. `segments` includes those that are on record but missing.

    `is_of_beats` says that a Beat made it and no owner had it before.
    """

    is_of_beats: bool
    mark: BeatsMark
    segments: SegmentList
    contents: Contents
    access: Access
    state: StateFile
    place: Place
    losses: Losses
    damage: list[Damage] = field(default_factory=list)


def open_event_directory(filesystem: Filesystem, directory: Directory, access: Access) -> Opened:
    """Recovers a directory that this process owns; creates what a new queue needs."""
    names = set(directory.names())
    refuse_foreign(directory, names)
    damage = _set_odd_things_aside(directory, names)
    mark_file = mark_file_found = _open_mark(directory)
    contents: Contents | None = None
    try:
        mark = mark_file.read() if mark_file is not None else None
        if mark_file is not None and mark is not None and mark.boot_id == filesystem.boot_id():
            mark = mark_file.with_live(mark)
        found = Found.look(filesystem, directory, mark, access)
        damage += _Recovery(directory, found).run()
        # Recovery may have made, replaced and removed files.
        found.segments = list_event_segments(directory)
        content, state, wrong = found.read_state()
        place, lost = find_place(directory, found.segments, state, found.access)
        damage += [item for item in (wrong, lost) if item is not None]
        contents = found.make_contents(state)
        access = replace(access, held=contents.held)
        mark = found.clean_mark(state, content if wrong is None else None)
        if mark_file is None or not mark_file.is_current:
            if mark_file is not None:
                mark_file.close()
            mark_file = MarkFile.create(directory, mark)
        else:
            mark_file.write(mark, sync=True)
        owned = BeatsMark(mark_file, mark)
        state_file = StateFile(directory, owned, content)
        segments, start = found.with_missing(contents, state, place)
        if place is None and not segments.bases:
            # Beats would number its segments from 0, below the place, and delete them unread.
            state_file.clear()
        elif place == start and (state is not None or wrong is not None):
            # Never save a place past a missing segment: the next open must report it too.
            state_file.save(place)
        return Opened(
            mark_file_found is None and STATE_NAME in names,
            owned,
            segments,
            contents,
            access,
            state_file,
            start,
            Losses.load(directory),
            damage,
        )
    except BaseException:
        if contents is not None:
            contents.close()
        if mark_file is not None:
            mark_file.close()
        raise


class Found:
    """What is in a directory, and what its side files say about it. Changes nothing."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        mark: Mark | None,
        segments: SegmentList,
        queue_id: bytes | None,
        access: Access,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._queue_id = queue_id
        self.mark = mark
        self.segments = segments
        self.access = access
        same_start = mark is not None and mark.boot_id == filesystem.boot_id()
        # At most the process has died: what was written is there, including the last mark.
        self.trusted = same_start
        self._mark_is_last = mark is not None and (mark.clean or same_start)

    @classmethod
    def look(
        cls, filesystem: Filesystem, directory: Directory, mark: Mark | None, access: Access
    ) -> Found:
        """Reads the names and the side files; ignores side files of another queue."""
        # Read it before the names: what it promises exists then, or was removed since.
        queue_id, held = read_contents(directory)
        segments = list_event_segments(directory)
        if queue_id is not None and mark is not None and queue_id != mark.queue_id:
            # One of the two belongs to another queue, and nothing tells which.
            mark, held = None, {}
        if mark is not None and mark.places is not None:
            # Segments below the place were removed; their numbers may have been used again since.
            begin = first_of(mark.places[0])
            held = {segment: item for segment, item in held.items() if segment >= begin}
        if mark is not None and any(
            base not in held and base < min(held, default=0) for base in segments.bases
        ):
            # A Beat has drained the queue and begun again at number 0.
            mark, held = mark._replace(places=None), {}
        return cls(filesystem, directory, mark, segments, queue_id, replace(access, held=held))

    def remember(self, segment_id: int, held: Held) -> Access:
        """Records what a segment holds that recovery has sealed."""
        self.access = replace(self.access, held={**self.access.held, segment_id: held})
        return self.access

    def read_state(self) -> tuple[bytes | None, State | None, Damage | None]:
        """Returns the content of `state.dat`, the place that counts, and the damage of the file."""
        return read_state(
            self._directory, self.segments, self.mark, self.access, trusted=self._mark_is_last
        )

    def missing(self, held: Mapping[int, Held], state: State | None) -> dict[int, Held]:
        """Returns the segments that must exist but do not."""
        mark = self.mark
        begin = state.segment_id if state is not None else 0
        gone = {
            segment: item
            for segment, item in held.items()
            if segment >= begin and segment not in self.segments.names
        }
        if mark is not None and mark.events and not mark.clean and mark.segment >= begin:
            # The segment that was being written when its owner died, if it does not exist.
            known = mark.segment in held or mark.segment in self.segments.names
            gone.update({} if known else {mark.segment: Held(mark.events, mark.raw_size)})
        done = state.frame_index if state is not None else 0
        if begin in gone and done and done >= (gone[begin].events or 0):
            # All events in it are acknowledged.
            del gone[begin]
        return gone

    def make_contents(self, state: State | None) -> Contents:
        """Returns the record of the segments that exist or must exist."""
        missing = self.missing(self.access.held, state)
        held = {
            segment: item
            for segment, item in self.access.held.items()
            if segment in self.segments.names
        }
        held.update(missing)
        for segment, name in self.segments.names.items():
            if segment not in held:
                with contextlib.suppress(Damaged, FileNotFoundError):
                    file = open_readable(self._directory, name)
                    held[segment] = Held(None, file.size())
                    file.close()
        return Contents(self._directory, self._id_of_queue(), held)

    def clean_mark(self, state: State | None, content: bytes | None) -> Mark:
        """Returns the mark of a directory in which everything is durable and sealed.

        `content` is that of `state.dat`; None if that is not sound and the mark's own stays.
        """
        boot_id = self._filesystem.boot_id()
        mark = self.mark or Mark(self._id_of_queue(), boot_id)
        if not mark.clean and mark.boot_id != boot_id:
            mark = mark._replace(incarnation=mark.incarnation + 1)
        segment, position = mark.segment, mark.position
        used = self._numbers_used(state)
        if used:
            segment, position = max(*used, segment), max(1, position)
        return mark._replace(
            boot_id=boot_id,
            written=mark.durable,
            segment=segment,
            position=position,
            clean=True,
            events=mark.events or 0,
            places=mark.places if content is None else (content, content),
        )

    def with_missing(
        self, contents: Contents, state: State | None, place: Place | None
    ) -> tuple[SegmentList, Place]:
        """Returns the segments to read, including missing ones, and where to begin."""
        missing = self.missing(contents.held, state)
        names = {segment: f"{segment}.seg" for segment in missing}
        first = min(missing, default=None)
        if first is not None and (place is None or first < place.segment):
            place = Place(first)
            if state is not None and state.segment_id == first:
                place = Place(first, state.byte_index, state.frame_index or 0)
        return SegmentList({**self.segments.names, **names}), place or Place(0)

    def _id_of_queue(self) -> bytes:
        if self.mark is not None:
            return self.mark.queue_id
        if self._queue_id is None:
            self._queue_id = self._filesystem.random_bytes(16)
        return self._queue_id

    def _numbers_used(self, state: State | None) -> list[int]:
        """Returns the numbers of segments in use, or named by the place; the highest matters."""
        used = [*self.segments.bases[-1:], *self.access.held]
        if state is not None and (self.mark is None or self.mark.places is None):
            used.append(state.segment_id)
        return used


def _set_odd_things_aside(directory: Directory, names: set[str]) -> list[Damage]:
    """Removes temporary files, and moves away anything else that has the name of a side file."""
    damage = []
    if quarantine.DIRECTORY in names:
        try:
            directory.directory(quarantine.DIRECTORY).close()
        except (OSError, NotAQueue):
            directory.rename(quarantine.DIRECTORY, f"{quarantine.DIRECTORY}.odd")
    BEATS.remove_temporary(directory, names)
    # `losses` clears its own name, and reports that it could not be read.
    for name in names & {MARK_NAME, STATE_NAME, CONTENTS_NAME, atomic.RESERVE}:
        try:
            open_readable(directory, name).close()
        except Damaged as error:
            quarantine.keep_file(directory, name)
            damage.append(replace(error.damage, count=0))
        except FileNotFoundError:
            continue
    return damage


def _open_mark(directory: Directory) -> MarkFile | None:
    """Opens the mark; one that the disk cannot read goes to quarantine."""
    try:
        return MarkFile.open(directory, write=True)
    except (OSError, NotAQueue):
        quarantine.keep_file(directory, MARK_NAME)
        return None


def is_unfinished(segment_id: int, mark: Mark | None, held: Mapping[int, Held]) -> bool:
    """Says whether, by the mark, a segment is the newest one and was not finished by its owner.

    A segment that is on record as finished is finished, even if the mark is an older one.
    """
    if mark is None or mark.clean or segment_id != mark.segment:
        return False
    return segment_id not in held


def is_being_made(segment_id: int, mark: Mark | None, held: Mapping[int, Held]) -> bool:
    """Says whether a segment was still being created: no event was ever in it."""
    return mark is not None and mark.position == 0 and is_unfinished(segment_id, mark, held)


def open_newest(
    directory: Directory,
    segment_id: int,
    name: str,
    access: Access,
    mark: Mark | None,
    *,
    trusted: bool,
    durable_only: bool = False,
) -> EventSegment:
    """Opens a segment as far as its bytes are known to be its own.

    `trusted` says that what is after the mark was written there: at most the process has died.
    `durable_only` leaves that out in any case.
    """
    if mark is None or not is_unfinished(segment_id, mark, access.held):
        return EventSegment(directory, segment_id, name, access, None)
    # First open only what is durable: what comes after must not decide which version it is.
    segment = EventSegment(directory, segment_id, name, access, mark.raw_size)
    if not durable_only and (trusted or segment.header.layout.encrypted):
        segment.grow(None)
    return segment


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a segment is good: the number of frames, the logical end, the end in the file."""

    count: int
    position: int
    raw_size: int


def measure_segment(segment: EventSegment, durable: int | None) -> Extent:
    """Finds the end of a segment: above the logical position `durable`, the first bad frame.

    If `durable` is None, bad frames before good ones are damage everywhere.
    """
    end, count = segment.start.position, 0
    for item in segment.scan(segment.start):
        if not isinstance(item, Damage):
            end, count = item.end_position, item.index + len(item.values)
            continue
        if item.torn or (durable is not None and item.position >= durable):
            break
        end, count = item.position + item.length, index_after(item)
    size = segment.raw.size()
    if end >= segment.content.size():
        return Extent(count, end, size)
    return Extent(count, end, min(size, segment.content.file_position(end)))


class _Recovery:
    """One run of recovery over the newest segments of a directory."""

    def __init__(self, directory: Directory, found: Found) -> None:
        self._directory = directory
        self._found = found
        self._mark = found.mark
        self._access = found.access
        self.damage: list[Damage] = []

    def run(self) -> list[Damage]:
        """Seals what is unfinished; returns what could not be kept."""
        segments = self._found.segments
        self._refuse_wrong_key(segments)
        for segment_id in reversed(segments.bases):
            if self._is_finished(segment_id):
                break
            if self._seal(segment_id, segments.names[segment_id]):
                break
        return self.damage

    def _refuse_wrong_key(self, segments: SegmentList) -> None:
        """Raises `WrongKey` if no segment can be read because of the key: it is another queue's."""
        wrong: WrongKey | None = None
        for segment_id in reversed(segments.bases):
            if is_being_made(segment_id, self._mark, self._access.held):
                continue
            try:
                self._open(segment_id, segments.names[segment_id]).close()
                return
            except WrongKey as error:
                wrong = error
            except (ForebayError, FileNotFoundError):
                continue
        if wrong is not None:
            raise wrong

    def _is_finished(self, segment_id: int) -> bool:
        """Says whether a segment was synced and finished, according to the record or the mark."""
        mark = self._mark
        if segment_id in self._access.held:
            return True
        if mark is None or is_unfinished(segment_id, mark, self._access.held):
            return False
        return segment_id <= mark.segment

    def _seal(self, segment_id: int, name: str) -> bool:
        """Replaces a segment by a sealed copy; returns False if nothing of it is kept."""
        held = self._access.held
        if is_being_made(segment_id, self._mark, held):
            self._directory.unlink(name)
            self._directory.sync()
            return False
        ours = is_unfinished(segment_id, self._mark, held)
        durable = self._mark.position if self._mark is not None and ours else None
        try:
            segment = self._open(segment_id, name)
        except Damaged as error:
            if durable_events(self._mark, ours=ours) or not _may_be_unfinished(error.damage):
                # It held durable events: what is left of it stays where it is.
                self._remember_durable(segment_id, ours=ours)
                return True
            if not durable:
                self.damage.append(replace(error.damage, torn=True))
            self._set_aside(name)
            return False
        except ForebayError as error:
            if not is_foreign(error):
                raise
            # We cannot read it, so we must not change it.
            return True
        try:
            if not ours and segment.header.count:
                # Beats writes the count when it closes a segment: this one is finished.
                return True
            if segment.raw.holes:
                self._remember_durable(segment_id, ours=ours)
                return True
            extent = measure_segment(segment, durable)
            self._keep_rest(segment, extent)
            durable_count = durable_events(self._mark, ours=ours)
            if extent.count == durable_count == 0 and not self._is_named(segment_id):
                self._directory.unlink(name)
                self._directory.sync()
                return False
            self._copy(segment, extent)
            self._remember(segment_id, extent, ours=ours)
            return True
        finally:
            segment.close()

    def _open(self, segment_id: int, name: str) -> EventSegment:
        return open_newest(
            self._directory,
            segment_id,
            name,
            self._access,
            self._mark,
            trusted=self._found.trusted,
        )

    def _remember(self, segment_id: int, extent: Extent, *, ours: bool) -> None:
        """Puts on record what a sealed segment holds, and what it must have held."""
        durable = durable_events(self._mark, ours=ours)
        held = Held(max(extent.count, durable), extent.raw_size)
        self._access = self._found.remember(segment_id, held)

    def _remember_durable(self, segment_id: int, *, ours: bool) -> None:
        """Puts on record what a segment held that cannot be read now."""
        mark = self._mark
        if ours and mark is not None and mark.events is not None:
            self._access = self._found.remember(segment_id, Held(mark.events, mark.raw_size))

    def _is_named(self, segment_id: int) -> bool:
        _, state, _ = self._found.read_state()
        return state is not None and state.segment_id == segment_id

    def _set_aside(self, name: str) -> None:
        """Removes a file that ends within its header; keeps it in quarantine unless it is zeros."""
        if (atomic.read_small(self._directory, name) or b"").strip(b"\0"):
            quarantine.keep_file(self._directory, name)
        else:
            self._directory.unlink(name)
            self._directory.sync()

    def _keep_rest(self, segment: EventSegment, extent: Extent) -> None:
        """Keeps the bytes after the last good frame in quarantine, if there are any."""
        size = segment.file.size()
        rest = segment.file.pread(max(0, size - extent.raw_size), extent.raw_size)
        kept = quarantine.keep_rest(self._directory, segment.name, extent.raw_size, rest)
        if kept:
            reason = "unfinished end, kept in quarantine/"
            self.damage.append(Damage(segment.path, extent.raw_size, kept, reason, torn=True))

    def _copy(self, segment: EventSegment, extent: Extent) -> None:
        """Writes the good part under a temporary name, syncs it, and renames it over the old."""
        first = segment.file.pread(min(_COPY_BYTES, extent.raw_size), 0)
        temporary = segment.name + atomic.TEMPORARY
        writer = SegmentWriter(self._directory, temporary, first, allocate_bytes=0)
        try:
            while writer.end < extent.raw_size:
                size = min(_COPY_BYTES, extent.raw_size - writer.end)
                data = segment.file.pread(size, writer.end)
                if not data:
                    raise OSError(f"{segment.path} became shorter while it was copied")
                writer.append(data)
            if segment.header.layout.counted and extent.count < 2**32:
                writer.patch(encode_count(extent.count), COUNT_POSITION)
            writer.sync()
        finally:
            writer.close()
        self._directory.rename(temporary, segment.name)
        self._directory.sync()


def _may_be_unfinished(damage: Damage) -> bool:
    """Says whether a crash can leave a newest segment like this: cut in its header, or zeros."""
    return damage.torn or damage.reason == ZEROS


def durable_events(mark: Mark | None, *, ours: bool) -> int:
    """Returns how many events the mark promises in the segment that was being written."""
    return mark.events or 0 if ours and mark is not None else 0


def next_segment_id(mark: Mark) -> int:
    """Returns the number of the next segment. Numbers never go back, even if files are gone.

    If nothing was ever written, the mark is at position 0 of segment 0.
    """
    return mark.segment + 1 if mark.segment or mark.position else 0
