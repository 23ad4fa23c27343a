"""The files of a deadline queue as one picture: which of them count, what they hold, what is bad.

Only reads, takes no lock, and works on a queue that is in use, was killed, or is damaged: what does
not verify is yielded in its place, and everything round it is read. Of a queue that has lost its
manifest all files count, as for its next owner.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from forebay.damage import Damage
from forebay.errors import Damaged
from forebay.formats.deadline.items import (
    NO_KEY,
    FileKind,
    Item,
    Key,
    KeyTuple,
    Tombstone,
    file_name,
)
from forebay.formats.deadline.manifest import Manifest
from forebay.formats.deadline.runs import Run
from forebay.formats.deadline.wal import Dequeued, Record, decode_record
from forebay.queues.deadline.picture import Picture, look
from forebay.queues.deadline.runs import BadBlocks
from forebay.queues.deadline.state import State
from forebay.queues.shared.handle import Closing
from forebay.storage.filesystem import DiskFilesystem

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

    def keyed(self, *, whole: bool, found: BadBlocks) -> Iterator[_Keyed]:
        """Yields what counts of it, by key; bad blocks go to a list. `whole`: reads all of it."""
        if self.run is None:
            return
        low = self.low_water if self.kind is FileKind.PENDING_RUN else NO_KEY
        for entry in self.run.scan(None if whole else low):
            if isinstance(entry, Damage):
                found.append((self.kind, entry))
            elif entry.key >= low:
                yield (entry.key.deadline_ms, entry.key.id), self._record(entry)

    def check_ids(self) -> list[Damage]:
        """Returns what is wrong with the index by id, which only a look at it tells."""
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


class Folder(Closing):
    """The files of a queue at one moment. One thread at a time may use it.

    `damage` is what was found when it was opened: all but the bad blocks of runs. `torn` are ends
    that a crash left, `mended` is what is bad and costs nothing.
    """

    def __init__(self, path: str) -> None:
        self.directory = DiskFilesystem().open_directory(path)
        self.path = self.directory.path
        self.manifest: Manifest | None = None
        self.runs: list[FolderRun] = []
        self.logs: dict[str, int] = {}
        self.names: list[str] = []
        self.damage: list[Damage] = []
        self.torn: list[Damage] = []
        self.mended: list[Damage] = []
        self.picture: Picture | None = None
        self._state: State | None = None
        self._records: list[Record] = []
        # Copies of items that only came back because their tombstones are lost.
        self._hidden: set[KeyTuple] = set()
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

    def items(self, *, whole: bool = False) -> Iterator[Item | Damage]:
        """Yields the live items by deadline and id, buried ones last, and bad blocks.

        Each has the count of how often it was given out. `whole` also reads what is gone for sure.
        """
        found: BadBlocks = []
        keyed = (((record.key.deadline_ms, record.key.id), record) for record in self._records)
        logs = sorted(keyed, key=_FIRST)
        streams = [run.keyed(whole=whole, found=found) for run in self.runs]
        for _, same in groupby(heapq.merge(logs, *streams, key=_FIRST), _FIRST):
            item = _alive(record for _, record in same)
            while found:
                yield self._cost(*found.pop(0))
            if item is not None and (item.key.deadline_ms, item.key.id) not in self._hidden:
                yield item
        while found:
            yield self._cost(*found.pop(0))

    def _cost(self, kind: FileKind, damage: Damage) -> Damage:
        """Returns the damage of a block with what it costs."""
        assert self.picture is not None
        if self._state is None:
            self._state = State(self.picture.segment, self.picture.sets, 0)
        return self._state.lost_in(kind, damage)

    def close(self) -> None:
        """Closes the files; a second time does nothing."""
        if self.picture is not None:
            self.picture.close()
        self.directory.close()

    def _look(self) -> None:
        picture = self.picture = look(self.directory, DiskFilesystem().boot_id())
        self.names = picture.names
        self.manifest = None if picture.guessed else picture.manifest
        self.damage = list(picture.damage)
        self.torn, self.mended = picture.torn, picture.mended
        if picture.manifest_damage is not None:
            self.mended.append(picture.manifest_damage)
        state = State(picture.segment, picture.sets, 0)
        if state.lacks_tombstones():
            state.recount()
        self._hidden = {*picture.revived, *state.revived}
        for each in picture.sets:
            low = Key(*each.low_water)
            for kind, file in each.files.items():
                name = file_name(each.number, kind)
                self.runs.append(FolderRun(name, kind, low, file.size, file.run))
            self.runs += [FolderRun(lost.name, lost.kind, low) for lost in each.lost]
        self.runs.sort(key=lambda run: run.name)
        for log in picture.logs:
            if log.header is not None:
                self.logs[log.name] = len(log.data)
            if log.gone:
                continue
            for part in log.read():
                if isinstance(part, list):
                    self._records += map(decode_record, part)


def _alive(records: Iterable[Record]) -> Item | None:
    """Returns the item of the records of one key; None if it was taken away, or is not there."""
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
