"""Reads a deadline queue without owning it: takes no lock, writes nothing, owner alive or not.

Sees what was written at the moment of `refresh`, by the same rules as recovery: pending items,
including leased ones, which only the owner can tell from the others, and buried ones last. Damage
that costs items raises `Damaged`, or, with `salvage=True`, is counted in `damage` and skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay.damage import Damage
from forebay.errors import Damaged
from forebay.formats.deadline.items import BURIED_BIT, FileKind, Item, Key
from forebay.queues.deadline.item import DeadlineItem, as_record
from forebay.queues.deadline.picture import Picture, look
from forebay.queues.deadline.runs import BadBlocks, RunSet
from forebay.queues.deadline.state import State
from forebay.queues.shared.reader import DirectoryReader


class DeadlineReader(DirectoryReader):
    """A view of a deadline queue's directory. One thread at a time may use it.

    `picture` has the files, for callers that look at single ones.
    """

    picture: Picture
    _state: State
    _sets: Sequence[RunSet] = ()

    def refresh(self) -> None:
        """Looks again at what the directory holds."""
        picture = look(self._directory, self._filesystem.boot_id())
        self._close_sets()
        self.picture, self._sets = picture, picture.sets
        self._state = State(picture.segment, picture.sets, picture.floor_ms)
        if picture.damage or picture.guessed:
            self._state.recount()
        self._tell(picture.damage)

    def __iter__(self) -> Iterator[DeadlineItem]:
        """Yields all items that can be read, in order."""
        return self.records()

    def __len__(self) -> int:
        """How many items there are, including buried ones."""
        return self._state.schedule.total + self._state.schedule.buried

    def records(self) -> Iterator[DeadlineItem]:
        """Yields items by deadline, buried ones last."""
        bad: BadBlocks = []
        for items in self._live(bad):
            yield from items
            self._tell_bad(bad)

    def values(self) -> Iterator[bytes]:
        """Yields the values of items."""
        for item in self.records():
            yield item.value

    def entries(self, *, whole: bool = False) -> Iterator[Item | Damage]:
        """Yields items by deadline, buried ones last, as stored in the files, and bad blocks.

        `whole` also reads items that are certainly gone.
        """
        bad = self._bad_among_the_dead() if whole else []
        for items in self._live(bad):
            yield from map(as_record, items)
            while bad:
                yield self._state.lost_in(*bad.pop(0))

    def due_counts(self, times_ms: Sequence[int]) -> list[int]:
        """Returns for each time how many items that are not buried are due by then.

        Runs are counted by their indexes. Items in bad blocks still count.
        """
        return [self._state.count_until(min(time_ms, BURIED_BIT - 1)) for time_ms in times_ms]

    def close(self) -> None:
        """Closes the files; a second call does nothing."""
        self._close_sets()
        super().close()

    def _live(self, bad: BadBlocks) -> Iterator[list[DeadlineItem]]:
        if self._state.lacks_tombstones():
            # Before any item is yielded that comes again under another deadline.
            self._state.recount()
        return self._state.live(damage=bad)

    def _bad_among_the_dead(self) -> BadBlocks:
        """Returns the bad blocks among items that are certainly gone, which nothing else reads."""
        bad: BadBlocks = []
        for each in self._sets:
            file = each.files.get(FileKind.PENDING_RUN)
            if file is not None:
                blocks = map(file.run.load, range(file.run.row_of(Key(*each.low_water))))
                bad += [(file.kind, block) for block in blocks if isinstance(block, Damage)]
        return bad

    def _tell(self, damage: list[Damage]) -> None:
        lost = [each for each in damage if each.count != 0]
        if lost and not self.salvage:
            raise Damaged(lost[0])
        self.damage = list(damage)

    def _tell_bad(self, bad: BadBlocks) -> None:
        """Reports the blocks that were read and do not verify."""
        while bad:
            found = self._state.lost_in(*bad.pop(0))
            if found.count != 0 and not self.salvage:
                raise Damaged(found)
            if found not in self.damage:
                self.damage.append(found)

    def _close_sets(self) -> None:
        for each in self._sets:
            each.close()
