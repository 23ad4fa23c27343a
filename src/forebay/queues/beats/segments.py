"""The segments of a Beats queue, open for reading: one file, its layout, its logical bytes.

Used by the owner, by read-only readers and by recovery. Changes nothing. What the disk does not
give back is damage like any other: it stands as bytes that no frame begins with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, UnsupportedVersion, WrongKey
from forebay.formats.beats.bytes import LogicalBytes, open_bytes
from forebay.formats.beats.crypto import Key
from forebay.formats.beats.frames import FRAME_BYTES, Frames
from forebay.formats.beats.recognition import ZEROS, recognise
from forebay.formats.beats.versions import Dialect, Header, parse_segment_name, segment_name
from forebay.queues.beats.contents import Held
from forebay.queues.beats.place import Place
from forebay.storage.readable import Content, Hole, Readable, Store, open_stored
from forebay.storage.segments import Batch, SegmentList, scan_segment

_CHUNK_BYTES = 1 << 18
_FILLER = b"\xff"
# How the reason of a damage begins that is an error of the disk.
UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True)
class Access:
    """What is needed to read the segments of a directory.

    `held` is what finished segments are known to hold.
    """

    key: Key | None = field(default=None, repr=False)
    dialect: Dialect | None = None
    held: Mapping[int, Held] = field(default_factory=dict, repr=False)


class BoundedFile:
    """A file as far as it may be read; after the bound its owner may be writing.

    What the disk cannot give back is filler: zeros would pass for an end.
    """

    def __init__(self, file: Content, bound: int | None = None) -> None:
        self._file = Readable(file)
        self.bound = bound

    @property
    def holes(self) -> list[Hole]:
        """What was met that cannot be read."""
        return self._file.holes

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes that lie below the bound."""
        if self.bound is not None:
            size = max(0, min(size, self.bound - position))
        data = self._file.pread(size, position)
        return self._fill(data, position) if self._file.holes else data

    def size(self) -> int:
        """Returns the size, at most the bound."""
        size = self._file.size()
        return size if self.bound is None else min(size, self.bound)

    def _fill(self, data: bytes, position: int) -> bytes:
        filled = bytearray(data)
        for hole in self._file.holes:
            start = min(max(hole.start - position, 0), len(data))
            stop = min(max(hole.end - position, 0), len(data))
            filled[start:stop] = _FILLER * (stop - start)
        return bytes(filled)


class EventSegment:
    """One segment that is being read."""

    def __init__(
        self, store: Store, segment_id: int, name: str, access: Access, raw_size: int | None
    ) -> None:
        """Opens it, up to `raw_size` of the file.

        Raises FileNotFoundError, Damaged, WrongKey, UnsupportedVersion.
        """
        self.id = segment_id
        self.name = name
        self.path = f"{store.path}/{name}"
        self.held = access.held.get(segment_id)
        self.file = open_stored(store, name)
        try:
            self.raw = BoundedFile(self.file, raw_size)
            self.header: Header = self._recognise(access)
            self.frames = Frames(self.header)
            self.content: LogicalBytes = open_bytes(self.raw, self.header, access.key, self.path)
        except BaseException:
            self.file.close()
            raise

    @property
    def start(self) -> Place:
        """Its first frame."""
        return Place(self.id, self.header.layout.header_bytes)

    def grow(self, raw_size: int | None) -> None:
        """Lets more of the file be read."""
        self.raw.bound = raw_size
        self.content.look_again()

    def scan(
        self, place: Place, *, finished: bool = False, durable: int = 0
    ) -> Iterator[Batch | Damage]:
        """Walks over the frames from a place on; positions are logical, those of damage too.

        `finished` says that nobody writes to it any more: as many frames must be there as are on
        record, or, where nobody counted them, as the header says. In one that is not finished
        `durable` frames must be there.
        """
        start = self.start
        position, index = (place.position, place.frame_index) if place > start else start[1:]
        # A place in what was cut off since is the end of what is left.
        position = min(position, max(self.content.size(), start.position))
        expected, sure = self._expected() if finished else (durable, durable > 0)
        inexact = False
        damaged = False
        for item in scan_segment(
            self.content,
            self.path,
            self.frames,
            position=position,
            index=index,
            expected=expected,
            chunk_bytes=_CHUNK_BYTES,
        ):
            if not isinstance(item, Damage):
                beyond = item.index + len(item.values) > expected
                if finished and sure and beyond and not damaged:
                    ours = self._cut(item, expected)
                    if ours.values:
                        yield ours
                    reason = "more than was written here"
                    rest = self.content.size() - ours.end_position
                    yield Damage(self.path, ours.end_position, rest, reason, True, expected)
                    return
                yield item
                continue
            yield self._tell(item, expected, sure=sure, inexact=inexact)
            inexact = inexact or not self.frames.exact
            damaged = True

    def in_file(self, damage: Damage) -> Damage:
        """Returns damage with the position that it has in the file, for messages."""
        return replace(damage, position=self.content.file_position(damage.position))

    def stored_sizes(self, batch: Batch) -> list[int] | None:
        """Returns what each frame of a batch takes; None where its event tells that.

        Where events are compressed one by one, only the sizes in the frames tell it.
        """
        if self.header.layout.compression != "block":
            return None
        data = self.content.pread(batch.end_position - batch.position, batch.position)
        sizes: list[int] = []
        position = 0
        for _ in batch.values:
            size = self.frames.frame_size(data, position) or 0
            sizes.append(size)
            position += size
        return sizes

    def close(self) -> None:
        """Closes the file."""
        self.file.close()

    def _recognise(self, access: Access) -> Header:
        try:
            return recognise(self.raw, self.path, key=access.key, dialect=access.dialect)
        except (UnsupportedVersion, WrongKey):
            # What could not be read must not pass for a version or a key that is not known.
            for hole in self.raw.holes[:1]:
                size = hole.end - hole.start
                raise Damaged(Damage(self.path, hole.start, size, hole.reason)) from None
            raise

    def _expected(self) -> tuple[int, bool]:
        """Returns how many frames it must have, and whether that is sure."""
        if self.held is not None and self.held.events is not None:
            return self.held.events, True
        # Nothing guards the count of a header; but if the file was cut, it is all that tells.
        cut = self.held is not None and self.raw.size() < self.held.size
        return self.header.count, cut

    def _cut(self, batch: Batch, expected: int) -> Batch:
        """Leaves out of a batch what was never put into this segment."""
        count = max(0, expected - batch.index)
        sizes = self.stored_sizes(batch)
        if sizes is None:
            sizes = [len(value) + FRAME_BYTES for value in batch.values]
        end = batch.position + sum(sizes[:count])
        return replace(batch, end_position=end, values=batch.values[:count])

    def _tell(self, damage: Damage, expected: int, *, sure: bool, inexact: bool) -> Damage:
        """Returns damage as it is to be told."""
        unread = self._unread(damage)
        if unread is not None:
            damage = replace(damage, reason=unread, torn=False)
        elif damage.torn and (self.frames.gave_up or self.content.gave_up):
            reason = "the search for the next event was given up; there may be more"
            damage = replace(damage, reason=reason, torn=False)
        if damage.length == 0 and not sure and not inexact:
            # The header counts more than there is, and all that is there is whole.
            reason = f"the header counts {expected} events, {damage.offset} are there"
            return replace(damage, reason=reason, torn=True, count=None)
        if damage.length and not self.frames.exact and not expected and damage.count == 1:
            # Nothing tells how many frames lay in between.
            damage = replace(damage, count=None)
        return damage

    def _unread(self, damage: Damage) -> str | None:
        """Returns why bytes of a damaged place could not be read, if that is so."""
        if not self.raw.holes:
            return None
        start = self.content.file_position(damage.position)
        stop = max(self.content.file_position(damage.position + damage.length), start + 1)
        met = (hole for hole in self.raw.holes if hole.start < stop and start < hole.end)
        return next((hole.reason for hole in met), None)


def is_harmless(damage: Damage) -> bool:
    """Says whether damage costs no event that is known to have been there.

    An unfinished end is harmless, a header that counts more than there is, a header that was
    repaired, and a side file for which there is another.
    """
    return damage.torn or damage.count == 0


def index_after(damage: Damage) -> int:
    """Returns the index of the next frame past damage; one is lost where nobody knows how many."""
    return (damage.offset or 0) + (1 if damage.count is None else damage.count)


def list_event_segments(store: Store) -> SegmentList:
    """Lists the segments of a directory by their number; of two with the same, ours counts."""
    named: dict[int, str] = {}
    for name in store.names():
        segment_id = parse_segment_name(name)
        if segment_id is not None and (segment_id not in named or name == segment_name(segment_id)):
            named[segment_id] = name
    return SegmentList(named)


def damage_of(
    error: ForebayError | FileNotFoundError, path: str, held: Held | None, *, newest: bool
) -> Damage:
    """Returns the damage that keeps a whole segment from being read.

    A file that ends within its header never held an event that somebody was promised, if it is the
    newest and not on record. What is on record tells how many events it costs.
    """
    size = 0 if held is None else held.size
    if isinstance(error, Damaged):
        damage = error.damage
    elif isinstance(error, FileNotFoundError):
        damage = Damage(path, 0, size, "the file is missing")
    else:
        # The bytes may be whole: a key or a version that is not known.
        damage = Damage(path, 0, size, str(error).removeprefix(f"{path}: "))
    torn = held is None and newest and (damage.torn or damage.reason == ZEROS)
    return replace(damage, torn=torn, count=None if held is None else held.events)


def is_foreign(error: Exception) -> bool:
    """Says whether an error is of a segment that may be whole, and is not ours to read."""
    return isinstance(error, WrongKey | UnsupportedVersion)
