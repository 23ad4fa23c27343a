"""`forebay fsck`: verifies every byte of a queue and changes none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, path_argument
from forebay.cli.copying import write_damage
from forebay.cli.inspection import (
    STATES,
    after_the_records,
    describe,
    end_damage,
    foreign_names,
    is_loss,
    owner_of,
    segment_facts,
    side_file_faults,
    state_of,
    temporary_names,
    total_lost,
)
from forebay.cli.kinds import NAMES, ORIGINAL, act, refuse_options
from forebay.cli.losses import settle
from forebay.cli.output import Bar, plural, plural_or_unknown, size_text, write_json
from forebay.damage import Damage
from forebay.errors import Damaged
from forebay.formats.fflg import LAYOUTS
from forebay.queues.log.consumer import INDEX, read_positions
from forebay.storage import inbox
from forebay.storage.quarantine import count_kept
from forebay.storage.tail import NAME as TAIL


@dataclass(slots=True)
class Findings:
    """What a check found."""

    records: int = 0
    bytes: int = 0
    segments: int = 0
    state: str = ""
    damage: list[Damage] = field(default_factory=list)
    torn: list[Damage] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int | None:
        """How many records the damage costs; None if that cannot be told."""
        return total_lost(self.damage)

    def settle(self, path: str, *, accept: bool) -> None:
        """Compares the damage with the losses on record; `accept` marks all of it as seen."""
        self.damage, notes = settle(self.damage, path, accept=accept)
        self.notes += notes

    def add(self, damage: Damage) -> None:
        """Takes note of damage, or of an unfinished end, which is none."""
        (self.damage if is_loss(damage) else self.torn).append(damage)


@click.command("fsck")
@path_argument
@key_option
@click.option(
    "--accept",
    is_flag=True,
    help="Mark all damage and losses as seen: from then on they are notes, and the code is 0.",
)
@json_option
def command(path: str, key_file: str | None, accept: bool, as_json: bool) -> int:
    """Verify the queue PATH from its first byte to its last, read-only and without a lock.

    Lists each damage and what it costs, what was lost before, files that do not belong there, and
    the state of the side files. Code 4 if there is damage or a loss that nobody has marked as seen
    with --accept, which needs the lock and keeps what it marks in the file "losses". The
    unfinished end that a crash leaves is reported and is no
    damage: nobody was told that those records are stored.
    """

    def on_log() -> int:
        refuse_options("log", {"--key-file": key_file})
        return _fsck_log(path, accept, as_json)

    def on_events() -> int:
        from forebay.cli.event_reports import check_events

        return check_events(path, key_file, accept, as_json)

    def on_fifo() -> int:
        from forebay.cli.fifo_check import check_fifo

        refuse_options("fifo", {"--key-file": key_file})
        return check_fifo(path, accept, as_json)

    actions = {"log": on_log, "beats": on_events, "fifo": on_fifo}
    for kind in ("deadline", ORIGINAL):
        actions[kind] = partial(_fsck_deadline, path, kind, key_file, accept, as_json)
    return act(path, "fsck", actions)


def _fsck_deadline(path: str, kind: str, key_file: str | None, accept: bool, as_json: bool) -> int:
    from forebay.cli.deadline_check import check_deadline, check_original

    refuse_options(kind, {"--key-file": key_file})
    if kind == "deadline":
        return check_deadline(path, accept, as_json)
    refuse_options(kind, {"--accept": accept})
    return check_original(path, as_json)


def _fsck_log(path: str, accept: bool, as_json: bool) -> int:
    with LogReader(path) as reader:
        findings = check(reader)
    findings.settle(path, accept=accept)
    if as_json:
        write_findings(findings, summary(findings))
    else:
        write_text(findings, record="record", file="segment", queue=NAMES["log"], states=STATES)
    return exits.DAMAGE if findings.damage else exits.OK


def check(reader: LogReader) -> Findings:
    """Reads everything and gives what was found."""
    findings = Findings()
    owner = owner_of(reader.path)
    findings.state = state_of(reader, owner)
    facts = segment_facts(reader, owner)
    findings.segments = len(facts)
    findings.bytes = sum(segment.size for segment in facts)
    _check_records(reader, findings)
    damage = end_damage(reader, owner)
    if damage is not None:
        findings.add(damage)
    _check_side_files(reader, findings)
    findings.foreign = foreign_names(reader)
    findings.notes += [
        f"{name} was left half made; the next open removes it" for name in temporary_names(reader)
    ]
    unchecked = {segment.version for segment in facts if segment.version is not None}
    for version in sorted(unchecked):
        if not LAYOUTS[version].checked:
            findings.notes.append(f"version {version} has no checksums: only sizes were checked")
    kept_files, kept_bytes = count_kept(reader.directory)
    if kept_files:
        size = size_text(kept_bytes)
        findings.notes.append(f"quarantine/ keeps {plural(kept_files, 'file')} ({size})")
    return findings


def _check_records(reader: LogReader, findings: Findings) -> None:
    ends: dict[str, int] = {}
    with Bar("fsck", len(reader)) as bar:
        for item in reader.scan():
            if isinstance(item, Damage):
                findings.add(item)
                ends[os.path.basename(item.path)] = item.position + item.length
                continue
            findings.records += len(item.values)
            taken = sum(map(len, item.values)) + len(item.values) * item.frame_bytes
            ends[item.segment] = item.position + taken
            bar.update(item.offset + len(item.values) - reader.begin)
    for found in after_the_records(reader, ends):
        if isinstance(found, Damage):
            findings.add(found)
        else:
            findings.notes.append(found)


def _check_side_files(reader: LogReader, findings: Findings) -> None:
    places, damage = read_positions(reader.directory)
    if damage is not None:
        findings.add(damage)
    for name, offset in places.items():
        if offset > reader.end:
            findings.notes.append(f"{INDEX}: consumer {name!r} is past the end, at {offset}")
        elif offset < reader.begin:
            missed = plural(reader.begin - offset, "record")
            findings.notes.append(f"{INDEX}: consumer {name!r} at {offset} has missed {missed}")
    try:
        inbox.read_ledger(reader.directory)
    except Damaged as error:
        findings.add(error.damage)
    findings.notes += side_file_faults(reader)
    if reader.tail is None and TAIL in reader.directory.names():
        path = f"{reader.path}/{TAIL}"
        findings.add(Damage(path, 0, 0, "it tells no end that is true", count=0))


def summary(findings: Findings) -> dict[str, Any]:
    """Returns the counts, for the last line of JSON."""
    return {
        "records": findings.records,
        "segments": findings.segments,
        "bytes": findings.bytes,
        "state": findings.state,
        "damage": len(findings.damage),
        "torn": len(findings.torn),
        "lost": findings.lost,
        "foreign": len(findings.foreign),
    }


def write_findings(findings: Findings, counts: dict[str, Any]) -> None:
    """Prints what was found as lines of JSON, the counts last."""
    write_damage([*findings.damage, *findings.torn])
    for name in findings.foreign:
        write_json({"foreign": name})
    for note in findings.notes:
        write_json({"note": note})
    write_json({"summary": counts})


def write_text(
    findings: Findings, *, record: str, file: str, queue: str, states: Mapping[str, str]
) -> None:
    """Prints what was found as lines; the words are what a queue calls its parts."""
    for damage in [*findings.damage, *findings.torn]:
        print(describe(damage))
    for name in findings.foreign:
        print(f"foreign: {name} does not belong to {queue}")
    for note in findings.notes:
        print(f"note: {note}")
    if findings.state not in ("open", "closed"):
        print(f"note: {states[findings.state]}")
    if findings.damage:
        places = plural(len(findings.damage), "damaged place")
        lost = plural_or_unknown(findings.lost, record)
        verdict = f'{places}, {lost} lost; "forebay recover" saves the rest'
    else:
        verdict = "no damage"
    good = f"{plural(findings.records, f'good {record}')} in {plural(findings.segments, file)}"
    print(f"{good} ({size_text(findings.bytes)}): {verdict}")
