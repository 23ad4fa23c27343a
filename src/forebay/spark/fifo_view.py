"""A fifo as the source looks at it: what its small files say, without its lock.

What is below the durable mark stays where it is until its file goes, and is planned by where it
lies on the tape. What is above the mark may be copied elsewhere by whoever opens the queue next, so
it is planned by number only, and looked for when it is read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import TracebackType

from forebay.errors import NotAQueue
from forebay.formats.entry import file_name
from forebay.kernels.entry import METADATA_BYTES, claimed_size
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.head import Head, Lent
from forebay.queues.fifo.names import list_files
from forebay.queues.fifo.recovery import Recovery, find_marks, look_at
from forebay.queues.fifo.scanner import Place
from forebay.queues.fifo.tape import TapeReader
from forebay.spark.planning import Range
from forebay.storage.filesystem import DiskFilesystem, is_owned
from forebay.storage.tail import Tail

KIND = "fifo"


class FifoView:
    """What a directory says at one moment. One thread at a time may use it."""

    def __init__(self, path: str) -> None:
        self._filesystem = DiskFilesystem()
        self.directory = self._filesystem.open_directory(path)
        self.path = self.directory.path
        try:
            marks = find_marks(self._filesystem, self.directory)
            self.tail: Tail | None = marks.tail
            head = marks.head
            if head is None:
                raise NotAQueue(f"{self.path} is not a fifo: it has neither files nor a head")
            self.head: Head = head
            self.lent: list[Lent] = sorted(head.lent)
        except BaseException:
            self.close()
            raise

    @property
    def file_bytes(self) -> int:
        """The size of a file of the tape."""
        return self.head.file_bytes

    @property
    def mark(self) -> Place:
        """The place behind the last durable entry."""
        if self.tail is None:
            return self.found.mark
        position = self.tail.segment * self.file_bytes + self.tail.position
        return Place(position, self.tail.durable, 0)

    @property
    def begin(self) -> int:
        """The number of the first entry that has not left the queue."""
        return min([self.head.number, *(lent.number for lent in self.lent)])

    @property
    def end(self) -> int:
        """The number behind the last entry, durable or not."""
        return max(self.head.number, self.found.found.number)

    @functools.cached_property
    def found(self) -> Recovery:
        """What is above the durable mark; reads it."""
        owned = is_owned(self.path) is not False
        return look_at(self._filesystem, self.directory, self.head, self.tail, owned=owned)

    def boundaries(self) -> list[Place]:
        """Returns the first entries of files, as far as they are known, in their order."""
        bounds = Bounds(self.directory, self.head.version)
        rows = [bounds.get(number) for number in list_files(self.directory)]
        return [
            Place(row.file * self.file_bytes + row.position, row.number, row.last_id)
            for row in rows
            if row is not None and row.position < self.file_bytes
        ]

    def place_before(self, number: int) -> Place | None:
        """Returns the nearest known place at or before an entry that is below the mark.

        If what was there is gone, the first place that is left; None if there is none.
        """
        lent = [row.place for row in self.lent]
        places = [*self.boundaries(), self.head.place, *lent]
        places = [place for place in places if place.number < self.mark.number]
        before = [place for place in places if place.number <= number]
        if before:
            return max(before, key=lambda place: place.number)
        return min(places, key=lambda place: place.number, default=None)

    def tape_ranges(self, start: int, end: int, end_ms: int | None = None) -> Iterator[Range]:
        """Yields the ranges of what is left on the tape from number `start` to `end`.

        Popped or not; a range a file, or several files where it is not known where one begins.
        What was pushed at `end_ms` or later need not be among them.
        """
        stop = min(end, self.mark.number)
        first = self.place_before(start) if start < stop else None
        if first is not None:
            behind = [place for place in self.boundaries() if first.number < place.number < stop]
            for place, limit in zip([first, *behind], [*behind, self.mark], strict=True):
                if end_ms is not None and place.last_id >> 16 >= end_ms:
                    return
                if limit.number > start and place.number < stop:
                    yield self._range(place, limit, start, stop)
        if end > self.mark.number:
            yield Range(KIND, self.path, max(start, self.mark.number), end)

    def lent_ranges(self, start: int, end: int) -> Iterator[Range]:
        """Yields a range for each entry that is lent out."""
        tape = TapeReader(self.directory, self.file_bytes, file_name)
        try:
            for row in self.lent:
                if not start <= row.number < end:
                    continue
                if row.number >= self.mark.number:
                    yield Range(KIND, self.path, row.number, row.number + 1)
                    continue
                size = claimed_size(tape.read(METADATA_BYTES, row.position), 0, self.head.version)
                limit = Place(row.position + max(1, size), row.number + 1, 0)
                yield self._range(row.place, limit, row.number, row.number + 1)
        finally:
            tape.close()

    def close(self) -> None:
        """Closes the directory."""
        self.directory.close()

    def __enter__(self) -> FifoView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _range(self, place: Place, limit: Place, start: int, end: int) -> Range:
        return Range(
            KIND,
            self.path,
            max(start, place.number),
            min(end, limit.number),
            segment=file_name(place.position // self.file_bytes),
            base=place.number,
            first_byte=place.position,
            last_byte=limit.position,
        )
