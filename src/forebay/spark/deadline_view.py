"""A deadline queue as the source looks at it: a snapshot, and how it is dealt out to tasks.

The live items are planned by key: each range holds about the same amount of what runs and logs have
between two keys, by the sparse indexes of the runs. Every entry as it lies there is planned by
blocks of runs, and by logs. Each range carries the text of the snapshot, which says all that a task
needs to read what the planner saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from forebay.damage import Damage
from forebay.errors import Damaged, DataLoss, InvalidOption
from forebay.formats.deadline.items import BURIED_BIT, KeyTuple
from forebay.queues.deadline.snapshot import (
    LAST_KEY,
    RunPart,
    Snapshot,
    SnapshotFiles,
    take_snapshot,
)
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range
from forebay.storage.filesystem import DiskFilesystem

KIND = "deadline"
# What a range holds at most, about: what is in memory at once is some times as much.
_RANGE_BYTES = 4 << 20
# What an entry costs beside its value.
_ENTRY_BYTES = 64
_ID_BITS = 64
_LOOKS_MAX = 100


@dataclass(frozen=True, slots=True)
class SnapshotRange(Range):
    """A part of a snapshot: of all files between two keys, or some blocks of one file.

    `start` and `end` are keys as numbers (`number_of`), or numbers of blocks. `leads` says that no
    range comes before it, so that it also tells of damage that lies before its keys.
    """

    snapshot: str = ""
    leads: bool = False


class DeadlineView:
    """What a directory holds at one moment. One thread at a time may use it."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        self.directory = DiskFilesystem().open_directory(path)
        self.path = self.directory.path
        self._options = options
        self._range_bytes = min(_RANGE_BYTES, options.partition_bytes)
        try:
            self.files = self._open_files()
        except BaseException:
            self.directory.close()
            raise

    @property
    def snapshot(self) -> Snapshot:
        """The files that count."""
        return self.files.snapshot

    def ranges(self) -> Iterator[Range]:
        """Returns the ranges of what is wanted: entries as they lie there, or live items.

        The table of damage is that of the live items: only their view knows what is missing.
        """
        return self._raw() if self._options.view == "raw" else self._by_key()

    def close(self) -> None:
        """Closes the files."""
        self.files.close()
        self.directory.close()

    def __enter__(self) -> DeadlineView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_files(self) -> SnapshotFiles:
        text = self._options.snapshots.get(self.path)
        if text is not None:
            return SnapshotFiles(self.directory, Snapshot.decode(text))
        reason = ""
        for _ in range(_LOOKS_MAX):
            # What was merged between the look and the opening is looked for again.
            try:
                return SnapshotFiles(self.directory, take_snapshot(self.directory))
            except DataLoss as error:
                reason = str(error)
        # A queue all the same: a pattern does not pass it over.
        raise Damaged(Damage(self.path, 0, 0, f"its files cannot be opened together: {reason}"))

    def _raw(self) -> Iterator[Range]:
        for part in self.snapshot.runs:
            weights = [weight for _, weight in _blocks_of(self.files, part)]
            first = size = 0
            for number, weight in enumerate([*weights, 0]):
                if number == len(weights) or (size and size + weight > self._range_bytes):
                    yield self._range(first, number, size, segment=part.name)
                    first, size = number, 0
                size += weight
        for log in self.snapshot.logs:
            yield self._range(0, 0, log.size, segment=log.name)

    def _by_key(self) -> Iterator[Range]:
        weights = [(number_of(key), size + _ENTRY_BYTES) for key, size in self.files.log_weights()]
        for part in self.snapshot.runs:
            weights += _blocks_of(self.files, part)
        weights.sort()
        leads = True
        for start, end in self._zones():
            first, size = start, 0
            for number, weight in weights:
                if not start <= number < end:
                    continue
                if size + weight > self._range_bytes and number > first:
                    yield self._range(first, number, size, leads=leads)
                    first, size, leads = number, 0, False
                size += weight
            yield self._range(first, end, size, leads=leads)
            leads = False

    def _zones(self) -> Iterator[tuple[int, int]]:
        """Yields the keys between which the items are that are wanted; buried ones come last."""
        start, end = self._options.start_deadline_ms, self._options.end_deadline_ms
        if start is None and end is None:
            yield 0, number_of(LAST_KEY)
            return
        first, last = start or 0, BURIED_BIT if end is None else min(end, BURIED_BIT)
        if first >= last:
            raise InvalidOption(f"startingDeadline = {first}: must be below endingDeadline")
        for bit in (0, BURIED_BIT):
            yield number_of((first | bit, 0)), number_of((last + bit, 0))

    def _range(
        self, start: int, end: int, size: int, *, segment: str = "", leads: bool = False
    ) -> SnapshotRange:
        return SnapshotRange(
            KIND,
            self.path,
            start,
            end,
            segment=segment,
            last_byte=size,
            snapshot=self.snapshot.encode(),
            leads=leads,
        )


def number_of(key: KeyTuple) -> int:
    """Returns a key as one number, which rises as keys do."""
    return key[0] << _ID_BITS | key[1]


def key_of(number: int) -> KeyTuple:
    """Returns the key that a number stands for."""
    return number >> _ID_BITS, number & ((1 << _ID_BITS) - 1)


def _blocks_of(files: SnapshotFiles, part: RunPart) -> list[tuple[int, int]]:
    """Returns the first key of each block of a run, and about what it takes."""
    run = files.run(part)
    if isinstance(run, Damage):
        return []
    return [
        (
            number_of((place.key.deadline_ms, place.key.id)),
            run.block_size(row) + place.count * _ENTRY_BYTES,
        )
        for row, place in enumerate(run.places)
    ]
