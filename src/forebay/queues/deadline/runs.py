"""Sets of runs: opening their files, and the merged view of all of them.

A set is what one log was frozen into, or what a merge left: items, tombstones of items in older
sets, and how often items in older sets were dequeued. The view iterates over all of them by key, so
that an item is read together with its tombstone, and yields only what is alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, NotAQueue
from forebay.formats.deadline.blocks import Identity
from forebay.formats.deadline.items import BURIED_BIT, FileKind, Key, KeyTuple, file_name
from forebay.formats.deadline.manifest import SetCounts, SetRow
from forebay.formats.deadline.runs import Run, rebuild_run
from forebay.kernels import deadline as kernel
from forebay.kernels.deadline import Cursor, RunView
from forebay.queues.deadline.bytes import SafeReader, is_of_the_file, open_file, reason_of
from forebay.storage.filesystem import Directory, File

BadBlocks = list[tuple[FileKind, Damage]]
FIRST_BURIED = Key(BURIED_BIT, 0)
# Greater than every key.
LAST_KEY = (1 << 48, 0)
# The cost of bad entries, where it is not items.
_COSTS = {
    FileKind.TOMBSTONE_RUN: "items that were taken away may come again",
    FileKind.DEQUEUED_RUN: "how often items were given out may be too low",
}
# How much is read at once: a caller may be waiting for the first of it.
_AHEAD_BYTES = 128 << 10
CURSOR_KINDS = {
    FileKind.PENDING_RUN: kernel.ITEMS,
    FileKind.TOMBSTONE_RUN: kernel.TOMBSTONES,
    FileKind.DEQUEUED_RUN: kernel.MARKS,
}


@dataclass(slots=True)
class RunFile:
    """A run and its open file. One thread at a time may use it."""

    name: str
    kind: FileKind
    run: Run
    file: File
    size: int


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run of which nothing can be read; `there`: something exists under its name."""

    name: str
    kind: FileKind
    damage: Damage
    there: bool


@dataclass(slots=True)
class RunSet:
    """The open files of a set, and those that cannot be read."""

    number: int
    files: dict[FileKind, RunFile] = field(default_factory=dict)
    low_water: KeyTuple = (0, 0)
    lost: list[LostRun] = field(default_factory=list)

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
        """Returns its row in the manifest."""
        counts = SetCounts(
            self._footer_count(FileKind.PENDING_RUN, "pending_count"),
            self._footer_count(FileKind.PENDING_RUN, "buried_count"),
            self._footer_count(FileKind.TOMBSTONE_RUN, "count"),
            self._footer_count(FileKind.DEQUEUED_RUN, "count"),
        )
        return SetRow(self.number, frozenset(self.files), Key(*self.low_water), counts)

    def _footer_count(self, kind: FileKind, name: str) -> int:
        file = self.files.get(kind)
        return 0 if file is None else int(getattr(file.run.footer, name))

    def counts(self) -> tuple[int, int]:
        """Returns what it adds to the numbers of pending and of buried items."""
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
        """Returns how many of its items are due, less those that its tombstones remove."""
        end = Key(now_ms + 1, 0)
        items = self.files.get(FileKind.PENDING_RUN)
        gone = self.files.get(FileKind.TOMBSTONE_RUN)
        count = items.run.count_below(end) if items is not None else 0
        return count - (gone.run.count_below(end) if gone is not None else 0)

    def close(self) -> None:
        """Closes the files."""
        for file in self.files.values():
            file.file.close()


def open_set(directory: Directory, row: SetRow, queue_id: bytes | None = None) -> RunSet:
    """Opens the files of a set; a file of which nothing can be read is in `lost`.

    With `queue_id` a run of another queue is refused. Errors that are not about the files, such as
    too many open files, are raised.
    """
    opened = RunSet(row.number, {}, (row.low_water.deadline_ms, row.low_water.id))
    try:
        for kind in sorted(row.kinds):
            name = file_name(row.number, kind)
            expected = _expected(row, kind)
            try:
                identity = None
                if queue_id is not None:
                    identity = Identity(row.number, queue_id, kind[1])
                opened.files[kind] = _open_run(directory, name, kind, expected, identity)
            except (OSError, ForebayError) as error:
                if not is_of_the_file(error):
                    raise
                path = f"{directory.path}/{name}"
                size = error.damage.length if isinstance(error, Damaged) else 0
                damage = Damage(path, 0, size, reason_of(error), count=expected)
                there = not isinstance(error, FileNotFoundError)
                opened.lost.append(LostRun(name, kind, damage, there))
    except BaseException:
        opened.close()
        raise
    return opened


def open_written(directory: Directory, row: SetRow, queue_id: bytes) -> RunSet:
    """Opens all files of a set that was just written, or is about to be merged."""
    opened = open_set(directory, row, queue_id)
    if opened.lost:
        opened.close()
        raise Damaged(opened.lost[0].damage)
    return opened


def cost_of(kind: FileKind, damage: Damage) -> Damage:
    """Returns damage of a run with its consequence for the items of the queue."""
    if kind not in _COSTS:
        return replace(damage, offset=None)
    return replace(damage, reason=f"{damage.reason}; {_COSTS[kind]}", offset=None, count=0)


def _expected(row: SetRow, kind: FileKind) -> int | None:
    """Returns how many entries a file of a set has; None if the manifest does not say."""
    counts = row.counts
    if counts is None:
        return None
    if kind is FileKind.PENDING_RUN:
        return counts.pending + counts.buried
    return counts.tombstones if kind is FileKind.TOMBSTONE_RUN else counts.dequeued


def open_run(
    file: File, path: str, expected: int | None = None, identity: Identity | None = None
) -> Run:
    """Opens a run, by its blocks if necessary; raises Damaged or NotAQueue.

    `identity` is the one that it must have, if it has any; `expected` its number of entries.
    """
    read = SafeReader(file)
    size = file.size()
    try:
        run = Run.open(read, size, path, read.trouble)
    except (Damaged, NotAQueue):
        run = rebuild_run(read, size, path, expected=expected, trouble=read.trouble)
    found = run.footer.identity
    if identity is not None and found is not None and found != identity:
        whose = "" if found.queue_id == identity.queue_id else " of another queue"
        reason = f"the bytes are those of run {found.number}.{found.kind}{whose}"
        raise Damaged(Damage(path, 0, size, reason, count=expected))
    return run


def _open_run(
    directory: Directory,
    name: str,
    kind: FileKind,
    expected: int | None,
    identity: Identity | None,
) -> RunFile:
    file = open_file(directory, name)
    try:
        run = open_run(file, f"{directory.path}/{name}", expected, identity)
        return RunFile(name, kind, run, file, file.size())
    except BaseException:
        file.close()
        raise


class _Loader:
    """Returns the blocks of a run, starting with one of them; bad ones are noted and left out.

    Reads several at once: each read releases the interpreter's lock, and must wait to get it back.
    """

    def __init__(self, file: RunFile, row: int, end: int, damage: BadBlocks) -> None:
        self._file = file
        self._row = row
        self._end = end
        self._damage = damage
        # The place of the block that was returned last: its file, and where in it.
        self.place = ("", 0)
        # The bytes of the next blocks, and the row after the last of them.
        self._data = b""
        self._at = 0
        self._stop = row

    def __call__(self) -> kernel.Block | None:
        run = self._file.run
        while self._row < self._end:
            data = self._read(run)
            block = run.decode(self._row, data)
            self.place = self._file.name, run.places.positions[self._row]
            self._row += 1
            self._at += len(data)
            if not isinstance(block, Damage):
                return block
            self._damage.append((self._file.kind, block))
        return None

    def _read(self, run: Run) -> bytes:
        """Returns the bytes of the next block."""
        if self._row == self._stop:
            stop = min(run.rows_within(self._row, _AHEAD_BYTES), self._end)
            data = run.read(self._row, stop)
            self._data, self._at, self._stop = data, 0, stop
        return self._data[self._at : self._at + run.block_size(self._row)]


def start_cursor(
    file: RunFile, start: KeyTuple, damage: BadBlocks, end: KeyTuple = LAST_KEY
) -> Cursor:
    """Makes a cursor at the first entry of a run at or after a key; bad blocks go to `damage`.

    Blocks that begin at `end` or after it are not read.
    """
    places = file.run.places
    loader = _Loader(file, file.run.row_of(Key(*start)), places.row_of(Key(*end)), damage)
    return Cursor(CURSOR_KINDS[file.kind], loader, *start)


def cursors_between(
    sets: Iterable[RunSet], start: KeyTuple, end: KeyTuple, damage: BadBlocks
) -> RunView:
    """Makes cursors over all that counts between two keys; bad blocks go to `damage`."""
    runs = RunView()
    for each in sets:
        for file in each.files.values():
            low = each.low_water if _is_of_items(file.kind) else (0, 0)
            runs.add(start_cursor(file, max(start, low), damage, end))
    return runs


class View:
    """All sets, by key. Called with the queue's lock held.

    Everything that a cursor of `runs` has passed is dead, or known to the caller. Bad blocks are
    left in `damage`.
    """

    def __init__(self, sets: list[RunSet], damage: BadBlocks) -> None:
        self.sets = sets
        self.damage = damage
        self.runs = RunView()
        self._items: dict[int, Cursor] = {}
        lows = [each.low_water for each in sets if FileKind.PENDING_RUN in each.files]
        others = min(lows, default=LAST_KEY)
        self._take([pair for each in sets for pair in self._start(each, each.low_water, others)])

    def add(self, newest: RunSet) -> None:
        """Adds a set that is newer than all others.

        Its tombstones are for items that the other cursors have yet to pass, or have passed
        rightly; no other tombstones are for its items. Raises `Damaged`, and nothing changes, if it
        cannot be read: memory still has all of it.
        """
        cursors = self._start_new(newest, (0, 0))
        self.sets.append(newest)
        self._take(cursors)

    def replace(self, old: list[RunSet], new: RunSet) -> None:
        """Replaces sets with the result of their merge; `runs` is another object afterwards.

        All cursors go back to the rearmost of them: then each tombstone is read again together with
        the item that it removes. Raises `Damaged`, and nothing changes, if the new set cannot be
        read: the old ones still have all of it.
        """
        start = min(self.positions(), default=LAST_KEY)
        at = self.sets.index(old[0])
        before, after = self.sets[:at], self.sets[at + len(old) :]
        cursors = self._start_new(new, start)
        cursors += [pair for each in before + after for pair in self._start(each, start, start)]
        self.sets = [*before, *([new] if new.files else []), *after]
        self.runs = RunView()
        self._items.clear()
        self._take(cursors)

    def positions(self) -> list[KeyTuple]:
        """Returns the keys at which the cursors stand."""
        return [(cursor.deadline, cursor.id) for cursor in self.runs.cursors]

    def low_water(self, each: RunSet) -> KeyTuple:
        """Returns the key below which the cursor of a set's items has passed everything."""
        cursor = self._items.get(each.number)
        return LAST_KEY if cursor is None else (cursor.deadline, cursor.id)

    def _start_new(self, written: RunSet, start: KeyTuple) -> list[tuple[RunSet, FileKind, Cursor]]:
        """Makes cursors for a set that was just written; raises `Damaged` if it cannot be read."""
        known = len(self.damage)
        cursors = self._start(written, start, start)
        if len(self.damage) > known:
            _, bad = self.damage[known]
            del self.damage[known:]
            raise Damaged(bad, "what it was written from is kept")
        return cursors

    def _start(
        self, each: RunSet, items: KeyTuple, others: KeyTuple
    ) -> list[tuple[RunSet, FileKind, Cursor]]:
        """Makes cursors for a set; nothing changes if the disk fails."""
        return [
            (each, kind, start_cursor(file, items if _is_of_items(kind) else others, self.damage))
            for kind, file in each.files.items()
        ]

    def _take(self, cursors: list[tuple[RunSet, FileKind, Cursor]]) -> None:
        for each, kind, cursor in cursors:
            self.runs.add(cursor)
            if _is_of_items(kind):
                self._items[each.number] = cursor


def _is_of_items(kind: FileKind) -> bool:
    return kind is FileKind.PENDING_RUN
