"""The place of an event queue, kept in `state.dat`.

Source of truth for what is done with. Replaced whole: a crash leaves the old one or the new one. It
never names a segment above the newest file, because Beats would delete all of them unread.
"""

from __future__ import annotations

import logging

from forebay.errors import Damaged, ForebayError
from forebay.formats.beats_state import State, decode_state
from forebay.frames import Damage
from forebay.queues.event_names import STATE_NAME
from forebay.queues.event_segments import Access, EventSegment
from forebay.queues.places import Place
from forebay.storage import atomic
from forebay.storage.filesystem import Directory
from forebay.storage.segments import SegmentList

_logger = logging.getLogger(__name__)


class StateFile:
    """The saved place. Called with the queue's lock held."""

    def __init__(self, directory: Directory, state: State | None) -> None:
        self._directory = directory
        self.saved = state

    def save(self, place: Place) -> None:
        """Saves a place; durable on return."""
        state = State(place.segment, place.position if place.frame_index else 0, place.frame_index)
        if state != self.saved:
            atomic.replace(self._directory, STATE_NAME, state.encode())
            self.saved = state

    def clear(self) -> None:
        """Saves that there is no place yet, as Beats leaves it; durable on return."""
        if self.saved is not None:
            atomic.replace(self._directory, STATE_NAME, b"")
            self.saved = None


def read_state(directory: Directory) -> tuple[State | None, Damage | None]:
    """Gives what `state.dat` says, and the damage if it is cut off.

    Beats writes it in pieces, so that its crash may leave a part: then reading starts at the oldest
    segment, and no event is lost. Raises UnsupportedVersion.
    """
    path = f"{directory.path}/{STATE_NAME}"
    try:
        return decode_state(atomic.read_small(directory, STATE_NAME) or b"", path), None
    except Damaged as error:
        return None, error.damage


def find_place(
    directory: Directory, segments: SegmentList, state: State | None, access: Access
) -> Place | None:
    """Gives the place that a state means; None if there is no segment at all.

    A state that lies between two frames means the frame before: an event may come twice, and none
    is skipped. One that names a segment above the newest is false: reading starts at the oldest.
    """
    if not segments.bases:
        return None
    oldest, newest = segments.bases[0], segments.bases[-1]
    if state is not None and state.segment_id > newest:
        text = "%s: %s names segment %d, the newest is %d; reading starts at the oldest"
        _logger.warning(text, directory.path, STATE_NAME, state.segment_id, newest)
        return Place(oldest)
    if state is None or state.segment_id < oldest:
        return Place(oldest)
    if state.segment_id not in segments.names:
        return Place(segments.after(state.segment_id) or newest)
    try:
        name = segments.names[state.segment_id]
        segment = EventSegment(directory, state.segment_id, name, access, None)
    except Damaged:
        # None of it can be read: where in it the place is makes no difference.
        return Place(state.segment_id)
    except ForebayError:
        if not state.frame_index:
            return Place(state.segment_id)
        return Place(state.segment_id, state.byte_index, state.frame_index)
    try:
        return _find_frame(segment, state.position(segment.header.layout.header_bytes))
    finally:
        segment.close()


def _find_frame(segment: EventSegment, position: int) -> Place:
    """Gives the last place at which a frame begins or ends, up to a position."""
    place = segment.start
    for item in segment.scan(place):
        if isinstance(item, Damage):
            end = item.position + item.length
            if end > position or item.torn:
                break
            place = Place(segment.id, end, (item.offset or 0) + (item.count or 0))
            continue
        if item.end_position <= position:
            place = Place(segment.id, item.end_position, item.index + len(item.values))
            continue
        sizes = segment.stored_sizes(item)
        for number, value in enumerate(item.values):
            end = place.position + (sizes[number] if sizes is not None else len(value) + 12)
            if end > position:
                break
            place = Place(segment.id, end, place.frame_index + 1)
        break
    return place
