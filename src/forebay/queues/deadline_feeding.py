"""Feeds the blocks of runs to a merge that goes on without the interpreter's lock.

A block that the merge cannot read by itself is read here; a bad one is noted, and costs its own
entries.
"""

from __future__ import annotations

from forebay.frames import Damage
from forebay.kernels import deadline_merge as kernel
from forebay.kernels.checksum import crc32
from forebay.kernels.deadline_build import BlockBuilder
from forebay.kernels.deadline_stream import BlockStream
from forebay.queues.deadline_runs import CURSOR_KINDS, BadBlocks, RunFile

# What all sources may hold at once, and what each of them reads at most.
_HELD_BYTES = 32 << 20
_READ_BYTES_MAX = 4 << 20


class Feeder:
    """A merge of the runs in some files into some blocks. One thread may use it."""

    def __init__(
        self,
        files: list[RunFile],
        full: bool,
        builders: list[BlockBuilder],
        streams: list[BlockStream | None],
        damage: BadBlocks,
        held_bytes: int = _HELD_BYTES,
    ) -> None:
        size = min(held_bytes // max(len(files), 1), _READ_BYTES_MAX)
        self._sources = [_Source(file, size, damage) for file in files]
        kinds = [CURSOR_KINDS[file.kind] for file in files]
        seeds = [crc32(file.run.footer.salt) for file in files]
        self._merger = kernel.Merger(full, kinds, seeds, builders, streams)

    @property
    def passed(self) -> int:
        """How many keys it has merged."""
        return self._merger.passed

    def run(self) -> int:
        """Goes on until somebody else should have a turn.

        Gives the kind of the block that is full, 0 at the end, -1 if there is nothing to do.
        """
        needed = self._merger.run()
        if needed == kernel.FULL:
            return self._merger.kind
        if needed == kernel.HUNGRY:
            self._sources[self._merger.source].feed(self._merger)
            return -1
        return 0


class _Source:
    """A run, and which of its blocks the merge has."""

    def __init__(self, file: RunFile, read_bytes: int, damage: BadBlocks) -> None:
        self._file = file
        self._read_bytes = read_bytes
        self._damage = damage
        self._data = b""
        self._first = self._stop = 0

    def feed(self, merger: kernel.Merger) -> None:
        """Returns the merge what it needs of this run."""
        row = self._first + merger.block
        if row < self._stop:
            self._feed_block(merger, row)
            return
        self._data = b""
        merger.forget()
        if row < len(self._file.run.places):
            self._feed_next(merger, row)
        else:
            merger.end_source()

    def _feed_next(self, merger: kernel.Merger, row: int) -> None:
        run = self._file.run
        stop = run.rows_within(row, self._read_bytes)
        self._data = run.read(row, stop)
        self._first, self._stop = row, stop
        merger.feed(self._data, run.table(row, stop))

    def _feed_block(self, merger: kernel.Merger, row: int) -> None:
        """Returns the merge a block that it cannot read by itself."""
        run = self._file.run
        start = run.places.positions[row] - run.places.positions[self._first]
        block = run.decode(row, self._data[start : start + run.block_size(row)])
        if isinstance(block, Damage):
            self._damage.append((self._file.kind, block))
            merger.skip_block()
        else:
            merger.feed_block(block)
