"""Writes sets of runs: of what was in memory, and of sets that are merged.

Promises that a set is durable when it is given back, its names included, and that a failed one
leaves no file. What counts is decided by the manifest, which is changed by who calls this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from forebay.formats.deadline import Entry, FileKind, Item, file_name
from forebay.formats.deadline_blocks import Identity
from forebay.formats.deadline_manifest import SetCounts, SetRow
from forebay.formats.deadline_run_encoder import RunEncoder
from forebay.kernels.deadline_memory import ITEM, MARK, TOMBSTONE, Memory
from forebay.kernels.deadline_stream import can_stream
from forebay.kernels.deadline_view import RunView, merge
from forebay.queues.deadline_feeding import Feeder
from forebay.queues.deadline_runs import BadBlocks, RunSet, start_cursor
from forebay.storage.filesystem import Buffer, Directory, File, Filesystem, write_all

# In the order of the kinds that `merge` gives, from 1 on.
_KINDS = (FileKind.PENDING_RUN, FileKind.TOMBSTONE_RUN, FileKind.DEQUEUED_RUN)
_STATES = (ITEM, TOMBSTONE, MARK)
_WRITE_BYTES = 1 << 20
# So much is synced at a time: the sync of a large run at its end would keep others waiting.
_SYNC_BYTES = 32 << 20
# A merge of less than this is not worth the buffers for many blocks at once.
_STREAM_BYTES_MIN = 1 << 20
# So many keys are merged before somebody else may have a turn, though no block is full.
_KEYS_AT_ONCE = 1_000


class SetWriter:
    """The files of one set, as they are written. One thread may use it."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        number: int,
        compression: str,
        queue_id: bytes,
    ) -> None:
        self._directory = directory
        self._number = number
        self._runs = [
            _RunWriter(filesystem, directory, number, kind, compression, queue_id)
            for kind in _KINDS
        ]

    def freeze(self, segment: Memory) -> SetRow:
        """Writes a segment that changes no more; durable on return."""
        with self._whole():
            for run, state in zip(self._runs, _STATES, strict=True):
                rows = segment.sorted(state)
                at = 0
                while (at := run.encoder.encode_rows(segment, rows, at)) < len(rows):
                    run.end_block()
            return self._finish()

    def write_items(self, items: Iterable[Item]) -> SetRow:
        """Writes items that come by key; durable on return."""
        pending = self._runs[0]
        remaining = iter(items)
        with self._whole():
            while batch := list(islice(remaining, _KEYS_AT_ONCE)):
                pending.add(batch)
            return self._finish()

    def merge(
        self,
        sets: list[RunSet],
        *,
        full: bool,
        damage: BadBlocks,
        go_on: Callable[[int], None],
    ) -> SetRow:
        """Writes what is left of sets; durable on return.

        `full` says that no older set is left out: then tombstones and counts that meet no item are
        dropped. Bad blocks cost their entries, and are noted. `go_on` is told again and again how
        many keys are done, and raises if it is to end.
        """
        # Also what is below the low-water mark: the tombstones of dead items must go with them.
        files = [file for each in sets for file in each.files.values()]
        builders = [run.encoder.builder for run in self._runs]
        run: Callable[[], int]
        source: Feeder | RunView
        if can_stream():
            is_much = sum(file.size for file in files) >= _STREAM_BYTES_MIN
            streams = [each.encoder.stream if is_much else None for each in self._runs]
            source = Feeder(files, full, builders, streams, damage)
            run = source.run
        else:
            source = RunView()
            for file in files:
                source.add(start_cursor(file, (0, 0), damage))
            run = partial(merge, source, full, *builders, limit=_KEYS_AT_ONCE)
        with self._whole():
            while kind := run():
                go_on(source.passed)
                if kind > 0:
                    self._runs[kind - 1].end_block()
            return self._finish()

    def _finish(self) -> SetRow:
        kinds = frozenset(run.kind for run in self._runs if run.finish())
        if kinds:
            self._directory.sync()
        items, tombstones, dequeued = (run.encoder.counts for run in self._runs)
        counts = SetCounts(items[0], items[2], sum(tombstones), sum(dequeued))
        return SetRow(self._number, kinds, counts=counts)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Removes the files again if they could not all be written."""
        try:
            yield
        except BaseException:
            for run in self._runs:
                run.remove()
            raise


class _RunWriter:
    """One file of a set; there is none as long as it has no entry."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Directory,
        number: int,
        kind: FileKind,
        compression: str,
        queue_id: bytes,
    ) -> None:
        self.kind = kind
        # An index by id is for items only: nobody looks for the id of a tombstone.
        self.encoder = RunEncoder(
            filesystem.random_bytes(8),
            compression=compression,
            id_index=kind is FileKind.PENDING_RUN,
            identity=Identity(number, queue_id, kind[1]),
        )
        self._directory = directory
        self._name = file_name(number, kind)
        self._file: File | None = None
        self._position = 0
        self._synced = 0

    def add(self, entries: Iterable[Entry]) -> None:
        """Takes in entries by key, and writes the blocks that are full."""
        self._put([self.encoder.encode(entries)])

    def end_block(self) -> None:
        """Ends what is full, and writes much at a time.

        Each write lets go of the interpreter's lock, and has to wait for it again.
        """
        self.encoder.end_block()
        if self.encoder.is_streaming or self.encoder.waiting >= _WRITE_BYTES:
            self._put(self.encoder.take_parts())

    def finish(self) -> bool:
        """Makes the file durable; False if there is none."""
        if self.encoder.is_empty:
            return False
        self._put(self.encoder.finish_parts())
        assert self._file is not None
        self._file.sync()
        self._file.close()
        return True

    def remove(self) -> None:
        """Removes the file, if there is one."""
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError):
                self._directory.unlink(self._name)

    def _put(self, parts: Sequence[Buffer]) -> None:
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(self._name)
            self._file = self._directory.create(self._name)
        for part in parts:
            write_all(self._file, part, self._position)
            self._position += len(part)
        if self._position - self._synced >= _SYNC_BYTES:
            self._file.sync()
            self._synced = self._position
