"""Copies the items of a deadline queue that can be read into a new one; never edits the old one.

An item keeps its value, its deadline and the time of its enqueueing: the copy is made with the
clock at that time. A buried one stays so, with its reason and the time of its burial. Ids are new
ones, and how often an item was given out counts from 0. The source may also be a folder that the
original program left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from forebay import DeadlineQueue
from forebay.cli import exits
from forebay.cli.copying import CopyClock, write_damage
from forebay.cli.deadline_folder import Folder
from forebay.cli.inspection import describe, is_loss, owner_of, total_lost
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import Bar, plural, plural_or_unknown, say, write_json
from forebay.damage import Damage
from forebay.errors import Damaged
from forebay.formats.deadline.items import BURIED_BIT, Item
from forebay.formats.deadline.wal import Record
from forebay.queues.deadline.original import export_run, scan_folder

_BATCH_ITEMS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20
_LAST_MS = BURIED_BIT - 1
Scan = Callable[[], Iterable[Record | Damage]]


@dataclass(slots=True)
class _Copied:
    """What a copy did. `moved` are those whose deadlines were later than the queue can hold."""

    pending: int = 0
    buried: int = 0
    moved: int = 0
    damage: list[Damage] = field(default_factory=list)

    @property
    def copied(self) -> int:
        """How many items the new queue has."""
        return self.pending + self.buried

    @property
    def lost(self) -> int | None:
        """How many entries could not be read; None if that cannot be told."""
        return total_lost(self.damage)


def recover_deadline(path: str, target: str, as_json: bool) -> int:
    """Copies all that can be read of a deadline queue into a new one."""
    with Folder(path) as folder:
        # The owner first: one that ends meanwhile has finished what it was writing.
        torn = folder.torn if owner_of(folder.path) is None else []
        report = _Copied(damage=[*folder.damage, *torn])
        scan: Scan = folder.items
        return _recover(scan, report, target, as_json, folder.entry_count, folder.has_buried)


def recover_original(path: str, target: str, as_json: bool) -> int:
    """Brings the live items of a folder that the original program left into a queue."""

    def scan() -> Iterator[Record | Damage]:
        return scan_folder(path, raw=False)

    return _recover(scan, _Copied(), target, as_json, None, False)


def convert_deadline(path: str, target: str, salvage: bool, as_json: bool) -> int:
    """Writes what is pending in a deadline queue as a run of the original program."""
    report = _Copied()
    with Folder(path) as folder, Bar("convert", folder.entry_count) as bar:
        torn = folder.torn if owner_of(folder.path) is None else []
        report.damage += [*folder.damage, *torn]

        def pending() -> Iterator[Item]:
            for record in folder.items():
                if isinstance(record, Damage):
                    report.damage.append(record)
                    _stop_at_damage(report.damage, salvage)
                elif record.buried:
                    report.buried += 1
                else:
                    yield record
                    report.pending += 1
                    bar.update(report.copied)

        _stop_at_damage(report.damage, salvage)
        export_run(pending(), target)
    if as_json:
        _write_json(report)
        return exits.OK
    for damage in report.damage:
        print(describe(damage))
    if report.buried:
        print(f"{plural(report.buried, 'buried item')} left out: version 1 has no place for them")
    print(f"{plural(report.pending, 'item')} written to {target} as version 1")
    return exits.OK


def _stop_at_damage(found: list[Damage], salvage: bool) -> None:
    losses = [damage for damage in found if is_loss(damage)]
    if losses and not salvage:
        raise Damaged(losses[0], 'with "--salvage" the rest is written')


def _recover(
    scan: Scan, report: _Copied, target: str, as_json: bool, total: int | None, has_buried: bool
) -> int:
    with Interrupts() as interrupts:
        try:
            _copy(scan, report, target, interrupts, Bar("recover", total), has_buried)
        except Interrupted as stop:
            say(f"interrupted: {target} holds only a part; remove it and start again")
            return stop.code
    if as_json:
        _write_json(report)
    else:
        _write_text(report, target)
    return exits.OK


def _copy(
    scan: Scan,
    report: _Copied,
    target: str,
    interrupts: Interrupts,
    bar: Bar,
    has_buried: bool,
) -> None:
    clock = CopyClock()
    with DeadlineQueue(target, clock=clock, sync="os", background=False) as queue, bar:
        if has_buried:
            # Before there is anything that is due: what is buried has to be given out first.
            for item in scan():
                interrupts.check()
                if isinstance(item, Item) and item.buried:
                    _bury(queue, clock, item)
                    report.buried += 1
                    queue.maintain()
        for batch in _batches(scan(), report.damage):
            interrupts.check()
            deadline_ms = min(batch[0].key.deadline_ms, _LAST_MS)
            report.moved += len(batch) if batch[0].key.deadline_ms > _LAST_MS else 0
            clock.ms = batch[0].stats.enqueue_ms
            queue.enqueue_many([item.value for item in batch], deadline=deadline_ms)
            report.pending += len(batch)
            queue.maintain()
            bar.update(report.copied)
        if len(queue) != report.copied:
            text = f"{target} has {len(queue)} items, and {report.copied} were copied"
            raise exits.Failure(text)


def _bury(queue: DeadlineQueue, clock: CopyClock, item: Item) -> None:
    """Copies an item that was put aside, with the time of that."""
    clock.ms = item.stats.enqueue_ms
    queue.enqueue(item.value, deadline=0)
    clock.ms = item.key.deadline_ms & ~BURIED_BIT
    (copy,) = queue.dequeue_many(1)
    queue.bury(copy, item.reason.decode(errors="replace"))


def _batches(records: Iterable[Record | Damage], damage: list[Damage]) -> Iterator[list[Item]]:
    """Yields pending items in their order, those of the same times together."""
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


def _write_json(report: _Copied) -> None:
    write_damage(report.damage)
    summary = {
        "copied": report.copied,
        "pending": report.pending,
        "buried": report.buried,
        "moved": report.moved,
        "lost": report.lost,
        "damage": sum(1 for damage in report.damage if is_loss(damage)),
    }
    write_json({"summary": summary})


def _write_text(report: _Copied, target: str) -> None:
    for damage in report.damage:
        print(describe(damage))
    if report.moved:
        print(f"{plural(report.moved, 'item')} with a deadline behind the year 6429, due then now")
    copied = f"{plural(report.copied, 'item')} copied to {target}"
    buried = f" ({report.buried:,} of them buried)" if report.buried else ""
    print(f"{copied}{buried}, {plural_or_unknown(report.lost, 'entry')} lost")
