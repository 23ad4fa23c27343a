"""Reads a deadline queue without owning it: no lock, nothing written, dead or alive.

Sees what was written at the moment of `refresh`, by the same rules as recovery: pending items,
those that are given out, which nobody but the owner can tell from the others, and buried ones last.
Damage raises `Damaged`, or, with `salvage=True`, is counted in `damage` and read round.
"""

from __future__ import annotations

from collections.abc import Iterator

from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline import FileKind
from forebay.formats.deadline_manifest import NAME, Manifest, decode_manifest
from forebay.frames import Damage
from forebay.queues.deadline_item import DeadlineItem, as_item
from forebay.queues.deadline_logs import read_logs
from forebay.queues.deadline_names import list_files, wal_name
from forebay.queues.deadline_runs import RunSet, open_set
from forebay.queues.deadline_segment import Segment
from forebay.queues.deadline_state import State
from forebay.queues.directory_reader import DirectoryReader
from forebay.storage import atomic

# An owner that freezes or merges changes the files under a reader: then it looks again.
_LOOKS_MAX = 100


class DeadlineReader(DirectoryReader):
    """A view of a deadline queue's directory. One thread at a time may use it."""

    _state: State | None = None

    def refresh(self) -> None:
        """Looks again at what is there."""
        for _ in range(_LOOKS_MAX):
            before = atomic.read_small(self._directory, NAME)
            if before is None:
                raise NotAQueue(f"{self.path} is no deadline queue: it has no manifest")
            manifest = decode_manifest(before, f"{self.path}/{NAME}")
            sets: list[RunSet] = []
            try:
                damage = self._look(manifest, sets)
            except FileNotFoundError:
                damage = None
            if damage is not None and atomic.read_small(self._directory, NAME) == before:
                self._close_sets()
                self._state = State(self._segment, sets, manifest.floor_ms)
                self._tell(damage)
                return
            for each in sets:
                each.close()
        raise NotAQueue(f"{self.path}: its files change faster than they can be read")

    def __iter__(self) -> Iterator[DeadlineItem]:
        return self.records()

    def __len__(self) -> int:
        """How many items there are, buried ones too."""
        assert self._state is not None
        return self._state.total + self._state.buried

    def records(self) -> Iterator[DeadlineItem]:
        """Gives items by deadline, buried ones last."""
        assert self._state is not None
        for item, count in self._state.browse():
            yield as_item(item, count)

    def values(self) -> Iterator[bytes]:
        """Gives the values of items."""
        for item in self.records():
            yield item.value

    def close(self) -> None:
        """Closes the files; a second time does nothing."""
        self._close_sets()
        super().close()

    def _look(self, manifest: Manifest, sets: list[RunSet]) -> list[Damage]:
        """Opens the sets and reads the logs; gives what is damaged."""
        damage: list[Damage] = []
        for row in manifest.sets:
            opened = open_set(self._directory, row)
            sets.append(opened)
            if len(opened.files) < len(row.kinds):
                raise FileNotFoundError(f"a file of set {row.number:x}")
            damage += opened.damage
        names = self._directory.names()
        wals = [
            wal_name(number)
            for number, kind in list_files(names)
            if kind is FileKind.WAL and number >= manifest.oldest_wal
        ]
        oldest = wal_name(manifest.oldest_wal)
        if oldest not in wals and oldest + atomic.TEMPORARY in names:
            # A recovery was about to give it its name.
            wals.insert(0, oldest + atomic.TEMPORARY)
        self._segment = Segment(0)
        for _, record in read_logs(self._directory, wals):
            if not isinstance(record, Damage):
                self._segment.replay(record)
            elif not record.torn:
                damage.append(record)
        return damage

    def _tell(self, damage: list[Damage]) -> None:
        if damage and not self.salvage:
            raise Damaged(damage[0])
        self.damage = damage

    def _close_sets(self) -> None:
        if self._state is not None:
            for each in self._state.view.sets:
                each.close()
            self._state = None
