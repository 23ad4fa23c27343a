"""Reads a deadline queue without owning it: no lock, nothing written, dead or alive.

Sees what was written at the moment of `refresh`, by the same rules as recovery: pending items,
those that are given out, which nobody but the owner can tell from the others, and buried ones last.
Damage raises `Damaged`, or, with `salvage=True`, is counted in `damage` and read round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay.errors import Damaged, NotAQueue
from forebay.formats.deadline import BURIED_BIT, FileKind
from forebay.formats.deadline_manifest import NAME, Manifest, decode_manifest
from forebay.frames import Damage
from forebay.kernels.deadline_memory import Memory
from forebay.kernels.deadline_replay import replay
from forebay.queues.deadline_item import DeadlineItem, as_item
from forebay.queues.deadline_logs import read_logs
from forebay.queues.deadline_names import list_files, wal_name
from forebay.queues.deadline_runs import BadBlocks, RunSet, open_set
from forebay.queues.deadline_state import State
from forebay.queues.directory_reader import DirectoryReader
from forebay.storage import atomic
from forebay.storage.staging import Staged, read_staged

# An owner that freezes or merges changes the files under a reader: then it looks again.
_LOOKS_MAX = 100


class DeadlineReader(DirectoryReader):
    """A view of a deadline queue's directory. One thread at a time may use it."""

    _state: State | None = None

    def refresh(self) -> None:
        """Looks again at what is there."""
        for _ in range(_LOOKS_MAX):
            # What leaves the staging buffer after this is in the logs that are listed later.
            staged = read_staged(self._directory)
            before = atomic.read_small(self._directory, NAME)
            if before is None:
                raise NotAQueue(f"{self.path} is no deadline queue: it has no manifest")
            manifest = decode_manifest(before, f"{self.path}/{NAME}")
            sets: list[RunSet] = []
            try:
                damage = self._look(manifest, sets, staged)
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
        return self._state.desk.total + self._state.desk.buried

    def records(self) -> Iterator[DeadlineItem]:
        """Gives items by deadline, buried ones last."""
        assert self._state is not None
        bad: BadBlocks = []
        for item, count in self._state.browse(damage=bad):
            self._tell_bad(bad)
            yield as_item(item, count)
        self._tell_bad(bad)

    def values(self) -> Iterator[bytes]:
        """Gives the values of items."""
        for item in self.records():
            yield item.value

    def due_counts(self, times_ms: Sequence[int]) -> list[int]:
        """Gives for each time how many items that are not buried have a deadline up to it.

        Runs are counted by their indexes. Items in bad blocks still count.
        """
        assert self._state is not None
        return [self._state.count_until(min(time_ms, BURIED_BIT - 1)) for time_ms in times_ms]

    def close(self) -> None:
        """Closes the files; a second time does nothing."""
        self._close_sets()
        super().close()

    def _look(self, manifest: Manifest, sets: list[RunSet], staged: Staged | None) -> list[Damage]:
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
        self._segment = Memory(0)
        for _, part in read_logs(self._directory, wals, staged):
            if not isinstance(part, Damage):
                replay(self._segment, part)
            elif not part.torn:
                damage.append(part)
        return damage

    def _tell(self, damage: list[Damage]) -> None:
        if damage and not self.salvage:
            raise Damaged(damage[0])
        self.damage = damage

    def _tell_bad(self, bad: BadBlocks) -> None:
        """Tells of blocks that were met and do not verify."""
        while bad:
            _, damage = bad.pop(0)
            if not self.salvage:
                raise Damaged(damage)
            if damage not in self.damage:
                self.damage.append(damage)

    def _close_sets(self) -> None:
        if self._state is not None:
            for each in self._state.view.sets:
                each.close()
            self._state = None
