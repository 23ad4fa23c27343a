"""Follows the end of a log that another process writes: what is new, as it comes."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.damage import Damage
from forebay.queues.log.reader import LogReader
from forebay.queues.log.scanner import RecordBatch, Scanner, list_segments
from forebay.storage.segments import SegmentList
from forebay.storage.tail import Tail, TailFile


class Follower:
    """Stands at an offset of a log and yields what comes after it. One thread at a time.

    Keeps its place in the open segment, so that a look costs one small read if nothing is new.
    """

    def __init__(self, reader: LogReader, offset: int) -> None:
        self._directory = reader.directory
        self._segments: SegmentList = list_segments(self._directory)
        self._scanner = Scanner(self._directory, self._segments)
        self._tail_file: TailFile | None = None
        self.offset = offset
        self.dropped = 0

    def poll(self) -> Iterator[RecordBatch | Damage]:
        """Yields what came since the last call, perhaps nothing."""
        tail = self._read_tail()
        if tail is None or tail.written <= self.offset:
            return
        self._look_for_segments()
        for item in self._scanner.scan(self.offset, tail.written, tail.durable):
            if isinstance(item, RecordBatch):
                self.offset = item.offset + len(item.values)
            elif item.offset is not None:
                self.offset = max(self.offset, item.offset + (item.count or 0))
            yield item

    def close(self) -> None:
        """Closes its files; the reader's directory stays open."""
        self._scanner.close()
        if self._tail_file is not None:
            self._tail_file.close()

    def _read_tail(self) -> Tail | None:
        if self._tail_file is None:
            # A log of another program gets its tail when an owner opens it.
            self._tail_file = TailFile.open(self._directory, write=False)
        return None if self._tail_file is None else self._tail_file.read()

    def _look_for_segments(self) -> None:
        """Takes note of new segments, and of those that were trimmed or dropped meanwhile."""
        found = list_segments(self._directory)
        bases = self._segments.bases
        gone = sum(1 for base in bases if base not in found.names)
        if found.bases and gone and bases[gone - 1] < found.bases[0]:
            self._segments.drop_first(gone)
        for base in found.bases:
            if base not in self._segments.names:
                self._segments.add(base, found.names[base])
        if found.bases and self.offset < found.bases[0]:
            self.dropped += found.bases[0] - self.offset
            self.offset = found.bases[0]
