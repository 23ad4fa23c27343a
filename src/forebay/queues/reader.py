"""Reads a log without owning it: no lock, nothing written, dead or alive.

Sees what is in the files and in the staging buffer at the moment of `refresh`, by the same rules
as recovery; under `sync="always"` only what is durable. Damage raises `Damaged`, or, with
`salvage=True`, is counted in `damage` and read round.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from forebay.errors import Damaged, InvalidOption, NotAQueue
from forebay.formats.consumers import decode_index
from forebay.formats.fflg import Frames, decode_header
from forebay.frames import Damage
from forebay.kernels.records import Record
from forebay.queues.consumer import Start
from forebay.queues.directory_reader import DirectoryReader
from forebay.queues.positions import INDEX
from forebay.queues.recovery import find_end
from forebay.queues.scanner import RecordBatch, Scanner, Taking, list_segments
from forebay.storage.atomic import CheckedFile
from forebay.storage.cursors import read_cursors
from forebay.storage.segments import SegmentList
from forebay.storage.staging import NAME as STAGING
from forebay.storage.staging import Staged, read_staged
from forebay.storage.tail import NAME as TAIL
from forebay.storage.tail import Tail


class LogReader(DirectoryReader):
    """A view of a log directory. One thread at a time may use it."""

    def refresh(self) -> None:
        """Looks again at what is there."""
        # The staging buffer before the files: what leaves it meanwhile is in the files then.
        staged = read_staged(self._directory)
        self.tail: Tail | None = self._read_tail(TAIL)
        self.segments: SegmentList = list_segments(self._directory)
        if self.tail is None and not self.segments.bases:
            raise NotAQueue(f"{self.path} is not a log: it has neither segments nor a tail")
        self.written = find_end(self._filesystem, self._directory, self.tail)
        self.durable = self.tail.durable if self.tail is not None else self.written
        self._staged = None if staged is None else self._staged_batch(staged)
        self.end = self.written + (len(self._staged.values) if self._staged else 0)
        # A segment behind a gap does not count: recovery will set it aside.
        self.begin = min([*self.segments.bases[:1], self.written])

    def __len__(self) -> int:
        return self.end - self.begin

    def scan(
        self, start: Start = "earliest", end: int | None = None, frames: Taking = Frames
    ) -> Iterator[RecordBatch | Damage]:
        """Gives batches of records and, in its place, each damage."""
        first = self.resolve(start)
        stop = self.end if end is None else min(end, self.end)
        scanner = Scanner(self._directory, self.segments, frames)
        try:
            yield from scanner.scan(first, min(stop, self.written), self.durable)
        finally:
            scanner.close()
        if self._staged is not None and first < stop and stop > self.written:
            yield self._staged.since(first).until(stop)

    def batches(
        self, start: Start = "earliest", end: int | None = None, frames: Taking = Frames
    ) -> Iterator[RecordBatch]:
        """Gives batches of records; damage raises, or is counted and passed over."""
        return self._sound(self.scan(start, end, frames))

    def records(self, start: Start = "earliest", end: int | None = None) -> Iterator[Record]:
        """Gives records one by one."""
        for batch in self.batches(start, end):
            yield from batch.records()

    def values(self, start: Start = "earliest", end: int | None = None) -> Iterator[bytes]:
        """Gives only the payloads, which is faster."""
        for batch in self.batches(start, end):
            yield from batch.values

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hands the records to Arrow, Polars, DuckDB or pandas; needs the `arrow` extra."""
        # Imported here: most who read a queue have no Arrow, and it takes long.
        import pyarrow

        from forebay.queues.columns import SCHEMA, record_batches

        stream = pyarrow.RecordBatchReader.from_batches(SCHEMA, record_batches(self))
        return stream.__arrow_c_stream__(requested_schema)

    def resolve(self, start: Start) -> int:
        """Gives the offset of "earliest", "latest", an offset or a time."""
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
        """Gives the saved places of the owner's consumers."""
        data, sound = CheckedFile(self._directory, INDEX).read()
        path = f"{self.path}/{INDEX}"
        if not sound:
            raise Damaged(Damage(path, 0, len(data), "does not match its checksum"))
        return decode_index(data, path)

    def cursors(self) -> dict[str, int]:
        """Gives the saved places of readers in other processes."""
        return dict(read_cursors(self._directory))

    def __repr__(self) -> str:
        return f"<LogReader {self.path} {self.begin}..{self.end}>"

    def _offset_at(self, time_ms: int) -> int:
        scanner = Scanner(self._directory, self.segments)
        try:
            found = scanner.offset_at(time_ms, self.written, self.durable)
        finally:
            scanner.close()
        if found < self.written or self._staged is None or self._staged.times is None:
            return found
        staged = self._staged
        older = sum(1 for ms in self._staged.times if staged.epoch_ms + ms < time_ms)
        return staged.offset + older

    def _staged_batch(self, staged: Staged) -> RecordBatch | None:
        """The staged records that are not in the files; None behind a gap."""
        header = decode_header(staged.header, f"{self.path}/{STAGING}")
        times: list[int] = []
        values, _ = Frames(header).scan(staged.frames, 0, staged.index, 2**62, times)
        first = header.base_offset + staged.index
        if first > self.written or first + len(values) <= self.written:
            return None
        frame_bytes = header.layout.frame_bytes
        batch = RecordBatch(first, values, times, header.epoch_ms, STAGING, 0, frame_bytes)
        return batch.since(self.written)
