"""Checks a deadline queue from outside: what is wrong with it, what it holds, and copies of it.

Only reads the queue, takes no lock, and works on one that is in use, was killed, or is damaged.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError
from forebay.formats.deadline.items import (
    BURIED_BIT,
    FileKind,
    Item,
    Key,
    file_name,
)
from forebay.formats.deadline.manifest import NAME as MANIFEST
from forebay.formats.deadline.mark import NAME as MARK
from forebay.formats.deadline.runs import Run
from forebay.formats.deadline.wal import Record
from forebay.queues.deadline.info import DeadlineInfo
from forebay.queues.deadline.mark import mark_faults
from forebay.queues.deadline.names import OWN_DIRECTORIES, OWN_NAMES, is_temporary, list_files
from forebay.queues.deadline.original import export_run
from forebay.queues.deadline.picture import Picture
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.deadline.reader import DeadlineReader
from forebay.queues.deadline.runs import LostRun, RunFile
from forebay.queues.shared.reports import (
    CopyClock,
    CopyReport,
    Findings,
    Progress,
    Report,
    SegmentFacts,
    is_loss,
    plural,
)
from forebay.storage.losses import count_unaccepted
from forebay.storage.quarantine import count_kept
from forebay.storage.readable import Stores

# For each row of the histogram, the latest time at which its items are due, in seconds from now.
_SPANS = {
    "overdue": 0,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
_HOLDS = {
    FileKind.PENDING_RUN: "items",
    FileKind.TOMBSTONE_RUN: "tombstones",
    FileKind.DEQUEUED_RUN: "counts",
}
_BATCH_ITEMS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20
_LAST_MS = BURIED_BIT - 1
Scan = Callable[[], Iterable[Record | Damage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReport(Report):
    """What a check of a deadline queue found; `buried` counts the items put aside."""

    buried: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineFile(SegmentFacts):
    """A run or a log that counts; `holds` says what is in it."""

    holds: str
    first_deadline_ms: int | None = None
    last_deadline_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineCopy(CopyReport):
    """What a copy of a deadline queue did.

    `moved` counts the items whose deadlines were later than the queue can hold.
    """

    pending: int
    buried: int
    moved: int


def check(path: str, progress: Progress, filesystem: Stores | None = None) -> DeadlineReport:
    """Verifies every block, batch and index of the files, and the manifest."""
    with DeadlineReader(path, salvage=True, filesystem=filesystem) as reader:
        picture = reader.picture
        findings = Findings()
        # Ask for the owner first: if it ends meanwhile, it has finished what it was writing.
        owner = reader.owner()
        findings.found += [*reader.damage, *picture.mended]
        if picture.manifest_damage is not None:
            findings.found.append(picture.manifest_damage)
        items = reader.entries(whole=True)
        records, buried = count_records(items, findings, progress, picture.entry_count)
        for run in picture.runs:
            findings.found += map(_harmless, _check_ids(run.run))
        if owner is None:
            findings.found += picture.torn
            findings.note_faults(MARK, lambda: mark_faults(reader.directory))
        _check_names(picture, findings)
        findings.note_kept(reader.directory)
        return DeadlineReport(
            kind="deadline",
            path=reader.path,
            state=_state(picture, owner),
            records=records,
            segments=_file_count(picture),
            bytes=picture.size,
            buried=buried,
            **findings.as_fields(),
        )


def describe(path: str) -> DeadlineInfo:
    """Returns the state of a deadline queue, and when its items are due."""
    with DeadlineReader(path, salvage=True) as reader:
        picture = reader.picture
        owner = reader.owner()
        pending, buried, deadlines = _count_items(reader)
        kept_files, kept_bytes = count_kept(reader.directory)
        log_bytes = sum(picture.log_sizes.values())
        return DeadlineInfo(
            kind="deadline",
            path=reader.path,
            state=_state(picture, owner),
            owner=owner,
            records=pending + buried,
            segments=_file_count(picture),
            bytes=picture.size,
            damage=tuple(picture.damage),
            losses=count_unaccepted(reader.directory),
            quarantined_files=kept_files,
            quarantined_bytes=kept_bytes,
            pending=pending,
            due=deadlines["overdue"],
            working=None if owner is not None else 0,
            buried=buried,
            next_deadline_ms=next_deadline(reader),
            next_id=None if picture.guessed else picture.manifest.next_id,
            runs=_run_count(picture),
            logs=len(picture.log_sizes),
            run_bytes=picture.size - log_bytes,
            log_bytes=log_bytes,
            deadlines=deadlines,
        )


def segments(path: str) -> list[DeadlineFile]:
    """Describes the runs and logs that count."""
    with DeadlineReader(path, salvage=True) as reader:
        picture = reader.picture
        damaged = {os.path.basename(damage.path): damage.reason for damage in picture.damage}
        files = []
        runs: list[RunFile | LostRun] = [*picture.runs, *picture.lost_runs]
        for found in sorted(runs, key=lambda run: run.name):
            footer = found.run.footer if isinstance(found, RunFile) else None
            full = footer if footer is not None and footer.count else None
            files.append(
                DeadlineFile(
                    name=found.name,
                    records=None if footer is None else footer.count,
                    bytes=found.size if isinstance(found, RunFile) else 0,
                    error=damaged.pop(found.name, None),
                    holds=_HOLDS[found.kind],
                    first_deadline_ms=None if full is None else _deadline(full.first_key),
                    last_deadline_ms=None if full is None else _deadline(full.last_key),
                )
            )
        sizes = picture.log_sizes
        logs = {**sizes, **{name: 0 for name in damaged if name not in sizes}}
        for name, size in logs.items():
            reason = damaged.get(name)
            files.append(
                DeadlineFile(name=name, records=None, bytes=size, error=reason, holds="log")
            )
        return files


def copy(path: str, target: str, progress: Progress) -> DeadlineCopy:
    """Copies all items that can be read into a new queue.

    An item keeps its value, its deadline and the time of its enqueue: the copy is made with the
    clock at that time. A buried item stays buried, with its reason and the time of its burial. Ids
    are new, and how often an item was dequeued counts from 0.
    """
    with DeadlineReader(path, salvage=True) as reader:
        picture = reader.picture
        # Ask for the owner first: if it ends meanwhile, it has finished what it was writing.
        torn = picture.torn if reader.owner() is None else []
        copying = Copying(target, progress, picture.entry_count, [*picture.damage, *torn])
        has_buried = picture.has_buried
        return copying.run("deadline", reader.path, reader.entries, has_buried=has_buried)


def convert(
    path: str, target: str, progress: Progress, *, version: str, salvage: bool
) -> DeadlineCopy:
    """Writes what is pending as a run of the original program; buried items are left out."""
    pending = buried = 0
    with DeadlineReader(path, salvage=True) as reader:
        picture = reader.picture
        torn = picture.torn if reader.owner() is None else []
        damage = [*picture.damage, *torn]
        _stop_at_damage(damage, salvage)

        def items() -> Iterator[Item]:
            nonlocal pending, buried
            for record in reader.entries():
                progress(pending + buried, picture.entry_count)
                if isinstance(record, Damage):
                    damage.append(record)
                    _stop_at_damage(damage, salvage)
                elif record.buried:
                    buried += 1
                else:
                    yield record
                    pending += 1

        export_run(items(), target)
        left_out = f"{plural(buried, 'buried item')} left out: version 1 has no place for them"
        return DeadlineCopy(
            kind="deadline",
            path=reader.path,
            target=os.path.abspath(target),
            copied=pending,
            damage=tuple(damage),
            notes=(left_out,) if buried else (),
            pending=pending,
            buried=buried,
            moved=0,
        )


def next_deadline(reader: DeadlineReader) -> int | None:
    """Returns when the first pending item is or was due."""
    for item in reader.entries():
        if isinstance(item, Item):
            return None if item.buried else item.key.deadline_ms
    return None


def _deadline(key: Key) -> int:
    """Returns the deadline of an item, or the time of its burial if it is buried."""
    return key.deadline_ms & ~BURIED_BIT


def _state(picture: Picture, owner: int | None) -> str:
    if owner is not None:
        return "open"
    return "manifest-damaged" if picture.guessed else "closed"


def _run_count(picture: Picture) -> int:
    return len(picture.runs) + len(picture.lost_runs)


def _file_count(picture: Picture) -> int:
    return _run_count(picture) + len(picture.log_sizes)


def _check_ids(run: Run) -> list[Damage]:
    """Returns what is wrong with the index by id, which only a lookup in it shows."""
    if not run.footer.id_index_position:
        return []
    known = len(run.damage)
    try:
        run.find_id(run.footer.min_id)
    except Damaged:
        pass  # A bad block, which a scan reports.
    return run.damage[known:]


def count_records(
    items: Iterable[Record | Damage], findings: Findings, progress: Progress, total: int | None
) -> tuple[int, int]:
    """Records damage; returns how many items there are, and how many of them are buried."""
    records = buried = 0
    for item in items:
        if isinstance(item, Damage):
            findings.found.append(item)
        elif isinstance(item, Item):
            records += 1
            buried += item.buried
            progress(records, total)
    if buried:
        findings.notes.append(f"{plural(buried, 'item')} buried")
    return records, buried


def _harmless(damage: Damage) -> Damage:
    reason = f"{damage.reason}; lookups by id read all blocks"
    return Damage(damage.path, damage.position, damage.length, reason, count=0)


def _check_names(picture: Picture, findings: Findings) -> None:
    """Notes the files that do not count, and the files that do not belong there."""
    counting = {run.name for run in picture.runs} | {run.name for run in picture.lost_runs}
    counting |= set(picture.log_sizes)
    ours = {file_name(*found): found[1] for found in list_files(picture.names)}
    for name in sorted(set(picture.names) - counting - OWN_NAMES - OWN_DIRECTORIES):
        if name in ours:
            what = "log" if ours[name] is FileKind.WAL else "run"
            findings.notes.append(f"{name} is a {what} that {MANIFEST} does not count any more")
        elif is_temporary(name):
            findings.note_half_made(name)
        else:
            findings.foreign.append(name)


def _count_items(reader: DeadlineReader) -> tuple[int, int, dict[str, int]]:
    """Returns how many items are pending and buried, and when the pending ones are due.

    Counts by the indexes of the runs; if something is damaged, by iterating over all items.
    """
    now_ms = SystemClock().now_ms()
    times = [*(min(now_ms + 1000 * span, _LAST_MS) for span in _SPANS.values()), _LAST_MS]
    totals: list[int] = []
    if not reader.picture.damage:
        totals = [0, *reader.due_counts(times), len(reader)]
    # A bad block of tombstones that has not been read yet subtracts nothing.
    if not totals or totals != sorted(totals):
        deadlines = [item.key.deadline_ms for item in reader.entries() if isinstance(item, Item)]
        until = (bisect_right(deadlines, time_ms) for time_ms in times)
        totals = [0, *until, len(deadlines)]
    *due, buried = (after - before for before, after in pairwise(totals))
    return totals[-2], buried, dict(zip([*_SPANS, "later"], due, strict=True))


def _stop_at_damage(found: list[Damage], salvage: bool) -> None:
    losses = [damage for damage in found if is_loss(damage)]
    if losses and not salvage:
        raise Damaged(losses[0], 'with "--salvage" the rest is written')


class Copying:
    """Copies items into a new queue."""

    def __init__(
        self, target: str, progress: Progress, total: int | None, damage: list[Damage]
    ) -> None:
        self._progress = progress
        self._total = total
        self._damage = damage
        self._clock = CopyClock(0)
        self._queue = DeadlineQueue(target, clock=self._clock, sync="os", background=False)
        self._pending = self._buried = self._moved = 0

    def run(self, kind: str, path: str, scan: Scan, *, has_buried: bool) -> DeadlineCopy:
        """Copies all that a scan yields."""
        with self._queue as queue:
            if has_buried:
                # Before anything else is due: an item must be taken before it can be buried.
                for item in scan():
                    if isinstance(item, Item) and item.buried:
                        self._bury(item)
            for batch in _batches(scan(), self._damage):
                self._enqueue(batch)
            copied = self._pending + self._buried
            if len(queue) != copied:
                raise ForebayError(f"{queue.path} has {len(queue)} items, and {copied} were copied")
        late = (
            f"{plural(self._moved, 'item')} with a deadline past the year 6429, moved to that year"
        )
        aside = f"buried items: {self._buried}"
        return DeadlineCopy(
            kind=kind,
            path=path,
            target=queue.path,
            copied=copied,
            damage=tuple(self._damage),
            notes=(*((late,) if self._moved else ()), *((aside,) if self._buried else ())),
            pending=self._pending,
            buried=self._buried,
            moved=self._moved,
        )

    def _enqueue(self, batch: list[Item]) -> None:
        """Copies pending items with the same times."""
        deadline_ms = min(batch[0].key.deadline_ms, _LAST_MS)
        self._moved += len(batch) if batch[0].key.deadline_ms > _LAST_MS else 0
        self._clock.ms = batch[0].stats.enqueue_ms
        self._queue.enqueue_many([item.value for item in batch], deadline_ms=deadline_ms)
        self._pending += len(batch)
        self._go_on()

    def _bury(self, item: Item) -> None:
        """Copies a buried item, with the time of its burial."""
        self._clock.ms = item.stats.enqueue_ms
        self._queue.enqueue(item.value, deadline_ms=0)
        self._clock.ms = item.key.deadline_ms & ~BURIED_BIT
        (copied,) = self._queue.dequeue_many(1)
        self._queue.bury(copied, item.reason.decode(errors="replace"))
        self._buried += 1
        self._go_on()

    def _go_on(self) -> None:
        self._queue.maintain()
        self._progress(self._pending + self._buried, self._total)


def _batches(records: Iterable[Record | Damage], damage: list[Damage]) -> Iterator[list[Item]]:
    """Yields pending items in order, grouped by equal times."""
    pending = _pending(records, damage)
    for _, same in groupby(pending, lambda item: (item.key.deadline_ms, item.stats.enqueue_ms)):
        batch: list[Item] = []
        size = 0
        for item in same:
            if batch and (
                size + len(item.value) > _BATCH_BYTES_MAX or len(batch) == _BATCH_ITEMS_MAX
            ):
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += len(item.value)
        yield batch


def _pending(records: Iterable[Record | Damage], damage: list[Damage]) -> Iterator[Item]:
    for record in records:
        if isinstance(record, Damage):
            damage.append(record)
        elif isinstance(record, Item) and not record.buried:
            yield record
