"""`fsck` of a fifo: every entry from the head on, the files it lies in, and the side files."""

from __future__ import annotations

import os

from forebay import FifoReader
from forebay.cli import exits
from forebay.cli.fifo_inspection import (
    STATES,
    end_damage,
    is_being_made,
    size_of,
    state_of,
    tape_files,
)
from forebay.cli.fsck import Findings, summary, write_findings, write_text
from forebay.cli.inspection import owner_of
from forebay.cli.kinds import NAMES
from forebay.cli.output import Bar, plural, size_text
from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.formats.entry import parse_file_name
from forebay.queues.fifo.head import HEAD_BYTES
from forebay.queues.fifo.names import (
    COPY,
    HEAD,
    OWN_DIRECTORIES,
    OWN_NAMES,
    TAIL,
    is_temporary,
)
from forebay.storage.quarantine import count_kept

# Two slots in two pages.
TAIL_BYTES_MAX = 8192


def check_fifo(path: str, accept: bool, as_json: bool) -> int:
    """Verifies every entry of a fifo that has not left it."""
    with FifoReader(path) as reader:
        findings, expired = _check(reader)
    findings.settle(path, accept=accept)
    if as_json:
        write_findings(findings, {**summary(findings), "expired": expired})
    else:
        if expired:
            text = f"{expired} of the entries have expired; they go when somebody takes the next"
            findings.notes.append(text)
        write_text(findings, record="entry", file="file", queue=NAMES["fifo"], states=STATES)
    return exits.DAMAGE if findings.damage else exits.OK


def _check(reader: FifoReader) -> tuple[Findings, int]:
    findings = Findings()
    owner = owner_of(reader.path)
    findings.state = state_of(reader, owner)
    files = tape_files(reader)
    findings.segments = len(files)
    findings.bytes = sum(file.size for file in files)
    expired = _check_entries(reader, findings)
    _check_sizes(reader, findings, owner)
    damage = end_damage(reader, owner)
    if damage is not None:
        findings.add(damage)
    _check_side_files(reader, findings, owner)
    _check_names(reader, findings)
    kept_files, kept_bytes = count_kept(reader.directory)
    if kept_files:
        size = size_text(kept_bytes)
        findings.notes.append(f"quarantine/ keeps {plural(kept_files, 'file')} ({size})")
    return findings, expired


def _check_entries(reader: FifoReader, findings: Findings) -> int:
    """Reads all entries; gives how many of them have expired."""
    expired = 0
    now_ms = SystemClock().now_ms()
    with Bar("fsck", len(reader)) as bar:
        for item in reader.scan():
            if isinstance(item, Damage):
                findings.add(item)
                continue
            findings.records += len(item.values)
            rows = zip(item.ids, item.ttls, strict=True)
            expired += sum(1 for id, ttl in rows if ttl and (id >> 16) + ttl * 1000 <= now_ms)
            bar.update(findings.records)
    return expired


def _check_sizes(reader: FifoReader, findings: Findings, owner: int | None) -> None:
    """Adds files of the wrong size, unless the damage that they make is there already."""
    file_bytes = reader.head.file_bytes
    hit: set[int] = set()
    for damage in findings.damage:
        first = parse_file_name(os.path.basename(damage.path))
        if first is not None:
            reach = damage.position + max(1, damage.length) - 1
            hit.update(range(first, first + reach // file_bytes + 1))
    needed = min([reader.head.position, *(row.position for row in reader.lent)]) // file_bytes
    for file in tape_files(reader):
        if file.trouble is None or file.number < needed or file.number in hit:
            continue
        if file.size > file_bytes:
            # Nothing is missing, and nobody reads it.
            findings.notes.append(_junk(file.name, file.size - file_bytes))
            continue
        torn = is_being_made(reader, file)
        if torn and owner is not None:
            continue
        path = f"{reader.path}/{file.name}"
        findings.add(Damage(path, file.size, file_bytes - file.size, file.trouble, torn, count=0))


def _check_side_files(reader: FifoReader, findings: Findings, owner: int | None) -> None:
    if owner is None:
        for damage in reader.trouble:
            findings.add(damage)
        if not reader.head_is_stored and not reader.trouble:
            text = "no good mark of this queue is in it; the next open makes it again"
            findings.notes.append(f"{HEAD}: {text}")
    if reader.tail is None:
        reason = "no mark in it verifies, or it is gone: the newest entries may be missing"
        findings.add(Damage(f"{reader.path}/{TAIL}", 0, 0, reason, count=0))
    elif reader.tail.durable < reader.begin:
        lost = plural(reader.begin - reader.tail.durable, "popped entry")
        findings.notes.append(f"{lost} are not on the disk; the next open goes on after them")
    if reader.lent:
        findings.notes.append(f"{len(reader.lent)} of the entries are taken and not finished with")
    for name, most in ((HEAD, HEAD_BYTES), (TAIL, TAIL_BYTES_MAX)):
        size = size_of(reader, name)
        if size > most:
            findings.notes.append(_junk(name, size - most))


def _junk(name: str, size: int) -> str:
    return f"{name} has {plural(size, 'byte')} after its end that nobody reads"


def _check_names(reader: FifoReader, findings: Findings) -> None:
    known = OWN_NAMES | OWN_DIRECTORIES
    for name in sorted(reader.directory.names()):
        if is_temporary(name):
            findings.notes.append(f"{name} was left half made; the next open removes it")
        elif name == COPY:
            findings.notes.append(f"{name}: a recovery was interrupted; the next open goes on")
        elif name not in known and parse_file_name(name) is None:
            findings.foreign.append(name)
