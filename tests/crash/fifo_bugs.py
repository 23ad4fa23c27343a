"""Bugs to plant into the fifo, and where to look for each."""

from __future__ import annotations

from forebay.kernels.entry import METADATA_BYTES
from forebay.queues.fifo import recovery as fifo_recovery
from forebay.queues.fifo import scanner as fifo_scanner
from forebay.queues.fifo import staging as fifo_staged
from forebay.queues.fifo import tape
from forebay.queues.fifo.bounds import Bounds, TapeEnd
from forebay.queues.fifo.front import Front
from forebay.queues.fifo.head import HeadFile
from forebay.queues.fifo.recovery import Recovery
from forebay.queues.fifo.scanner import FifoScanner, Place
from forebay.queues.fifo.writer import FifoWriter
from forebay.storage import filesystem
from forebay.storage.commit import GroupCommit, Ticket
from forebay.storage.open_files import OpenFiles
from forebay.storage.staging import HEADER_BYTES
from tests.crash.handles import ForgetfulDirectory
from tests.crash.hunts import cut_power, fail_calls
from tests.crash.kinds import FIFO
from tests.support.planting import Bug, Patch


def no_sync(patch: Patch) -> None:
    patch.setattr(OpenFiles, "begin_sync", lambda self: [])


def no_directory_sync(patch: Patch) -> None:
    patch.setattr(ForgetfulDirectory, "sync", lambda self: None)


def acknowledge_before_sync(patch: Patch) -> None:
    patch.setattr(GroupCommit, "wait", lambda self, *_: None)


def pop_returns_before_the_sync(patch: Patch) -> None:
    patch.setattr(Front, "ticket", lambda self: Ticket(self.commit, 0))


def files_go_before_the_head_is_durable(patch: Patch) -> None:
    patch.setattr(HeadFile, "commit", lambda self, head: None)
    patch.setattr(HeadFile, "settle", lambda self, head: None)


def files_go_that_the_mark_is_in(patch: Patch) -> None:
    patch.setattr(FifoWriter, "sync_now", lambda self: None)


def files_go_that_hold_lent_entries(patch: Patch) -> None:
    patch.setattr(HeadFile, "first_position", property(lambda self: self.cursor.position))


def lent_entries_not_noted(patch: Patch) -> None:
    patch.setattr(HeadFile, "save", lambda self: self.cursor.save())


def staged_entries_forgotten(patch: Patch) -> None:
    patch.setattr(fifo_staged, "find_staged", lambda directory: None)


def staged_entries_left_standing(patch: Patch) -> None:
    patch.setattr(fifo_recovery, "blank_staged", lambda directory: None)


def staging_space_reused_too_early(patch: Patch) -> None:
    original = FifoWriter._drain

    def drain(self: FifoWriter, count: int) -> None:
        self.memory[:HEADER_BYTES] = bytes(HEADER_BYTES)
        original(self, count)

    patch.setattr(FifoWriter, "_drain", drain)


def head_does_not_follow_the_copy(patch: Patch) -> None:
    patch.setattr(Recovery, "_point_to", lambda self, places, end: None)


def old_bytes_taken_for_a_copy(patch: Patch) -> None:
    def begin(self: Recovery) -> Place:
        scanner = FifoScanner(
            self._directory,
            self._file_bytes,
            self.head.version,
            Bounds(self._directory, self.head.version),
        )
        for number in self.files:
            place = self.mark._replace(position=number * self._file_bytes)
            if place.position > self.mark.position and scanner.window(place, 2**62) is not None:
                return place
        return self.mark

    patch.setattr(Recovery, "_begin", begin)


def copy_not_announced(patch: Patch) -> None:
    patch.setattr(Recovery, "_begin", lambda self: self.mark)


def ids_start_anew(patch: Patch) -> None:
    original = Recovery._end

    def end(self: Recovery, position: int, now_ms: int) -> TapeEnd:
        return original(self, position, now_ms)._replace(last_ms=0)

    patch.setattr(Recovery, "_end", end)


def short_write_ignored(patch: Patch) -> None:
    def write_some(file: filesystem.File, data: filesystem.Buffer, position: int) -> None:
        file.pwrite(data, position)

    patch.setattr(tape, "write_all", write_some)


def data_hash_not_looked_at(patch: Patch) -> None:
    def trusting(
        data: bytes,
        position: int,
        number: int,
        last_id: int,
        limit: int,
        version: bytes,
        ids: list[int] | None = None,
        ttls: list[int] | None = None,
    ) -> tuple[list[bytes], int, int]:
        values: list[bytes] = []
        while limit > len(values) and data[position + 4 : position + 12] == version:
            size = int.from_bytes(data[position + 12 : position + 16], "little")
            last_id = int.from_bytes(data[position + 20 : position + 28], "little")
            if size > len(data) - position - METADATA_BYTES:
                break
            values.append(data[position + METADATA_BYTES :][:size])
            if ids is not None and ttls is not None:
                ids.append(last_id)
                ttls.append(0)
            position += METADATA_BYTES + size
        return values, position, last_id

    patch.setattr(fifo_scanner, "scan", trusting)


BUGS: dict[str, Bug] = {
    "no sync": (no_sync, cut_power(FIFO, "singles")),
    "no directory sync": (no_directory_sync, cut_power(FIFO, "rolling")),
    "acknowledged before the sync": (acknowledge_before_sync, cut_power(FIFO, "singles")),
    "popped before the sync": (pop_returns_before_the_sync, cut_power(FIFO, "popping")),
    "files gone before the head": (
        files_go_before_the_head_is_durable,
        cut_power(FIFO, "os popping"),
    ),
    "files gone with the mark": (files_go_that_the_mark_is_in, cut_power(FIFO, "os staged")),
    "files gone under lent entries": (files_go_that_hold_lent_entries, cut_power(FIFO, "lending")),
    "lent entries not noted": (lent_entries_not_noted, cut_power(FIFO, "os lending")),
    "staged entries forgotten": (staged_entries_forgotten, cut_power(FIFO, "os killed")),
    "staged entries left standing": (staged_entries_left_standing, cut_power(FIFO, "os staged")),
    "staging reused too early": (staging_space_reused_too_early, cut_power(FIFO, "os draining")),
    "head left at the old bytes": (head_does_not_follow_the_copy, cut_power(FIFO, "os popping")),
    "old bytes taken for a copy": (
        old_bytes_taken_for_a_copy,
        cut_power(FIFO, "os lending", "os staged"),
    ),
    "copy not announced": (copy_not_announced, cut_power(FIFO, "os lending", "os staged")),
    "ids start anew": (ids_start_anew, cut_power(FIFO, "singles")),
    "short write ignored": (short_write_ignored, fail_calls(FIFO, "rolling", None)),
    "data hash not looked at": (data_hash_not_looked_at, cut_power(FIFO, "rolling", "os draining")),
}
