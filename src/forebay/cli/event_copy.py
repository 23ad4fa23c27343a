"""Copies the events of a queue into a new one: to salvage them, or to change the version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forebay import BeatsQueue, BeatsReader
from forebay.cli import exits
from forebay.cli.inspection import damage_fields, describe, is_loss, total_lost
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import plural, plural_or_unknown, say, write_json
from forebay.damage import Damage
from forebay.errors import Damaged, UndecodableEvent
from forebay.formats.beats.events import decode_event, encode_event
from forebay.queues.beats.place import Place
from forebay.queues.beats.reader import Payloads, undecodable
from forebay.queues.beats.segments import is_harmless

_BATCH_EVENTS = 1000


@dataclass(slots=True)
class Copied:
    """What a copy did. `done` are the events before the place: they are done with in the copy."""

    copied: int = 0
    done: int = 0
    damage: list[Damage] = field(default_factory=list)

    @property
    def lost(self) -> int | None:
        """How many events could not be read; None if that cannot be told."""
        return total_lost(self.damage)


def copy_events(
    path: str,
    target: str,
    *,
    key_file: str | None,
    version: str | None,
    salvage: bool,
    as_json: bool,
) -> int:
    """Copies all that can be read into a new queue; the old one is not changed."""
    with BeatsReader(path, key_file=key_file, salvage=salvage) as reader:
        chosen = version or _version_of(reader)
        with Interrupts() as interrupts:
            options: dict[str, Any] = {"key_file": key_file, "version": chosen, "sync": "os"}
            try:
                with BeatsQueue(target, **options) as queue:
                    report = _copy(reader, queue, interrupts)
            except Interrupted as stop:
                say(f"interrupted: {target} holds only a part; remove it and start again")
                return stop.code
    if as_json:
        _write_json(report, chosen)
    else:
        for damage in report.damage:
            print(describe(damage))
        copied, lost = plural(report.copied, "event"), plural_or_unknown(report.lost, "event")
        print(f"{copied} copied to {target} as {chosen}, {lost} lost")
    return exits.OK


def _version_of(reader: BeatsReader) -> str | None:
    """The version of the newest segment, if it can be written."""
    for segment_id in reversed(reader.segments.bases):
        segment = reader.open_segment(segment_id)
        if segment is None or isinstance(segment, Damage):
            continue
        segment.close()
        layout = segment.header.layout
        return layout.name if layout.writable else None
    return None


def _copy(reader: BeatsReader, queue: BeatsQueue, interrupts: Interrupts) -> Copied:
    report = Copied()
    place = reader.place()
    for item in reader.scan():
        interrupts.check()
        if isinstance(item, Damage):
            _meet(reader, report, item)
            continue
        payloads = _decodable(reader, report, item, place)
        queue.put_encoded(payloads)
        report.copied += len(payloads)
    left = report.done
    while left:
        batch = queue.read(min(left, _BATCH_EVENTS))
        batch.ack()
        left -= len(batch)
    return report


def _decodable(reader: BeatsReader, report: Copied, item: Payloads, place: Place) -> list[bytes]:
    """Returns the events that are some, as CBOR, and counts those that were done with."""
    payloads = []
    for number, payload in enumerate(item.payloads):
        try:
            payloads.append(encode_event(decode_event(payload)))
        except UndecodableEvent as error:
            _meet(reader, report, undecodable(item, number, error))
            continue
        if Place(item.segment, item.positions[number], item.index + number) < place:
            report.done += 1
    return payloads


def _meet(reader: BeatsReader, report: Copied, damage: Damage) -> None:
    if not reader.salvage and not is_harmless(damage):
        raise Damaged(damage)
    report.damage.append(damage)


def _write_json(report: Copied, version: str | None) -> None:
    for damage in report.damage:
        write_json({"damage": {**damage_fields(damage), "count": damage.count}})
    summary = {
        "copied": report.copied,
        "lost": report.lost,
        "damage": sum(1 for damage in report.damage if is_loss(damage)),
        "version": version,
        "done": report.done,
    }
    write_json({"summary": summary})
