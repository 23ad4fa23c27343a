"""Sets of runs: opening their files, and the merged view of all of them.

A set is what one log was frozen into, or what a merge left: items, tombstones of items in older
sets, and how often items in older sets were given out. The view goes over all of them by key, so
that an item and its tombstone are met together, and gives out only what is alive.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from forebay.errors import Damaged, ForebayError
from forebay.formats.deadline import BURIED_BIT, FileKind, Item, Key, Tombstone, file_name
from forebay.formats.deadline_manifest import SetRow
from forebay.formats.deadline_rebuild import rebuild_run
from forebay.formats.deadline_runs import Run, decode_row
from forebay.frames import Damage
from forebay.kernels.deadline_block import Block
from forebay.queues.deadline_segment import KeyTuple
from forebay.storage.filesystem import Directory, File

_logger = logging.getLogger(__name__)
FIRST_BURIED = Key(BURIED_BIT, 0)
# No key is above it.
LAST_KEY = (1 << 48, 0)


@dataclass(slots=True)
class RunFile:
    """A run and its open file. One thread at a time may use it."""

    kind: FileKind
    run: Run
    file: File
    size: int


@dataclass(slots=True)
class RunSet:
    """The open files of a set."""

    number: int
    files: dict[FileKind, RunFile] = field(default_factory=dict)
    low_water: KeyTuple = (0, 0)

    @property
    def size(self) -> int:
        """How many bytes the files take."""
        return sum(file.size for file in self.files.values())

    @property
    def damage(self) -> list[Damage]:
        """What was wrong with the files when they were opened."""
        return [damage for file in self.files.values() for damage in file.run.damage]

    def entry_count(self, kind: FileKind) -> int:
        """How many entries the file of a kind has."""
        file = self.files.get(kind)
        return file.run.footer.count if file is not None else 0

    def row(self) -> SetRow:
        """Gives what the manifest says of it."""
        return SetRow(self.number, frozenset(self.files), Key(*self.low_water))

    def counts(self) -> tuple[int, int]:
        """Gives what it adds to the pending and to the buried items."""
        pending = buried = 0
        items = self.files.get(FileKind.PENDING_RUN)
        if items is not None:
            pending, buried = items.run.footer.pending_count, items.run.footer.buried_count
        gone = self.files.get(FileKind.TOMBSTONE_RUN)
        if gone is not None:
            pending_gone = gone.run.count_below(FIRST_BURIED)
            pending -= pending_gone
            buried -= gone.run.footer.count - pending_gone
        return pending, buried

    def due_count(self, now_ms: int) -> int:
        """Gives how many of its items are due, less those that its tombstones take away."""
        end = Key(now_ms + 1, 0)
        items = self.files.get(FileKind.PENDING_RUN)
        gone = self.files.get(FileKind.TOMBSTONE_RUN)
        count = items.run.count_below(end) if items is not None else 0
        return count - (gone.run.count_below(end) if gone is not None else 0)

    def close(self) -> None:
        """Closes the files."""
        for file in self.files.values():
            file.file.close()


def open_set(directory: Directory, row: SetRow) -> RunSet:
    """Opens the files of a set; one that is lost is left out, and logged."""
    opened = RunSet(row.number, {}, (row.low_water.deadline_ms, row.low_water.id))
    for kind in sorted(row.kinds):
        name = file_name(row.number, kind)
        try:
            opened.files[kind] = _open_run(directory, name, kind)
        except (FileNotFoundError, ForebayError) as error:
            _logger.error("%s/%s is lost: %s", directory.path, name, str(error))
    return opened


def _open_run(directory: Directory, name: str, kind: FileKind) -> RunFile:
    file = directory.open(name)

    def read(position: int, size: int) -> bytes:
        return file.pread(size, position)

    path = f"{directory.path}/{name}"
    try:
        size = file.size()
        try:
            run = Run.open(read, size, path)
        except Damaged:
            run = rebuild_run(read, size, path)
            _logger.warning("%s: read by its blocks: %s", path, run.damage)
    except BaseException:
        file.close()
        raise
    return RunFile(kind, run, file, size)


class Cursor:
    """A place in a run. `key` is that of the next entry; `LAST_KEY` behind the last."""

    __slots__ = ("_block", "_index", "_on_damage", "_row", "file", "key")

    def __init__(self, file: RunFile, start: KeyTuple, on_damage: Callable[[Damage], None]) -> None:
        self.file = file
        self._on_damage = on_damage
        self.key = LAST_KEY
        self._block: Block | None = None
        self._index = 0
        self._row = file.run.row_of(Key(*start)) - 1
        self._next_block()
        if self._block is not None and self.key < start:
            self._index = self._block.search(*start)
            self._settle()

    def advance(self) -> None:
        """Goes on to the next entry; if the disk fails, it stays."""
        self._index += 1
        try:
            self._settle()
        except BaseException:
            self._index -= 1
            raise

    def entry(self) -> Item | Tombstone:
        """Gives the entry that it stands at."""
        assert self._block is not None
        return decode_row(self._block.row(self._index))

    def _settle(self) -> None:
        block = self._block
        if block is not None and self._index < block.count:
            self.key = (block.deadline(self._index), block.id(self._index))
        else:
            self._next_block()

    def _next_block(self) -> None:
        run = self.file.run
        row = self._row
        while True:
            row += 1
            if row >= len(run.places):
                self._row, self._block, self.key = row, None, LAST_KEY
                return
            block = run.load(row)
            if isinstance(block, Damage):
                self._on_damage(block)
                continue
            self._row, self._block, self._index = row, block, 0
            self.key = (block.deadline(0), block.id(0))
            return


@dataclass(frozen=True, slots=True)
class Found:
    """An item that is alive: where it is, and how often the runs say that it was given out."""

    key: KeyTuple
    cursor: Cursor
    mark: int


class View:
    """All sets, by key. Called with the queue's lock held.

    Whatever a cursor has passed is dead, or known to who asks. Bad blocks are left in `damage`.
    """

    def __init__(self, sets: list[RunSet]) -> None:
        self.sets = sets
        self.damage: list[tuple[FileKind, Damage]] = []
        self._cursors: list[Cursor] = []
        self._order: list[tuple[KeyTuple, int, Cursor]] = []
        lows = [each.low_water for each in sets if FileKind.PENDING_RUN in each.files]
        others = min(lows, default=LAST_KEY)
        self._take([c for each in sets for c in self._start(each, each.low_water, others)])

    def add(self, newest: RunSet) -> None:
        """Takes in a set that is newer than all others.

        Its tombstones are of items that the other cursors have yet to pass, or have passed with
        good reason; no other tombstones are of its items.
        """
        cursors = self._start(newest, (0, 0), (0, 0))
        self.sets.append(newest)
        self._take(cursors)

    def replace(self, old: list[RunSet], new: RunSet) -> None:
        """Puts what a merge left into the place of what it was made of.

        All cursors go back to where the last of them is: then each tombstone is met again with the
        item that it takes away.
        """
        start = min(self.positions(), default=LAST_KEY)
        at = self.sets.index(old[0])
        sets = [*self.sets[:at], *([new] if new.files else []), *self.sets[at + len(old) :]]
        cursors = [cursor for each in sets for cursor in self._start(each, start, start)]
        self.sets = sets
        self._cursors.clear()
        self._order.clear()
        self._take(cursors)

    def positions(self) -> list[KeyTuple]:
        """Gives the keys that the cursors stand at."""
        return [cursor.key for cursor in self._cursors]

    def low_water(self, each: RunSet) -> KeyTuple:
        """Gives the key below which the cursor of a set's items has passed all."""
        items = each.files.get(FileKind.PENDING_RUN)
        return next((c.key for c in self._cursors if c.file is items), LAST_KEY)

    def head(self, passes: Callable[[KeyTuple], bool]) -> Found | None:
        """Gives the first pending item that is alive, and stays there.

        `passes` says of a key that it is to be left out: its tombstone is in memory, or it is given
        out already.
        """
        order = self._order
        while order and order[0][0][0] < BURIED_BIT:
            found, same = self._meet()
            if found is not None and not passes(found.key):
                for cursor in same:
                    self._push(cursor)
                return found
            self._pass(same)
        return None

    def alive(self) -> Iterator[Found]:
        """Yields every item without a tombstone in the runs, buried ones too. Consumes the view."""
        while self._order:
            found, same = self._meet()
            if found is not None:
                yield found
            self._pass(same)

    def _pass(self, same: list[Cursor]) -> None:
        """Lets cursors go on; if the disk fails, those that could not stay where they are."""
        try:
            for cursor in same:
                cursor.advance()
        finally:
            for cursor in same:
                self._push(cursor)

    def _meet(self) -> tuple[Found | None, list[Cursor]]:
        """Takes all cursors off that stand at the lowest key; gives what is alive there."""
        order = self._order
        key, _, cursor = heapq.heappop(order)
        same = [cursor]
        while order and order[0][0] == key:
            same.append(heapq.heappop(order)[2])
        item: Cursor | None = None
        mark = 0
        for cursor in same:
            kind = cursor.file.kind
            if kind is FileKind.TOMBSTONE_RUN:
                return None, same
            if kind is FileKind.PENDING_RUN:
                item = cursor
            else:
                entry = cursor.entry()
                assert isinstance(entry, Item)
                mark = max(mark, entry.stats.dequeue_count)
        return (None if item is None else Found(key, item, mark)), same

    def _start(self, each: RunSet, items: KeyTuple, others: KeyTuple) -> list[Cursor]:
        """Makes cursors for a set; nothing changes if the disk fails."""
        cursors = []
        for kind, file in each.files.items():
            start = items if kind is FileKind.PENDING_RUN else others

            def note(damage: Damage, kind: FileKind = kind) -> None:
                self.damage.append((kind, damage))

            cursors.append(Cursor(file, start, note))
        return cursors

    def _take(self, cursors: list[Cursor]) -> None:
        for cursor in cursors:
            self._cursors.append(cursor)
            self._push(cursor)

    def _push(self, cursor: Cursor) -> None:
        if cursor.key != LAST_KEY:
            heapq.heappush(self._order, (cursor.key, id(cursor), cursor))
