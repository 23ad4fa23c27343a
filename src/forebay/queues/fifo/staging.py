"""Finds the entries in the staging buffer of a fifo again after its process has ended.

The chunk's header names its queue and its first entry, and its count says how many were
acknowledged (see `staged.py`). So an entry that does not verify is damage if it is one of those;
otherwise it was just being written. While a chunk is in use the mark of the end says so, and
the first entry of the chunk follows those in the files: by this, older chunks are recognized.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from forebay.damage import Damage
from forebay.kernels.entry import find
from forebay.queues.fifo.scanner import EntryBatch, Place, take_batch
from forebay.storage.filesystem import Directory
from forebay.storage.staging import HEADER_BYTES, NAME, find_staged

# In the header of a staged chunk: where on the tape it goes, a lower bound of its first id, and the
# version of its entries, which identifies the queue. Older chunks have no version.
STAGED_HEADER = struct.Struct(">QQ8s")
_OLD_HEADER = struct.Struct(">QQ")
# What the mark of the end has in place of a salt while a chunk is in use.
STAGED = b"staging\0"
_ALL = 2**62


@dataclass(slots=True)
class StagedEntries:
    """Staged entries that are in no file: in batches, with damage between them.

    `unused` are chunks that do not follow the files, by the number of their first entry; `end` is
    the place after the last entry, if there is any.
    """

    batches: list[EntryBatch] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    unused: list[tuple[int, bytes]] = field(default_factory=list)
    end: Place | None = None


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk as found; `count` is how many entries were acknowledged, if that is known."""

    path: str
    version: bytes
    first: Place
    frames: bytes
    count: int | None

    def after(self, stored: Place) -> StagedEntries:
        """Returns what follows the last entry that is in the files."""
        items = list(self._scan())
        batches = [item for item in items if isinstance(item, EntryBatch)]
        if self.first.number > stored.number:
            size = max((batch.end.position for batch in batches), default=0)
            unused = [(self.first.number, self.frames[:size])] if size else []
            return StagedEntries(unused=unused)
        found = StagedEntries()
        place = stored
        for item in items:
            if isinstance(item, EntryBatch):
                skip = max(0, place.number - item.start.number)
                if skip >= len(item.values):
                    continue
                if item.ids[skip] <= place.last_id:
                    # It belongs to an earlier chunk in this memory.
                    break
                rows = (item.values[skip:], item.ids[skip:], item.ttls[skip:])
                start = place._replace(number=item.start.number + skip)
                place = place._replace(number=item.end.number, last_id=item.ids[-1])
                found.batches.append(EntryBatch(start, place, *rows))
            else:
                end = (item.offset or 0) + (item.count or 0)
                if end <= place.number:
                    continue
                found.damage.append(item)
                place = place._replace(number=end)
            found.end = place
        return found

    def _scan(self) -> list[EntryBatch | Damage]:
        """Returns the entries, and each damage where it occurs."""
        items: list[EntryBatch | Damage] = []
        place = self.first
        while True:
            batch = take_batch(self.frames[place.position :], place, _ALL, self.version)
            if batch.values:
                items.append(batch)
            place = batch.end
            left = 0 if self.count is None else self.first.number + self.count - place.number
            if left <= 0:
                return items
            at, number = find(
                self.frames,
                place.position + 1,
                place.number,
                place.last_id,
                left - 1,
                self.version,
                1,
            )
            found = Place(at, number, place.last_id)
            if at < 0:
                # No good entry is left: all that was acknowledged after this is gone.
                found = Place(len(self.frames), place.number + left, place.last_id)
            items.append(self._damage(place, found))
            if at < 0:
                return items
            place = found

    def _damage(self, place: Place, found: Place) -> Damage:
        length = found.position - place.position
        reason = "no entry verifies here"
        count = found.number - place.number
        position = HEADER_BYTES + place.position
        return Damage(self.path, position, length, reason, False, place.number, count)


def lost_buffer(directory: Directory) -> Damage:
    """Returns the damage of a buffer that was in use and no longer holds its chunk."""
    reason = "its chunk is gone, and with it an unknown number of the newest entries"
    return Damage(f"{directory.path}/{NAME}", 0, HEADER_BYTES, reason)


def read_entries(directory: Directory, version: bytes, *, in_use: int | None) -> StagedChunk | None:
    """Returns the chunk that is now in the buffer; None if there is none.

    `in_use` is the number of the first entry that must be there, if a chunk was in use when the
    mark was written and the machine has run on since. The count of the chunk is valid only then: a
    power cut may leave it without the entries.
    """
    staged = find_staged(directory)
    if staged is None:
        return None
    if len(staged.header) == STAGED_HEADER.size:
        _, last_id, found_version = STAGED_HEADER.unpack(staged.header)
        if found_version != version:
            return None
    elif len(staged.header) == _OLD_HEADER.size:
        _, last_id = _OLD_HEADER.unpack(staged.header)
    else:
        return None
    if in_use is not None and staged.index < in_use:
        # An older chunk: its entries are in the files.
        return None
    known = None if in_use is None else staged.count
    path = f"{directory.path}/{NAME}"
    first = Place(0, staged.index, last_id)
    return StagedChunk(path, version, first, staged.frames, known)
