"""The files of a deadline queue as one picture: which of them count, what they hold, what is bad.

Only reads, takes no lock, and works on a queue that is in use, was killed, or is damaged: what does
not verify is given in its place, and everything round it is read. Of a queue that has lost its
manifest all files count, as for its next owner.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from types import TracebackType

from forebay.errors import Damaged, ForebayError, NotAQueue
from forebay.formats.deadline import NO_KEY, FileKind, Item, Key, Tombstone, file_name
from forebay.formats.deadline_manifest import NAME, Manifest, decode_manifest
from forebay.formats.deadline_rebuild import rebuild_run
from forebay.formats.deadline_runs import Run
from forebay.formats.deadline_wal import (
    HEADER_BYTES,
    Dequeued,
    Record,
    decode_header,
    decode_record,
)
from forebay.frames import Damage
from forebay.queues.deadline_logs import read_logs
from forebay.queues.deadline_names import list_files, wal_name
from forebay.storage.atomic import TEMPORARY, read_small
from forebay.storage.filesystem import DiskFilesystem, File
from forebay.storage.quarantine import count_kept
from forebay.storage.staging import Staged, read_staged

# An owner that freezes or merges changes the files under a reader: then it looks again.
_LOOKS_MAX = 100
# What a bad block costs, where it does not cost items.
_COSTS = {
    FileKind.TOMBSTONE_RUN: "items that were taken away may come again",
    FileKind.DEQUEUED_RUN: "how often items were given out may be too low",
}
_FIRST = itemgetter(0)
_Keyed = tuple[tuple[int, int], Record]


@dataclass(slots=True)
class FolderRun:
    """A run; `run` is None if nothing of it can be read. All items below `low_water` are gone."""

    name: str
    kind: FileKind
    low_water: Key
    size: int = 0
    run: Run | None = None
    file: File | None = None
    damage: list[Damage] = field(default_factory=list)

    def keyed(self, *, whole: bool, found: list[Damage]) -> Iterator[_Keyed]:
        """Yields what counts of it, by key; bad blocks go to a list. `whole`: reads all of it."""
        if self.run is None:
            return
        low = self.low_water if self.kind is FileKind.PENDING_RUN else NO_KEY
        for entry in self.run.scan(None if whole else low):
            if isinstance(entry, Damage):
                found.append(self.cost(entry))
            elif entry.key >= low:
                yield (entry.key.deadline_ms, entry.key.id), self._record(entry)

    def cost(self, damage: Damage) -> Damage:
        """Gives damage with what it means for the items of the queue."""
        if self.kind not in _COSTS:
            return replace(damage, offset=None)
        reason = f"{damage.reason}; {_COSTS[self.kind]}"
        return replace(damage, reason=reason, offset=None, count=0)

    def check_ids(self) -> list[Damage]:
        """Gives what is wrong with the index by id, which only a look at it tells."""
        if self.run is None or not self.run.footer.id_index_position:
            return []
        known = len(self.run.damage)
        try:
            self.run.find_id(self.run.footer.min_id)
        except Damaged:
            pass  # A bad block, which a scan tells.
        return self.run.damage[known:]

    def _record(self, entry: Item | Tombstone) -> Record:
        if self.kind is not FileKind.DEQUEUED_RUN or isinstance(entry, Tombstone):
            return entry
        return Dequeued(entry.key, entry.stats.dequeue_count, entry.stats.enqueue_ms)


class Folder:
    """The files of a queue at one moment. One thread at a time may use it.

    `damage` is what was found when it was opened: all but the bad blocks of runs. `torn` are ends
    that a crash left, `mended` heads of logs that are bad and could be read all the same.
    """

    def __init__(self, path: str) -> None:
        self._directory = DiskFilesystem().open_directory(path)
        self.path = self._directory.path
        self.manifest: Manifest | None = None
        self.runs: list[FolderRun] = []
        self.logs: dict[str, int] = {}
        self.names: list[str] = []
        self.damage: list[Damage] = []
        self.torn: list[Damage] = []
        self.mended: list[Damage] = []
        self._records: list[Record] = []
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """How many bytes all files that count take."""
        return sum(run.size for run in self.runs) + sum(self.logs.values())

    @property
    def has_buried(self) -> bool:
        """Whether an item was put aside, and may be so still."""
        runs = (run.run.footer.buried_count for run in self.runs if run.run is not None)
        return any(runs) or any(isinstance(item, Item) and item.buried for item in self._records)

    @property
    def entry_count(self) -> int:
        """How many entries there are to read."""
        runs = (run.run.footer.count for run in self.runs if run.run is not None)
        return sum(runs) + len(self._records)

    def kept(self) -> tuple[int, int]:
        """Gives how many files quarantine holds, and their bytes."""
        return count_kept(self._directory)

    def items(self, *, whole: bool = False) -> Iterator[Item | Damage]:
        """Yields the live items by deadline and id, buried ones last, and bad blocks.

        Each has the count of how often it was given out. `whole` also reads what is gone for sure.
        """
        found: list[Damage] = []
        keyed = (((record.key.deadline_ms, record.key.id), record) for record in self._records)
        logs = sorted(keyed, key=_FIRST)
        streams = [run.keyed(whole=whole, found=found) for run in self.runs]
        for _, same in groupby(heapq.merge(logs, *streams, key=_FIRST), _FIRST):
            item = _alive(record for _, record in same)
            while found:
                yield found.pop(0)
            if item is not None:
                yield item
        yield from found

    def close(self) -> None:
        """Closes the files; a second time does nothing."""
        self._close_runs()
        self._directory.close()

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _look(self) -> None:
        for _ in range(_LOOKS_MAX):
            # What leaves the staging buffer after this is in the logs that are listed later.
            staged = read_staged(self._directory)
            before = read_small(self._directory, NAME)
            self._close_runs()
            self.damage, self.torn, self.mended = [], [], []
            self.names = self._directory.names()
            self._read_manifest(before)
            try:
                self._open_runs()
                self._read_logs(staged)
            except FileNotFoundError:
                continue
            if read_small(self._directory, NAME) == before:
                self.damage += [damage for run in self.runs for damage in run.damage]
                return
        raise NotAQueue(f"{self.path}: its files change faster than they can be read")

    def _read_manifest(self, data: bytes | None) -> None:
        path = f"{self.path}/{NAME}"
        self.manifest = None
        try:
            if data is None:
                raise Damaged(Damage(path, 0, 0, "it is gone"))
            self.manifest = decode_manifest(data, path)
        except Damaged as error:
            reason = f"{error.damage.reason}; all files that are there count"
            self.damage.append(replace(error.damage, reason=reason, count=0))

    def _open_runs(self) -> None:
        if self.manifest is not None:
            rows = [(row, kind) for row in self.manifest.sets for kind in sorted(row.kinds)]
            wanted = [(file_name(row.number, kind), kind, row.low_water) for row, kind in rows]
        else:
            files = [found for found in list_files(self.names) if found[1] is not FileKind.WAL]
            wanted = [(file_name(number, kind), kind, NO_KEY) for number, kind in files]
        for name, kind, low_water in wanted:
            run = FolderRun(name, kind, low_water)
            self.runs.append(run)
            try:
                self._open_run(run)
            except FileNotFoundError:
                # If the owner has just merged it away, the manifest is another one by now.
                run.damage = [run.cost(Damage(f"{self.path}/{name}", 0, 0, "the file is missing"))]

    def _open_run(self, run: FolderRun) -> None:
        file = run.file = self._directory.open(run.name)
        path = f"{self.path}/{run.name}"
        run.size = file.size()

        def read(position: int, size: int) -> bytes:
            return file.pread(size, position)

        try:
            try:
                run.run = Run.open(read, run.size, path)
            except (Damaged, NotAQueue):
                run.run = rebuild_run(read, run.size, path)
        except Damaged as error:
            # Its log went only when it was durable: what it held is lost.
            run.damage = [run.cost(replace(error.damage, torn=False))]
        except ForebayError as error:
            run.damage = [run.cost(Damage(path, 0, run.size, str(error)))]
        else:
            run.damage = [run.cost(replace(damage, torn=False)) for damage in run.run.damage]

    def _read_logs(self, staged: Staged | None) -> None:
        oldest = 0 if self.manifest is None else self.manifest.oldest_wal
        files = list_files(self.names)
        numbers = [number for number, kind in files if kind is FileKind.WAL and number >= oldest]
        names = [wal_name(number) for number in numbers]
        unnamed = wal_name(oldest) + TEMPORARY
        if oldest not in numbers and unnamed in self.names:
            # A recovery was about to give it its name.
            names.insert(0, unnamed)
        self._records = []
        for _, part in read_logs(self._directory, names, staged):
            if isinstance(part, Damage):
                (self.torn if part.torn else self.damage).append(part)
            else:
                self._records += map(decode_record, part)
        self.logs = {name: self._check_head(name) for name in names}

    def _check_head(self, name: str) -> int:
        """Takes note of a log whose head was mended; gives the size of the log."""
        path = f"{self.path}/{name}"
        file = self._directory.open(name)
        try:
            try:
                decode_header(file.pread(HEADER_BYTES, 0), path)
            except (Damaged, NotAQueue):
                if all((item.path, item.position) != (path, 0) for item in self.damage + self.torn):
                    reason = "the header does not verify; its name tells what belongs there"
                    self.mended.append(Damage(path, 0, HEADER_BYTES, reason, count=0))
            return file.size()
        finally:
            file.close()

    def _close_runs(self) -> None:
        for run in self.runs:
            if run.file is not None:
                run.file.close()
        self.runs = []


def _alive(records: Iterable[Record]) -> Item | None:
    """Gives the item of the records of one key; None if it was taken away, or is not among them."""
    item: Item | None = None
    count = 0
    gone = False
    for record in records:
        if isinstance(record, Tombstone):
            gone = True
        elif isinstance(record, Dequeued):
            count = max(count, record.dequeue_count)
        else:
            item = record
            count = max(count, record.stats.dequeue_count)
    if item is None or gone:
        return None
    if count == item.stats.dequeue_count:
        return item
    return replace(item, stats=replace(item.stats, dequeue_count=count))
