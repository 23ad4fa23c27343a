"""The segments of a Beats queue, open for reading: one file, its layout, its logical bytes.

Used by the owner, by read-only readers and by recovery. Changes nothing. What the disk cannot read
is damage like any other: it is replaced by bytes with which no frame can begin.
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
# The reason of damage begins like this if it is a disk error.
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
    """A file up to where it may be read; its owner may be writing after that bound.

    What the disk cannot read is replaced by filler: zeros would look like an end.
    """

    def __init__(self, file: Content, bound: int | None = None) -> None:
        self._file = Readable(file)
        self.bound = bound

    @property
    def holes(self) -> list[Hole]:
        """The ranges that could not be read so far."""
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
        """The place of its first frame."""
        return Place(self.id, self.header.layout.header_bytes)

    def grow(self, raw_size: int | None) -> None:
        """Allows the file to be read up to a new bound."""
        self.raw.bound = raw_size
        self.content.look_again()

    def scan(
        self, place: Place, *, finished: bool = False, durable: int = 0
    ) -> Iterator[Batch | Damage]:
        """Walks over the frames from a place on; all positions are logical, those of damage too.

        `finished` says that the segment is no longer written: it must have as many frames as are on
        record, or, if they were not counted, as the header says. A segment that is not finished
        must have `durable` frames.
        """
        start = self.start
        position, index = (place.position, place.frame_index) if place > start else start[1:]
        # A place in a part that was cut off since means the end of what is left.
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
        """Returns damage with its position in the file, for messages."""
        return replace(damage, position=self.content.file_position(damage.position))

    def stored_sizes(self, batch: Batch) -> list[int] | None:
        """Returns the size of each stored frame of a batch; None if the events tell it.

        If events are compressed one by one, only the sizes in the frames tell it.
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
            # A part that could not be read must not look like an unknown version or key.
            for hole in self.raw.holes[:1]:
                size = hole.end - hole.start
                raise Damaged(Damage(self.path, hole.start, size, hole.reason)) from None
            raise

    def _expected(self) -> tuple[int, bool]:
        """Returns how many frames it must have, and whether that is certain."""
        if self.held is not None and self.held.events is not None:
            return self.held.events, True
        # The count in a header has no check; but if the file was cut, nothing else tells it.
        cut = self.held is not None and self.raw.size() < self.held.size
        return self.header.count, cut

    def _cut(self, batch: Batch, expected: int) -> Batch:
        """Returns a batch without the frames that were never written to this segment."""
        count = max(0, expected - batch.index)
        sizes = self.stored_sizes(batch)
        if sizes is None:
            sizes = [len(value) + FRAME_BYTES for value in batch.values]
        end = batch.position + sum(sizes[:count])
        return replace(batch, end_position=end, values=batch.values[:count])

    def _tell(self, damage: Damage, expected: int, *, sure: bool, inexact: bool) -> Damage:
        """Returns damage as it is to be reported."""
        unread = self._unread(damage)
        if unread is not None:
            damage = replace(damage, reason=unread, torn=False)
        elif damage.torn and (self.frames.gave_up or self.content.gave_up):
            reason = "the search for the next event was given up; there may be more"
            damage = replace(damage, reason=reason, torn=False)
        if damage.length == 0 and not sure and not inexact:
            # The header counts more than there is, and all that exists is whole.
            reason = f"the header counts {expected} events, {damage.offset} are there"
            return replace(damage, reason=reason, torn=True, count=None)
        if damage.length and not self.frames.exact and not expected and damage.count == 1:
            # Nothing tells how many frames were in between.
            damage = replace(damage, count=None)
        return damage

    def _unread(self, damage: Damage) -> str | None:
        """Returns why bytes of a damaged place could not be read; None if all could be."""
        if not self.raw.holes:
            return None
        start = self.content.file_position(damage.position)
        stop = max(self.content.file_position(damage.position + damage.length), start + 1)
        met = (hole for hole in self.raw.holes if hole.start < stop and start < hole.end)
        return next((hole.reason for hole in met), None)


def is_harmless(damage: Damage) -> bool:
    """Says whether damage costs no event that is known to have existed.

    Harmless are an unfinished end, a header that counts more than there is, a header that was
    repaired, and a side file that another one can replace.
    """
    return damage.torn or damage.count == 0


def index_after(damage: Damage) -> int:
    """Returns the index of the next frame after damage; an unknown number lost counts as one."""
    return (damage.offset or 0) + (1 if damage.count is None else damage.count)


def list_event_segments(store: Store) -> SegmentList:
    """Lists the segments of a directory by number; of two with the same, our name counts."""
    named: dict[int, str] = {}
    for name in store.names():
        segment_id = parse_segment_name(name)
        if segment_id is not None and (segment_id not in named or name == segment_name(segment_id)):
            named[segment_id] = name
    return SegmentList(named)


def damage_of(
    error: ForebayError | FileNotFoundError, path: str, held: Held | None, *, newest: bool
) -> Damage:
    """Returns the damage because of which a whole segment cannot be read.

    If the file ends within its header, is the newest and not on record, it never held an
    acknowledged event. The record of a segment tells how many events the damage costs.
    """
    size = 0 if held is None else held.size
    if isinstance(error, Damaged):
        damage = error.damage
    elif isinstance(error, FileNotFoundError):
        damage = Damage(path, 0, size, "the file is missing")
    else:
        # The bytes may be whole: the key or the version is not known.
        damage = Damage(path, 0, size, str(error).removeprefix(f"{path}: "))
    torn = held is None and newest and (damage.torn or damage.reason == ZEROS)
    return replace(damage, torn=torn, count=None if held is None else held.events)


def is_foreign(error: Exception) -> bool:
    """Says whether an error means a segment that may be whole but that we cannot read."""
    return isinstance(error, WrongKey | UnsupportedVersion)
