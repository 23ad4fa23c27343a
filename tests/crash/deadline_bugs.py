"""Bugs to plant into the deadline queue, and where to look for each."""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forebay.damage import Damage
from forebay.errors import ForebayError
from forebay.formats.deadline.blocks import Identity
from forebay.formats.deadline.items import FileKind, KeyTuple, file_name
from forebay.formats.deadline.manifest import Manifest, SetRow
from forebay.formats.deadline.runs import Run
from forebay.formats.deadline.wal import Header, Origin
from forebay.kernels.deadline import RunView
from forebay.queues.deadline import compaction as deadline_upkeep
from forebay.queues.deadline import compaction as deadline_writing
from forebay.queues.deadline import journal as deadline_journal
from forebay.queues.deadline import picture as deadline_picture
from forebay.queues.deadline import recovery as deadline_recovery
from forebay.queues.deadline import replay as deadline_logs
from forebay.queues.deadline import runs as deadline_runs
from forebay.queues.deadline import state as deadline_state
from forebay.queues.deadline.compaction import SetWriter, Upkeep, _RunWriter
from forebay.queues.deadline.journal import Journal, WalFile, create_wal
from forebay.queues.deadline.manifest import ManifestFile
from forebay.queues.deadline.names import list_files, wal_name
from forebay.queues.deadline.replay import FoundLog
from forebay.queues.deadline.runs import FIRST_BURIED, RunSet, View
from forebay.queues.deadline.schedule import (
    FULL,
    MARK,
    TOMBSTONE,
    DeadlineItem,
    Memory,
    Schedule,
)
from forebay.queues.deadline.state import State
from forebay.storage import filesystem
from forebay.storage.commit import GroupCommit
from forebay.storage.losses import Losses
from forebay.storage.open_files import OpenFiles
from forebay.storage.staging import Staged
from tests.crash.deadline_kind import Content, DeadlineWorkload, content_of
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulDirectory
from tests.crash.hunts import cut_power, fail_calls
from tests.crash.kinds import DEADLINE
from tests.crash.workload import PATH
from tests.support.inside import drop
from tests.support.planting import Broken, Bug, Patch

if TYPE_CHECKING:
    from forebay.queues.deadline.schedule import NotMade


def no_directory_sync(patch: Patch) -> None:
    patch.setattr(ForgetfulDirectory, "sync", lambda self: None)


def acknowledge_before_sync(patch: Patch) -> None:
    patch.setattr(GroupCommit, "wait", lambda self, *_: None)


def runs_not_synced(patch: Patch) -> None:
    def finish(self: _RunWriter) -> bool:
        if self.encoder.is_empty:
            return False
        self._put([self.encoder.finish()])
        assert self._file is not None
        self._file.close()
        return True

    patch.setattr(_RunWriter, "finish", finish)


def log_removed_before_the_manifest(patch: Patch) -> None:
    original = Upkeep._write_out

    def write_out(self: Upkeep, segment: Memory, between: Callable[[], None]) -> None:
        self._directory.unlink(wal_name(segment.number))
        original(self, segment, between)

    patch.setattr(Upkeep, "_write_out", write_out)


def merged_runs_removed_before_the_manifest(patch: Patch) -> None:
    original = Upkeep._finish_merge

    def finish(self: Upkeep, chosen: list[RunSet], row: SetRow) -> None:
        for each in chosen:
            for kind in each.files:
                self._directory.unlink(file_name(each.number, kind))
        original(self, chosen, row)

    patch.setattr(Upkeep, "_finish_merge", finish)


def _forget_in_a_freeze(patch: Patch, forgotten: int) -> None:
    no_row_has = 99
    states = tuple(
        no_row_has if state == forgotten else state for state in deadline_writing._STATES
    )
    patch.setattr(deadline_writing, "_STATES", states)


def tombstones_forgotten_in_a_freeze(patch: Patch) -> None:
    _forget_in_a_freeze(patch, TOMBSTONE)


def counts_forgotten_in_a_freeze(patch: Patch) -> None:
    _forget_in_a_freeze(patch, MARK)


class TwoBatches(Schedule):
    """Writes the tombstone of an old copy before the batch that has the new one as well."""

    def requeue(self, item: DeadlineItem, *rest: Any) -> NotMade | None:
        if self.forget([item.key]) is FULL:
            return FULL
        return super().requeue(item, *rest)


def requeue_in_two_batches(patch: Patch) -> None:
    patch.setattr(deadline_state, "Schedule", TwoBatches)


class SameKey(Schedule):
    """Writes a tombstone that meets the new copy."""

    def requeue(self, item: DeadlineItem, *rest: Any) -> NotMade | None:
        if super().requeue(item, *rest) is FULL:
            return FULL
        return self.forget(self.memories[0].keys_of(item.id))


def requeue_under_the_same_key(patch: Patch) -> None:
    patch.setattr(deadline_state, "Schedule", SameKey)


def ids_not_reserved(patch: Patch) -> None:
    def reserve_ids(self: Journal, count: int) -> None:
        self._schedule.ids_end = self._schedule.next_id + count

    patch.setattr(deadline_recovery, "IDS_AT_ONCE", 0)
    patch.setattr(Journal, "reserve_ids", reserve_ids)


def recovery_rewrites_from_the_written_end(patch: Patch) -> None:
    original = deadline_recovery.Recovery._make_durable

    def make_durable(self: deadline_recovery.Recovery, log: FoundLog) -> None:
        mark = self._picture.mark
        if mark is not None:
            self._picture.mark = mark._replace(durable=mark.written)
        original(self, log)
        self._picture.mark = mark

    patch.setattr(deadline_recovery.Recovery, "_make_durable", make_durable)


def log_of_a_recovery_not_synced(patch: Patch) -> None:
    class Lazy:
        def __init__(self, file: filesystem.File) -> None:
            self.file = file

        def sync(self) -> None:
            pass

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    original = deadline_recovery.Recovery._write_log

    def write_log(
        self: deadline_recovery.Recovery,
        copied: list[FoundLog],
        kept: list[FoundLog],
        next_id: int,
    ) -> WalFile:
        create = create_wal
        with Patch.context() as inner:

            def lazy(*arguments: object) -> WalFile:
                wal = create(*arguments)  # type: ignore[arg-type]  # passed on as they came
                wal.file = Lazy(wal.file)  # type: ignore[assignment]  # stands in for a file
                return wal

            inner.setattr(deadline_recovery, "create_wal", lazy)
            wal = original(self, copied, kept, next_id)
        wal.file = wal.file.file  # type: ignore[attr-defined]  # the stand-in's own
        return wal

    patch.setattr(deadline_recovery.Recovery, "_write_log", write_log)


def old_logs_go_before_the_manifest(patch: Patch) -> None:
    original = ManifestFile.change

    def change(self: ManifestFile, make: Callable[[Manifest], Manifest]) -> None:
        after = make(self.manifest)
        for name in self._directory.names():
            found = list_files([name])
            if found and found[0][1] is FileKind.WAL and found[0][0] < after.oldest_wal:
                self._directory.unlink(name)
        original(self, make)

    patch.setattr(ManifestFile, "change", change)


def next_log_before_this_one_is_durable(patch: Patch) -> None:
    def switch(self: Journal, wal: WalFile) -> WalFile:
        self.drain()
        before, self.wal = self.wal, wal
        self._publish(self.applied)
        self.commit.advance(self.applied)
        return before

    patch.setattr(Journal, "switch", switch)
    patch.setattr(Journal, "sync", lambda self: None)


def next_log_says_nothing_of_this_one(patch: Patch) -> None:
    original = WalFile.write_origin

    def write_origin(self: WalFile, origin: Origin) -> int:
        return original(self, replace(origin, durable=True))

    patch.setattr(WalFile, "write_origin", write_origin)


def next_log_trusted_without_this_one(patch: Patch) -> None:
    patch.setattr(FoundLog, "goes_on_from", lambda self, before: True)


def sync_of_the_newest_log_only(patch: Patch) -> None:
    original = OpenFiles.begin_sync
    patch.setattr(OpenFiles, "begin_sync", lambda self: original(self)[-1:])


def marks_before_the_tombstones(patch: Patch) -> None:
    original = Upkeep._write_out

    def write_out(self: Upkeep, segment: Memory, between: Callable[[], None]) -> None:
        self._marks[segment.number] = self._read_marks()
        original(self, segment, between)

    patch.setattr(Upkeep, "_write_out", write_out)


def holes_taken_for_damage(patch: Patch) -> None:
    def judge(self: FoundLog, damage: Damage) -> Damage:
        return damage

    patch.setattr(FoundLog, "judge", judge)


def short_write_ignored(patch: Patch) -> None:
    def write_some(file: filesystem.File, data: filesystem.Buffer, position: int) -> None:
        file.pwrite(data, position)

    patch.setattr(deadline_journal, "write_all", write_some)


def failed_write_not_cut_back(patch: Patch) -> None:
    def cut_back(self: Journal, position: int) -> None:
        self.wal.position = position + 1

    patch.setattr(Journal, "_cut_back", cut_back)


class NoUndo(Schedule):
    """Keeps in memory what could not be written."""

    def undo(self) -> None:
        pass


def failed_write_not_undone(patch: Patch) -> None:
    patch.setattr(deadline_state, "Schedule", NoUndo)


def marks_beyond_what_is_lent_out(patch: Patch) -> None:
    def low_waters(self: State) -> dict[int, KeyTuple]:
        return {each.number: self.view.low_water(each) for each in self.view.sets}

    patch.setattr(State, "low_waters", low_waters)


def cursors_lost_after_a_merge(patch: Patch) -> None:
    def replace_sets(self: View, old: list[RunSet], new: RunSet) -> None:
        at = self.sets.index(old[0])
        self.sets[at : at + len(old)] = [new]
        last = FIRST_BURIED.deadline_ms, 0
        self.runs = RunView()
        for each in self.sets:
            self._take(self._start(each, last, last))

    patch.setattr(View, "replace", replace_sets)


def partial_merge_drops_tombstones(patch: Patch) -> None:
    original = SetWriter.merge

    def merge(self: SetWriter, sets: list[RunSet], **options: Any) -> SetRow:
        return original(self, sets, **{**options, "full": True})

    patch.setattr(SetWriter, "merge", merge)
    patch.setattr(deadline_upkeep, "choose_merge", lambda sets, **_: (1, len(sets) - 1))


def staged_batches_not_read(patch: Patch) -> None:
    patch.setattr(deadline_picture, "read_staged", lambda directory: None)


def staged_batches_behind_a_hole(patch: Patch) -> None:
    original = deadline_logs.with_staged

    def with_staged(
        data: bytes, header: Header, staged: Staged | None, *, holes: bool = False
    ) -> bytes:
        whole = original(b"", header, staged).lstrip(b"\0")
        return data.rstrip(b"\0") + whole

    patch.setattr(deadline_logs, "with_staged", with_staged)


def staging_used_again_before_the_write(patch: Patch) -> None:
    original = Journal._write_buffer

    def write_buffer(self: Journal) -> None:
        if not self.is_staging:
            original(self)

    patch.setattr(Journal, "_write_buffer", write_buffer)


def rows_of_a_merge_not_named(patch: Patch) -> None:
    original = ManifestFile.change

    def change(self: ManifestFile, make: Callable[[Manifest], Manifest]) -> None:
        before = self.manifest.sets

        def forget(manifest: Manifest) -> Manifest:
            after = make(manifest)
            return replace(after, sets=before) if len(after.sets) < len(before) else after

        original(self, forget)

    patch.setattr(ManifestFile, "change", change)


def mark_before_the_sync(patch: Patch) -> None:
    original = Journal._sync_files

    def sync(self: Journal) -> int:
        with self.lock:
            self.drain()
            self._publish_mark(self._end_of(self.wal))
        return original(self)

    patch.setattr(Journal, "_sync_files", sync)


def mark_not_written_at_close(patch: Patch) -> None:
    patch.setattr(Journal, "close_mark", lambda self: None)
    patch.setattr(Journal, "_publish_mark", lambda self, durable=None: None)


def run_taken_for_another(patch: Patch) -> None:
    original = deadline_runs.open_run

    def open_run(
        file: filesystem.File,
        path: str,
        expected: int | None = None,
        identity: Identity | None = None,
    ) -> Run:
        return original(file, path, expected)

    patch.setattr(deadline_runs, "open_run", open_run)


def loss_recorded_after_the_manifest(patch: Patch) -> None:
    patch.setattr(Losses, "save", lambda self: None)


def _filled(machine: ForgetfulFilesystem) -> None:
    queue = DeadlineWorkload.open_on(machine, {})
    for _ in range(2):
        queue.enqueue_many([b"one", b"two", b"three"])
        queue.freeze()
    queue.enqueue(b"last")
    queue.close()


def _lost(machine: ForgetfulFilesystem) -> int:
    """Opens the queue, and returns how many items it says are lost."""
    queue = DeadlineWorkload.open_on(machine, {})
    drop(queue)
    return sum(damage.count or 0 for damage in queue.damage) + int(queue.info().losses)


def flip_the_last_batch() -> int:
    """Looks whether a bad byte in the log of a closed queue is told."""
    machine = ForgetfulFilesystem(3)
    _filled(machine)
    directory = machine.open_directory(PATH)
    (name,) = (name for name in directory.names() if name.endswith(FileKind.WAL))
    file = directory.open(name, write=True)
    position = file.size() - 1
    file.pwrite(bytes([file.pread(1, position)[0] ^ 1]), position)
    if not _lost(machine.kill()):
        raise Broken("a bad batch of a closed queue is not told")
    return 1


def swap_two_runs() -> int:
    """Looks whether runs that have changed places are told."""
    machine = ForgetfulFilesystem(3)
    _filled(machine)
    directory = machine.open_directory(PATH)
    one, other = sorted(name for name in directory.names() if name.endswith(".p.run"))
    directory.rename(one, "aside")
    directory.rename(other, one)
    directory.rename("aside", other)
    if not _lost(machine.kill()):
        raise Broken("runs that have changed places are not told")
    return 1


def lose_a_run_and_cut_the_power() -> int:
    """Looks whether the loss of a run is told, whenever the power goes in the next open."""
    machine = ForgetfulFilesystem(3)
    _filled(machine)
    directory = machine.open_directory(PATH)
    directory.unlink(min(name for name in directory.names() if name.endswith(".p.run")))
    directory.sync()
    since = machine.operations
    machine = machine.kill()
    _lost(machine)
    states = 0
    for state in machine.crash_states(2, since=since, limit=20):
        states += 1
        if not _lost(state.restore()):
            raise Broken(f"{state.description} of point {state.point}: the loss is forgotten")
    return states


def fail_a_sync_and_cut_the_power() -> int:
    """Looks whether what is served after a failed sync survives, in a log too long to be copied.

    The process dies and the queue is opened again in the same boot: the cache shows bytes that the
    disk lacks.
    """
    states = 0
    for call in itertools.count(1):
        machine = ForgetfulFilesystem(call)
        queue = DeadlineWorkload.open_on(machine, {"sync": "os", "staging_bytes": 4096})
        queue.enqueue(bytes(deadline_recovery._COPY_BYTES_MAX))
        queue.sync()
        # Longer than the staging buffer: the mark says at once that it is written.
        queue.enqueue(bytes(5000))
        machine.fail_at(call, errno.EIO)
        with contextlib.suppress(OSError, ForebayError):
            queue.sync()
        drop(queue)
        if not machine.faults:
            break
        machine.heal()
        machine = machine.kill()
        served = _content(machine)
        for state in machine.crash_states(2, since=machine.operations):
            states += 1
            if _content(state.restore()) != served:
                raise Broken(f"call {call} fails, {state.description}: what was served is gone")
    return states


def _content(machine: ForgetfulFilesystem) -> Content:
    """Opens the queue, and returns what it serves."""
    queue = DeadlineWorkload.open_on(machine, {})
    drop(queue)
    return content_of(queue)


BUGS: dict[str, Bug] = {
    "mark before the sync": (mark_before_the_sync, cut_power(DEADLINE, "singles", "os batches")),
    "mark not written at close": (mark_not_written_at_close, flip_the_last_batch),
    "run taken for another": (run_taken_for_another, swap_two_runs),
    "loss recorded after the manifest": (
        loss_recorded_after_the_manifest,
        lose_a_run_and_cut_the_power,
    ),
    "no directory sync": (no_directory_sync, cut_power(DEADLINE, "freezing")),
    "acknowledged before the sync": (acknowledge_before_sync, cut_power(DEADLINE, "singles")),
    "runs not synced": (runs_not_synced, cut_power(DEADLINE, "freezing")),
    "log gone before the manifest": (
        log_removed_before_the_manifest,
        cut_power(DEADLINE, "freezing"),
    ),
    "merged runs gone before the manifest": (
        merged_runs_removed_before_the_manifest,
        cut_power(DEADLINE, "merging"),
    ),
    "tombstones forgotten": (
        tombstones_forgotten_in_a_freeze,
        cut_power(DEADLINE, "freezing", "merging"),
    ),
    "counts forgotten": (counts_forgotten_in_a_freeze, cut_power(DEADLINE, "freezing again")),
    "requeue in two batches": (requeue_in_two_batches, cut_power(DEADLINE, "giving out")),
    "requeue killed by its own tombstone": (
        requeue_under_the_same_key,
        cut_power(DEADLINE, "giving out"),
    ),
    "ids not reserved": (ids_not_reserved, cut_power(DEADLINE, "os giving out")),
    "recovery not synced": (log_of_a_recovery_not_synced, cut_power(DEADLINE, "os killed")),
    "recovery rewrites from the written end": (
        recovery_rewrites_from_the_written_end,
        fail_a_sync_and_cut_the_power,
    ),
    "old logs gone before the manifest": (
        old_logs_go_before_the_manifest,
        cut_power(DEADLINE, "closing"),
    ),
    "next log too early": (
        next_log_before_this_one_is_durable,
        cut_power(DEADLINE, "interval handing over"),
    ),
    "next log without a word": (
        next_log_says_nothing_of_this_one,
        cut_power(DEADLINE, "os handing over"),
    ),
    "next log trusted alone": (
        next_log_trusted_without_this_one,
        cut_power(DEADLINE, "os handing over"),
    ),
    "only the newest log synced": (
        sync_of_the_newest_log_only,
        cut_power(DEADLINE, "os handing over"),
    ),
    "marks before the tombstones": (
        marks_before_the_tombstones,
        cut_power(DEADLINE, "os freezing late"),
    ),
    "holes taken for damage": (holes_taken_for_damage, cut_power(DEADLINE, "os freezing")),
    "short write ignored": (short_write_ignored, fail_calls(DEADLINE, "giving out", None)),
    "failed write not cut back": (
        failed_write_not_cut_back,
        fail_calls(DEADLINE, "giving out", errno.ENOSPC),
    ),
    "failed write not undone": (
        failed_write_not_undone,
        fail_calls(DEADLINE, "giving out", errno.ENOSPC),
    ),
    "marks beyond what is lent out": (
        marks_beyond_what_is_lent_out,
        cut_power(DEADLINE, "freezing again", "freezing"),
    ),
    "cursors lost after a merge": (
        cursors_lost_after_a_merge,
        cut_power(DEADLINE, "merging", "freezing again"),
    ),
    "partial merge drops tombstones": (
        partial_merge_drops_tombstones,
        cut_power(DEADLINE, "merging"),
    ),
    "staged batches not read": (staged_batches_not_read, cut_power(DEADLINE, "os killed")),
    "staged batches behind a hole": (
        staged_batches_behind_a_hole,
        cut_power(DEADLINE, "os giving out", "os freezing", "os killed"),
    ),
    "staging used again before the write": (
        staging_used_again_before_the_write,
        cut_power(DEADLINE, "os killed", "os giving out"),
    ),
    "merge not named": (rows_of_a_merge_not_named, cut_power(DEADLINE, "merging")),
}
