"""Freezes what is in memory into runs, and merges runs; the queue is used meanwhile.

One piece of work at a time. The order of steps is what a crash relies on: runs are written and
synced, then the manifest names them, then the queue reads from them, and last the files go that
they replace. A manifest that could not be written may be on the disk nevertheless: so what it names
is kept, and the same change is made again the next time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from forebay.errors import Closed
from forebay.formats.deadline import FileKind, Key, KeyTuple, file_name
from forebay.formats.deadline_manifest import LogRow, Manifest, SetRow
from forebay.frames import Damage
from forebay.kernels.deadline_memory import Memory
from forebay.queues.deadline_journal import Journal, WalFile
from forebay.queues.deadline_manifest import ManifestFile
from forebay.queues.deadline_merging import SETS_MAX, are_half_dead, choose_merge
from forebay.queues.deadline_names import wal_name
from forebay.queues.deadline_runs import BadBlocks, RunSet, open_written
from forebay.queues.deadline_state import State
from forebay.queues.deadline_writing import SetWriter
from forebay.queues.options import DeadlineOptions
from forebay.queues.unbroken import unbroken
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.losses import Losses

# So many segments may be in memory before an enqueue waits for the freezing.
_SEGMENTS_MAX = 2


class _Outdated(Exception):
    """Most of what a merge writes is dead by now: it is better to begin anew, with all sets."""


class Upkeep:
    """The work on the files of one queue. Any thread may call it, without the queue's lock."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        journal: Journal,
        manifest: ManifestFile,
        state: State,
        options: DeadlineOptions,
        next_number: int,
        kept: list[LogRow],
        losses: Losses,
    ) -> None:
        """`kept` are logs of before whose content is in the present segment too."""
        self._filesystem = filesystem
        self._directory = directory
        self._journal = journal
        self._manifest = manifest
        self._state = state
        self._options = options
        self._next_number = next_number
        self._losses = losses
        self._kept = kept
        self._kept_number = journal.wal.number
        journal.kept_bytes = sum(row.end for row in kept)
        # Held by who writes or removes files; who closes the queue waits for it.
        self.work = threading.RLock()
        # Logs that are being frozen, by number, and the runs that are written already.
        self._wals: dict[int, WalFile] = {}
        self._written: dict[int, SetRow] = {}
        # What the manifest may say when the runs of a log are durable.
        self._marks: dict[int, _Marks] = {}
        self._merged: tuple[list[RunSet], SetRow] | None = None
        # To be done before sets go that the ledger of the inbox tells a batch by.
        self.before_merge: Callable[[], None] | None = None
        self.freezes = 0
        self.merges = 0
        self.damage: list[Damage] = []
        self._found_damage = False
        self.is_merging = False
        self.stopping = False

    @property
    def frozen_wals(self) -> list[WalFile]:
        """Logs whose runs are not there yet."""
        return list(self._wals.values())

    @property
    def wants_freeze(self) -> bool:
        """Whether memory holds as much as it should, or a freeze is to be finished."""
        current = self._state.current
        return (
            current.count >= self._options.segment_items
            or current.bytes >= self._options.segment_bytes
            or self._journal.position + self._journal.kept_bytes >= 2 * self._options.segment_bytes
            or bool(self._state.frozen)
        )

    @property
    def wants_merge(self) -> bool:
        """Whether some sets are worth a merge, or one is to be finished."""
        sets = self._state.view.sets
        return self._merged is not None or choose_merge(sets)[1] > 0

    @property
    def is_behind(self) -> bool:
        """Whether more comes into memory than can be frozen."""
        many = len(self._state.segments) > _SEGMENTS_MAX
        return many or self._state.current.count >= self.items_max

    @property
    def items_max(self) -> int:
        """How many rows the newest segment may have before freezing is behind."""
        return self._options.segment_items * 3 // 2

    def fail(self, error: BaseException) -> None:
        """Ends the handle, whose memory may not be what its files say."""
        self._journal.fail(error)

    def freeze(self) -> bool:
        """Turns all that is in memory into runs; False if there is nothing."""
        with self.work:
            self._check()
            self._hand_over()
            worked = False
            for segment in list(self._state.frozen):
                self._write_out(segment)
                self.freezes += 1
                worked = True
            return worked

    def merge(
        self, *, everything: bool = False, between: Callable[[], None] = lambda: None
    ) -> bool:
        """Merges the sets that are worth it, or all of them; False if there is nothing to do.

        It may take long: `between` is called again and again, and what memory has too much of is
        frozen meanwhile.
        """
        with self.work:
            self._check()
            if self.before_merge is not None:
                self.before_merge()
            if self._merged is None:
                sets = list(self._state.view.sets)
                first, count = choose_merge(sets, everything=everything)
                if count == 0:
                    return False
                chosen = sets[first : first + count]
                try:
                    self._merged = chosen, self._write_merged(chosen, first == 0, between)
                except _Outdated:
                    return True
            self._finish_merge(*self._merged)
            self.merges += 1
            return True

    def save(self, next_id: int) -> None:
        """Saves in the manifest what is known by now; durable on return."""
        with self._journal.lock:
            marks, end = self._read_marks(), self._journal.written
        # What is below a mark has a tombstone: that must not get lost alone.
        self._journal.wait(end)
        self._manifest.change(lambda before: replace(marks.apply(before), next_id=next_id))

    def _read_marks(self) -> _Marks:
        return _Marks(self._state.low_waters(), self._state.desk.floor_ms)

    def _check(self) -> None:
        with self._journal.lock:
            self._journal.check()

    def _hand_over(self) -> None:
        """Begins a new log and a new segment, if the present ones hold anything."""
        with self._journal.lock:
            self._journal.drain()
        is_new = self._journal.wal.is_empty and not self._kept
        if is_new and not self._state.current.count:
            return
        number = self._next_number
        self._next_number += 1
        wal = self._journal.prepare(number)
        try:
            if self._options.sync != "os":
                # Most of the log is synced here, where nobody waits for it.
                self._journal.sync()
            with self._journal.lock:
                self._switch(wal)
        except BaseException:
            if self._journal.wal is not wal:
                wal.file.close()
                with contextlib.suppress(OSError):
                    self._directory.unlink(wal_name(number))
            raise

    @unbroken
    def _switch(self, wal: WalFile) -> None:
        self._journal.check()
        if self._options.sync == "os":
            before = self._journal.switch_unsynced(wal)
        else:
            before = self._journal.switch(wal)
        self._marks[before.number] = self._read_marks()
        self._state.hand_over(wal.number)
        self._wals[before.number] = before

    def _write_out(self, segment: Memory) -> None:
        """Writes the runs of a segment, has them read, and removes its log."""
        row = self._written.get(segment.number)
        if row is None:
            row = self.writer(segment.number).freeze(segment)
            self._written[segment.number] = row
        following = min(
            number for number in (*self._wals, self._journal.wal.number) if number > segment.number
        )
        marks = self._marks[segment.number]
        newer = [wal for wal in self._wals.values() if wal.number >= following]
        logs = tuple(wal.row() for wal in (*newer, self._journal.wal))

        def change(manifest: Manifest) -> Manifest:
            marked = marks.apply(manifest)
            sets = marked.sets if _is_named(marked, row) else (*marked.sets, row)
            return replace(marked, oldest_wal=following, sets=sets, logs=logs)

        frozen = self._adopt(row, change)
        with self._journal.lock, _closing(frozen):
            self._read_frozen(segment, frozen)
        del self._written[segment.number], self._marks[segment.number]
        self._journal.retire(self._wals.pop(segment.number))
        if segment.number == self._kept_number:
            for log in self._kept:
                with contextlib.suppress(FileNotFoundError):
                    self._directory.unlink(wal_name(log.number))
            self._kept = []
            self._journal.kept_bytes = 0

    @unbroken
    def _read_frozen(self, segment: Memory, frozen: RunSet | None) -> None:
        self._state.settle(segment, frozen)
        self._journal.note_manifest()
        self._journal.changes.announce()

    def _write_merged(
        self, chosen: list[RunSet], full: bool, between: Callable[[], None]
    ) -> SetRow:
        number = self._next_number
        self._next_number += 1
        # Files of its own: those of the view are read by others meanwhile.
        queue_id = self._manifest.manifest.queue_id
        sources: list[RunSet] = []
        try:
            for each in chosen:
                sources.append(open_written(self._directory, each.row(), queue_id))
        except BaseException:
            for source in sources:
                source.close()
            raise
        damage: BadBlocks = []
        # Whether it frees half of what is there.
        clears = full and are_half_dead(chosen)
        start = 0

        def go_on(done: int) -> None:
            nonlocal start
            self._check_stopping()
            between()
            has_many = len(self._state.view.sets) > SETS_MAX
            # With many sets it does more than a freeze writes before it lets one in, and keeps up.
            if self.wants_freeze and (done - start > self.items_max or not has_many):
                self.freeze()
                start = done
                if not clears and are_half_dead(self._state.view.sets):
                    raise _Outdated

        self.is_merging = True
        try:
            row = self.writer(number).merge(sources, full=full, damage=damage, go_on=go_on)
        finally:
            self.is_merging = False
            for source in sources:
                source.close()
        with self._journal.lock:
            found = [self._state.lost_in(kind, bad) for kind, bad in damage]
        self.damage += found
        self._found_damage = bool(damage)
        # Before the manifest no longer names the runs that they were in.
        for lost in found:
            if lost.count != 0:
                self._losses.note(lost, gone=True)
        self._losses.save()
        return row

    def _check_stopping(self) -> None:
        """Ends a merge that somebody who closes the queue would wait for."""
        if self.stopping:
            raise Closed(f"{self._directory.path} is closed")

    def _finish_merge(self, chosen: list[RunSet], row: SetRow) -> None:
        numbers = {each.number for each in chosen}

        def change(manifest: Manifest) -> Manifest:
            named = [i for i, each in enumerate(manifest.sets) if each.number in numbers]
            if not named:
                # It was changed before, and something failed after it.
                return manifest
            at = named[0]
            rest = [each for each in manifest.sets if each.number not in numbers]
            return replace(manifest, sets=(*rest[:at], *([row] if row.kinds else ()), *rest[at:]))

        merged = self._adopt(row, change) or RunSet(row.number)
        with self._journal.lock, _closing(merged):
            self._read_merged(chosen, merged)
        self._merged = None
        for each in chosen:
            each.close()
            for kind in each.files:
                with contextlib.suppress(FileNotFoundError):
                    self._directory.unlink(file_name(each.number, kind))

    @unbroken
    def _read_merged(self, chosen: list[RunSet], merged: RunSet) -> None:
        self._state.replace(chosen, merged)
        if self._found_damage:
            self._state.recount()
            self._found_damage = False
            while (lost := self._losses.next_pending()) is not None:
                self._state.tell([lost])
        self._journal.note_manifest()
        self._journal.changes.announce()

    def _adopt(self, row: SetRow, change: Callable[[Manifest], Manifest]) -> RunSet | None:
        """Opens a set and has the manifest name it; None if it is empty."""
        queue_id = self._manifest.manifest.queue_id
        opened = open_written(self._directory, row, queue_id) if row.kinds else None
        try:
            self._manifest.change(change)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        return opened

    def writer(self, number: int) -> SetWriter:
        """Makes what writes the runs of a set."""
        queue_id = self._manifest.manifest.queue_id
        compression = self._options.compression
        return SetWriter(self._filesystem, self._directory, number, compression, queue_id)


@contextlib.contextmanager
def _closing(opened: RunSet | None) -> Iterator[None]:
    """Closes a set that could not be taken in; it is opened anew the next time."""
    try:
        yield
    except BaseException:
        if opened is not None:
            opened.close()
        raise


def _is_named(manifest: Manifest, row: SetRow) -> bool:
    """Says whether a manifest names a set, or need not because it is empty."""
    return not row.kinds or any(each.number == row.number for each in manifest.sets)


@dataclass(frozen=True, slots=True)
class _Marks:
    """Below which key nothing is left of each set, and the highest deadline that was given out."""

    low_waters: dict[int, KeyTuple]
    floor_ms: int

    def apply(self, manifest: Manifest) -> Manifest:
        """Returns a manifest that says so. The tombstones below the marks must be durable."""
        sets = tuple(map(self._apply_to_row, manifest.sets))
        return replace(manifest, sets=sets, floor_ms=max(manifest.floor_ms, self.floor_ms))

    def _apply_to_row(self, row: SetRow) -> SetRow:
        mark = self.low_waters.get(row.number)
        if mark is None or FileKind.PENDING_RUN not in row.kinds:
            return row
        return replace(row, low_water=max(row.low_water, Key(*mark)))
