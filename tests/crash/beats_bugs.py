"""Bugs to plant into the Beats queue, and where to look for each."""

from __future__ import annotations

import errno
from typing import Any

from forebay.formats.beats.state import State
from forebay.queues.beats import recovery as event_recovery
from forebay.queues.beats import state as event_state
from forebay.queues.beats.deliveries import Deliveries
from forebay.queues.beats.mark import BeatsMark
from forebay.queues.beats.names import STATE_NAME
from forebay.queues.beats.place import Place
from forebay.queues.beats.trimming import Room
from forebay.queues.beats.writer import ActiveSegment, BeatsWriter
from forebay.storage.commit import GroupCommit
from forebay.storage.filesystem import write_all
from forebay.storage.segments import SegmentWriter
from tests.crash.handles import ForgetfulDirectory
from tests.crash.hunts import cut_power, fail_calls, power_cut_after_a_failed_sync
from tests.crash.kinds import BEATS
from tests.support.planting import Bug, Patch


def no_sync(patch: Patch) -> None:
    patch.setattr(ActiveSegment, "sync", lambda self: None)


def no_directory_sync(patch: Patch) -> None:
    patch.setattr(ForgetfulDirectory, "sync", lambda self: None)


def acknowledge_before_sync(patch: Patch) -> None:
    patch.setattr(GroupCommit, "wait", lambda self, offset, epoch: None)


def mark_not_synced(patch: Patch) -> None:
    """In clear, what was acknowledged is then not known from what the disk held before."""
    original = BeatsMark.publish

    def publish(self: BeatsMark, **changes: Any) -> None:
        original(self, **{**changes, "sync": False})

    patch.setattr(BeatsMark, "publish", publish)
    patch.setattr(BeatsMark, "sync", lambda self: None)


def frames_of_other_files_trusted(patch: Patch) -> None:
    original = event_recovery.open_newest

    def trusting(*arguments: Any, trusted: bool) -> Any:
        return original(*arguments, trusted=True)

    patch.setattr(event_recovery, "open_newest", trusting)


def state_written_in_place(patch: Patch) -> None:
    """As Beats does: in pieces, over the old one."""

    def begin(self: event_state.StateFile, place: Place) -> bytes | None:
        state = State(place.segment, place.position if place.frame_index else 0, place.frame_index)
        return None if state.encode() == self._content else state.encode()

    def write(self: event_state.StateFile, data: bytes | None) -> None:
        if data is None:
            return
        try:
            file = self._directory.create(STATE_NAME)
        except FileExistsError:
            file = self._directory.open(STATE_NAME, write=True)
        for start, end in ((0, 4), (4, 12), (12, 20), (20, 28)):
            write_all(file, data[start:end], start)
        file.sync()
        self._directory.sync()
        file.close()
        self._content = data

    patch.setattr(event_state.StateFile, "begin", begin)
    patch.setattr(event_state.StateFile, "write", write)
    patch.setattr(event_state.StateFile, "end", lambda self, place, content: None)


def place_of_the_last_acknowledgement(patch: Patch) -> None:
    """The place jumps over what is still handed out."""
    patch.setattr(Deliveries, "reach", lambda self, delivery: [max(self.place, delivery.end)])


def place_names_the_next_segment(patch: Patch) -> None:
    original = Room._named

    def named(self: Room, place: Place) -> Place | None:
        found = original(self, place)
        if found is not None and found.frame_index > 1:
            return Place(found.segment + 1)
        return found

    patch.setattr(Room, "_named", named)


def found_events_served_without_a_copy(patch: Patch) -> None:
    patch.setattr(event_recovery._Recovery, "_copy", lambda self, segment, extent: None)


def old_segment_appended_to(patch: Patch) -> None:
    """A second process gives its segment the number of the last one, and replaces it."""
    create = ForgetfulDirectory.create

    def over(self: ForgetfulDirectory, name: str) -> Any:
        if name.endswith(".seg") and name in self.names():
            self.unlink(name)
        return create(self, name)

    patch.setattr(ForgetfulDirectory, "create", over)
    patch.setattr("forebay.queues.beats.writer.next_segment_id", lambda tail: tail.segment)


def count_not_written(patch: Patch) -> None:
    patch.setattr(SegmentWriter, "patch", lambda self, data, position: None)


def failed_write_not_cut_back(patch: Patch) -> None:
    def leave(self: SegmentWriter) -> None:
        self.end += 7

    patch.setattr(SegmentWriter, "_cut_back", leave)


def keystream_goes_on_after_a_failed_write(patch: Patch) -> None:
    original = ActiveSegment.write

    def write(self: ActiveSegment, payloads: list[bytes], count: int) -> None:
        encoder = self._encoder
        try:
            original(self, payloads, count)
        except OSError:
            self.spent, self._encoder = False, encoder
            raise

    patch.setattr(ActiveSegment, "write", write)


def failed_sync_tried_again(patch: Patch) -> None:
    patch.setattr(BeatsWriter, "fail", lambda self, error: None)
    patch.setattr(GroupCommit, "_lead", lambda self: self._sync())


BUGS: dict[str, Bug] = {
    "no sync": (no_sync, cut_power(BEATS, "v3-seed killed", "singles")),
    "no directory sync": (no_directory_sync, cut_power(BEATS, "rolling")),
    "acknowledged before the sync": (acknowledge_before_sync, cut_power(BEATS, "singles")),
    "mark not synced": (mark_not_synced, cut_power(BEATS, "rolling")),
    "frames of other files": (frames_of_other_files_trusted, cut_power(BEATS, "rolling")),
    "state written in place": (state_written_in_place, cut_power(BEATS, "settling")),
    "place jumps": (place_of_the_last_acknowledgement, cut_power(BEATS, "settling")),
    "place above the newest": (place_names_the_next_segment, cut_power(BEATS, "settling")),
    "served without a copy": (
        found_events_served_without_a_copy,
        power_cut_after_a_failed_sync(BEATS, version="v2"),
    ),
    "old segment appended to": (old_segment_appended_to, cut_power(BEATS, "closing")),
    "count not written": (count_not_written, cut_power(BEATS, "closing")),
    "failed write not cut back": (
        failed_write_not_cut_back,
        fail_calls(BEATS, "rolling", errno.EIO),
    ),
    "keystream goes on": (
        keystream_goes_on_after_a_failed_write,
        fail_calls(BEATS, "v3-seed", errno.EIO),
    ),
    "a failed sync tried again": (
        failed_sync_tried_again,
        power_cut_after_a_failed_sync(BEATS, version="v2"),
    ),
}
