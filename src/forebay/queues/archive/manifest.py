"""The manifest of an archived queue: what there is, as a checked document (docs/archive.md).

Source of truth for the archive: an object that it does not name is not there for a reader. It is
written after the objects that it names, and before those go that it no longer names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from forebay.damage import Damage
from forebay.errors import Damaged, UnsupportedVersion
from forebay.storage.atomic import decode_document, encode_document, typed

NAME = "manifest.json"
FORMAT = "forebay-archive"
VERSION = 1
# Of the incarnations whose start is on record, as in `tail`.
STARTS = 8
# The highest offset.
NUMBER_MAX = 2**63 - 1
_ROW = (str, str, int, int, int, str, str, int)


class Row(NamedTuple):
    """A segment: its name on the host, the object, and what it holds.

    `head` are the first bytes of the file, in hex; `crc` is that of all of it, in hex.
    """

    name: str
    object: str
    first: int
    end: int
    bytes: int
    crc: str
    head: str
    archived_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds of a queue; `segments` are in the order of their offsets."""

    kind: str
    queue_id: str
    incarnation: int = 1
    starts: tuple[int, ...] = (0,) * STARTS
    begin: int = 0
    time_ms: int = 0
    segments: tuple[Row, ...] = ()
    superseded: tuple[Row, ...] = ()
    forgotten: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """The offset after the last record in it."""
        return self.segments[-1].end if self.segments else self.begin

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(row.bytes for row in self.segments)

    def encode(self) -> bytes:
        """Returns the bytes of the object."""
        return encode_document(
            {
                "format": FORMAT,
                "version": VERSION,
                "kind": self.kind,
                "queue_id": self.queue_id,
                "incarnation": self.incarnation,
                "starts": self.starts,
                "begin": self.begin,
                "time_ms": self.time_ms,
                "segments": self.segments,
                "superseded": self.superseded,
                "forgotten": self.forgotten,
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Reads the bytes of the object; raises `Damaged`, or `UnsupportedVersion`."""
        fields = decode_document(data, path)
        try:
            if fields["format"] != FORMAT:
                raise ValueError(f"its format is {fields['format']!r:.40}, not {FORMAT!r}")
            if typed("version", fields["version"], int) != VERSION:
                raise UnsupportedVersion(
                    f"{path}: version {fields['version']} of an archive; this program reads 1"
                )
            return cls(
                typed("kind", fields["kind"], str),
                bytes.fromhex(typed("queue_id", fields["queue_id"], str)).hex(),
                _number("incarnation", fields["incarnation"]),
                tuple(_number("starts", start) for start in fields["starts"]),
                _number("begin", fields["begin"]),
                _number("time_ms", fields["time_ms"]),
                tuple(map(_row, fields["segments"])),
                tuple(map(_row, fields["superseded"])),
                tuple(typed("forgotten", name, str) for name in fields["forgotten"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(Damage(path, 0, len(data), f"not a manifest: {error}")) from None


@dataclass(frozen=True, slots=True)
class Finished:
    """A segment on the host that will not change any more."""

    name: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class HostQueue:
    """What a queue on its host says that an archive needs to know.

    `end` is the offset up to which segments are finished, `written` where the records end;
    `readers` are the places of its other readers.
    """

    path: str
    kind: str
    queue_id: str
    incarnation: int
    starts: tuple[int, ...]
    begin: int
    end: int
    written: int
    time_ms: int
    segments: list[Finished]
    readers: dict[str, int] = field(default_factory=dict)

    def lost_from(self, incarnation: int) -> int | None:
        """Returns from which offset on records may be others than in an earlier incarnation."""
        passed = self.incarnation - incarnation
        return min(self.starts[:passed], default=None) if passed > 0 else None


def superseded_by(manifest: Manifest, host: HostQueue) -> Manifest:
    """Returns a manifest in which segments of a later incarnation can follow.

    What a crash of the machine took from the host, and assigned again, stays in the archive as
    superseded; a segment that was taken in part ends where the new records begin.
    """
    lost = host.lost_from(manifest.incarnation)
    if lost is None:
        return manifest
    kept = tuple(
        row if row.end <= lost else row._replace(end=lost)
        for row in manifest.segments
        if row.first < lost
    )
    gone = tuple(row for row in manifest.segments if row.end > lost)
    return replace(
        manifest,
        incarnation=host.incarnation,
        starts=host.starts,
        segments=kept,
        superseded=(*manifest.superseded, *gone),
    )


def with_row(manifest: Manifest, row: Row) -> Manifest:
    """Returns a manifest with one more segment, in its place.

    A segment ends where the next one begins: recovery may have written its last records again.
    """
    rows = sorted(
        (*(each for each in manifest.segments if each.first != row.first), row), key=_first
    )
    ended = [
        each if each.end <= following.first else each._replace(end=following.first)
        for each, following in zip(rows, [*rows[1:], rows[-1]], strict=True)
        if each is not rows[-1]
    ]
    return replace(manifest, segments=(*ended, rows[-1]))


def _first(row: Row) -> int:
    return row.first


def _row(fields: list[Any]) -> Row:
    if len(fields) != len(_ROW):
        raise ValueError(f"a row has {len(fields)} fields, not {len(_ROW)}")
    row = Row(*(typed("row", value, kind) for value, kind in zip(fields, _ROW, strict=True)))
    bytes.fromhex(row.head)
    if not 0 <= row.first <= row.end or row.bytes < 0 or "/" in row.object:
        raise ValueError(f"the row of {row.name!r:.40} cannot be true")
    return row


def _number(name: str, value: object) -> int:
    number: int = typed(name, value, int)
    if not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"{name} = {number}: out of range")
    return number
