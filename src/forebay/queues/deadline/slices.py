"""Reads a deadline queue at one moment, in slices of about the same size, by readers in parallel.

The live items are divided by key: each slice holds about the same amount of the entries that runs
and logs have between two keys, by the sparse indexes of the runs. The raw entries are divided by
blocks of runs, and by logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from forebay.damage import Damage
from forebay.errors import Damaged, DataLoss, NotAQueue
from forebay.formats.deadline.items import FileKind, KeyTuple, file_name
from forebay.formats.deadline.manifest import NAME, decode_manifest
from forebay.formats.deadline.mark import Mark
from forebay.formats.deadline.runs import Run
from forebay.formats.deadline.wal import Header, decode_header, scan_rows
from forebay.kernels import deadline as kernel
from forebay.queues.deadline.bytes import read_whole
from forebay.queues.deadline.mark import read_mark
from forebay.queues.deadline.names import is_deadline_queue
from forebay.queues.deadline.picture import look, queue_id_of, read_manifest, staged_of
from forebay.queues.deadline.replay import with_staged
from forebay.queues.deadline.runs import BadBlocks, RunFile, RunSet, cursors_between, open_run
from forebay.queues.deadline.schedule import ITEM, MARK, TOMBSTONE, LiveItems, Memory, replay
from forebay.queues.deadline.snapshot import LogPart, LostPart, RunPart, Snapshot, snapshot_of
from forebay.queues.deadline.state import in_batches
from forebay.queues.shared.handle import Closing
from forebay.storage import atomic
from forebay.storage.filesystem import DiskFilesystem, File
from forebay.storage.staging import Staged

# The size that an entry is assumed to have besides its value.
_ENTRY_BYTES = 64
# How many rows are read at once.
_ROWS_AT_ONCE = 1 << 15
# The kind of an entry besides the attributes of a block: how often an item elsewhere was dequeued.
DEQUEUED = 4
_ATTRIBUTES = {kernel.TOMBSTONE: kernel.IS_TOMBSTONE, kernel.DEQUEUED: DEQUEUED}
# deadline, id, attributes, the two times, count, reason, value, file, where in it or None
Row = tuple[int, int, int, int, int, int, bytes, bytes, str, int | None]
VALUE: Final = 7


class KeySlice(NamedTuple):
    """The live items from a key up to another, and about how many bytes they take.

    `leads` says that no slice comes before it, so that it also reports damage before its keys.
    """

    start: KeyTuple
    end: KeyTuple
    size: int
    leads: bool


class FileSlice(NamedTuple):
    """Blocks of a run from a number up to another, or a whole log."""

    name: str
    first: int
    end: int
    size: int


class SnapshotReader(Closing):
    """A snapshot of a queue, taken now or given as text. One thread at a time may use it.

    Raises `DataLoss` if files of a given snapshot no longer exist. Once the reader is made, nothing
    can be lost.
    """

    def __init__(self, path: str | os.PathLike[str], text: str | None = None) -> None:
        self._directory = DiskFilesystem().open_directory(os.fspath(path))
        self.path = self._directory.path
        self._files: dict[str, File] = {}
        self._runs: dict[str, Run | Damage] = {}
        self._logs: dict[str, bytes] = {}
        self._memory: Memory | None = None
        self._log_damage: list[Damage] = []
        try:
            if text is None:
                self.snapshot = self._look()
            else:
                self.snapshot = Snapshot.decode(text)
                self._open()
        except BaseException:
            self.close()
            raise

    def run(self, part: RunPart) -> Run | Damage:
        """Opens a run, by its blocks if necessary; a Damage if nothing of it can be read."""
        if part.name not in self._runs:
            self._runs[part.name] = self._open_run(part)
        return self._runs[part.name]

    def by_key(
        self, zones: Sequence[tuple[KeyTuple, KeyTuple]], slice_bytes: int
    ) -> Iterator[KeySlice]:
        """Yields the live items between the keys of each zone, in slices of similar size."""
        weights = self._log_weights()
        for part in self.snapshot.runs:
            weights += self._blocks_of(part)
        weights.sort()
        leads = True
        for start, end in zones:
            first, size = start, 0
            for key, weight in weights:
                if not start <= key < end:
                    continue
                if size + weight > slice_bytes and key > first:
                    yield KeySlice(first, key, size, leads)
                    first, size, leads = key, 0, False
                size += weight
            yield KeySlice(first, end, size, leads)
            leads = False

    def by_file(self, slice_bytes: int) -> Iterator[FileSlice]:
        """Yields every raw entry, in slices of similar size."""
        for part in self.snapshot.runs:
            weights = [weight for _, weight in self._blocks_of(part)]
            first = size = 0
            for number, weight in enumerate([*weights, 0]):
                if number == len(weights) or (size and size + weight > slice_bytes):
                    yield FileSlice(part.name, first, number, size)
                    first, size = number, 0
                size += weight
        for log in self.snapshot.logs:
            yield FileSlice(log.name, 0, 0, log.size)

    def live(self, start: KeyTuple, end: KeyTuple, *, leads: bool) -> Iterator[list[Row] | Damage]:
        """Yields the live items from a key up to another, sorted, and what is damaged.

        Without `leads`, a bad block that begins before `start` is left to another slice to report.
        """
        memory = self._content()
        if leads:
            told = {(each.name, each.position) for each in self.snapshot.lost}
            yield from map(self._damage, self.snapshot.lost)
            for damage in self._log_damage:
                if (_name_of(damage), damage.position) not in told:
                    yield damage
        bad: BadBlocks = []
        cursors = cursors_between(self._sets(), start, end, bad)
        items = LiveItems(cursors, [memory], start, end, bad)
        names = {log.number: log.name for log in self.snapshot.logs}
        for rows in in_batches(partial(items.rows, _ROWS_AT_ONCE, names), bad):
            if rows:
                yield rows
            for _, damage in bad:
                if leads or self._first_key(damage) >= start:
                    yield _of_nobody(damage)
            bad.clear()

    def mended(self) -> Iterator[Damage]:
        """Yields the damage that costs nothing."""
        return map(self._damage, self.snapshot.mended)

    def blocks(self, part: RunPart, first: int, end: int) -> Iterator[list[Row] | Damage]:
        """Yields the entries of blocks of a run, block by block, and what is damaged."""
        run = self.run(part)
        if isinstance(run, Damage):
            yield self._told(run)
            return
        yield from map(self._told, run.damage) if first == 0 else ()
        for number in range(first, min(end, len(run.places))):
            block = run.load(number)
            if isinstance(block, Damage):
                yield _of_nobody(block)
                continue
            place = part.name, run.places[number].position
            rows: list[Row] = [block.row(at) + place for at in range(block.count)]
            if part.kind is FileKind.DEQUEUED_RUN:
                rows = [(*row[:2], DEQUEUED, *row[3:]) for row in rows]
            yield rows

    def records(self, part: LogPart) -> Iterator[list[Row] | Damage]:
        """Yields the records of a log in the order of writing, and what is damaged."""
        if not part.size:
            yield from (self._damage(each) for each in self.snapshot.lost if each.name == part.name)
            return
        for rows in self._scan(part):
            if isinstance(rows, Damage):
                yield rows
                continue
            yield [
                (*row[1:3], _ATTRIBUTES.get(row[0], row[6]), *row[3:6], *row[7:], part.name, None)
                for row in rows
            ]

    def count(self) -> int:
        """Returns how many items are alive: all items less those that tombstones remove."""
        memory = self._content()
        count = memory.pending + memory.buried
        for part in self.snapshot.runs:
            run = self.run(part)
            if isinstance(run, Damage) or part.kind is FileKind.DEQUEUED_RUN:
                continue
            entries = run.footer.count
            count += -entries if part.kind is FileKind.TOMBSTONE_RUN else entries
        return count

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._directory.close()

    def _look(self) -> Snapshot:
        """Takes a snapshot, and keeps what was opened and read for it."""
        picture = look(self._directory, DiskFilesystem().boot_id())
        for each in picture.sets:
            for kind, file in each.files.items():
                name = file_name(each.number, kind)
                self._files[name], self._runs[name] = file.file, file.run
        snapshot = snapshot_of(picture)
        data = {log.name: log.data for log in picture.logs}
        self._logs = {log.name: data[log.name][: log.size] for log in snapshot.logs}
        self._memory = picture.segment
        return snapshot

    def _open(self) -> None:
        mark = read_mark(self._directory)
        self._check_queue(mark)
        if mark is not None and mark.queue_id.hex() != self.snapshot.queue_id:
            mark = None
        # What leaves the staging buffer after this is in the logs, which are opened later.
        staged, _ = staged_of(self._directory, mark, DiskFilesystem().boot_id())
        for run in self.snapshot.runs:
            if run.size >= 0:
                self._files[run.name] = self._open_file(run)
        for log in self.snapshot.logs:
            self._logs[log.name] = self._read_log(log, staged)

    def _check_queue(self, mark: Mark | None) -> None:
        data, names = read_manifest(self._directory), self._directory.names()
        if isinstance(data, Damage) and not is_deadline_queue(names):
            raise DataLoss(
                f"{self.path} is not a deadline queue; there was one when the query was planned"
            )
        try:
            assert isinstance(data, bytes)
            manifest = decode_manifest(data, f"{self.path}/{NAME}")
        except (AssertionError, Damaged):
            # A queue that has lost its manifest is read by its files.
            return
        # The manifest alone does not decide: as when planning, it may be that of another queue.
        found = queue_id_of(self._directory, names, manifest, mark)
        if found is None or found.hex() != self.snapshot.queue_id:
            raise DataLoss(f"{self.path} is another queue than the one that was planned")

    def _open_file(self, part: RunPart) -> File:
        try:
            file = self._directory.open(part.name)
        except FileNotFoundError:
            raise self._gone(part) from None
        if file.size() < part.size:
            file.close()
            raise self._gone(part)
        return file

    def _read_log(self, part: LogPart, staged: Staged | None) -> bytes:
        names = [part.name]
        if part.name.endswith(atomic.TEMPORARY):
            # A recovery has given the log its final name meanwhile.
            names.append(part.name.removesuffix(atomic.TEMPORARY))
        if not part.size:
            return b""
        for name in names:
            try:
                # Where only its staged batches count, the file may be gone, or that of another.
                data = b"" if part.only_staged else read_whole(self._directory, name)[0]
            except (FileNotFoundError, Damaged):
                continue
            header = _header(part, data)
            if header is not None:
                whole = with_staged(data, header, staged)
                if len(whole) < part.size:
                    whole = with_staged(data, header, staged, holes=True)
                data = whole
            if len(data) >= part.size:
                return data[: part.size]
        raise self._gone(part)

    def _gone(self, part: RunPart | LogPart) -> DataLoss:
        return DataLoss(
            f"{self.path}: {part.name} is gone: the owner froze or merged it after the query was "
            "planned; run the query again"
        )

    def _open_run(self, part: RunPart) -> Run | Damage:
        path = f"{self.path}/{part.name}"
        file = self._files.get(part.name)
        if file is None:
            return Damage(path, 0, 0, "the file is missing")
        try:
            return open_run(file, path)
        except (Damaged, NotAQueue) as error:
            reason = error.damage.reason if isinstance(error, Damaged) else str(error)
            return Damage(path, 0, part.size, reason)

    def _content(self) -> Memory:
        """Returns the content of the logs, except for what came back only because of damage."""
        if self._memory is None:
            self._memory = Memory()
            for part in self.snapshot.logs:
                self._memory.number = part.number
                for rows in self._scan(part):
                    if isinstance(rows, Damage):
                        self._log_damage.append(rows)
                    else:
                        replay(self._memory, rows)
            for key in self.snapshot.hidden:
                self._memory.kill(*key)
        return self._memory

    def _scan(self, part: LogPart) -> Iterator[list[kernel.Record] | Damage]:
        """Yields the records of a log, some at a time, and what is damaged."""
        path, data = f"{self.path}/{part.name}", self._logs[part.name]
        if not part.size:
            return
        header = _header(part, data)
        if header is None:
            yield Damage(path, 0, len(data), "the header of the log does not verify")
            return
        for rows, _ in scan_rows(data, path, header):
            if isinstance(rows, list):
                yield rows
            elif isinstance(rows, Damage):
                yield self._told(rows)

    def _sets(self) -> list[RunSet]:
        """Returns the runs that can be read; the snapshot has the others as lost."""
        sets: dict[int, RunSet] = {}
        for part in self.snapshot.runs:
            run = self.run(part)
            if isinstance(run, Damage):
                continue
            opened = sets.setdefault(part.number, RunSet(part.number))
            file = RunFile(part.name, part.kind, run, self._files[part.name], part.size)
            opened.files[part.kind] = file
            opened.low_water = max(opened.low_water, part.low_water)
        return list(sets.values())

    def _first_key(self, damage: Damage) -> KeyTuple:
        """Returns the key that a bad block begins with."""
        run = self._runs[_name_of(damage)]
        assert isinstance(run, Run)
        key = run.places[list(run.places.positions).index(damage.position)].key
        return key.deadline_ms, key.id

    def _log_weights(self) -> list[tuple[KeyTuple, int]]:
        """Returns the keys that logs contain, and about how much each takes."""
        memory = self._content()
        weights = [
            ((row[0], row[1]), len(row[VALUE]) + _ENTRY_BYTES)
            for row in map(memory.row, memory.sorted(ITEM))
        ]
        for state in (TOMBSTONE, MARK):
            weights += [(memory.key(row), _ENTRY_BYTES) for row in memory.sorted(state)]
        return weights

    def _blocks_of(self, part: RunPart) -> list[tuple[KeyTuple, int]]:
        """Returns the first key of each block of a run, and about how much the block takes."""
        run = self.run(part)
        if isinstance(run, Damage):
            return []
        return [
            (
                (place.key.deadline_ms, place.key.id),
                run.block_size(row) + place.count * _ENTRY_BYTES,
            )
            for row, place in enumerate(run.places)
        ]

    def _damage(self, lost: LostPart) -> Damage:
        path = f"{self.path}/{lost.name}"
        return Damage(path, lost.position, lost.length, lost.reason, count=lost.count)

    def _told(self, damage: Damage) -> Damage:
        """Returns damage with the count that the snapshot has for it."""
        for lost in self.snapshot.lost:
            if (lost.name, lost.position) == (_name_of(damage), damage.position):
                return self._damage(lost)
        return damage


def _header(part: LogPart, data: bytes) -> Header | None:
    """Returns the header of a log, as the snapshot knows it; None if it cannot be read."""
    try:
        return decode_header(bytes.fromhex(part.header) or data, part.name)
    except (Damaged, NotAQueue):
        return None


def _name_of(damage: Damage) -> str:
    return damage.path.rpartition("/")[2]


def _of_nobody(damage: Damage) -> Damage:
    """Leaves out the index of the first entry in its file: it is not the number of an item."""
    return replace(damage, offset=None)
