"""What a batch says of itself: per queue the range of offsets, and what became of each record.

`manifest.json` lies in the directory of the batch and is published with its tables. It is the
source of truth for the ranges; the counts can be taken from the tables again, and `reconcile` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Lost:
    """Records that damage took: `count` of them from `offset` on; None where that is unknown."""

    offset: int | None
    count: int | None


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of one queue that a batch covers: from `start` up to, not including, `end`.

    `begin` is where the queue began when the batch was written, noted only if offsets of the range
    were not there any more: what is missing below it was trimmed. `spans` are the parts of the
    range that have records, where there are gaps between them.

    Of a snapshot, `snapshot` is its id, and the range is as long as there are items in it: it says
    how many there are, not which.
    """

    id: str
    incarnation: int
    start: int
    end: int
    begin: int | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    snapshot: str | None = None

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The parts of the range that have records."""
        return ((self.start, self.end),) if self.spans is None else self.spans

    @property
    def count(self) -> int:
        """How many offsets there are in it."""
        return sum(end - start for start, end in self.parts)


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the records of one queue."""

    landed: int = 0
    decoded: int = 0
    rejected: int = 0
    deduplicated: int = 0
    filtered: int = 0
    damaged: int = 0
    trimmed: int = 0

    def __add__(self, other: Counts) -> Counts:
        sums = (getattr(self, name) + getattr(other, name) for name in COUNTED)
        return Counts(*sums)


COUNTED = tuple(one.name for one in fields(Counts))


@dataclass(frozen=True, slots=True)
class Share:
    """One queue's part of a batch."""

    offsets: Offsets
    counts: Counts
    # The times of its first and last record, where they have times.
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One batch."""

    batch: int
    definition: str
    queues: dict[str, Share] = field(default_factory=dict)
    # The first and the last time among the keys, in µs; None if none are kept.
    keys_us: tuple[int, int] | None = None

    @property
    def counts(self) -> Counts:
        """What became of the records of all queues."""
        return total(share.counts for share in self.queues.values())

    def encode(self) -> bytes:
        """Returns the bytes of `manifest.json`."""
        return json.dumps({"v": _VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Reads what `encode` gave."""
        document = json.loads(data)
        queues = {path: _share(plain) for path, plain in document["queues"].items()}
        keys_us = tuple(document["keys_us"]) if document["keys_us"] else None
        return cls(document["batch"], document["definition"], queues, keys_us)


def total(parts: Iterable[Counts]) -> Counts:
    """Adds counts up."""
    return sum(parts, Counts())


def account(
    offsets: Offsets, landed: int, landed_below_begin: int, damage: Iterable[Lost]
) -> tuple[int, int, int]:
    """Says how many records of a range are damaged, how many trimmed, and how many unexplained.

    Less than none are unexplained if more has landed than the range holds.
    """
    known: list[tuple[int, int]] = []
    # How many records may be missing without anybody knowing which.
    unknown = 0
    for lost in damage:
        if lost.count is None:
            unknown = offsets.count
        elif lost.offset is None:
            unknown += lost.count
        else:
            known.append((lost.offset, lost.offset + lost.count))
    damaged = sum(_covered(known, start, end) for start, end in offsets.parts)
    trimmed = 0
    if offsets.begin is not None:
        trimmed = -landed_below_begin
        for start, end in offsets.parts:
            stop = min(max(offsets.begin, start), end)
            trimmed += stop - start - _covered(known, start, stop)
    missing = offsets.count - landed - damaged - trimmed
    explained = max(0, min(missing, unknown))
    return damaged + explained, trimmed, missing - explained


def _covered(ranges: list[tuple[int, int]], start: int, end: int) -> int:
    """Counts the offsets from `start` to `end` that lie in some of the ranges."""
    count, reached = 0, start
    for first, last in sorted(ranges):
        stop = min(last, end)
        if stop > max(first, reached):
            count += stop - max(first, reached)
            reached = stop
    return count


def _share(plain: dict[str, Any]) -> Share:
    offsets = dict(plain["offsets"])
    if offsets.get("spans") is not None:
        offsets["spans"] = tuple((start, end) for start, end in offsets["spans"])
    return Share(
        Offsets(**offsets),
        Counts(**plain["counts"]),
        plain["first_ms"],
        plain["last_ms"],
    )
