"""The place of a Beats queue, kept in `state.dat`.

Source of truth for what is acknowledged. Replaced as a whole: a crash leaves the old file or the
new one. It never names a segment above the newest file, because Beats would then delete all files
unread.

The file has no check of its own. The owner's mark has its content, so that bytes which neither the
owner nor a Beat wrote are detected, and the place is taken from the mark.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError
from forebay.formats.beats.state import State, decode_state
from forebay.queues.beats.mark import BeatsMark, Mark
from forebay.queues.beats.names import STATE_NAME
from forebay.queues.beats.place import Place
from forebay.queues.beats.segments import Access, EventSegment, index_after
from forebay.storage import quarantine
from forebay.storage.filesystem import Directory
from forebay.storage.readable import Store, read_whole
from forebay.storage.segments import SegmentList


class StateFile:
    """The saved place.

    Events are acknowledged with `lock` held, which is taken before the queue's lock: nothing waits
    for the disk with the queue's lock.
    """

    def __init__(self, directory: Directory, mark: BeatsMark, content: bytes | None) -> None:
        """Starts with `content`, which the file holds; None if that is not known."""
        self._directory = directory
        self._mark = mark
        self._content = content
        self.lock = threading.Lock()
        # The last place that was saved since the queue was opened.
        self.place: Place | None = None
        # Where frames begin in the segments of a Beat that only knows the first version of the
        # state.
        self.oldest_header_bytes: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the last save succeeded; if not, the file may be the old one or the new one."""
        return self._content is not None

    def save(self, place: Place) -> None:
        """Saves a place; durable on return. If it raises, the next call writes it again.

        It is `begin`, `write` and `end` together, all with the queue's lock held.
        """
        content = self.begin(place)
        self.write(content)
        self.end(place, content)

    def begin(self, place: Place) -> bytes | None:
        """Announces the next content of the file in the mark; returns it, None if unchanged.

        With the queue's lock held.
        """
        return self._announce(self._state_of(place).encode())

    def write(self, content: bytes | None) -> None:
        """Replaces the file; durable on return."""
        if content is not None:
            quarantine.replace_anything(self._directory, STATE_NAME, content)

    def end(self, place: Place, content: bytes | None) -> None:
        """Records that a place is saved. With the queue's lock held."""
        self._settle(content)
        self.place = place

    def clear(self) -> None:
        """Saves that there is no place yet, as Beats leaves it; durable on return."""
        content = self._announce(b"")
        self.write(content)
        self._settle(content)

    def abandon(self) -> None:
        """Replaces the lock, which the parent may hold, in the child of a fork."""
        self.lock = threading.Lock()

    def _announce(self, content: bytes) -> bytes | None:
        if content == self._content:
            return None
        self._content = None
        self._mark.announce_place(content)
        return content

    def _settle(self, content: bytes | None) -> None:
        if content is not None:
            self._mark.settle_place(content)
            self._content = content

    def _state_of(self, place: Place) -> State:
        position = place.position if place.frame_index else 0
        if self.oldest_header_bytes is not None:
            return State(place.segment, max(0, position - self.oldest_header_bytes))
        return State(place.segment, position, place.frame_index)


def read_state(
    directory: Store, segments: SegmentList, mark: Mark | None, access: Access, *, trusted: bool
) -> tuple[bytes | None, State | None, Damage | None]:
    """Returns the content of `state.dat`, the place that counts, and the damage of the file.

    Beats writes it in pieces, so that a crash may leave a part of it; and nothing protects it from
    a flipped bit. Then the place in the mark counts; without one, reading starts at the oldest
    segment. Either way no event is lost. `trusted` says that the mark is the last one that was
    written.
    """
    path = f"{directory.path}/{STATE_NAME}"
    content: bytes | None = None
    state: State | None = None
    damage: Damage | None = None
    try:
        content = read_whole(directory, STATE_NAME) or b""
        state = decode_state(content, path)
    except Damaged as error:
        damage = replace(error.damage, torn=False, count=0)
    places = mark.places if mark is not None else None
    if places is None or (damage is None and content in places):
        return content, state, damage
    if damage is None and state is not None:
        moved = _moved_on(directory, segments, state, _decode(places[0], path), access)
        if moved and (not trusted or not _left_behind(segments, places, state, path)):
            return content, state, None
    if damage is None and not any(places):
        # The queue had no place yet; it is not known what this content is.
        damage = Damage(path, 0, len(content or b""), "not what was saved here", count=0)
        return content, None, damage
    reason = damage.reason if damage is not None else "not what was saved here"
    damage = Damage(path, 0, len(content or b""), f"{reason}; the mark has the place", count=0)
    return content, _decode(places[0], path), damage


def first_of(content: bytes) -> int:
    """Returns the first segment that is not fully acknowledged, by a content of `state.dat`."""
    state = _decode(content, STATE_NAME)
    return 0 if state is None else state.segment_id


def find_place(
    directory: Store, segments: SegmentList, state: State | None, access: Access
) -> tuple[Place | None, Damage | None]:
    """Returns the place that a state means, and its damage; no place if there is no segment.

    A state between two frames means the frame before: an event may come twice, but none is skipped.
    A state that names a segment above the newest is false: reading starts at the oldest.
    """
    if not segments.bases:
        return None, None
    oldest, newest = segments.bases[0], segments.bases[-1]
    if state is not None and state.segment_id > newest:
        reason = (
            f"names segment {state.segment_id}, the newest is {newest}; "
            "reading starts at the oldest"
        )
        damage = Damage(f"{directory.path}/{STATE_NAME}", 0, 0, reason, count=0)
        return Place(oldest), damage
    if state is None or state.segment_id < oldest:
        return Place(oldest), None
    if state.segment_id not in segments.names:
        return Place(segments.after(state.segment_id) or newest), None
    return _find_in_segment(directory, segments, state, access)[0], None


def _find_in_segment(
    directory: Store, segments: SegmentList, state: State, access: Access
) -> tuple[Place, bool]:
    """Returns the place in an existing segment, and whether the state names it exactly."""
    name = segments.names[state.segment_id]
    try:
        segment = EventSegment(directory, state.segment_id, name, access, None)
    except (ForebayError, FileNotFoundError):
        # None of it can be read now: the state may be right.
        if not state.frame_index:
            return Place(state.segment_id), not state.byte_index
        return Place(state.segment_id, state.byte_index, state.frame_index), False
    try:
        position = state.position(segment.header.layout.header_bytes)
        place, whole, hit = _find_frame(segment, position)
        index = place.frame_index if state.frame_index is None else state.frame_index
        if not whole and _may_be(segment, place, position, index):
            # The frames before it can no longer be counted; the state has their number.
            return Place(segment.id, position, index), True
        if hit and _may_be_hit(segment, place, index):
            # The events before it in the damage are acknowledged, so they are not lost.
            return Place(segment.id, position, index), False
        return place, (place.position, place.frame_index) == (position, index)
    finally:
        segment.close()


def _moved_on(
    directory: Store, segments: SegmentList, state: State, known: State | None, access: Access
) -> bool:
    """Says whether a state is past the known one and names the start of a frame."""
    before = (0, 0, 0) if known is None else _order(known)
    if _order(state) < before or state.segment_id not in segments.names:
        return False
    return _find_in_segment(directory, segments, state, access)[1]


def _left_behind(
    segments: SegmentList, places: tuple[bytes, bytes], state: State, path: str
) -> bool:
    """Says whether segments exist that a Beat which had got so far would have removed."""
    known = _decode(places[0], path)
    first = known.segment_id if known is not None else 0
    return any(first <= base < state.segment_id for base in segments.bases)


def _order(state: State) -> tuple[int, int, int]:
    return state.segment_id, state.byte_index, state.frame_index or 0


def _decode(content: bytes, path: str) -> State | None:
    try:
        return decode_state(content, path)
    except Damaged:
        return None


def _may_be(segment: EventSegment, place: Place, position: int, index: int) -> bool:
    """Says whether a place in a damaged segment may be right: a frame begins there, or began."""
    held = segment.held.events if segment.held is not None else None
    if place.position == position:
        return held is None or index <= held
    return held is not None and index <= held and position >= segment.content.size()


def _may_be_hit(segment: EventSegment, place: Place, index: int) -> bool:
    """Says whether the frame with this index may have begun in the damage after a place."""
    held = segment.held.events if segment.held is not None else None
    return held is not None and place.frame_index < index <= held


def _find_frame(segment: EventSegment, position: int) -> tuple[Place, bool, bool]:
    """Returns the last place at which a frame begins or ends, up to a position.

    Also returns whether all before the position exists and is whole, and whether the position
    itself is in damage, which begins at the place.
    """
    place = segment.start
    whole = True
    for item in segment.scan(place):
        if isinstance(item, Damage):
            end = item.position + item.length
            if end > position or item.torn:
                return place, False, item.position < position
            whole = False
            place = Place(segment.id, end, index_after(item))
            continue
        if item.end_position <= position:
            place = Place(segment.id, item.end_position, item.index + len(item.values))
            continue
        sizes = segment.stored_sizes(item)
        for number, value in enumerate(item.values):
            end = place.position + (sizes[number] if sizes is not None else len(value) + 12)
            if end > position:
                return place, whole, False
            place = Place(segment.id, end, place.frame_index + 1)
        break
    held = segment.held.events if segment.held is not None else None
    cut = place.position < position and held is not None and place.frame_index < held
    return place, whole and not cut, cut
