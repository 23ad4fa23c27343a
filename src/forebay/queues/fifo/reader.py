"""Reads a fifo without owning it: takes no lock, writes nothing, whether its owner lives or not.

Sees the entries that have not left the queue at the moment of `refresh`, lent entries first, in the
files and in the staging buffer, by the same rules as recovery; under `sync="always"` only what is
durable. Damage raises `Damaged`, or, with `salvage=True`, is counted in `damage` and skipped.
Expired entries that have not been removed yet are included like all others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from forebay.damage import Damage
from forebay.errors import NotAQueue
from forebay.formats.entry import file_name
from forebay.kernels.entry import METADATA_BYTES, Entry, claimed_size
from forebay.queues.fifo import dead
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.head import Head, Lent, read_head
from forebay.queues.fifo.names import list_files
from forebay.queues.fifo.recovery import Recovery, find_marks, look_at
from forebay.queues.fifo.scanner import EntryBatch, FifoScanner, Place
from forebay.queues.fifo.tape import TapeReader
from forebay.queues.shared.reader import DirectoryReader
from forebay.storage.filesystem import DiskFilesystem, is_owned
from forebay.storage.tail import Tail

# The owner may pop during a look: each retry follows another pop, and the retries are bounded.
_LOOKS_MAX = 100


class Piece(NamedTuple):
    """Entries by number, and the places on the tape between which they lie.

    The places are None for what is above the durable mark: the next open may copy it elsewhere, so
    it is located when it is read.
    """

    start: int
    end: int
    place: Place | None = None
    limit: Place | None = None


class FifoReader(DirectoryReader):
    """A view of a fifo's directory. One thread at a time may use it."""

    def refresh(self) -> None:
        """Looks again at what the directory holds."""
        for _ in range(_LOOKS_MAX):
            self._look()
            head = read_head(self._directory)
            if not self._found.damage or head is None or head.number <= self.head.number:
                break
            # The owner has popped meanwhile, and may have removed files that were being read.
        end = self._found.found.number
        self.lent: list[Lent] = sorted(row for row in self.head.lent if row.number < end)
        self.begin = self.head.number
        self.end = max(self.head.number, end)
        # The place after the last entry that is in the files.
        self.stored: Place = self._found.stored

    def _look(self) -> None:
        marks = find_marks(self._filesystem, self._directory)
        if marks.head is None:
            raise NotAQueue(f"{self.path} is not a fifo: it has neither files nor a head")
        self.tail: Tail | None = marks.tail
        self.head: Head = marks.head
        self.head_is_stored = marks.head_is_stored
        # What is wrong with the head: no data is missing, but something may come again.
        self.trouble = marks.trouble
        on_disk = isinstance(self._filesystem, DiskFilesystem)
        owned = not on_disk or is_owned(self.path) is not False
        self._found: Recovery = look_at(
            self._filesystem, self._directory, self.head, self.tail, owned=owned
        )

    @property
    def found(self) -> Recovery:
        """What is above the durable mark."""
        return self._found

    @property
    def file_bytes(self) -> int:
        """The size of a file of the tape."""
        return self.head.file_bytes

    def boundaries(self) -> list[Place]:
        """Returns the places of the first entries of files, where known, in order."""
        bounds = Bounds(self._directory, self.head.version)
        rows = [bounds.get(number) for number in list_files(self._directory)]
        return [
            Place(row.file * self.file_bytes + row.position, row.number, row.last_id)
            for row in rows
            if row is not None and row.position < self.file_bytes
        ]

    def pieces(self, start: int, end: int, end_ms: int | None = None) -> Iterator[Piece]:
        """Yields what is left on the tape from number `start` to `end`, file by file.

        Several files form one piece where it is not known where one begins. Entries pushed at
        `end_ms` or later may be left out.
        """
        mark = self._found.mark
        stop = min(end, mark.number)
        first = self._place_before(start) if start < stop else None
        if first is not None:
            later = [place for place in self.boundaries() if first.number < place.number < stop]
            for place, limit in zip([first, *later], [*later, mark], strict=True):
                if end_ms is not None and place.last_id >> 16 >= end_ms:
                    return
                if limit.number > start and place.number < stop:
                    numbers = max(start, place.number), min(stop, limit.number)
                    yield Piece(*numbers, place, limit)
        if end > mark.number:
            yield Piece(max(start, mark.number), end)

    def lent_pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yields a piece for each lent entry from number `start` to `end`."""
        with contextlib.closing(TapeReader(self._directory, self.file_bytes, file_name)) as tape:
            for row in self.lent:
                if not start <= row.number < end:
                    continue
                if row.number >= self._found.mark.number:
                    yield Piece(row.number, row.number + 1)
                    continue
                size = claimed_size(tape.read(METADATA_BYTES, row.position), 0, self.head.version)
                limit = Place(row.position + max(1, size), row.number + 1, 0)
                yield Piece(row.number, row.number + 1, row.place, limit)

    def _place_before(self, number: int) -> Place | None:
        """Returns the nearest known place at or before an entry that is below the mark.

        If the tape there is gone, the first place that is left; None if there is none.
        """
        places = [*self.boundaries(), self.head.place, *(row.place for row in self.lent)]
        places = [place for place in places if place.number < self._found.mark.number]
        before = [place for place in places if place.number <= number]
        if before:
            return max(before, key=lambda place: place.number)
        return min(places, key=lambda place: place.number, default=None)

    @property
    def tape_bytes(self) -> int:
        """How many bytes of the tape the entries take, including 32 for each."""
        first = min([self.head.position, *(row.position for row in self.lent)])
        staged = sum(
            len(value) + METADATA_BYTES
            for batch in self._found.staged.batches
            for value in batch.values
        )
        return max(0, self.stored.position + staged - first)

    def __len__(self) -> int:
        return len(self.lent) + self.end - self.begin

    def scan(self) -> Generator[EntryBatch | Damage, None, None]:
        """Yields batches of entries, and each damage where it occurs."""
        version = self.head.version
        bounds = Bounds(self._directory, version)
        with contextlib.closing(
            FifoScanner(self._directory, self.head.file_bytes, version, bounds)
        ) as scanner:
            for lent in self.lent:
                item = self._read_lent(scanner, lent)
                if isinstance(item, EntryBatch) or self._is_lent(lent):
                    yield item
            yield from self._scan_files(scanner)
        staged: list[EntryBatch | Damage] = [*self._found.staged.batches]
        staged += self._found.staged.damage
        for item in sorted(staged, key=_first_number):
            if isinstance(item, Damage):
                yield item
            elif item.end.number > self.head.number:
                yield _since(item, self.head.number)

    def batches(self) -> Iterator[EntryBatch]:
        """Yields batches of entries; damage raises, or is counted and skipped."""
        return self._sound(self.scan())

    def records(self) -> Iterator[Entry]:
        """Yields entries one by one."""
        for batch in self.batches():
            yield from batch.entries()

    def values(self) -> Iterator[bytes]:
        """Yields only the payloads, which is faster."""
        for batch in self.batches():
            yield from batch.values

    def dead(self) -> Iterator[Entry]:
        """Yields the entries that came back too often and were put aside."""
        return self._sound(dead.read(self._directory))

    def __iter__(self) -> Iterator[Entry]:
        """Yields all entries that can be read, in order."""
        return self.records()

    def __repr__(self) -> str:
        return f"<FifoReader {self.path} {self.begin}..{self.end}>"

    def _scan_files(self, scanner: FifoScanner) -> Iterator[EntryBatch | Damage]:
        """Yields what is below the durable mark, and what recovery would find above it."""
        found = self._found
        yield from self._scan_between(scanner, self.head.place, found.mark)
        yield from self._scan_between(scanner, found.first, found.stored)

    def _scan_between(
        self, scanner: FifoScanner, place: Place, end: Place
    ) -> Iterator[EntryBatch | Damage]:
        """Yields what is between two places; the owner may pop some of it meanwhile."""
        while place.number < end.number:
            for item in scanner.scan(place, end):
                if isinstance(item, EntryBatch):
                    if item.end.number > self.head.number:
                        yield _since(item, self.head.number)
                    place = item.end
                    continue
                head = read_head(self._directory)
                if head is not None and head.number > place.number and head != self.head:
                    # It was popped meanwhile, and its file is gone: this is no damage.
                    place = head.place
                    break
                place = place._replace(number=(item.offset or 0) + (item.count or 0))
                yield item
            else:
                return

    def _is_lent(self, lent: Lent) -> bool:
        """Says whether an entry is still lent: if not, its file may be gone."""
        head = read_head(self._directory)
        return head is None or lent in head.lent

    def _read_lent(self, scanner: FifoScanner, lent: Lent) -> EntryBatch | Damage:
        found = self._found
        if lent.number >= found.mark.number:
            for item in scanner.scan(found.begin, found.stored):
                if isinstance(item, Damage):
                    continue
                if item.start.number <= lent.number < item.end.number:
                    return _only(item, lent.number)
        data = scanner.window(lent.place, found.mark.position)
        if data is not None:
            return scanner.take(data, lent.place, 1)
        for batch in found.staged.batches:
            if batch.start.number <= lent.number < batch.end.number:
                return _only(batch, lent.number)
        end = Place(lent.position, lent.number + 1, lent.id)
        return next(item for item in scanner.scan(lent.place, end) if isinstance(item, Damage))


def _first_number(item: EntryBatch | Damage) -> int:
    return item.start.number if isinstance(item, EntryBatch) else item.offset or 0


def _since(batch: EntryBatch, number: int) -> EntryBatch:
    """Returns the part of a batch that starts at a number."""
    skip = max(0, number - batch.start.number)
    start = batch.start._replace(number=batch.start.number + skip)
    return EntryBatch(start, batch.end, batch.values[skip:], batch.ids[skip:], batch.ttls[skip:])


def _only(batch: EntryBatch, number: int) -> EntryBatch:
    """Returns one entry of a batch."""
    at = number - batch.start.number
    start = batch.start._replace(number=number)
    end = batch.end._replace(number=number + 1)
    rows = (batch.values[at : at + 1], batch.ids[at : at + 1], batch.ttls[at : at + 1])
    return EntryBatch(start, end, *rows)
