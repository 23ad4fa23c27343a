"""Reads a fifo without owning it: no lock, nothing written, dead or alive.

Sees the entries that have not left the queue at the moment of `refresh`, those that are lent out
first; in the files and in the staging buffer, by the same rules as recovery; under `sync="always"`
only what is durable. Damage raises `Damaged`, or, with `salvage=True`, is counted in `damage` and
read round. Entries that have expired and that nobody has passed yet are there like all others.
"""

from __future__ import annotations

from collections.abc import Iterator

from forebay.errors import NotAQueue
from forebay.formats.entry import Entry
from forebay.frames import Damage
from forebay.kernels.entry import METADATA_BYTES
from forebay.queues.directory_reader import DirectoryReader
from forebay.queues.fifo_bounds import Bounds
from forebay.queues.fifo_head import Head, Lent, read_head
from forebay.queues.fifo_names import TAIL
from forebay.queues.fifo_recovery import Recovery, find_head, look_at
from forebay.queues.fifo_scanner import EntryBatch, FifoScanner, Place, take_batch
from forebay.storage.tail import Tail


class FifoReader(DirectoryReader):
    """A view of a fifo's directory. One thread at a time may use it."""

    def refresh(self) -> None:
        """Looks again at what is there."""
        self.tail: Tail | None = self._read_tail(TAIL)
        head = find_head(self._directory, self.tail)
        if head is None:
            raise NotAQueue(f"{self.path} is not a fifo: it has neither files nor a head")
        self.head: Head = head
        self._found: Recovery = look_at(self._filesystem, self._directory, head, self.tail)
        end = self._found.found.number
        self.lent: list[Lent] = sorted(row for row in head.lent if row.number < end)
        self.begin = head.number
        self.end = max(head.number, self._found.found.number)
        # Behind the last entry that is in the files.
        self.stored: Place = self._found.stored

    @property
    def tape_bytes(self) -> int:
        """How many bytes of the tape the entries take, 32 for each included."""
        first = min([self.head.position, *(row.position for row in self.lent)])
        staged = sum(
            len(value) + METADATA_BYTES for batch in self._found.staged for value in batch.values
        )
        return max(0, self.stored.position + staged - first)

    def __len__(self) -> int:
        return len(self.lent) + self.end - self.begin

    def scan(self) -> Iterator[EntryBatch | Damage]:
        """Gives batches of entries and, in its place, each damage."""
        scanner = FifoScanner(self._directory, self.head.file_bytes, Bounds(self._directory))
        try:
            for lent in self.lent:
                item = self._read_lent(scanner, lent)
                if isinstance(item, EntryBatch) or self._is_lent(lent):
                    yield item
            yield from self._scan_files(scanner)
        finally:
            scanner.close()
        for batch in self._found.staged:
            if batch.end.number > self.head.number:
                yield _since(batch, self.head.number)

    def batches(self) -> Iterator[EntryBatch]:
        """Gives batches of entries; damage raises, or is counted and passed over."""
        return self._sound(self.scan())

    def records(self) -> Iterator[Entry]:
        """Gives entries one by one."""
        for batch in self.batches():
            yield from batch.entries()

    def values(self) -> Iterator[bytes]:
        """Gives only the payloads, which is faster."""
        for batch in self.batches():
            yield from batch.values

    def __iter__(self) -> Iterator[Entry]:
        return self.records()

    def __repr__(self) -> str:
        return f"<FifoReader {self.path} {self.begin}..{self.end}>"

    def _scan_files(self, scanner: FifoScanner) -> Iterator[EntryBatch | Damage]:
        """Gives what is below the durable mark, and what recovery would find above it."""
        found = self._found
        yield from self._scan_below(scanner, self.head.place, found.mark)
        for item in scanner.scan(found.begin, found.stored):
            if isinstance(item, Damage):
                yield item
            elif item.end.number > self.head.number:
                yield _since(item, self.head.number)

    def _scan_below(
        self, scanner: FifoScanner, place: Place, end: Place
    ) -> Iterator[EntryBatch | Damage]:
        while place.number < end.number:
            for item in scanner.scan(place, end):
                if isinstance(item, EntryBatch):
                    yield item
                    place = item.end
                    continue
                head = read_head(self._directory)
                if head is not None and head.number > place.number:
                    # Popped meanwhile, and its file is gone: no damage.
                    place = head.place
                    break
                yield item
            else:
                return

    def _is_lent(self, lent: Lent) -> bool:
        """Says whether an entry is still lent out: if not, its file may be gone."""
        head = read_head(self._directory)
        return head is None or lent in head.lent

    def _read_lent(self, scanner: FifoScanner, lent: Lent) -> EntryBatch | Damage:
        found = self._found
        if lent.number >= found.mark.number:
            for item in scanner.scan(found.begin, found.stored):
                if isinstance(item, EntryBatch) and lent.number < item.end.number:
                    return _only(item, lent.number)
        data = scanner.window(lent.place, found.mark.position)
        if data is not None:
            return take_batch(data, lent.place, 1)
        staged = [batch for batch in self._found.staged if batch.start.number <= lent.number]
        for batch in staged:
            if lent.number < batch.end.number:
                return _only(batch, lent.number)
        end = Place(lent.position, lent.number + 1, lent.id)
        return next(item for item in scanner.scan(lent.place, end) if isinstance(item, Damage))


def _since(batch: EntryBatch, number: int) -> EntryBatch:
    """Gives the part of a batch from a number on."""
    skip = max(0, number - batch.start.number)
    start = batch.start._replace(number=batch.start.number + skip)
    return EntryBatch(start, batch.end, batch.values[skip:], batch.ids[skip:], batch.ttls[skip:])


def _only(batch: EntryBatch, number: int) -> EntryBatch:
    """Gives one entry of a batch."""
    at = number - batch.start.number
    start = batch.start._replace(number=number)
    end = batch.end._replace(number=number + 1)
    rows = (batch.values[at : at + 1], batch.ids[at : at + 1], batch.ttls[at : at + 1])
    return EntryBatch(start, end, *rows)
