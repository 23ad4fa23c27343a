"""The files of a deadline queue as one picture: which of them count, what they hold, what is bad.

Only reads, takes no lock, and works on a queue that is in use, was killed, or is damaged: what does
not verify is yielded in its place, and everything round it is read. Of a queue that has lost its
manifest all files count, as for its next owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forebay.damage import Damage
from forebay.errors import Damaged
from forebay.formats.deadline.items import (
    FileKind,
    Item,
    Key,
    file_name,
)
from forebay.formats.deadline.manifest import Manifest
from forebay.formats.deadline.runs import Run
from forebay.queues.deadline.item import as_record
from forebay.queues.deadline.picture import Picture, look
from forebay.queues.deadline.runs import BadBlocks
from forebay.queues.deadline.state import State
from forebay.queues.shared.handle import Closing
from forebay.storage.filesystem import DiskFilesystem


@dataclass(slots=True)
class FolderRun:
    """A run; `run` is None if nothing of it can be read. All items below `low_water` are gone."""

    name: str
    kind: FileKind
    low_water: Key
    size: int = 0
    run: Run | None = None

    def check_dead(self) -> BadBlocks:
        """Returns the bad blocks of what is gone for sure, which nobody reads otherwise."""
        if self.run is None or self.kind is not FileKind.PENDING_RUN:
            return []
        blocks = map(self.run.load, range(self.run.row_of(self.low_water)))
        return [(self.kind, block) for block in blocks if isinstance(block, Damage)]

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
        return any(runs) or self._state.current.buried > 0

    @property
    def entry_count(self) -> int:
        """How many entries there are to read."""
        runs = (run.run.footer.count for run in self.runs if run.run is not None)
        return sum(runs) + self._state.current.count

    def items(self, *, whole: bool = False) -> Iterator[Item | Damage]:
        """Yields the live items by deadline and id, buried ones last, and bad blocks.

        Each has the count of how often it was given out. `whole` also reads what is gone for sure.
        """
        bad: BadBlocks = [each for run in self.runs for each in run.check_dead()] if whole else []
        for items in self._state.live(damage=bad):
            yield from map(as_record, items)
            while bad:
                yield self._state.lost_in(*bad.pop(0))

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
        self._state = State(picture.segment, picture.sets, 0)
        if self._state.lacks_tombstones():
            # Before anything is given out that comes again under another deadline.
            self._state.recount()
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
