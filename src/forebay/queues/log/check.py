"""A log from outside: what is wrong with it, what it holds, and a copy of what can be read.

Only reads the log, takes no lock, and works on a log that is in use, has crashed, or is damaged.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, InvalidOption
from forebay.formats.fflg import LAYOUTS, VERSION_DEFAULT, Frames, Header
from forebay.kernels.fflg import FRAME_BYTES, Columns
from forebay.queues.log.info import LogInfo
from forebay.queues.log.places import INDEX, read_consumers
from forebay.queues.log.queue import Log
from forebay.queues.log.reader import LogReader
from forebay.queues.log.scanner import OpenSegment, RecordBatch
from forebay.queues.shared.names import LOG
from forebay.queues.shared.reports import (
    CopiedRun,
    CopyClock,
    CopyReport,
    Findings,
    Progress,
    Report,
    SegmentFacts,
    places,
    plural,
)
from forebay.storage import inbox
from forebay.storage.atomic import TEMPORARY
from forebay.storage.checked import CheckedFile
from forebay.storage.losses import count_unaccepted
from forebay.storage.quarantine import count_kept
from forebay.storage.readable import Stores
from forebay.storage.segments import scan_segment
from forebay.storage.tail import NAME as TAIL
from forebay.storage.tail import TailFile

# What is verified at a time: the most rows, and the most bytes that a row of int32 can tell.
_ROWS_MAX = 1 << 15
_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment(SegmentFacts):
    """One segment of a log."""

    first_offset: int
    version: int | None
    first_time_ms: int | None
    sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCopy(CopyReport):
    """What a copy of a log did; `consumers` are the places in the new log."""

    same_offsets: bool
    consumers: dict[str, int]
    consumers_damage: str | None


def check(path: str, progress: Progress, filesystem: Stores | None = None) -> Report:
    """Reads everything."""
    with LogReader(path, filesystem=filesystem) as reader:
        findings = Findings()
        owner = reader.owner()
        segments = _segments(reader, owner)
        records = _check_records(reader, findings, progress)
        end = end_damage(reader, owner)
        findings.found += [end] if end is not None else []
        _check_side_files(reader, findings, owner)
        _check_names(reader, findings)
        unverifiable = list(_unverifiable(reader, segments))
        findings.notes += sorted({part.reason for part in unverifiable})
        findings.note_kept(reader.directory)
        return Report(
            kind="log",
            path=reader.path,
            state=_state(reader, owner),
            records=records,
            segments=len(segments),
            bytes=sum(segment.bytes for segment in segments),
            unverifiable=tuple(unverifiable),
            **findings.as_fields(),
        )


def describe(path: str) -> LogInfo:
    """Returns the state of a log."""
    with LogReader(path) as reader:
        owner = reader.owner()
        segments = _segments(reader, owner)
        end = end_damage(reader, owner)
        kept_files, kept_bytes = count_kept(reader.directory)
        try:
            positions, reason = reader.consumers(), None
        except Damaged as error:
            positions, reason = {}, str(error)
        tail = reader.tail
        return LogInfo(
            kind="log",
            path=reader.path,
            state=_state(reader, owner),
            owner=owner,
            records=len(reader),
            segments=len(segments),
            bytes=sum(segment.bytes for segment in segments),
            damage=() if end is None else (end,),
            losses=count_unaccepted(reader.directory),
            quarantined_files=kept_files,
            quarantined_bytes=kept_bytes,
            begin=reader.begin,
            end=reader.end,
            durable=min(reader.durable, reader.end),
            version=newest_version(reader) if segments else None,
            last_time_ms=(tail.time_ms or None) if tail is not None else None,
            consumers=places(positions, reader.end),
            consumers_damage=reason,
            cursors=places(reader.cursors(), reader.end),
            incarnation=tail.incarnation if tail is not None else None,
        )


def segments(path: str) -> list[LogSegment]:
    """Describes each segment."""
    with LogReader(path) as reader:
        return _segments(reader, reader.owner())


def copy(path: str, target: str, progress: Progress) -> LogCopy:
    """Copies all that can be read into a new log.

    Order, values and times stay the same. Offsets begin at 0 and leave no gaps where records are
    lost; consumers are carried over to the same records, cursors are not.
    """
    copying = Copying()
    clock = CopyClock()
    with (
        LogReader(path, salvage=True) as reader,
        Log(target, sync="os", clock=clock, background=False) as log,
    ):
        owner = reader.owner()
        for item in reader.scan():
            progress(copying.copied, len(reader))
            if isinstance(item, Damage):
                copying.damage.append(item)
                continue
            copying.add_run(item.offset, log.end, len(item.values))
            _append(log, clock, item)
        end = end_damage(reader, owner)
        copying.damage += [end] if end is not None else []
        consumers, reason = _carry_consumers(reader, log, copying)
        return LogCopy(
            kind="log",
            path=reader.path,
            target=log.path,
            copied=copying.copied,
            damage=tuple(copying.damage),
            runs=tuple(copying.runs),
            notes=_consumer_notes(consumers, reason),
            same_offsets=all(run.source == run.target for run in copying.runs),
            consumers=consumers,
            consumers_damage=reason,
        )


def end_damage(reader: LogReader, owner: int | None) -> Damage | None:
    """Returns what is after the last record and is not a record: mostly an unfinished write.

    Returns None for a queue that is in use: its owner may be writing there now.
    """
    tail = reader.tail
    if owner is not None or not reader.segments.bases or (tail is not None and tail.clean):
        return None
    base = reader.segments.bases[-1]
    try:
        segment = OpenSegment(reader.directory, reader.segments.names[base], base)
    except Damaged as error:
        # Below the end, the scan reports it; at or above it, the file was just being made.
        return replace(error.damage, torn=True) if base >= reader.written else None
    except ForebayError:
        return None
    position, index = segment.frames.layout.header_bytes, 0
    if tail is not None and tail.segment == base and tail.durable >= base:
        # Before the first sync the position in the mark is 0, which is before the header.
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


def newest_version(reader: LogReader) -> int:
    """Returns the version that new segments get by default."""
    if not reader.segments.bases:
        return VERSION_DEFAULT
    base = reader.segments.bases[-1]
    version, _, _ = _header_facts(reader, reader.segments.names[base], base)
    return version or VERSION_DEFAULT


def _state(reader: LogReader, owner: int | None) -> str:
    if owner is not None:
        return "open"
    if reader.archived:
        return "archived"
    if reader.tail is not None:
        return "closed" if reader.tail.clean else "crashed"
    return "tail-damaged" if TAIL in reader.directory.names() else "foreign"


def _segments(reader: LogReader, owner: int | None) -> list[LogSegment]:
    """Describes each segment; counts come from the base of the next one, or the end."""
    clean = owner is None and reader.tail is not None and reader.tail.clean
    facts = []
    for base, following in itertools.pairwise([*reader.segments.bases, None]):
        assert base is not None
        name = reader.segments.names[base]
        version, first_time_ms, reason = _header_facts(reader, name, base)
        end = reader.written if following is None else following
        facts.append(
            LogSegment(
                name=name,
                records=max(0, end - base),
                bytes=reader.size_of(name),
                error=reason,
                first_offset=base,
                version=version,
                first_time_ms=first_time_ms,
                sealed=following is not None or clean,
            )
        )
    return facts


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
    reason = segment.damage.reason if segment.damage is not None else None
    return header.version, first_time_ms, reason


def _unverifiable(reader: LogReader, segments: Sequence[LogSegment]) -> Iterator[Damage]:
    """Yields the segments of versions that have no checksums."""
    for segment in segments:
        if segment.version is not None and not LAYOUTS[segment.version].checked:
            path = f"{reader.path}/{segment.name}"
            reason = f"version {segment.version} has no checksums: only sizes were checked"
            yield Damage(path, 0, segment.bytes, reason, False, segment.first_offset, 0)


def _check_records(reader: LogReader, findings: Findings, progress: Progress) -> int:
    """Reads all records; returns how many there are."""
    records = 0
    ends: dict[str, int] = {}
    frames = partial(_CountedFrames, columns=Columns(_INT32_MAX, _ROWS_MAX, False))
    for item in reader.scan(frames=frames):
        progress(records, len(reader))
        if isinstance(item, Damage):
            findings.found.append(item)
            ends[os.path.basename(item.path)] = item.position + item.length
            continue
        rows: Any = item.values
        records += len(rows)
        if isinstance(rows, _CountedRows):
            taken = rows.end
        else:
            taken = sum(map(len, rows)) + len(rows) * item.frame_bytes
        ends[item.segment] = item.position + taken
    for found in _after_the_records(reader, ends):
        if isinstance(found, Damage):
            findings.found.append(found)
        else:
            findings.notes.append(found)
    return records


@dataclass(frozen=True, slots=True)
class _CountedRows:
    """Records that were verified and not kept; they are valid until the next ones are."""

    columns: Columns
    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first

    def __getitem__(self, part: slice) -> _CountedRows:
        first, stop, _ = part.indices(len(self))
        return _CountedRows(self.columns, self.first + first, self.first + stop)

    @property
    def end(self) -> int:
        """Where the last of them ends, counted from where the batch was read."""
        payload: int = memoryview(self.columns.ends).cast("i")[self.stop]
        return payload + self.stop * FRAME_BYTES


class _CountedFrames(Frames):
    """The frames of one segment, verified without an object for each."""

    def __init__(self, header: Header, columns: Columns) -> None:
        super().__init__(header)
        self._columns = columns

    def scan(
        self, data: bytes, position: int, index: int, limit: int, times: list[int] | None
    ) -> tuple[Any, int]:
        """Takes whole, good frames from `position` on; returns their rows and where it stopped."""
        if not self.layout.checked:
            return super().scan(data, position, index, limit, times)
        self._columns.clear()
        count, stop = self._columns.take(data, position, index, self.seed, limit, 0, 0)
        return _CountedRows(self._columns, 0, count), stop


def _after_the_records(reader: LogReader, ends: dict[str, int]) -> Iterator[Damage | str]:
    """Yields what is in finished segments after their last record: hidden entries, or rubbish.

    `ends` says where the last record of each segment ends. Entries that are also at the start of
    the next segment are copies that an interrupted recovery left; others are hidden by that
    segment.
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
                yield f"{name}: {left} bytes after its last record that are not records"
            elif isinstance(hidden, Damage):
                yield hidden
        finally:
            segment.file.close()


def _is_closed(reader: LogReader) -> bool:
    return reader.owner() is None and reader.tail is not None and reader.tail.clean


def _hidden(
    reader: LogReader, segment: OpenSegment, position: int, following: int | None
) -> Damage | bool | None:
    """Compares entries from the base of the next segment on; returns True if that has the same.

    Returns None if there are none, and damage if they differ.
    """
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


def _check_side_files(reader: LogReader, findings: Findings, owner: int | None) -> None:
    offsets, damage = read_consumers(reader.directory)
    findings.found += [damage] if damage is not None else []
    for name, offset in offsets.items():
        if offset > reader.end:
            findings.notes.append(f"{INDEX}: consumer {name!r} is past the end, at {offset}")
        elif offset < reader.begin:
            missed = plural(reader.begin - offset, "record")
            findings.notes.append(f"{INDEX}: consumer {name!r} at {offset} has missed {missed}")
    try:
        inbox.read_ledger(reader.directory)
    except Damaged as error:
        findings.found.append(error.damage)
    if owner is None:
        findings.note_faults(TAIL, lambda: _tail_faults(reader))
        findings.note_faults(f"{INDEX}-check", CheckedFile(reader.directory, INDEX).faults)
    if reader.tail is None and TAIL in reader.directory.names():
        path = f"{reader.path}/{TAIL}"
        findings.found.append(Damage(path, 0, 0, "it tells no end that is true", count=0))


def _tail_faults(reader: LogReader) -> list[str]:
    file = TailFile.open(reader.directory, write=False)
    if file is None:
        return []
    try:
        return file.faults() if reader.tail is not None else []
    finally:
        file.close()


def _check_names(reader: LogReader, findings: Findings) -> None:
    known = {*LOG.own_files, *LOG.directories, *reader.segments.names.values()}
    for name in sorted(reader.directory.names()):
        if name.endswith(TEMPORARY):
            findings.note_half_made(name)
        elif name not in known:
            findings.foreign.append(name)


@dataclass(slots=True)
class Copying:
    """What a copy has done so far."""

    copied: int = 0
    damage: list[Damage] = field(default_factory=list)
    runs: list[CopiedRun] = field(default_factory=list)

    def add_run(self, source: int, target: int, count: int) -> None:
        """Notes copied records; neighbours become one run."""
        last = self.runs[-1] if self.runs else None
        if last is not None and last.source + last.count == source:
            self.runs[-1] = replace(last, count=last.count + count)
        else:
            self.runs.append(CopiedRun(source, target, count))
        self.copied += count

    def place(self, offset: int) -> int:
        """Returns the place of a consumer in the new log."""
        for run in self.runs:
            if offset < run.source + run.count:
                return run.target + max(0, offset - run.source)
        return self.copied


def _append(log: Log, clock: CopyClock, batch: RecordBatch) -> None:
    """Appends records, those of the same millisecond together."""
    if batch.times is None:
        log.append_many(batch.values)
        return
    first, count = 0, len(batch.values)
    while first < count:
        after = bisect_right(batch.times, batch.times[first], first)
        clock.ms = batch.epoch_ms + batch.times[first]
        log.append_many(batch.values[first:after])
        first = after
    clock.ms = None


def _carry_consumers(
    reader: LogReader, log: Log, copying: Copying
) -> tuple[dict[str, int], str | None]:
    """Creates the consumers of the old log in the new one; returns them, and what went wrong."""
    carried: dict[str, int] = {}
    reason = None
    try:
        positions = reader.consumers()
    except Damaged as error:
        return carried, str(error)
    for name, offset in positions.items():
        place = copying.place(offset)
        try:
            log.consumer(name, start=place)
        except InvalidOption as error:
            # An invalid name: only another program can have given it.
            reason = str(error)
            continue
        carried[name] = place
    return carried, reason


def _consumer_notes(carried: dict[str, int], reason: str | None) -> tuple[str, ...]:
    if reason is not None:
        return (f"the consumers' places are not carried over: {reason}",)
    return (f"consumers carried over: {', '.join(carried)}",) if carried else ()
