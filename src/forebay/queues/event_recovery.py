"""Opens an event queue's directory and brings it into order, whatever Beats or a crash left.

Promises that on return every segment is durable, that the newest one is sealed, and that nothing
acknowledged is missing. Only the newest segment can be unfinished. What is good of it is copied
byte by byte into a new file, synced, and renamed over the old one: positions stay what they were,
nothing is ever appended to what was found, and after a failed sync nothing is served that only the
cache has. A torn end is left out of the copy and kept in `quarantine/`. It may crash at any point
and run again.

A frame does not tell which file it belongs to. So after a power cut a segment in clear ends at its
mark, which is synced with every commit: what lies behind may be what the disk held before. What
verifies in an encrypted one was written there. Above the mark the first bad frame ends the queue:
what a power cut takes is a suffix. Below the mark, and in what Beats left, bad frames in front of
good ones are damage; they stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.errors import Damaged, NotAQueue
from forebay.formats.beats_versions import COUNT_POSITION, encode_count, parse_segment_name
from forebay.frames import Damage
from forebay.queues.event_names import MARK_NAME, OWN_DIRECTORIES, OWN_NAMES, is_event_queue
from forebay.queues.event_segments import Access, EventSegment, list_event_segments
from forebay.queues.event_state import StateFile, find_place, read_state
from forebay.queues.places import Place
from forebay.storage import atomic, quarantine
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentList, SegmentWriter
from forebay.storage.tail import Tail, TailFile

_COPY_BYTES = 1 << 20


@dataclass(slots=True)
class Opened:
    """A directory in order."""

    tail_file: TailFile
    tail: Tail
    segments: SegmentList
    state: StateFile
    place: Place
    damage: list[Damage] = field(default_factory=list)


def open_event_directory(filesystem: Filesystem, directory: Directory, access: Access) -> Opened:
    """Recovers a directory that this process owns; creates what a new queue needs."""
    names = set(directory.names())
    _refuse_foreign(directory, names)
    for name in names:
        if _is_own_temporary(name):
            directory.unlink(name)
    tail_file = TailFile.open(directory, write=True, name=MARK_NAME)
    try:
        tail = None if tail_file is None else tail_file.read()
        trusted = tail is not None and tail.boot_id == filesystem.boot_id()
        damage = _Recovery(directory, tail, access, trusted).run()
        segments = list_event_segments(directory)
        state, torn = read_state(directory)
        if torn is not None:
            damage.append(torn)
        place = find_place(directory, segments, state, access)
        used = [*segments.bases[-1:], *([state.segment_id] if state is not None else [])]
        tail = _clean_mark(filesystem, tail, max(used, default=None))
        if tail_file is None:
            tail_file = TailFile.create(directory, tail, MARK_NAME)
        else:
            tail_file.write(tail, sync=True)
        state_file = StateFile(directory, state)
        if place is None:
            # Beats would number its segments from 0, below the place, and delete them unread.
            state_file.clear()
        elif state is not None:
            state_file.save(place)
        return Opened(tail_file, tail, segments, state_file, place or Place(0), damage)
    except BaseException:
        if tail_file is not None:
            tail_file.close()
        raise


def is_unfinished(segment_id: int, tail: Tail | None) -> bool:
    """Says whether the newest segment is one that its owner had not finished: by its mark."""
    return tail is not None and not tail.clean and segment_id == tail.segment


def is_being_made(segment_id: int, tail: Tail | None) -> bool:
    """Says whether a segment was only being made: no event was ever in it."""
    return tail is not None and is_unfinished(segment_id, tail) and tail.position == 0


def open_newest(
    directory: Directory,
    segment_id: int,
    name: str,
    access: Access,
    tail: Tail | None,
    *,
    trusted: bool,
    durable_only: bool = False,
) -> EventSegment:
    """Opens a segment as far as its bytes are known to be its own.

    `trusted` says that what lies behind the mark was written there: nothing but the process died.
    `durable_only` leaves it out in any case.
    """
    if tail is None or not is_unfinished(segment_id, tail):
        return EventSegment(directory, segment_id, name, access, None)
    # First only what is durable: what lies behind must not decide which version it is.
    segment = EventSegment(directory, segment_id, name, access, tail.time_ms)
    if not durable_only and (trusted or segment.header.layout.encrypted):
        segment.grow(None)
    return segment


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a segment is good: frames that count, the logical end, the end in the file."""

    count: int
    position: int
    raw_size: int


def measure_segment(segment: EventSegment, durable: int | None) -> Extent:
    """Finds the end of a segment; above the logical position `durable` the first bad frame is it.

    None: bad frames in front of good ones are damage.
    """
    end, count = segment.start.position, 0
    for item in segment.scan(segment.start):
        if not isinstance(item, Damage):
            end, count = item.end_position, item.index + len(item.values)
            continue
        if item.torn or (durable is not None and item.position >= durable):
            break
        end, count = item.position + item.length, (item.offset or 0) + (item.count or 0)
    size = segment.raw.size()
    if end >= segment.content.size():
        return Extent(count, end, size)
    return Extent(count, end, min(size, segment.content.file_position(end)))


class _Recovery:
    """One run of recovery over the newest segments of a directory."""

    def __init__(
        self, directory: Directory, tail: Tail | None, access: Access, trusted: bool
    ) -> None:
        self._trusted = trusted
        self._directory = directory
        self._tail = tail
        self._access = access
        self.damage: list[Damage] = []

    def run(self) -> list[Damage]:
        """Seals what is unfinished; gives what could not be kept."""
        segments = list_event_segments(self._directory)
        for segment_id in reversed(segments.bases):
            if self._is_finished(segment_id):
                break
            if self._seal(segment_id, segments.names[segment_id]):
                break
        return self.damage

    def _is_finished(self, segment_id: int) -> bool:
        """Says whether the mark tells that a segment was synced and is whole."""
        tail = self._tail
        if tail is None or is_unfinished(segment_id, tail):
            return False
        return segment_id <= tail.segment

    def _seal(self, segment_id: int, name: str) -> bool:
        """Puts a sealed copy in place of a segment; False if nothing of it is kept."""
        if is_being_made(segment_id, self._tail):
            self._directory.unlink(name)
            self._directory.sync()
            return False
        ours = is_unfinished(segment_id, self._tail)
        durable = self._tail.position if self._tail is not None and ours else None
        try:
            segment = open_newest(
                self._directory,
                segment_id,
                name,
                self._access,
                self._tail,
                trusted=self._trusted,
            )
        except Damaged as error:
            if durable or not error.damage.torn:
                # It held events that were durable: what is left of it stays where it is.
                return True
            self._set_aside(name)
            return False
        try:
            if not ours and segment.header.count:
                # Beats counts the frames when it closes a segment: it is finished.
                return True
            extent = measure_segment(segment, durable)
            self._keep_rest(segment, extent)
            if extent.count == 0 and not self._is_named(segment_id):
                self._directory.unlink(name)
                self._directory.sync()
                return False
            self._copy(segment, extent)
            return True
        finally:
            segment.close()

    def _is_named(self, segment_id: int) -> bool:
        state, _ = read_state(self._directory)
        return state is not None and state.segment_id == segment_id

    def _set_aside(self, name: str) -> None:
        """Removes a file that ends within its header; what is in it is kept."""
        if (atomic.read_small(self._directory, name) or b"").strip(b"\0"):
            quarantine.keep_file(self._directory, name)
        else:
            self._directory.unlink(name)
        self._directory.sync()

    def _keep_rest(self, segment: EventSegment, extent: Extent) -> None:
        """Keeps the bytes behind the last good frame, if there are any."""
        size = segment.file.size()
        rest = segment.file.pread(max(0, size - extent.raw_size), extent.raw_size).rstrip(b"\0")
        if not rest:
            return
        quarantine.keep_bytes(self._directory, f"{segment.name}-{extent.raw_size}", rest)
        reason = "unfinished end, kept in quarantine/"
        self.damage.append(Damage(segment.path, extent.raw_size, len(rest), reason, torn=True))

    def _copy(self, segment: EventSegment, extent: Extent) -> None:
        """Writes the good part under a temporary name, syncs it, and puts it in the old place."""
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


def next_segment_id(tail: Tail) -> int:
    """Gives the number of the next segment. Numbers never go back, whatever became of the files.

    Where nothing was ever written the mark stands at 0 of segment 0.
    """
    return tail.segment + 1 if tail.segment or tail.position else 0


def _clean_mark(filesystem: Filesystem, tail: Tail | None, used: int | None) -> Tail:
    """Gives the mark of a directory in which everything is durable and sealed.

    `used` is the highest number of a segment that is there, or that the place names.
    """
    boot_id = filesystem.boot_id()
    if tail is None:
        tail = Tail(filesystem.random_bytes(16), boot_id)
    elif not tail.clean and tail.boot_id != boot_id:
        tail = tail._replace(incarnation=tail.incarnation + 1)
    segment, position = tail.segment, tail.position
    if used is not None:
        segment, position = max(used, segment), max(1, position)
    return tail._replace(
        boot_id=boot_id, written=tail.durable, segment=segment, position=position, clean=True
    )


def _refuse_foreign(directory: Directory, names: set[str]) -> None:
    foreign = {name for name in names if not _is_own_temporary(name) and name not in OWN_NAMES}
    if foreign - OWN_DIRECTORIES and not is_event_queue(list(names)):
        raise NotAQueue(
            f"{directory.path} is not an event queue: it holds {min(foreign)!r}; "
            "give an empty or a new directory"
        )


def _is_own_temporary(name: str) -> bool:
    stem = name.removesuffix(atomic.TEMPORARY)
    return stem != name and (stem in OWN_NAMES or parse_segment_name(stem) is not None)
