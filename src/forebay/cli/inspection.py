"""What can be told of a log from outside: state, owner, segments, what is behind its end.

Only reads, takes no lock, and works on a queue that is in use, was killed, or is damaged.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from forebay import LogReader
from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, NotAQueue
from forebay.formats.fflg import VERSION_DEFAULT
from forebay.queues.log.consumer import INDEX
from forebay.queues.log.scanner import OpenSegment
from forebay.queues.shared.names import LOG
from forebay.storage.atomic import TEMPORARY
from forebay.storage.checked import CheckedFile
from forebay.storage.filesystem import lock_owner
from forebay.storage.segments import scan_segment
from forebay.storage.tail import NAME as TAIL
from forebay.storage.tail import TailFile

# What state a queue is in, in a word, and what that means.
STATES = {
    "open": "open",
    "closed": "closed",
    "crashed": "was not closed; the next open recovers it",
    "foreign": "was made by another program; the next open adds what is missing",
    "tail-damaged": "its tail file is damaged; the next open makes a new one",
}


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment file; `trouble` says why its header cannot be read."""

    name: str
    base: int
    count: int
    size: int
    version: int | None
    first_time_ms: int | None
    sealed: bool
    trouble: str | None


def owner_of(path: str) -> int | None:
    """Returns the process that owns a queue; None if none is seen."""
    return lock_owner(path)


def state_of(reader: LogReader, owner: int | None) -> str:
    """Says whether a queue is in use, closed, or left by a crash: a key of `STATES`."""
    if owner is not None:
        return "open"
    if reader.tail is not None:
        return "closed" if reader.tail.clean else "crashed"
    return "tail-damaged" if TAIL in reader.directory.names() else "foreign"


def segment_facts(reader: LogReader, owner: int | None) -> list[SegmentFacts]:
    """Describes each segment; counts come from the base of the next one, or the end."""
    bases = reader.segments.bases
    clean = owner is None and reader.tail is not None and reader.tail.clean
    facts = []
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        name = reader.segments.names[base]
        version, first_time_ms, trouble = _header_facts(reader, name, base)
        end = reader.written if following is None else following
        facts.append(
            SegmentFacts(
                name,
                base,
                max(0, end - base),
                os.path.getsize(os.path.join(reader.path, name)),
                version,
                first_time_ms,
                following is not None or clean,
                trouble,
            )
        )
    return facts


def newest_version(reader: LogReader) -> int:
    """Returns the version that new segments get if nothing else is asked for."""
    if not reader.segments.bases:
        return VERSION_DEFAULT
    base = reader.segments.bases[-1]
    version, _, _ = _header_facts(reader, reader.segments.names[base], base)
    return version or VERSION_DEFAULT


def end_damage(reader: LogReader, owner: int | None) -> Damage | None:
    """Says what is behind the last record, if it is not a record: an unfinished write, mostly.

    Of a queue that is in use nothing can be said: its owner may be writing there now.
    """
    tail = reader.tail
    if owner is not None or not reader.segments.bases or (tail is not None and tail.clean):
        return None
    base = reader.segments.bases[-1]
    try:
        segment = OpenSegment(reader.directory, reader.segments.names[base], base)
    except Damaged as error:
        # Below the end the scan tells it; above, the file was just being made.
        return replace(error.damage, torn=True) if base >= reader.written else None
    except ForebayError:
        return None
    position, index = segment.frames.layout.header_bytes, 0
    if tail is not None and tail.segment == base and tail.durable >= base:
        # Before the first sync the mark stands at 0, before the header.
        position, index = max(position, tail.position), tail.durable - base
    try:
        for item in scan_segment(
            segment.file, segment.path, segment.frames, position=position, index=index
        ):
            if isinstance(item, Damage) and base + (item.offset or 0) >= reader.written:
                # Above the durable mark the first bad frame ends the log, whatever follows it.
                torn = item.torn or tail is not None
                return replace(item, torn=torn, offset=base + (item.offset or 0))
    finally:
        segment.file.close()
    return None


def after_the_records(reader: LogReader, ends: dict[str, int]) -> Iterator[Damage | str]:
    """Says what is in finished segments after their last record: hidden entries, or rubbish.

    `ends` tells where the last record of each segment ends. Entries that the next segment begins
    with as well are copies that an interrupted recovery left; others are hidden by it.
    """
    for base, following in itertools.pairwise([*reader.segments.bases, None]):
        name = reader.segments.names[base or 0]
        if base is None or name not in ends or (following is None and not _is_closed(reader)):
            continue
        try:
            segment = OpenSegment(reader.directory, name, base)
        except (ForebayError, FileNotFoundError):
            continue
        try:
            left = segment.file.size() - ends[name]
            if left <= 0:
                continue
            hidden = _hidden(reader, segment, ends[name], following)
            if hidden is None:
                yield f"{name}: {left} bytes after its last record, which mean nothing"
            elif isinstance(hidden, Damage):
                yield hidden
        finally:
            segment.file.close()


def _is_closed(reader: LogReader) -> bool:
    return owner_of(reader.path) is None and reader.tail is not None and reader.tail.clean


def _hidden(
    reader: LogReader, segment: OpenSegment, position: int, following: int | None
) -> Damage | bool | None:
    """Looks at entries from the base of the next segment on; True: the same are there."""
    if following is None:
        return None
    index = following - segment.base
    count, end, same = 0, position, True
    copies = itertools.chain.from_iterable(
        item.values for item in reader.scan(following) if not isinstance(item, Damage)
    )
    for item in scan_segment(
        segment.file, segment.path, segment.frames, position=position, index=index
    ):
        if isinstance(item, Damage):
            break
        count, end = count + len(item.values), item.end_position
        same = same and all(value == next(copies, None) for value in item.values)
    if not count or same:
        return same if count else None
    reason = f"{count} entries whose offsets the next segment has as well"
    return Damage(segment.path, position, end - position, reason, False, following, count)


def side_file_faults(reader: LogReader) -> list[str]:
    """Says what is wrong in the side files of a log and costs no record."""
    if owner_of(reader.path) is not None:
        return []
    notes = []
    for name, faults in ((TAIL, _tail_faults), (f"{INDEX}-check", _check_faults)):
        try:
            notes += [f"{name}: {fault}" for fault in faults(reader)]
        except (OSError, NotAQueue, Damaged) as error:
            notes.append(f"{name}: {error}; the next open sets it aside")
    return notes


def _tail_faults(reader: LogReader) -> list[str]:
    file = TailFile.open(reader.directory, write=False)
    if file is None:
        return []
    try:
        return file.faults() if reader.tail is not None else []
    finally:
        file.close()


def _check_faults(reader: LogReader) -> list[str]:
    return CheckedFile(reader.directory, INDEX).faults()


def foreign_names(reader: LogReader) -> list[str]:
    """Lists what is in the directory and does not belong to a log."""
    known = {*LOG.own_files, *LOG.directories, *reader.segments.names.values()}
    names = set(reader.directory.names()) - known
    return sorted(name for name in names if not name.endswith(TEMPORARY))


def temporary_names(reader: LogReader) -> list[str]:
    """Lists files that a crash left half made; the next open removes them."""
    return sorted(name for name in reader.directory.names() if name.endswith(TEMPORARY))


def is_loss(damage: Damage) -> bool:
    """Says whether damage costs records, other than an unfinished end that nobody was promised."""
    return not damage.torn or bool(damage.count)


def total_lost(found: Iterable[Damage]) -> int | None:
    """Returns how many records the damage costs; None as soon as one place cannot tell."""
    counts = [damage.count for damage in found if is_loss(damage)]
    return None if None in counts else sum(count or 0 for count in counts)


def describe(damage: Damage) -> str:
    """Returns damage as a line for people."""
    kind = "damage" if is_loss(damage) else "unfinished end"
    lost = ""
    if is_loss(damage):
        number = "an unknown number" if damage.count is None else str(damage.count)
        told = damage.offset is not None and damage.count != 0
        lost = f"; records lost: {number}{f' from offset {damage.offset}' if told else ''}"
    place = f"{damage.path}, byte {damage.position}, {damage.length} bytes"
    return f"{kind}: {place}: {damage.reason}{lost}"


def damage_fields(damage: Damage) -> dict[str, Any]:
    """Returns damage as JSON, the same for every verb."""
    return {
        "path": damage.path,
        "position": damage.position,
        "length": damage.length,
        "reason": damage.reason,
        "torn": damage.torn,
    }


def _header_facts(
    reader: LogReader, name: str, base: int
) -> tuple[int | None, int | None, str | None]:
    try:
        segment = OpenSegment(reader.directory, name, base)
    except (ForebayError, FileNotFoundError) as error:
        return None, None, str(error)
    segment.file.close()
    header = segment.frames.header
    first_time_ms = header.epoch_ms + 1 if header.layout.checked else None
    trouble = segment.damage.reason if segment.damage is not None else None
    return header.version, first_time_ms, trouble
