"""What `info`, `segments` and `fsck` tell of a Beats queue. Only reads, takes no lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forebay import BeatsReader
from forebay.cli import exits
from forebay.cli.inspection import damage_fields, describe, owner_of, total_lost
from forebay.cli.losses import settle
from forebay.cli.output import (
    plural,
    plural_or_unknown,
    say,
    size_text,
    write_facts,
    write_json,
    write_table,
)
from forebay.damage import Damage
from forebay.errors import UndecodableEvent, WrongKey
from forebay.formats.beats.events import decode_event
from forebay.formats.beats.versions import segment_name
from forebay.queues.beats.names import OWN_DIRECTORIES, OWN_NAMES
from forebay.queues.beats.place import Place
from forebay.queues.beats.reader import undecodable
from forebay.queues.beats.segments import is_harmless
from forebay.storage.atomic import TEMPORARY
from forebay.storage.quarantine import count_kept

STATES = {
    "open": "open",
    "closed": "closed",
    "crashed": "was not closed; the next open recovers it",
    "foreign": "was left by Beats; the next open takes it over",
}
_COLUMNS = ("name", "version", "events", "bytes", "count", "damage")


@dataclass(slots=True)
class SegmentFacts:
    """One segment file; `trouble` says why it cannot be read."""

    id: int
    name: str
    size: int
    version: str | None = None
    count: int | None = None
    events: int = 0
    unread: int = 0
    damage: list[Damage] = field(default_factory=list)
    trouble: str | None = None


def tell_info(path: str, key_file: str | None, as_json: bool) -> int:
    """Tells the state of a Beats queue."""
    with BeatsReader(path, key_file=key_file, salvage=True) as reader:
        facts = _info(reader)
    if as_json:
        write_json(facts)
    else:
        place = facts["position"]
        text = {**facts, "state": STATES[facts["state"]], "bytes": size_text(facts["bytes"])}
        text["position"] = f"segment {place['segment']}, byte {place['position']}"
        write_facts(text)
    return exits.OK


def list_segments(path: str, key_file: str | None, as_json: bool) -> int:
    """Lists the segments of a Beats queue."""
    with BeatsReader(path, key_file=key_file, salvage=True) as reader:
        facts = _segment_facts(reader)
    for segment in facts:
        if as_json:
            write_json(
                {
                    "name": segment.name,
                    "segment": segment.id,
                    "version": segment.version,
                    "events": segment.events,
                    "bytes": segment.size,
                    "count": segment.count,
                    "damage": len(segment.damage),
                    "trouble": segment.trouble,
                }
            )
    if not as_json:
        rows = [
            (item.name, item.version, item.events, item.size, item.count, len(item.damage))
            for item in facts
        ]
        write_table(_COLUMNS, rows)
    troubled = [segment for segment in facts if segment.trouble is not None]
    for segment in troubled:
        say(f"segment {segment.name}: {segment.trouble}")
    return exits.DAMAGE if troubled else exits.OK


def check_events(path: str, key_file: str | None, accept: bool, as_json: bool) -> int:
    """Verifies every frame and every event of a queue."""
    with BeatsReader(path, key_file=key_file, salvage=True) as reader:
        facts = _segment_facts(reader, raise_wrong_key=True)
        damage = [item for segment in facts for item in segment.damage]
        damage = [*reader.side_damage, *damage]
        state = _state(reader)
        foreign = _foreign(reader)
    found = [item for item in damage if not is_harmless(item)]
    lost, notes = settle(found, path, accept=accept)
    torn = [item for item in damage if item.torn]
    # What costs nothing is told, and is no damage.
    notes += [describe_note(item) for item in damage if is_harmless(item) and not item.torn]
    damage = [*lost, *torn]
    summary: dict[str, Any] = {
        "records": sum(segment.events for segment in facts),
        "segments": len(facts),
        "bytes": sum(segment.size for segment in facts),
        "state": state,
        "damage": len(lost),
        "torn": len(damage) - len(lost),
        "lost": total_lost(lost),
        "foreign": len(foreign),
    }
    if as_json:
        for item in damage:
            fields = {**damage_fields(item), "offset": item.offset, "count": item.count}
            write_json({"damage": fields})
        for name in foreign:
            write_json({"foreign": name})
        for note in notes:
            write_json({"note": note})
        write_json({"summary": summary})
    else:
        for item in damage:
            print(describe(item))
        for name in foreign:
            print(f"foreign: {name} does not belong to a Beats queue")
        for note in notes:
            print(f"note: {note}")
        good = f"{plural(summary['records'], 'good event')} in {plural(len(facts), 'segment')}"
        verdict = "no damage"
        if lost:
            number = plural_or_unknown(summary["lost"], "event")
            verdict = f"{plural(len(lost), 'damaged place')}, {number} lost"
        print(f"{good} ({size_text(summary['bytes'])}): {verdict}")
    return exits.DAMAGE if lost else exits.OK


def _info(reader: BeatsReader) -> dict[str, Any]:
    place = reader.place()
    segments = _segment_facts(reader)
    kept_files, kept_bytes = count_kept(reader.directory)
    return {
        "kind": "beats",
        "path": reader.path,
        "state": _state(reader),
        "owner": owner_of(reader.path),
        "version": segments[-1].version if segments else None,
        "segments": len(segments),
        "bytes": sum(segment.size for segment in segments),
        "events": sum(segment.events for segment in segments),
        "unread": sum(segment.unread for segment in segments),
        "position": {
            "segment": place.segment,
            "position": place.position,
            "index": place.frame_index,
        },
        "damage": sum(1 for item in segments for found in item.damage if not is_harmless(found)),
        "quarantined_files": kept_files,
        "quarantined_bytes": kept_bytes,
    }


def _state(reader: BeatsReader) -> str:
    if owner_of(reader.path) is not None:
        return "open"
    if reader.tail is None:
        return "foreign"
    return "closed" if reader.tail.clean else "crashed"


def _segment_facts(reader: BeatsReader, *, raise_wrong_key: bool = False) -> list[SegmentFacts]:
    facts = []
    place = reader.place()
    for segment_id in reader.numbers:
        name = reader.segments.names.get(segment_id, segment_name(segment_id))
        segment = SegmentFacts(segment_id, name, reader.size_of(name))
        try:
            _read_segment(reader, segment, place)
        except WrongKey as error:
            if raise_wrong_key:
                raise
            segment.trouble = str(error)
        facts.append(segment)
    return facts


def _read_segment(reader: BeatsReader, segment: SegmentFacts, place: Place) -> None:
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
        segment.trouble = segment.damage[0].reason
    elif segment.version is None:
        opened = reader.open_segment(segment.id)
        if opened is not None and not isinstance(opened, Damage):
            segment.version, segment.count = opened.header.layout.name, opened.header.count
            opened.close()
        elif isinstance(opened, Damage):
            segment.trouble = opened.reason


def describe_note(damage: Damage) -> str:
    """Returns a line on what was met and costs nothing."""
    return f"{damage.path}, byte {damage.position}: {damage.reason}; no event is lost by it"


def _foreign(reader: BeatsReader) -> list[str]:
    known = {*OWN_NAMES, *OWN_DIRECTORIES, *reader.segments.names.values()}
    names = set(reader.directory.names()) - known
    return sorted(name for name in names if not name.endswith(TEMPORARY))
