"""Walks over the entries of a tape in order: across files, over their unused ends, past damage.

Used by the owner that pops, by read-only readers and by recovery. Zeros up to the end of a file
that is not the last mean: continue in the next. Anything else that is not an entry is damage,
including what the disk cannot read; the entry after it is found by the known boundaries, or else by
searching for metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from forebay.damage import Damage
from forebay.errors import UnsupportedVersion
from forebay.formats.entry import describe_version, file_name, is_known, version_at
from forebay.kernels.entry import METADATA_BYTES, Entry, claimed_size, find, make_entries, scan
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.names import list_files
from forebay.queues.fifo.tape import TapeReader, open_or_reason
from forebay.storage.filesystem import Directory

WINDOW_BYTES = 256 * 1024


class Place(NamedTuple):
    """The place before an entry: where on the tape, its number, and what its id is above."""

    position: int
    number: int
    last_id: int


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Consecutive entries. `end` is the place after them."""

    start: Place
    end: Place
    values: list[bytes]
    ids: list[int]
    ttls: list[int]

    def entries(self) -> list[Entry]:
        """Returns the entries as objects."""
        return make_entries(self.start.number, self.values, self.ids, self.ttls)


class Batch(Protocol):
    """What was taken from some bytes, in whatever form."""

    @property
    def end(self) -> Place:
        """The place after the batch."""
        ...


_Taken = TypeVar("_Taken", bound=Batch)


class FifoScanner:
    """Reads the entries of a directory. One thread at a time may use it."""

    def __init__(
        self, directory: Directory, file_bytes: int, version: bytes, bounds: Bounds
    ) -> None:
        """`version` is that of the entries of this queue."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._version = version
        self._bounds = bounds
        self._tape = TapeReader(directory, file_bytes, file_name)

    def scan(self, place: Place, end: Place) -> Iterator[EntryBatch | Damage]:
        """Returns the entries between two places, and each damage where it occurs."""
        return self.scan_by(self.take, place, end)

    def take(self, data: bytes, place: Place, limit: int) -> EntryBatch:
        """Takes the whole, good entries at the start of some bytes."""
        return take_batch(data, place, limit, self._version)

    def scan_by(
        self,
        take: Callable[[bytes, Place, int], _Taken],
        place: Place,
        end: Place,
        window_bytes: int = WINDOW_BYTES,
    ) -> Iterator[_Taken | Damage]:
        """Returns what `take` makes of the entries between two places, and each damage.

        `take` gets bytes that begin with the good entry at a place, and how many it may take.
        """
        while place.number < end.number and place.position < end.position:
            data = self.window(place, end.position, window_bytes)
            if data is not None:
                batch = take(data, place, end.number - place.number)
                place = batch.end
                yield batch
                continue
            damage, place = self.judge(place, end)
            if damage is not None:
                yield damage
        if place.number < end.number:
            yield self._missing(place, end)

    def window(self, place: Place, end_position: int, size: int = WINDOW_BYTES) -> bytes | None:
        """Returns bytes that begin with the entry at a place, whole and good, or None.

        More entries may follow it, as far as `size` reaches; the last of them may be cut off.
        """
        room = end_position - place.position
        data = self._tape.read(min(max(size, METADATA_BYTES), room), place.position)
        if scan(data, 0, place.number, place.last_id, 1, self._version)[0]:
            return data
        claimed = claimed_size(data, 0, self._version)
        if not len(data) < claimed <= room:
            return None
        data = self._tape.read(claimed, place.position)
        return data if scan(data, 0, place.number, place.last_id, 1, self._version)[0] else None

    def refuse_unknown(self, place: Place) -> None:
        """Raises `UnsupportedVersion` if the entry at a place has an unknown version.

        It is whole, and a newer program can read it: it is not damaged, and must not be skipped.
        """
        version = version_at(self._tape.read(METADATA_BYTES, place.position), 0)
        if version is not None and not is_known(version):
            name = file_name(place.position // self._file_bytes)
            raise UnsupportedVersion(
                f"{self._directory.path}/{name}, byte {place.position % self._file_bytes}: "
                f"{describe_version(version)}; a newer one does"
            )

    def is_unreadable(self, place: Place) -> bool:
        """Says whether the disk cannot read what is at a place."""
        self._tape.read(METADATA_BYTES, place.position)
        return self._tape.unreadable

    def judge(self, place: Place, end: Place) -> tuple[Damage | None, Place]:
        """Returns the damage at a place where no good entry is, if any, and where to continue."""
        file, start = divmod(place.position, self._file_bytes)
        following = [number for number in self._files() if number > file]
        # What the disk cannot read is zeros here: it held no entry if the expected one comes next.
        if not self._tape.read(self._file_bytes - start, place.position).strip(b"\0"):
            for number in following:
                behind = place._replace(position=number * self._file_bytes)
                if self.window(behind, end.position) is not None:
                    return None, behind
            if not following:
                return self._damage(place, end), end
        found = self._next_good(place, end)
        return self._damage(place, found), found

    def close(self) -> None:
        """Closes the scanner's file."""
        self._tape.close()

    def _files(self) -> list[int]:
        return list_files(self._directory)

    def _next_good(self, place: Place, end: Place) -> Place:
        """Returns the place of the next good entry after a bad one; `end` if there is none."""
        most = end.number - place.number - 1
        file = place.position // self._file_bytes
        for number in [file, *(other for other in self._files() if other > file)]:
            boundary = self._bounds.get(number)
            if boundary is not None and place.number < boundary.number < end.number:
                position = number * self._file_bytes + boundary.position
                known = Place(position, boundary.number, max(boundary.last_id, place.last_id))
                if position > place.position and self.window(known, end.position) is not None:
                    between = self._search(place, place.position, position, end.position, most)
                    return known if between is None else between
            start = max(place.position, number * self._file_bytes)
            stop = min((number + 1) * self._file_bytes, end.position)
            found = self._search(place, start, stop, end.position, most)
            if found is not None:
                return found
        return end

    def _search(
        self, place: Place, start: int, stop: int, end_position: int, most: int
    ) -> Place | None:
        """Searches a part of one file for the next good entry, which may end in later files."""
        size = min(max(0, stop - start) + self._file_bytes, end_position - start)
        data = self._tape.read(size, start)
        skip = 1 if start == place.position else 0
        before = start + skip - place.position
        at, number = find(
            data, skip, place.number, place.last_id, max(0, most), self._version, before
        )
        if at < 0 or start + at >= stop:
            return None
        return Place(start + at, number, place.last_id)

    def _damage(self, place: Place, found: Place) -> Damage:
        file, start = divmod(place.position, self._file_bytes)
        lost = found.number - place.number
        path = f"{self._directory.path}/{file_name(file)}"
        length = found.position - place.position
        return Damage(path, start, length, self._reason(place), False, place.number, lost)

    def _reason(self, place: Place) -> str:
        """Returns why there is no entry: a file that it lies in is not whole, or it is damaged."""
        first = place.position // self._file_bytes
        metadata = self._tape.read(METADATA_BYTES, place.position)
        claimed = claimed_size(metadata, 0, self._version)
        last = (place.position + max(claimed, METADATA_BYTES) - 1) // self._file_bytes
        for number in range(first, last + 1):
            name = file_name(number)
            which = "the file" if number == first else f"the file {name}, where it goes on,"
            trouble = self._trouble(name)
            if trouble is not None:
                return f"{which} {trouble}"
        self._tape.read(max(claimed, METADATA_BYTES), place.position)
        if self._tape.unreadable:
            return "the disk cannot read it"
        version = version_at(metadata, 0)
        if version not in (None, self._version):
            return describe_version(version)
        return "no entry verifies here"

    def _missing(self, place: Place, end: Place) -> Damage:
        file, start = divmod(place.position, self._file_bytes)
        path = f"{self._directory.path}/{file_name(file)}"
        count = end.number - place.number
        return Damage(path, start, 0, f"{count} entries are missing", False, place.number, count)

    def _trouble(self, name: str) -> str | None:
        """Returns what is wrong with a file as a whole, if anything is."""
        file = open_or_reason(self._directory, name)
        if isinstance(file, str):
            return file
        with contextlib.closing(file):
            size = file.size()
        return None if size == self._file_bytes else f"has {size} bytes, not {self._file_bytes}"


def take_batch(data: bytes, place: Place, limit: int, version: bytes) -> EntryBatch:
    """Takes the whole, good entries at the start of some bytes."""
    ids: list[int] = []
    ttls: list[int] = []
    values, stop, last_id = scan(data, 0, place.number, place.last_id, limit, version, ids, ttls)
    end = Place(place.position + stop, place.number + len(values), last_id)
    return EntryBatch(place, end, values, ids, ttls)
