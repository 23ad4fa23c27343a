"""Bugs to plant into the log, and where to look for each."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import pytest

from forebay.formats.fflg import Frames
from forebay.queues.log import adoption, places, recovery
from forebay.queues.log.writer import Chunk, LogWriter
from forebay.queues.shared.mark import End, TailMark
from forebay.storage import atomic, filesystem, inbox, segments
from forebay.storage.commit import GroupCommit
from forebay.storage.segments import SegmentWriter
from forebay.storage.staging import HEADER_BYTES
from forebay.storage.tail import Tail, TailFile
from tests.crash.handles import ForgetfulDirectory
from tests.crash.hunts import cut_power, fail_calls, power_cut_after_a_failed_sync
from tests.crash.kinds import LOG
from tests.support.planting import Bug, Patch


def no_sync(patch: Patch) -> None:
    patch.setattr(SegmentWriter, "sync", lambda self: None)


def no_directory_sync(patch: Patch) -> None:
    patch.setattr(ForgetfulDirectory, "sync", lambda self: None)


def acknowledge_before_sync(patch: Patch) -> None:
    patch.setattr(GroupCommit, "wait", lambda self, offset, epoch: None)


def try_a_failed_sync_again(patch: Patch) -> None:
    patch.setattr(LogWriter, "fail", lambda self, error: None)
    patch.setattr(GroupCommit, "_lead", lambda self: self._sync())


def trim_before_the_position_is_saved(patch: Patch) -> None:
    def advance(self: places.Places, name: str, offset: int, *, back: bool = False) -> int:
        self.offsets = {**self.offsets, name: offset}
        return offset

    patch.setattr(places.Places, "advance", advance)


def trim_over_cursors(patch: Patch) -> None:
    patch.setattr(places, "read_cursors", lambda directory: iter(()))
    original = places.Places.lowest
    patch.setattr(places.Places, "lowest", lambda self: original(self) or 10**9)


def trimmed_before_it_is_on_record(patch: Patch) -> None:
    original = TailMark.publish

    def late(self: TailMark, written: int, time_ms: int, **settings: Any) -> None:
        settings["begin"] = None
        original(self, written, time_ms, **settings)

    patch.setattr(TailMark, "publish", late)


def short_write_ignored(patch: Patch) -> None:
    def write_some(file: filesystem.File, data: filesystem.Buffer, position: int) -> None:
        file.pwrite(data, position)

    patch.setattr(segments, "write_all", write_some)


def staging_space_reused_too_early(patch: Patch) -> None:
    original = Chunk.stop

    def stop(self: Chunk) -> None:
        # The header of the next chunk, written before this one is in the segment.
        if self._staging is not None:
            self._staging.buffer[:HEADER_BYTES] = bytes(HEADER_BYTES)
        original(self)

    patch.setattr(Chunk, "stop", stop)


def staged_records_forgotten(patch: Patch) -> None:
    patch.setattr(recovery, "find_staged", lambda directory: None)


def found_records_served_without_a_copy(patch: Patch) -> None:
    def keep(self: recovery._Recovery, examined: recovery._Examined) -> None:
        self._last = (examined.base, examined.stop, b"")

    patch.setattr(recovery._Recovery, "_rewrite", keep)
    patch.setattr(recovery._Recovery, "_remove_old", lambda self: None)


def offsets_given_out_twice_unseen(patch: Patch) -> None:
    original = recovery._Recovery._mark

    def mark(self: recovery._Recovery) -> Tail:
        return original(self)._replace(incarnation=1)

    patch.setattr(recovery._Recovery, "_mark", mark)


def rename_before_sync(patch: Patch) -> None:
    def careless(directory: filesystem.Directory, name: str, data: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(name + ".new")
        file = directory.create(name + ".new")
        filesystem.write_all(file, data, 0)
        file.close()
        directory.rename(name + ".new", name)
        directory.sync()

    patch.setattr(atomic, "_replace", careless)


def checksum_not_looked_at(patch: Patch) -> None:
    def trusting(
        self: Frames, data: bytes, position: int, index: int, limit: int, times: list[int] | None
    ) -> tuple[list[bytes], int]:
        values: list[bytes] = []
        while limit > len(values) and len(data) - position >= 12:
            size = int.from_bytes(data[position : position + 4], "big")
            ms = int.from_bytes(data[position + 8 : position + 12], "big")
            if ms == 0 or size > len(data) - position - 12:
                break
            values.append(data[position + 12 : position + 12 + size])
            if times is not None:
                times.append(ms)
            position += 12 + size
        return values, position

    patch.setattr(Frames, "scan", trusting)


def clean_mark_left_standing(patch: Patch) -> None:
    original = TailFile.write

    def write(self: TailFile, tail: Tail, *, sync: bool = False) -> None:
        original(self, tail, sync=sync and tail.clean)

    patch.setattr(TailFile, "write", write)
    patch.setattr(TailFile, "sync", lambda self: None)


def mark_written_before_the_sync(patch: Patch) -> None:
    original = TailMark.publish

    def early(self: TailMark, written: int, time_ms: int, **settings: Any) -> None:
        original(self, written, time_ms, **{**settings, "sync": True})

    patch.setattr(TailMark, "publish", early)

    def sync_files(self: LogWriter) -> int:
        with self.lock:
            if self.always:
                self.drain()
            end: End = self.place
            self.publish(durable=end, sync=True)
        for segment in self.files.begin_sync():
            segment.sync()
        return end.offset

    patch.setattr(LogWriter, "_sync_files", sync_files)


def batch_adopted_without_a_ledger(patch: Patch) -> None:
    patch.setattr(inbox, "write_ledger", lambda queue, ledger: None)
    patch.setattr(inbox, "remove", lambda work, name: None)
    original = inbox.finish_moves

    def copying(
        queue: filesystem.Directory, work: filesystem.Directory, moves: list[inbox.Move]
    ) -> None:
        kept = {move.part: atomic.read_small(work, move.part) for move in moves}
        original(queue, work, moves)
        for name, data in kept.items():
            file = work.create(name)
            filesystem.write_all(file, data or b"", 0)
            file.sync()
            file.close()
        work.sync()

    patch.setattr(inbox, "finish_moves", copying)


def appends_after_an_undecided_adoption(patch: Patch) -> None:
    original = adoption._adopt_locked

    def going_on(directory: Any, work: Any, known: Any, writer: LogWriter, *rest: Any) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LogWriter, "fail", lambda self, error: None)
            return original(directory, work, known, writer, *rest)

    patch.setattr(adoption, "_adopt_locked", going_on)


def failed_write_not_cut_back(patch: Patch) -> None:
    def leave(self: SegmentWriter) -> None:
        self.end += 7

    patch.setattr(SegmentWriter, "_cut_back", leave)


BUGS: dict[str, Bug] = {
    "no sync": (no_sync, cut_power(LOG, "singles")),
    "no directory sync": (no_directory_sync, cut_power(LOG, "rolling")),
    "acknowledged before the sync": (acknowledge_before_sync, cut_power(LOG, "singles")),
    "a failed sync tried again": (try_a_failed_sync_again, power_cut_after_a_failed_sync(LOG)),
    "unlinked before the position": (trim_before_the_position_is_saved, cut_power(LOG, "trimming")),
    "cursors ignored": (trim_over_cursors, cut_power(LOG, "cursors")),
    "trimmed before it is on record": (
        trimmed_before_it_is_on_record,
        cut_power(LOG, "trimming much"),
    ),
    "short write ignored": (short_write_ignored, fail_calls(LOG, "rolling", None)),
    "failed write not cut back": (failed_write_not_cut_back, fail_calls(LOG, "rolling", errno.EIO)),
    "staging reused too early": (staging_space_reused_too_early, cut_power(LOG, "os draining")),
    "staged records forgotten": (staged_records_forgotten, cut_power(LOG, "os killed")),
    "served without a copy": (
        found_records_served_without_a_copy,
        power_cut_after_a_failed_sync(LOG),
    ),
    "offsets given out twice": (offsets_given_out_twice_unseen, cut_power(LOG, "os rolling")),
    "renamed before the sync": (rename_before_sync, cut_power(LOG, "trimming", "adoption")),
    "checksum not looked at": (checksum_not_looked_at, cut_power(LOG, "rolling", "os rolling")),
    # In the checked versions the records themselves say that the mark is an old one.
    "clean mark left standing": (clean_mark_left_standing, cut_power(LOG, "version 1 closing")),
    "marked before the sync": (mark_written_before_the_sync, cut_power(LOG, "version 1")),
    "adopted twice": (batch_adopted_without_a_ledger, cut_power(LOG, "adoption")),
    "adoption left undecided": (
        appends_after_an_undecided_adoption,
        fail_calls(LOG, "adoption", errno.EIO),
    ),
}
