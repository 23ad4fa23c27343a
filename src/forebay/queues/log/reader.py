"""Reads a log without owning it: takes no lock, writes nothing, whether it is in use or not.

Sees what is in the files and in the staging buffer at the moment of `refresh`, by the same rules
as recovery; under `sync="always"` only what is durable. Damage raises `Damaged`; with
`salvage=True` it is added to `damage` and skipped.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import datetime

from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption, NotAQueue
from forebay.extras import require
from forebay.formats.fflg import Frames, decode_header
from forebay.queues.log.consumer import Start
from forebay.queues.log.places import read_places
from forebay.queues.log.recovery import (
    STAGED_DAMAGE,
    View,
    end_of_staged,
    look,
    staged_batches,
    staged_fits,
    staging_damage,
)
from forebay.queues.log.scanner import RecordBatch, Scanner, Taking, list_segments
from forebay.queues.log.staged import Record
from forebay.queues.shared.reader import DirectoryReader
from forebay.storage.filesystem import is_owned
from forebay.storage.segments import SegmentList
from forebay.storage.staging import NAME as STAGING
from forebay.storage.staging import Staged, find_staged
from forebay.storage.tail import NAME as TAIL
from forebay.storage.tail import Tail

_LOOKS_MAX = 100


class LogReader(DirectoryReader):
    """A view of a log directory. One thread at a time may use it."""

    def refresh(self) -> None:
        """Reads the present state of the log again."""
        staged, view = self._view()
        self.tail: Tail | None = view.tail
        self.written = view.end
        self.durable = view.tail.durable if view.tail is not None else view.end
        self._sure = view.sure
        # What is lost after the end: an unknown number of records.
        self.beyond = [*view.damage, *self._staging_damage(view.tail, staged)]
        self._staged: list[RecordBatch] = []
        self.end = self.written
        clean = view.tail is not None and view.tail.clean
        if staged is not None and not clean and staged_fits(self._directory, staged):
            trusted = self.tail is None or self.tail.boot_id == self._filesystem.boot_id()
            self._staged = list(self._staged_batches(staged, trusted))
            for batch in self._staged:
                self.end = batch.offset + len(batch.values)
            if trusted:
                self.end = max(self.end, end_of_staged(staged, self.path))
        # A segment after a gap does not count: recovery will set it aside.
        self.begin = min([*self.segments.bases[:1], self.written])
        if view.begin is not None:
            self.begin = self.segments.begin = min(view.begin, self.written)

    def has_news(self) -> bool:
        """Says whether the owner has published another end since the last look; one small read."""
        return self._read_tail(TAIL) != self.tail

    def _view(self) -> tuple[Staged | None, View]:
        """Finds the end of the log; if the owner is dead, with what the files have after its mark.

        That the lock seems to be free does not prove that the owner is dead. So what is after the
        mark counts only if nothing changed during the look; otherwise the mark counts, as with a
        living owner.
        """
        staged, tail = self._look()
        if tail is None and not self.segments.bases and TAIL not in self._directory.names():
            raise NotAQueue(f"{self.path} holds no queue: it has neither segments nor a tail")
        behind = tail is not None and not tail.clean and is_owned(self.path) is False
        view = self._view_of(staged, tail, behind=behind)
        if behind and (
            self._read_tail(TAIL) != tail
            or list_segments(self._directory).bases != self.segments.bases
        ):
            staged, tail = self._look()
            view = self._view_of(staged, tail, behind=False)
        return staged, view

    def _view_of(self, staged: Staged | None, tail: Tail | None, *, behind: bool) -> View:
        directory, segments = self._directory, self.segments
        return look(self._filesystem, directory, segments, tail, staged=staged, behind=behind)

    def _look(self) -> tuple[Staged | None, Tail | None]:
        """Reads the staging buffer, the mark and the list of segments so that they agree.

        An owner that trims writes that to the mark first, and one that begins to write removes the
        clean mark first: so a list that was read between two equal marks is true.
        """
        staged, tail = None, None
        for _ in range(_LOOKS_MAX):
            # Read the staging buffer before the files: what leaves it meanwhile is then in the
            # files.
            staged = find_staged(self._directory)
            tail = self._read_tail(TAIL)
            self.segments: SegmentList = list_segments(self._directory)
            again = self._read_tail(TAIL)
            if tail is None or again is None:
                break
            if (tail.begin, tail.clean, tail.queue_id) == (
                again.begin,
                again.clean,
                again.queue_id,
            ):
                break
        return staged, tail

    def _staging_damage(self, tail: Tail | None, staged: Staged | None) -> list[Damage]:
        """Returns what the staging buffer has lost, if it has not changed during the look."""
        if tail is None:
            return []
        boot_id = self._filesystem.boot_id()
        damage = staging_damage(self._directory, tail, staged, boot_id)
        if (
            damage is None
            or find_staged(self._directory) != staged
            or self._read_tail(TAIL) != tail
        ):
            return []
        return [damage]

    def __len__(self) -> int:
        return self.end - self.begin

    def scan(
        self, start: Start = "earliest", end: int | None = None, frames: Taking = Frames
    ) -> Generator[RecordBatch | Damage, None, None]:
        """Yields batches of records, and damage where it occurs between them."""
        first = self.resolve(start)
        stop = self.end if end is None else min(end, self.end)
        scanner = Scanner(self._directory, self.segments, frames, self._begin_now)
        try:
            yield from scanner.scan(first, min(stop, self.written), self._sure)
        finally:
            scanner.close()
        if stop >= self.end:
            yield from self.beyond
        sure = max(first, self.written)
        for batch in self._staged:
            if first < stop and sure < batch.offset:
                yield self._lost_staged(batch.position, sure, batch.offset)
            sure = batch.offset + len(batch.values)
            if first < min(stop, sure) and batch.offset < stop:
                yield batch.since(first).until(stop)
        if sure < stop:
            # The buffer says how many records it had.
            yield self._lost_staged(0, sure, stop)

    def _lost_staged(self, position: int, first: int, end: int) -> Damage:
        count = end - first
        path = f"{self.path}/{STAGING}"
        return Damage(path, position, 0, STAGED_DAMAGE, False, first, count)

    def _begin_now(self) -> int | None:
        tail = self._read_tail(TAIL)
        return None if tail is None else tail.begin

    def batches(
        self, start: Start = "earliest", end: int | None = None, frames: Taking = Frames
    ) -> Iterator[RecordBatch]:
        """Returns batches of records; damage raises, or is added to `damage` and skipped."""
        return self._sound(self.scan(start, end, frames))

    def records(self, start: Start = "earliest", end: int | None = None) -> Iterator[Record]:
        """Yields records one by one."""
        for batch in self.batches(start, end):
            yield from batch.records()

    def values(self, start: Start = "earliest", end: int | None = None) -> Iterator[bytes]:
        """Yields only the values, which is faster."""
        for batch in self.batches(start, end):
            yield from batch.values

    def __iter__(self) -> Iterator[Record]:
        """Yields all records that can be read, in their order."""
        return self.records()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Passes the records to Arrow, Polars, DuckDB or pandas; needs the `arrow` extra."""
        require("pyarrow", "arrow")
        # Imported here: most programs that read a queue have no Arrow, and the import is slow.
        import pyarrow

        from forebay.queues.log.columns import SCHEMA, record_batches

        stream = pyarrow.RecordBatchReader.from_batches(SCHEMA, record_batches(self))
        return stream.__arrow_c_stream__(requested_schema)

    def resolve(self, start: Start) -> int:
        """Returns the offset that "earliest", "latest", an offset or a time means."""
        if start == "earliest":
            return self.begin
        if start == "latest":
            return self.end
        if isinstance(start, datetime):
            return self._offset_at(round(start.timestamp() * 1000))
        if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
            return max(start, self.begin)
        raise InvalidOption(
            f'start = {start!r}: must be "earliest", "latest", a datetime or an offset'
        )

    def consumers(self) -> dict[str, int]:
        """Returns the saved places of the owner's consumers; raises `Damaged` if they are lost."""
        places, damage = read_places(self._directory)
        if damage is not None:
            raise Damaged(damage)
        return {place.name: place.offset for place in places if not place.is_cursor}

    def cursors(self) -> dict[str, int]:
        """Returns the saved places of readers in other processes."""
        places, _ = read_places(self._directory)
        return {place.name: place.offset for place in places if place.is_cursor}

    def __repr__(self) -> str:
        return f"<LogReader {self.path} {self.begin}..{self.end}>"

    def _offset_at(self, time_ms: int) -> int:
        scanner = Scanner(self._directory, self.segments)
        try:
            found = scanner.offset_at(time_ms, self.written, self._sure)
        finally:
            scanner.close()
        if found < self.written:
            return found
        for batch in self._staged:
            older = sum(1 for ms in batch.times or () if batch.epoch_ms + ms < time_ms)
            if older < len(batch.values):
                return batch.offset + older
        return self.end

    def _staged_batches(self, staged: Staged, trusted: bool) -> Iterator[RecordBatch]:
        """Yields staged records that are not in the files; `trusted`: no restart came since."""
        path = f"{self.path}/{STAGING}"
        header = decode_header(staged.header, path)
        end = self.written
        for batch in staged_batches(staged, path):
            first = header.base_offset + batch.index
            if first + len(batch.values) <= end:
                continue
            if first > end and not trusted:
                # After a power cut, what is after a gap was not durable.
                return
            yield RecordBatch(
                first,
                batch.values,
                batch.times,
                header.epoch_ms,
                STAGING,
                batch.position,
                header.layout.frame_bytes,
            ).since(end)
            end = first + len(batch.values)
