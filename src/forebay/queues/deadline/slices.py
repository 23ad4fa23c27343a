"""A deadline queue at one moment, cut into slices of about the same size, for readers in parallel.

The live items are cut by key: each slice holds about the same amount of what runs and logs have
between two keys, by the sparse indexes of the runs. Every entry as it lies there is cut by blocks
of runs, and by logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from forebay.damage import Damage
from forebay.errors import Damaged, DataLoss
from forebay.formats.deadline.items import KeyTuple
from forebay.queues.deadline.snapshot import RunPart, Snapshot, SnapshotFiles, take_snapshot
from forebay.queues.shared.handle import Closing
from forebay.storage.filesystem import DiskFilesystem

# What an entry costs beside its value.
_ENTRY_BYTES = 64
_LOOKS_MAX = 100


class KeySlice(NamedTuple):
    """The live items from a key up to another, and about how many bytes they take.

    `leads` says that no slice comes before it, so that it also tells of damage before its keys.
    """

    start: KeyTuple
    end: KeyTuple
    size: int
    leads: bool


class FileSlice(NamedTuple):
    """Blocks of a run from a number up to another, or a whole log."""

    name: str
    first: int
    end: int
    size: int


class SnapshotReader(Closing):
    """A snapshot of a queue, taken now or given by its text. One thread at a time may use it."""

    def __init__(self, path: str | os.PathLike[str], text: str | None = None) -> None:
        self.directory = DiskFilesystem().open_directory(os.fspath(path))
        self.path = self.directory.path
        try:
            self.files = self._open_files(text)
        except BaseException:
            self.directory.close()
            raise

    @property
    def snapshot(self) -> Snapshot:
        """The files that count."""
        return self.files.snapshot

    def by_key(
        self, zones: Sequence[tuple[KeyTuple, KeyTuple]], slice_bytes: int
    ) -> Iterator[KeySlice]:
        """Yields the live items between the keys of each zone, in slices of about a size."""
        weights = [(key, size + _ENTRY_BYTES) for key, size in self.files.log_weights()]
        for part in self.snapshot.runs:
            weights += self._blocks_of(part)
        weights.sort()
        leads = True
        for start, end in zones:
            first, size = start, 0
            for key, weight in weights:
                if not start <= key < end:
                    continue
                if size + weight > slice_bytes and key > first:
                    yield KeySlice(first, key, size, leads)
                    first, size, leads = key, 0, False
                size += weight
            yield KeySlice(first, end, size, leads)
            leads = False

    def by_file(self, slice_bytes: int) -> Iterator[FileSlice]:
        """Yields every entry as it lies there, in slices of about a size."""
        for part in self.snapshot.runs:
            weights = [weight for _, weight in self._blocks_of(part)]
            first = size = 0
            for number, weight in enumerate([*weights, 0]):
                if number == len(weights) or (size and size + weight > slice_bytes):
                    yield FileSlice(part.name, first, number, size)
                    first, size = number, 0
                size += weight
        for log in self.snapshot.logs:
            yield FileSlice(log.name, 0, 0, log.size)

    def close(self) -> None:
        """Closes the files."""
        self.files.close()
        self.directory.close()

    def _open_files(self, text: str | None) -> SnapshotFiles:
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

    def _blocks_of(self, part: RunPart) -> list[tuple[KeyTuple, int]]:
        """Returns the first key of each block of a run, and about what it takes."""
        run = self.files.run(part)
        if isinstance(run, Damage):
            return []
        return [
            (
                (place.key.deadline_ms, place.key.id),
                run.block_size(row) + place.count * _ENTRY_BYTES,
            )
            for row, place in enumerate(run.places)
        ]
