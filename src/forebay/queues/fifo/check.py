"""Checks a fifo from outside: what is wrong, what it holds, and a copy of the readable part.

Only reads the fifo, takes no lock, and works on one that is in use, was killed, or is damaged.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.formats.entry import file_name, parse_file_name
from forebay.kernels.entry import Entry
from forebay.queues.fifo import dead
from forebay.queues.fifo.bounds import Bounds
from forebay.queues.fifo.head import HEAD_BYTES, SLOT_STRIDE, read_head, read_slots
from forebay.queues.fifo.info import FifoInfo
from forebay.queues.fifo.names import (
    BOUNDS,
    COPY,
    HEAD,
    OWN_DIRECTORIES,
    OWN_NAMES,
    TAIL,
    is_temporary,
    list_files,
)
from forebay.queues.fifo.queue import Fifo
from forebay.queues.fifo.reader import FifoReader
from forebay.queues.fifo.scanner import EntryBatch
from forebay.queues.fifo.tape import open_or_reason
from forebay.queues.shared.reports import (
    CopyClock,
    CopyReport,
    Findings,
    Progress,
    Report,
    SegmentFacts,
    plural,
)
from forebay.storage.filesystem import disk_bytes
from forebay.storage.losses import count_unaccepted
from forebay.storage.quarantine import count_kept
from forebay.storage.readable import Stores
from forebay.storage.tail import TailFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoReport(Report):
    """What a check of a fifo found; `expired` counts the entries past their time."""

    expired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeFile(SegmentFacts):
    """One file of the tape; `known`: it is recorded where the first entry in it begins.

    `first_position` and `first_offset` are those of that entry; None if none begins there or it is
    known. `records` is never known: an entry may span files.
    """

    number: int
    first_position: int | None
    first_offset: int | None
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoCopy(CopyReport):
    """What a copy of a fifo did; `expired` entries were left out."""

    expired: int


def check(path: str, progress: Progress, filesystem: Stores | None = None) -> FifoReport:
    """Verifies all entries that have not left the fifo, their files, and the side files."""
    with FifoReader(path, filesystem=filesystem) as reader:
        findings = Findings()
        owner = reader.owner()
        files = _tape_files(reader)
        records, expired = _check_entries(reader, findings, progress)
        _check_sizes(reader, files, findings, owner)
        end = end_damage(reader, owner)
        findings.found += [end] if end is not None else []
        _check_side_files(reader, findings, owner)
        _check_names(reader, findings)
        findings.note_kept(reader.directory)
        if expired:
            text = f"{plural(expired, 'entry')} expired; skipped when the next one is taken"
            findings.notes.append(text)
        return FifoReport(
            kind="fifo",
            path=reader.path,
            state=_state(reader, owner),
            records=records,
            segments=len(files),
            bytes=sum(file.bytes for file in files),
            expired=expired,
            **findings.as_fields(),
        )


def describe(path: str) -> FifoInfo:
    """Returns the state of a fifo."""
    with FifoReader(path) as reader:
        owner = reader.owner()
        files = _tape_files(reader)
        end = end_damage(reader, owner)
        kept_files, kept_bytes = count_kept(reader.directory)
        tail = reader.tail
        batches = (item for item in reader.scan() if isinstance(item, EntryBatch))
        following = next((batch.ids[0] for batch in batches), None)
        return FifoInfo(
            kind="fifo",
            path=reader.path,
            state=_state(reader, owner),
            owner=owner,
            records=len(reader),
            segments=len(files),
            bytes=sum(file.bytes for file in files),
            damage=() if end is None else (end,),
            losses=count_unaccepted(reader.directory),
            quarantined_files=kept_files,
            quarantined_bytes=kept_bytes,
            begin=reader.begin,
            end=reader.end,
            durable=reader.end if tail is None else min(tail.durable, reader.end),
            taken=len(reader.lent),
            dead=dead.count(reader.directory),
            entry_bytes=reader.tape_bytes,
            file_bytes=reader.head.file_bytes,
            disk_bytes=sum(disk_bytes(f"{reader.path}/{file.name}") for file in files),
            expired=reader.head.expired,
            dropped=reader.head.dropped,
            damaged=reader.head.damaged,
            next_id=following,
            next_time_ms=None if following is None else following >> 16,
            incarnation=tail.incarnation if tail is not None else None,
        )


def segments(path: str) -> list[TapeFile]:
    """Describes the files of the tape, in order."""
    with FifoReader(path) as reader:
        return _tape_files(reader)


def copy(path: str, target: str, progress: Progress) -> FifoCopy:
    """Copies the entries that can be read and have not expired into a new fifo.

    An entry keeps its value, the time of its push and its time to live: the copy is written with
    the clock at that time, so it expires when the original would have. The time in its id is the
    same, or a millisecond later where the new numbers wrap; the rest of an id is the new number of
    the entry.
    """
    copied = expired = 0
    now_ms = SystemClock().now_ms()
    clock = CopyClock(0)
    with FifoReader(path) as reader:
        owner = reader.owner()
        damage = list(reader.trouble)
        size = reader.head.file_bytes
        with Fifo(target, clock=clock, file_bytes=size, sync="os", background=False) as fifo:
            for item in reader.scan():
                progress(copied + expired, len(reader))
                if isinstance(item, Damage):
                    damage.append(item)
                    continue
                entries = item.entries()
                alive = [entry for entry in entries if is_alive(entry, now_ms)]
                for clock.ms, ttl, values in _runs(alive):
                    fifo.push_many(values, ttl_seconds=ttl)
                copied += len(alive)
                expired += len(entries) - len(alive)
        end = end_damage(reader, owner)
        damage += [end] if end is not None else []
        left_out = f"{plural(expired, 'entry')} left out that had expired"
        return FifoCopy(
            kind="fifo",
            path=reader.path,
            target=fifo.path,
            copied=copied,
            damage=tuple(damage),
            notes=(left_out,) if expired else (),
            expired=expired,
        )


def is_alive(entry: Entry, now_ms: int) -> bool:
    """Says whether an entry has not expired."""
    return entry.expires_ms is None or entry.expires_ms > now_ms


def end_damage(reader: FifoReader, owner: int | None) -> Damage | None:
    """Returns what follows the last entry, if anything does: usually an unfinished write.

    Nothing can be said about a queue that is in use: its owner may be writing there now.
    """
    if owner is not None or (reader.tail is not None and reader.tail.clean):
        return None
    file_bytes = reader.head.file_bytes
    first: tuple[str, int] | None = None
    begin = end = 0
    for number in list_files(reader.directory):
        start = max(0, reader.stored.position - number * file_bytes)
        rest = _rest(reader, number, start) if start < file_bytes else b""
        if not rest:
            continue
        if first is None:
            first = (f"{reader.path}/{file_name(number)}", start)
            begin = number * file_bytes + start
        end = number * file_bytes + start + len(rest)
    if first is None:
        return None
    return Damage(*first, end - begin, "after the last entry", True, reader.end, 0)


def _rest(reader: FifoReader, number: int, start: int) -> bytes:
    file = open_or_reason(reader.directory, file_name(number))
    if isinstance(file, str):
        return b""
    with contextlib.closing(file):
        return file.pread(reader.head.file_bytes - start, start).rstrip(b"\0")


def _state(reader: FifoReader, owner: int | None) -> str:
    if owner is not None:
        return "open"
    if read_head(reader.directory) is None:
        return "head-damaged"
    if reader.tail is None:
        return "tail-damaged"
    return "closed" if reader.tail.clean else "crashed"


def _tape_files(reader: FifoReader) -> list[TapeFile]:
    bounds = Bounds(reader.directory, reader.head.version)
    expected = reader.head.file_bytes
    files = []
    for number in list_files(reader.directory):
        name = file_name(number)
        size = reader.size_of(name)
        row = bounds.get(number)
        first = None if row is None or row.position >= expected else row
        wrong = size != expected and not _is_being_made(reader, number, size)
        files.append(
            TapeFile(
                name=name,
                records=None,
                bytes=size,
                error=f"the file has {size} bytes, not {expected}" if wrong else None,
                number=number,
                first_position=None if first is None else first.position,
                first_offset=None if first is None else first.number,
                known=row is not None,
            )
        )
    return files


def _is_being_made(reader: FifoReader, number: int, size: int) -> bool:
    """Says whether a file has the wrong size only because it is unfinished: no data is missing."""
    tail = reader.tail
    if tail is None or tail.clean:
        return False
    return (number, size) >= (tail.segment, tail.position)


def _check_entries(reader: FifoReader, findings: Findings, progress: Progress) -> tuple[int, int]:
    """Reads all entries; returns how many there are, and how many of them have expired."""
    records = expired = 0
    now_ms = SystemClock().now_ms()
    for item in reader.scan():
        progress(records, len(reader))
        if isinstance(item, Damage):
            findings.found.append(item)
            continue
        records += len(item.values)
        rows = zip(item.ids, item.ttls, strict=True)
        expired += sum(1 for id, ttl in rows if ttl and (id >> 16) + ttl * 1000 <= now_ms)
    return records, expired


def _check_sizes(
    reader: FifoReader, files: list[TapeFile], findings: Findings, owner: int | None
) -> None:
    """Adds the files of the wrong size, unless the damage they cause is already reported."""
    file_bytes = reader.head.file_bytes
    hit: set[int] = set()
    for damage in findings.found:
        first = parse_file_name(os.path.basename(damage.path))
        if first is not None:
            reach = damage.position + max(1, damage.length) - 1
            hit.update(range(first, first + reach // file_bytes + 1))
    needed = min([reader.head.position, *(row.position for row in reader.lent)]) // file_bytes
    for file in files:
        if file.bytes == file_bytes or file.number < needed or file.number in hit:
            continue
        if file.bytes > file_bytes:
            # No data is missing, and the extra bytes are never read.
            findings.note_junk(file.name, file.bytes, file_bytes)
            continue
        torn = file.error is None
        if torn and owner is not None:
            continue
        reason = f"the file has {file.bytes} bytes, not {file_bytes}"
        path = f"{reader.path}/{file.name}"
        missing = file_bytes - file.bytes
        findings.found.append(Damage(path, file.bytes, missing, reason, torn, count=0))


def _check_side_files(reader: FifoReader, findings: Findings, owner: int | None) -> None:
    if owner is None:
        findings.found += reader.trouble
        if not reader.head_is_stored and not reader.trouble:
            text = "it has no good mark of this queue; the next open writes it again"
            findings.notes.append(f"{HEAD}: {text}")
    if reader.tail is None:
        reason = "no mark in it verifies, or it is gone: the newest entries may be missing"
        findings.found.append(Damage(f"{reader.path}/{TAIL}", 0, 0, reason, count=0))
    elif reader.tail.durable < reader.begin:
        lost = plural(reader.begin - reader.tail.durable, "popped entry")
        findings.notes.append(f"{lost} are not on the disk; the next open continues after them")
    if reader.lent:
        findings.notes.append(f"{plural(len(reader.lent), 'entry')} taken and not finished")
    aside = list(dead.read(reader.directory))
    findings.found += [item for item in aside if isinstance(item, Damage)]
    if aside:
        findings.notes.append(f"{plural(len(aside), 'entry')} put aside in {dead.DIRECTORY}/")
    findings.note_junk(HEAD, reader.size_of(HEAD), HEAD_BYTES)
    if owner is None:
        findings.note_faults(HEAD, lambda: _head_faults(reader))
        findings.note_faults(TAIL, lambda: _tail_faults(reader))
        findings.note_junk(BOUNDS, *Bounds(reader.directory, reader.head.version).sizes)


def _head_faults(reader: FifoReader) -> Iterator[str]:
    """Says which slots do not verify, if no data is lost: the other slots have the head."""
    if reader.head_is_stored and not reader.trouble:
        for slot in read_slots(reader.directory).bad:
            yield f"the slot at byte {slot * SLOT_STRIDE} does not verify"


def _tail_faults(reader: FifoReader) -> list[str]:
    file = TailFile.open(reader.directory, write=False, name=TAIL)
    if file is None:
        return []
    with contextlib.closing(file):
        return file.faults() if reader.tail is not None else []


def _check_names(reader: FifoReader, findings: Findings) -> None:
    known = OWN_NAMES | OWN_DIRECTORIES
    for name in sorted(reader.directory.names()):
        if is_temporary(name):
            findings.note_half_made(name)
        elif name == COPY:
            findings.notes.append(f"{name}: a recovery was interrupted; the next open continues it")
        elif name not in known and parse_file_name(name) is None:
            findings.foreign.append(name)


def _runs(entries: list[Entry]) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yields the entries of one time and one time to live together, in their order."""
    for (time_ms, ttl), run in groupby(entries, lambda entry: (entry.time_ms, entry.ttl_seconds)):
        yield time_ms, ttl, [entry.value for entry in run]
