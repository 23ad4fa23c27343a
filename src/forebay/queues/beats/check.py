"""A Beats queue from outside: what is wrong with it, what it holds, and copies of it.

Only reads the queue, takes no lock, and works on one that is in use, has crashed, or is damaged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forebay.damage import Damage
from forebay.errors import Damaged, UndecodableEvent, WrongKey
from forebay.formats.beats.events import decode_event, encode_event, join_events
from forebay.formats.beats.versions import segment_name
from forebay.queues.beats.contents import contents_bytes, read_contents
from forebay.queues.beats.info import BeatsInfo
from forebay.queues.beats.mark import MARK_BYTES, MarkFile
from forebay.queues.beats.names import (
    CONTENTS_NAME,
    MARK_NAME,
    OWN_DIRECTORIES,
    OWN_NAMES,
    STATE_NAME,
)
from forebay.queues.beats.place import Place
from forebay.queues.beats.queue import BeatsQueue
from forebay.queues.beats.reader import BeatsReader, Payloads, undecodable
from forebay.queues.beats.segments import is_harmless
from forebay.queues.shared.reports import (
    CopyReport,
    Findings,
    Progress,
    Report,
    SegmentFacts,
)
from forebay.storage.atomic import TEMPORARY
from forebay.storage.losses import count_unaccepted
from forebay.storage.quarantine import count_kept
from forebay.storage.readable import Stores

_BATCH_EVENTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatsSegment(SegmentFacts):
    """One segment; `count` is how many events its header claims, `damage` how many bad places."""

    number: int
    version: str | None
    count: int | None
    damage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatsCopy(CopyReport):
    """What a copy of a Beats queue did; `done` events were acknowledged, also in the copy."""

    version: str | None
    done: int


def check(
    path: str, progress: Progress, key_file: str | None = None, filesystem: Stores | None = None
) -> Report:
    """Verifies every frame and every event."""
    with BeatsReader(path, key_file=key_file, salvage=True, filesystem=filesystem) as reader:
        segments = _read_segments(reader, progress, raise_wrong_key=True)
        findings = Findings()
        for item in [*reader.side_damage, *(each for part in segments for each in part.damage)]:
            if is_harmless(item) and not item.torn:
                # What costs nothing is noted, but is not damage.
                where = f"{item.path}, byte {item.position}"
                findings.notes.append(f"{where}: {item.reason}; no event is lost by it")
            else:
                findings.found.append(item)
        owner = reader.owner()
        if owner is None:
            _check_side_files(reader, findings)
        known = {*OWN_NAMES, *OWN_DIRECTORIES, *reader.segments.names.values()}
        for name in sorted(set(reader.directory.names()) - known):
            if name.endswith(TEMPORARY):
                findings.note_half_made(name)
            else:
                findings.foreign.append(name)
        findings.note_kept(reader.directory)
        return Report(
            kind="beats",
            path=reader.path,
            state=_state(reader, owner),
            records=sum(segment.events for segment in segments),
            segments=len(segments),
            bytes=sum(segment.size for segment in segments),
            **findings.as_fields(),
        )


def describe(path: str, key_file: str | None = None) -> BeatsInfo:
    """Returns the state of a Beats queue; reads all of it to count."""
    with BeatsReader(path, key_file=key_file, salvage=True) as reader:
        owner = reader.owner()
        place = reader.place()
        segments = _read_segments(reader)
        damage = [item for segment in segments for item in segment.damage]
        kept_files, kept_bytes = count_kept(reader.directory)
        return BeatsInfo(
            kind="beats",
            path=reader.path,
            state=_state(reader, owner),
            owner=owner,
            records=sum(segment.events for segment in segments),
            segments=len(segments),
            bytes=sum(segment.size for segment in segments),
            damage=tuple(item for item in damage if not is_harmless(item)),
            losses=count_unaccepted(reader.directory),
            quarantined_files=kept_files,
            quarantined_bytes=kept_bytes,
            version=segments[-1].version if segments else None,
            unread=sum(segment.unread for segment in segments),
            position={
                "segment": place.segment,
                "position": place.position,
                "index": place.frame_index,
            },
        )


def segments(path: str, key_file: str | None = None) -> list[BeatsSegment]:
    """Describes each segment; reads all of them to count."""
    with BeatsReader(path, key_file=key_file, salvage=True) as reader:
        return [
            BeatsSegment(
                name=segment.name,
                records=segment.events,
                bytes=segment.size,
                error=segment.error,
                number=segment.id,
                version=segment.version,
                count=segment.count,
                damage=len(segment.damage),
            )
            for segment in _read_segments(reader)
        ]


def copy(path: str, target: str, progress: Progress, key_file: str | None = None) -> BeatsCopy:
    """Copies all events that can be read into a new queue of the same version."""
    return _copy(path, target, progress, key_file, None, salvage=True)


def convert(
    path: str,
    target: str,
    progress: Progress,
    key_file: str | None = None,
    *,
    version: str,
    salvage: bool,
) -> BeatsCopy:
    """Copies all events into a new queue of another version; both queues have the same key."""
    return _copy(path, target, progress, key_file, version, salvage=salvage)


@dataclass(slots=True)
class _Segment:
    """What was read of a segment; `error` says why it cannot be read."""

    id: int
    name: str
    size: int
    version: str | None = None
    count: int | None = None
    events: int = 0
    unread: int = 0
    damage: list[Damage] = field(default_factory=list)
    error: str | None = None


def _state(reader: BeatsReader, owner: int | None) -> str:
    if owner is not None:
        return "open"
    if reader.archived:
        return "archived"
    if reader.tail is None:
        return "foreign"
    return "closed" if reader.tail.clean else "crashed"


def _check_side_files(reader: BeatsReader, findings: Findings) -> None:
    """Notes faults in the side files that cost no event."""
    findings.note_faults(MARK_NAME, lambda: _mark_faults(reader))
    _, held = read_contents(reader.directory)
    ends = {
        MARK_NAME: MARK_BYTES,
        CONTENTS_NAME: contents_bytes(len(held)) if held else None,
        STATE_NAME: len(reader.state.encode()) if reader.state is not None else None,
    }
    for name, end in ends.items():
        if end is not None:
            findings.note_junk(name, reader.size_of(name), end)


def _mark_faults(reader: BeatsReader) -> list[str]:
    file = MarkFile.open(reader.directory, write=False)
    if file is None:
        return []
    try:
        return file.faults()
    finally:
        file.close()


def _read_segments(
    reader: BeatsReader, progress: Progress | None = None, *, raise_wrong_key: bool = False
) -> list[_Segment]:
    segments: list[_Segment] = []
    place = reader.place()
    for segment_id in reader.numbers:
        if progress is not None:
            progress(sum(segment.events for segment in segments), None)
        name = reader.segments.names.get(segment_id, segment_name(segment_id))
        segment = _Segment(segment_id, name, reader.size_of(name))
        try:
            _read_segment(reader, segment, place)
        except WrongKey as error:
            if raise_wrong_key:
                raise
            segment.error = str(error)
        segments.append(segment)
    return segments


def _read_segment(reader: BeatsReader, segment: _Segment, place: Place) -> None:
    for item in reader.scan_segment(segment.id):
        if isinstance(item, Damage):
            segment.damage.append(item)
            continue
        segment.version, segment.count = item.header.layout.name, item.header.count
        for number, payload in enumerate(item.payloads):
            try:
                decode_event(payload)
            except UndecodableEvent as error:
                segment.damage.append(undecodable(item, number, error))
                continue
            segment.events += 1
            if Place(segment.id, item.positions[number], item.index + number) >= place:
                segment.unread += 1
    if segment.id in reader.missing:
        segment.error = segment.damage[0].reason
    elif segment.version is None:
        opened = reader.open_segment(segment.id)
        if opened is not None and not isinstance(opened, Damage):
            segment.version, segment.count = opened.header.layout.name, opened.header.count
            opened.close()
        elif isinstance(opened, Damage):
            segment.error = opened.reason


def _copy(
    path: str,
    target: str,
    progress: Progress,
    key_file: str | None,
    version: str | None,
    *,
    salvage: bool,
) -> BeatsCopy:
    copied = done = 0
    damage: list[Damage] = []
    with BeatsReader(path, key_file=key_file, salvage=salvage) as reader:
        chosen = version or _version_of(reader)
        options: dict[str, Any] = {"key_file": key_file, "version": chosen, "sync": "os"}
        place = reader.place()
        with BeatsQueue(target, **options) as queue:
            for item in reader.scan():
                progress(copied, None)
                if isinstance(item, Damage):
                    _meet(reader, damage, item)
                    continue
                payloads = _decodable(reader, damage, item)
                queue.put_encoded(join_events(event for _, event in payloads), len(payloads))
                copied += len(payloads)
                done += sum(1 for found, _ in payloads if found < place)
            left = done
            while left:
                batch = queue.read(min(left, _BATCH_EVENTS))
                batch.ack()
                left -= len(batch)
        return BeatsCopy(
            kind="beats",
            path=reader.path,
            target=queue.path,
            copied=copied,
            damage=tuple(damage),
            notes=(f"as version {chosen}",) if version is not None else (),
            version=chosen,
            done=done,
        )


def _version_of(reader: BeatsReader) -> str | None:
    """Returns the version of the newest segment that can be read; None if it cannot be written."""
    for segment_id in reversed(reader.segments.bases):
        segment = reader.open_segment(segment_id)
        if segment is None or isinstance(segment, Damage):
            continue
        segment.close()
        layout = segment.header.layout
        return layout.name if layout.writable else None
    return None


def _decodable(
    reader: BeatsReader, damage: list[Damage], item: Payloads
) -> list[tuple[Place, bytes]]:
    """Returns the events that can be decoded, as CBOR, each with its place."""
    payloads = []
    for number, payload in enumerate(item.payloads):
        try:
            event = encode_event(decode_event(payload))
        except UndecodableEvent as error:
            _meet(reader, damage, undecodable(item, number, error))
            continue
        payloads.append((Place(item.segment, item.positions[number], item.index + number), event))
    return payloads


def _meet(reader: BeatsReader, found: list[Damage], damage: Damage) -> None:
    if not reader.salvage and not is_harmless(damage):
        raise Damaged(damage)
    found.append(damage)
