"""The segments of an event queue, open for reading: one file, its layout, its logical bytes.

Used by the owner, by read-only readers and by recovery. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from forebay.errors import Damaged, ForebayError, UnsupportedVersion, WrongKey
from forebay.formats.beats import Frames
from forebay.formats.beats_bytes import LogicalBytes, open_bytes
from forebay.formats.beats_crypto import Key
from forebay.formats.beats_recognition import recognise
from forebay.formats.beats_versions import Dialect, Header, parse_segment_name, segment_name
from forebay.frames import Damage
from forebay.queues.places import Place
from forebay.storage.filesystem import Directory, File
from forebay.storage.segments import Batch, SegmentList, scan_segment

_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Access:
    """What is needed to read the segments of a directory."""

    key: Key | None = field(default=None, repr=False)
    dialect: Dialect | None = None


class BoundedFile:
    """A file as far as it may be read; behind the bound its owner may be writing."""

    def __init__(self, file: File, bound: int | None = None) -> None:
        self._file = file
        self.bound = bound

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes that lie below the bound."""
        if self.bound is not None:
            size = max(0, min(size, self.bound - position))
        return self._file.pread(size, position)

    def size(self) -> int:
        """Gives the size, at most the bound."""
        size = self._file.size()
        return size if self.bound is None else min(size, self.bound)


class EventSegment:
    """A segment that is open for reading. One thread at a time may use it."""

    def __init__(
        self, directory: Directory, segment_id: int, name: str, access: Access, raw_size: int | None
    ) -> None:
        """`raw_size` is how far the file may be read, None for all of it.

        Raises what `recognise` raises: Damaged, UnsupportedVersion, WrongKey.
        """
        self.id = segment_id
        self.name = name
        self.path = f"{directory.path}/{name}"
        self.file: File = directory.open(name)
        try:
            self.raw = BoundedFile(self.file, raw_size)
            self.header: Header = recognise(
                self.raw, self.path, key=access.key, dialect=access.dialect
            )
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

    def scan(self, place: Place, expected: int = 0) -> Iterator[Batch | Damage]:
        """Walks over the frames from a place on; positions are logical, those of damage too."""
        start = self.start
        position, index = (place.position, place.frame_index) if place > start else start[1:]
        return scan_segment(
            self.content,
            self.path,
            self.frames,
            position=position,
            index=index,
            expected=expected,
            chunk_bytes=_CHUNK_BYTES,
        )

    def in_file(self, damage: Damage) -> Damage:
        """Gives damage with the position that it has in the file, for messages."""
        return replace(damage, position=self.content.file_position(damage.position))

    def stored_sizes(self, batch: Batch) -> list[int] | None:
        """Gives what each frame of a batch takes; None where its event tells that.

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


def list_event_segments(directory: Directory) -> SegmentList:
    """Lists the segments of a directory by their number; of two with the same, ours counts."""
    named: dict[int, str] = {}
    for name in directory.names():
        segment_id = parse_segment_name(name)
        if segment_id is not None and (segment_id not in named or name == segment_name(segment_id)):
            named[segment_id] = name
    return SegmentList(named)


def damage_of(error: ForebayError, path: str, size: int) -> Damage | None:
    """Gives the damage that keeps a segment from being read; None if it is no damage.

    A missing key and a version that is not known are not: the bytes may be whole.
    """
    if isinstance(error, Damaged):
        return error.damage
    if isinstance(error, WrongKey | UnsupportedVersion):
        return None
    return Damage(path, 0, size, str(error).removeprefix(f"{path}: "))
