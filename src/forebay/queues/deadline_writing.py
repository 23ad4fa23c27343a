"""Writes sets of runs: of what was in memory, and of sets that are merged.

Promises that a set is durable when it is given back, its names included, and that a failed one
leaves no file. What counts is decided by the manifest, which is changed by who calls this.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from forebay.formats.deadline import Entry, FileKind, Item, Key, Stats, Tombstone, file_name
from forebay.formats.deadline_manifest import SetRow
from forebay.formats.deadline_runs import RunEncoder
from forebay.frames import Damage
from forebay.queues.deadline_runs import RunFile, RunSet
from forebay.queues.deadline_segment import KeyTuple, Segment
from forebay.storage.filesystem import Directory, File, Filesystem, write_all

# How many entries are encoded at once: others may run in between.
_ENTRIES_AT_ONCE = 128
Row = tuple[FileKind, Entry]
_FIRST = itemgetter(0)


class SetWriter:
    """The files of one set, as they are written. One thread may use it."""

    def __init__(
        self, filesystem: Filesystem, directory: Directory, number: int, compression: str
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._number = number
        self._compression = compression
        self._runs: dict[FileKind, _RunWriter] = {}

    def write(self, rows: Iterable[Row]) -> SetRow:
        """Writes entries that are sorted by key, each to the file of its kind; durable."""
        try:
            for kind, entry in rows:
                run = self._runs.get(kind)
                if run is None:
                    run = self._runs[kind] = self._create(kind)
                run.add(entry)
            for run in self._runs.values():
                run.finish()
            if self._runs:
                self._directory.sync()
        except BaseException:
            self._remove()
            raise
        return SetRow(self._number, frozenset(self._runs))

    def _create(self, kind: FileKind) -> _RunWriter:
        name = file_name(self._number, kind)
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(name)
        # An index by id is for items only: nobody looks for the id of a tombstone.
        encoder = RunEncoder(
            self._filesystem.random_bytes(8),
            compression=self._compression,
            id_index=kind is FileKind.PENDING_RUN,
        )
        return _RunWriter(self._directory.create(name), encoder)

    def _remove(self) -> None:
        for kind, run in self._runs.items():
            run.close()
            with contextlib.suppress(OSError):
                self._directory.unlink(file_name(self._number, kind))


class _RunWriter:
    """One file of a set."""

    def __init__(self, file: File, encoder: RunEncoder) -> None:
        self._file = file
        self._encoder = encoder
        self._position = 0
        self._waiting: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        if len(self._waiting) >= _ENTRIES_AT_ONCE:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._put(self._encoder.finish())
        self._file.sync()
        self._file.close()

    def close(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        self._put(self._encoder.encode(self._waiting))
        self._waiting.clear()

    def _put(self, data: bytes) -> None:
        if data:
            write_all(self._file, data, self._position)
            self._position += len(data)


def segment_rows(segment: Segment) -> Iterator[Row]:
    """Yields what a segment that changes no more is frozen into, by key."""
    for key in sorted([*segment.items, *segment.tombstones, *segment.marks]):
        item = segment.items.get(key)
        if item is not None:
            yield FileKind.PENDING_RUN, item
        elif key in segment.tombstones:
            yield FileKind.TOMBSTONE_RUN, Tombstone(Key(*key))
        else:
            count, time_ms = segment.marks[key]
            yield FileKind.DEQUEUED_RUN, Item(Key(*key), b"", Stats(time_ms, 0, count))


def merged_rows(sets: list[RunSet], *, full: bool, damage: list[Damage]) -> Iterator[Row]:
    """Yields what is left of sets by key.

    `full` says that no older set is left out: then tombstones and counts that meet no item are
    dropped. Otherwise they are kept, because an older set may hold that item. Bad blocks cost their
    entries, and are noted.
    """
    streams = [_keyed(file, damage) for each in sets for file in each.files.values()]
    merged = heapq.merge(*streams, key=_FIRST)
    for _, same in groupby(merged, _FIRST):
        found: dict[FileKind, Entry] = {}
        for _, kind, entry in same:
            before = found.get(kind)
            # Of several counts the highest is that of the last time.
            if before is None or _count(entry) >= _count(before):
                found[kind] = entry
        item = found.get(FileKind.PENDING_RUN)
        tombstone = found.get(FileKind.TOMBSTONE_RUN)
        mark = found.get(FileKind.DEQUEUED_RUN)
        if tombstone is not None:
            if item is None and not full:
                yield FileKind.TOMBSTONE_RUN, tombstone
        elif item is not None:
            yield FileKind.PENDING_RUN, _with_mark(item, mark)
        elif mark is not None and not full:
            yield FileKind.DEQUEUED_RUN, mark


def _count(entry: Entry) -> int:
    return entry.stats.dequeue_count if isinstance(entry, Item) else 0


def _keyed(file: RunFile, damage: list[Damage]) -> Iterator[tuple[KeyTuple, FileKind, Entry]]:
    # Also what is below the low-water mark: the tombstones of dead items must go with them.
    for entry in file.run.scan():
        if isinstance(entry, Damage):
            damage.append(entry)
        else:
            yield (entry.key.deadline_ms, entry.key.id), file.kind, entry


def _with_mark(item: Entry, mark: Entry | None) -> Item:
    assert isinstance(item, Item)
    if not isinstance(mark, Item) or mark.stats.dequeue_count <= item.stats.dequeue_count:
        return item
    stats = item.stats
    count = mark.stats.dequeue_count
    return Item(
        item.key,
        item.value,
        Stats(stats.enqueue_ms, stats.requeue_ms, count),
        item.buried,
        item.reason,
    )
