"""Freezes what is in memory into runs, and merges runs; the queue is used meanwhile.

One task at a time. Crash safety depends on the order of steps: runs are written and synced, then
the manifest names them, then the queue reads from them, and last the files they replace are
removed. A manifest whose write failed may be on the disk nevertheless: so what it names is kept,
and the same change is made again the next time.

A set of runs is durable when it is returned, including its names, and a failed one leaves no file.
A merge runs without the interpreter's lock: it is fed with blocks, and a block that it cannot read
by itself is decoded here; a bad one is noted, and costs its own entries. Merges join neighbours of
similar size, and sets emptied by tombstones; only neighbours by age, so that tombstones stay newer
than what they remove.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from forebay.damage import Damage
from forebay.errors import Closed
from forebay.formats.deadline.blocks import Identity
from forebay.formats.deadline.items import Entry, FileKind, Item, Key, KeyTuple, file_name
from forebay.formats.deadline.manifest import LogRow, Manifest, SetCounts, SetRow
from forebay.formats.deadline.run_encoder import RunEncoder
from forebay.kernels import deadline as kernel
from forebay.kernels.buffers import crc32
from forebay.kernels.deadline import BlockBuilder, BlockStream, RunView, can_stream, merge
from forebay.queues.deadline.journal import Journal, WalFile
from forebay.queues.deadline.manifest import ManifestFile
from forebay.queues.deadline.names import wal_name
from forebay.queues.deadline.options import DeadlineOptions
from forebay.queues.deadline.runs import (
    CURSOR_KINDS,
    BadBlocks,
    RunFile,
    RunSet,
    open_written,
    start_cursor,
)
from forebay.queues.deadline.schedule import ITEM, MARK, TOMBSTONE, Memory
from forebay.queues.deadline.state import State
from forebay.queues.shared.owner import fatal_when_interrupted
from forebay.storage.filesystem import Buffer, Directory, File, Filesystem, write_all
from forebay.storage.losses import Losses

SETS_MAX = 64
# This many sets of like size are worth a merge: an entry is rewritten about once for each power.
_LIKE_MIN = 24
_LIKE_FACTOR = 4
# Sets below this size count as equally small.
_SMALL_BYTES = 64 * 1024


def choose_merge(sets: list[RunSet], *, everything: bool = False) -> tuple[int, int]:
    """Returns which set is the first to merge, the oldest being 0, and how many; 0: none."""
    if everything:
        only = len(sets) == 1 and set(sets[0].files) == {FileKind.PENDING_RUN}
        return (0, 0) if not sets or only else (0, len(sets))
    if are_half_dead(sets):
        return 0, len(sets)
    first = _first_alike(sets)
    if len(sets) - first >= _LIKE_MIN:
        return first, len(sets) - first
    if len(sets) > SETS_MAX:
        return len(sets) - _LIKE_MIN, _LIKE_MIN
    return 0, 0


def are_half_dead(sets: list[RunSet]) -> bool:
    """Says whether a merge of all sets would remove half of their contents."""
    gone = sum(each.entry_count(FileKind.TOMBSTONE_RUN) for each in sets)
    items = sum(each.entry_count(FileKind.PENDING_RUN) for each in sets)
    return len(sets) > 1 and gone > 0 and 2 * gone >= items


def _first_alike(sets: list[RunSet]) -> int:
    """Returns the first index from which no set is much larger than all newer ones together."""
    largest = _SMALL_BYTES
    first = len(sets)
    while first > 0:
        size = max(sets[first - 1].size, _SMALL_BYTES)
        if first < len(sets) and size > _LIKE_FACTOR * largest:
            break
        largest = max(largest, size)
        first -= 1
    return first


# The most that all sources may hold at once, and the most that each of them reads.
_HELD_BYTES = 32 << 20
_READ_BYTES_MAX = 4 << 20


class Feeder:
    """A merge of the runs in some files into some blocks. One thread may use it."""

    def __init__(
        self,
        files: list[RunFile],
        full: bool,
        builders: list[BlockBuilder],
        streams: list[BlockStream | None],
        damage: BadBlocks,
        held_bytes: int = _HELD_BYTES,
    ) -> None:
        size = min(held_bytes // max(len(files), 1), _READ_BYTES_MAX)
        self._sources = [_Source(file, size, damage) for file in files]
        kinds = [CURSOR_KINDS[file.kind] for file in files]
        seeds = [crc32(file.run.footer.salt) for file in files]
        self._merger = kernel.Merger(full, kinds, seeds, builders, streams)

    @property
    def passed(self) -> int:
        """How many keys have been merged."""
        return self._merger.passed

    def run(self) -> int:
        """Runs until another thread should have a turn; returns what `merge` does."""
        needed = self._merger.run()
        if needed == kernel.FULL:
            return self._merger.kind
        if needed == kernel.HUNGRY:
            self._sources[self._merger.source].feed(self._merger)
            return kernel.MORE
        return kernel.END


class _Source:
    """A run, and which of its blocks the merge has."""

    def __init__(self, file: RunFile, read_bytes: int, damage: BadBlocks) -> None:
        self._file = file
        self._read_bytes = read_bytes
        self._damage = damage
        self._data = b""
        self._first = self._stop = 0

    def feed(self, merger: kernel.Merger) -> None:
        """Feeds the merge with what it needs of this run."""
        row = self._first + merger.block
        if row < self._stop:
            self._feed_block(merger, row)
            return
        self._data = b""
        merger.forget()
        if row < len(self._file.run.places):
            self._feed_next(merger, row)
        else:
            merger.end_source()

    def _feed_next(self, merger: kernel.Merger, row: int) -> None:
        run = self._file.run
        stop = run.rows_within(row, self._read_bytes)
        self._data = run.read(row, stop)
        self._first, self._stop = row, stop
        merger.feed(self._data, run.table(row, stop))

    def _feed_block(self, merger: kernel.Merger, row: int) -> None:
        """Feeds the merge with a block that it cannot read by itself."""
        run = self._file.run
        start = run.places.positions[row] - run.places.positions[self._first]
        block = run.decode(row, self._data[start : start + run.block_size(row)])
        if isinstance(block, Damage):
            self._damage.append((self._file.kind, block))
            merger.skip_block()
        else:
            merger.feed_block(block)


# In the order of the kinds that `merge` returns, from 1 on.
_KINDS = (FileKind.PENDING_RUN, FileKind.TOMBSTONE_RUN, FileKind.DEQUEUED_RUN)
_STATES = (ITEM, TOMBSTONE, MARK)
_WRITE_BYTES = 1 << 20
# How much is synced at a time: one sync of a large run at its end would delay other work.
_SYNC_BYTES = 32 << 20
# A merge of less than this is not worth the buffers for many blocks at once.
_STREAM_BYTES_MIN = 1 << 20
# How many keys are merged before another thread may have a turn, even if no block is full.
_KEYS_AT_ONCE = 1_000


class SetWriter:
    """The files of one set, as they are written. One thread may use it."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        number: int,
        compression: str,
        queue_id: bytes,
    ) -> None:
        self._directory = directory
        self._number = number
        self._runs = [
            _RunWriter(filesystem, directory, number, kind, compression, queue_id)
            for kind in _KINDS
        ]

    def freeze(self, segment: Memory, between: Callable[[], None]) -> SetRow:
        """Writes a segment that no longer changes; durable on return.

        It may take long: `between` is called repeatedly.
        """
        with self._whole():
            for run, state in zip(self._runs, _STATES, strict=True):
                rows = segment.sorted(state)
                at = 0
                while (at := run.encoder.encode_rows(segment, rows, at)) < len(rows):
                    run.end_block()
                    between()
            return self._finish()

    def write_items(self, items: Iterable[Item]) -> SetRow:
        """Writes items that come sorted by key; durable on return."""
        pending = self._runs[0]
        remaining = iter(items)
        with self._whole():
            while batch := list(islice(remaining, _KEYS_AT_ONCE)):
                pending.add(batch)
            return self._finish()

    def merge(
        self,
        sets: list[RunSet],
        *,
        full: bool,
        damage: BadBlocks,
        go_on: Callable[[int], None],
    ) -> SetRow:
        """Writes what is left of sets; durable on return.

        `full` says that no older set is left out: then tombstones and counts that match no item are
        dropped. Bad blocks cost their entries, and are noted. `go_on` is called repeatedly with the
        number of keys done, and raises to end the merge.
        """
        # Also what is below the low-water mark: the tombstones of dead items must go with them.
        files = [file for each in sets for file in each.files.values()]
        builders = [run.encoder.builder for run in self._runs]
        run: Callable[[], int]
        source: Feeder | RunView
        if can_stream():
            is_much = sum(file.size for file in files) >= _STREAM_BYTES_MIN
            streams = [each.encoder.stream if is_much else None for each in self._runs]
            source = Feeder(files, full, builders, streams, damage)
            run = source.run
        else:
            source = RunView()
            for file in files:
                source.add(start_cursor(file, (0, 0), damage))
            run = partial(merge, source, full, *builders, limit=_KEYS_AT_ONCE)
        with self._whole():
            while (kind := run()) != kernel.END:
                go_on(source.passed)
                if kind != kernel.MORE:
                    self._runs[kind - 1].end_block()
            return self._finish()

    def _finish(self) -> SetRow:
        kinds = frozenset(run.kind for run in self._runs if run.finish())
        if kinds:
            self._directory.sync()
        items, tombstones, dequeued = (run.encoder.counts for run in self._runs)
        counts = SetCounts(items[0], items[2], sum(tombstones), sum(dequeued))
        return SetRow(self._number, kinds, counts=counts)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Removes the files again if not all of them could be written."""
        try:
            yield
        except BaseException:
            for run in self._runs:
                run.remove()
            raise


class _RunWriter:
    """One file of a set; it does not exist until it has an entry."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        number: int,
        kind: FileKind,
        compression: str,
        queue_id: bytes,
    ) -> None:
        self.kind = kind
        # Only items have an index by id: the id of a tombstone is never looked up.
        self.encoder = RunEncoder(
            filesystem.random_bytes(8),
            compression=compression,
            id_index=kind is FileKind.PENDING_RUN,
            identity=Identity(number, queue_id, kind[1]),
        )
        self._directory = directory
        self._name = file_name(number, kind)
        self._file: File | None = None
        self._position = 0
        self._synced = 0

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds entries by key, and writes the blocks that are full."""
        self._put([self.encoder.encode(entries)])

    def end_block(self) -> None:
        """Ends the full block, and writes large amounts at a time.

        Each write releases the interpreter's lock, and has to wait to get it back.
        """
        self.encoder.end_block()
        if self.encoder.is_streaming or self.encoder.waiting >= _WRITE_BYTES:
            self._put(self.encoder.take_parts())

    def finish(self) -> bool:
        """Makes the file durable; False if there is none."""
        if self.encoder.is_empty:
            return False
        self._put(self.encoder.finish_parts())
        assert self._file is not None
        self._file.sync()
        self._file.close()
        return True

    def remove(self) -> None:
        """Removes the file, if there is one."""
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError):
                self._directory.unlink(self._name)

    def _put(self, parts: Sequence[Buffer]) -> None:
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(self._name)
            self._file = self._directory.create(self._name)
        for part in parts:
            write_all(self._file, part, self._position)
            self._position += len(part)
        if self._position - self._synced >= _SYNC_BYTES:
            self._file.sync()
            self._synced = self._position


# The most rows that an open reads from the log of a queue that was closed.
_OPEN_ROWS_MAX = 4096
# How many segments may be in memory before an enqueue waits for the freezing.
_SEGMENTS_MAX = 2


class _Outdated(Exception):
    """Most of what a merge writes is dead by now: it should start again, with all sets."""


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
        """`kept` are older logs whose content is in the current segment too."""
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
        # Held while files are written or removed; close waits for it.
        self.work = threading.RLock()
        # Logs that are being frozen, by number, and the runs that are already written.
        self._wals: dict[int, WalFile] = {}
        self._written: dict[int, SetRow] = {}
        # What the manifest may say once the runs of a log are durable.
        self._marks: dict[int, _Marks] = {}
        self._merged: tuple[list[RunSet], SetRow] | None = None
        # The end of the logs when memory was last handed over; -1: never.
        self.handed_over = -1
        self.freezes = 0
        self.merges = 0
        self.damage: list[Damage] = []
        self._found_damage = False
        self.is_merging = False
        self.stopping = False

    @property
    def frozen_wals(self) -> list[WalFile]:
        """Logs whose runs do not exist yet."""
        return list(self._wals.values())

    @property
    def wants_freeze(self) -> bool:
        """Whether memory holds as much as it should, or a freeze has yet to be finished."""
        current = self._state.current
        return (
            current.count >= self._options.segment_items
            or current.bytes >= self._options.segment_bytes
            or self._journal.position + self._journal.kept_bytes >= 2 * self._options.segment_bytes
            or bool(self._state.frozen)
        )

    @property
    def wants_merge(self) -> bool:
        """Whether some sets are worth a merge, or a merge has yet to be finished."""
        sets = self._state.view.sets
        return self._merged is not None or choose_merge(sets)[1] > 0

    @property
    def is_behind(self) -> bool:
        """Whether memory fills faster than it is frozen."""
        many = len(self._state.segments) > _SEGMENTS_MAX
        return many or self._state.current.count >= self._options.items_in_memory_max

    def fail(self, error: BaseException) -> None:
        """Ends the handle: its memory may differ from its files."""
        self._journal.fail(error)

    def freeze(self, *, between: Callable[[], None] = lambda: None) -> bool:
        """Turns everything in memory into runs; False if there is nothing.

        It may take long: `between` is called repeatedly.
        """
        with self.work:
            self._check()
            self._hand_over()
            worked = False
            for segment in list(self._state.frozen):
                self._write_out(segment, between)
                self.freezes += 1
                worked = True
            return worked

    def freeze_for_close(self) -> None:
        """Freezes a long log, so that the next open need not read it.

        If that fails, the log still has everything: the next open reads it.
        """
        if self._state.current.count > _OPEN_ROWS_MAX:
            with contextlib.suppress(OSError):
                self.freeze()

    def merge(
        self, *, everything: bool = False, between: Callable[[], None] = lambda: None
    ) -> bool:
        """Merges the sets that are worth it, or all of them; False if there is nothing to do.

        It may take long: `between` is called repeatedly, and memory is frozen meanwhile if it holds
        too much.
        """
        with self.work:
            self._check()
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

    def close(self) -> None:
        """Closes the logs whose runs do not exist yet; the journal has ended."""
        for wal in self.frozen_wals:
            wal.file.close()

    def save(self, next_id: int) -> None:
        """Saves the current marks and the next id in the manifest; durable on return."""
        with self._journal.lock:
            marks, end = self._read_marks(), self._journal.applied
        # What is below a mark has a tombstone: the mark must not survive without it.
        self._journal.wait(end)
        self._manifest.change(lambda before: replace(marks.apply(before), next_id=next_id))

    def _read_marks(self) -> _Marks:
        return _Marks(self._state.low_waters(), self._state.schedule.floor_ms)

    def _check(self) -> None:
        with self._journal.lock:
            self._journal.check()

    def _hand_over(self) -> None:
        """Begins a new log and a new segment, if the current ones hold anything."""
        with self._journal.lock:
            self._journal.drain()
            is_new = self._journal.wal.is_empty and not self._kept
            if is_new and not self._state.current.count:
                self.handed_over = self._journal.applied
                return
        number = self._next_number
        self._next_number += 1
        wal = self._journal.prepare(number)
        try:
            if self._options.sync != "os":
                # Most of the log is synced here, where it delays no other call.
                self._journal.sync()
            with self._journal.lock:
                self._switch(wal)
        except BaseException:
            if self._journal.wal is not wal:
                wal.file.close()
                with contextlib.suppress(OSError):
                    self._directory.unlink(wal_name(number))
            raise

    @fatal_when_interrupted
    def _switch(self, wal: WalFile) -> None:
        self._journal.check()
        if self._options.sync == "os":
            before = self._journal.switch_unsynced(wal)
        else:
            before = self._journal.switch(wal)
        self._marks[before.number] = self._read_marks()
        self._state.hand_over(wal.number)
        if self._options.background:
            self._state.schedule.items_max = self._options.items_in_memory_max
        self._wals[before.number] = before
        self.handed_over = self._journal.applied

    def _write_out(self, segment: Memory, between: Callable[[], None]) -> None:
        """Writes the runs of a segment, lets the queue read them, and removes its log."""
        row = self._written.get(segment.number)
        if row is None:
            row = self.writer(segment.number).freeze(segment, between)
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

    @fatal_when_interrupted
    def _read_frozen(self, segment: Memory, frozen: RunSet | None) -> None:
        self._state.settle(segment, frozen)
        self._journal.note_manifest()
        self._journal.changes.announce()

    def _write_merged(
        self, chosen: list[RunSet], full: bool, between: Callable[[], None]
    ) -> SetRow:
        number = self._next_number
        self._next_number += 1
        # Its own open files: other threads read those of the view meanwhile.
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
        # Whether this merge frees half of the contents.
        clears = full and are_half_dead(chosen)
        start = 0

        def go_on(done: int) -> None:
            nonlocal start
            self._check_stopping()
            between()
            has_many = len(self._state.view.sets) > SETS_MAX
            # With many sets, it does more than a freeze writes before it allows one: it keeps up.
            if self.wants_freeze and (
                done - start > self._options.items_in_memory_max or not has_many
            ):
                self.freeze(between=between)
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
        # Before the manifest stops naming the runs that they were in.
        for lost in found:
            if lost.count != 0:
                self._losses.note(lost, gone=True)
        self._losses.save()
        return row

    def _check_stopping(self) -> None:
        """Ends a merge that a close would have to wait for."""
        if self.stopping:
            raise Closed(f"{self._directory.path} is closed")

    def _finish_merge(self, chosen: list[RunSet], row: SetRow) -> None:
        numbers = {each.number for each in chosen}

        def change(manifest: Manifest) -> Manifest:
            named = [i for i, each in enumerate(manifest.sets) if each.number in numbers]
            if not named:
                # It was changed before, and a later step failed.
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

    @fatal_when_interrupted
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
        """Opens a set and makes the manifest name it; None if it is empty."""
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
        """Makes the writer for the runs of a set."""
        queue_id = self._manifest.manifest.queue_id
        compression = self._options.compression
        return SetWriter(self._filesystem, self._directory, number, compression, queue_id)


@contextlib.contextmanager
def _closing(opened: RunSet | None) -> Iterator[None]:
    """Closes a set if the block fails; it is opened again the next time."""
    try:
        yield
    except BaseException:
        if opened is not None:
            opened.close()
        raise


def _is_named(manifest: Manifest, row: SetRow) -> bool:
    """Says whether a manifest names a set, or need not name it because it is empty."""
    return not row.kinds or any(each.number == row.number for each in manifest.sets)


@dataclass(frozen=True, slots=True)
class _Marks:
    """The key below which each set has nothing left, and the highest deadline that was lent."""

    low_waters: dict[int, KeyTuple]
    floor_ms: int

    def apply(self, manifest: Manifest) -> Manifest:
        """Returns a manifest with these marks. The tombstones below the marks must be durable."""
        sets = tuple(map(self._apply_to_row, manifest.sets))
        return replace(manifest, sets=sets, floor_ms=max(manifest.floor_ms, self.floor_ms))

    def _apply_to_row(self, row: SetRow) -> SetRow:
        mark = self.low_waters.get(row.number)
        if mark is None or FileKind.PENDING_RUN not in row.kinds:
            return row
        return replace(row, low_water=max(row.low_water, Key(*mark)))
