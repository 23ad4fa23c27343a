"""`forebay recover`: copies everything that can be read into a new queue; never edits the old one.

Order, values and times stay. Offsets begin at 0 and close over what is lost; the runs tell which
went where, and the consumers' places are carried over by them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from forebay import Log, LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, path_argument
from forebay.cli.copying import write_damage
from forebay.cli.inspection import describe, end_damage, is_loss, owner_of, total_lost
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.kinds import ORIGINAL, act, refuse_options
from forebay.cli.output import Bar, plural, plural_or_unknown, say, write_json
from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption
from forebay.queues.log.scanner import RecordBatch

_RUNS_SHOWN = 10


@dataclass(slots=True)
class Run:
    """Records that lie together in both queues."""

    source: int
    target: int
    count: int


@dataclass(slots=True)
class Report:
    """What a recovery did."""

    copied: int = 0
    damage: list[Damage] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    consumers: dict[str, int] = field(default_factory=dict)
    consumers_damage: str | None = None

    @property
    def lost(self) -> int | None:
        """How many records could not be read; None if that cannot be told."""
        return total_lost(self.damage)

    def add_run(self, source: int, target: int, count: int) -> None:
        """Takes note of copied records; neighbours become one run."""
        last = self.runs[-1] if self.runs else None
        if last is not None and last.source + last.count == source:
            last.count += count
        else:
            self.runs.append(Run(source, target, count))
        self.copied += count

    def place(self, offset: int) -> int:
        """Returns where a consumer's place is in the new queue."""
        for run in self.runs:
            if offset < run.source + run.count:
                return run.target + max(0, offset - run.source)
        return self.copied


@click.command("recover")
@path_argument
@click.option(
    "--to", "target", required=True, metavar="DIR", help="The new queue: not there yet, or empty."
)
@key_option
@json_option
def command(path: str, target: str, key_file: str | None, as_json: bool) -> int:
    """Copy all that can be read of the queue PATH into a new queue; PATH is not changed.

    Records keep their order and their times. Offsets begin at 0 again, so they may differ from the
    old ones: the mapping is printed. Consumers are carried over, to the same records.

    The entries of a fifo keep their time to live as well, counted from when they were pushed; those
    that have expired are left out and counted. Their ids are new ones, of the same times.

    The items of a deadline queue keep their values, deadlines and times of enqueueing, and buried
    ones their reasons; not kept are ids, the times of requeues, and how often items were given out.
    PATH may also be a folder that the original program left: so its items get into a queue.
    """
    check_target(path, target)

    def on_log() -> int:
        refuse_options("log", {"--key-file": key_file})
        return _recover_log(path, target, as_json)

    def on_events() -> int:
        from forebay.cli.event_copy import copy_events

        return copy_events(
            path, target, key_file=key_file, version=None, salvage=True, as_json=as_json
        )

    def on_fifo() -> int:
        from forebay.cli.fifo_copy import recover_fifo

        refuse_options("fifo", {"--key-file": key_file})
        return recover_fifo(path, target, as_json)

    actions = {"log": on_log, "beats": on_events, "fifo": on_fifo}
    for kind in ("deadline", ORIGINAL):
        actions[kind] = partial(_recover_deadline, path, target, kind, key_file, as_json)
    return act(path, "recover", actions)


def _recover_deadline(
    path: str, target: str, kind: str, key_file: str | None, as_json: bool
) -> int:
    from forebay.cli.deadline_copy import recover_deadline, recover_original

    refuse_options("deadline", {"--key-file": key_file})
    return (recover_deadline if kind == "deadline" else recover_original)(path, target, as_json)


def _recover_log(path: str, target: str, as_json: bool) -> int:
    with LogReader(path, salvage=True) as reader, Interrupts() as interrupts:
        try:
            report = _recover(reader, target, interrupts)
        except Interrupted as stop:
            say(f"interrupted: {target} holds only a part; remove it and start again")
            return stop.code
    if as_json:
        _write_json(report)
    else:
        _write_text(report, target)
    return exits.OK


class _RecordedClock(SystemClock):
    """Gives the time of the records that are copied, so that they keep it."""

    recorded_ms: int | None = None

    def now_ms(self) -> int:
        """Returns the recorded time, if there is one."""
        return super().now_ms() if self.recorded_ms is None else self.recorded_ms


def check_target(path: str, target: str) -> None:
    """Refuses a target that is there and holds something."""
    if os.path.exists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise exits.Failure(
            f"{target} is there and not empty; give a new directory", exits.CANNOT_CREATE
        )
    inner, outer = os.path.realpath(target), os.path.realpath(path)
    if os.path.commonpath([inner, outer]) == outer:
        raise exits.Failure(f"{target} lies within {path}", exits.CANNOT_CREATE)


def _recover(reader: LogReader, target: str, interrupts: Interrupts) -> Report:
    report = Report()
    owner = owner_of(reader.path)
    clock = _RecordedClock()
    with (
        Log(target, sync="os", clock=clock, background=False) as log,
        Bar("recover", len(reader)) as bar,
    ):
        for item in reader.scan():
            interrupts.check()
            if isinstance(item, Damage):
                report.damage.append(item)
                continue
            report.add_run(item.offset, log.end, len(item.values))
            _append(log, clock, item)
            bar.update(item.offset + len(item.values) - reader.begin)
        damage = end_damage(reader, owner)
        if damage is not None:
            report.damage.append(damage)
        _carry_consumers(reader, log, report)
    return report


def _append(log: Log, clock: _RecordedClock, batch: RecordBatch) -> None:
    """Appends records, those of the same millisecond together."""
    if batch.times is None:
        log.append_many(batch.values)
        return
    first, count = 0, len(batch.values)
    while first < count:
        behind = bisect_right(batch.times, batch.times[first], first)
        clock.recorded_ms = batch.epoch_ms + batch.times[first]
        log.append_many(batch.values[first:behind])
        first = behind
    clock.recorded_ms = None


def _carry_consumers(reader: LogReader, log: Log, report: Report) -> None:
    try:
        places = reader.consumers()
    except Damaged as error:
        report.consumers_damage = exits.message_of(error)
        return
    for name, offset in places.items():
        place = report.place(offset)
        try:
            log.consumer(name, start=place)
        except InvalidOption as error:
            # A name that only another program can have given.
            report.consumers_damage = exits.message_of(error)
            continue
        report.consumers[name] = place


def _write_json(report: Report) -> None:
    write_damage(report.damage)
    for run in report.runs:
        write_json({"run": {"source": run.source, "target": run.target, "count": run.count}})
    summary: dict[str, Any] = {
        "copied": report.copied,
        "lost": report.lost,
        "damage": sum(1 for damage in report.damage if is_loss(damage)),
        "same_offsets": all(run.source == run.target for run in report.runs),
        "consumers": report.consumers,
        "consumers_damage": report.consumers_damage,
    }
    write_json({"summary": summary})


def _write_text(report: Report, target: str) -> None:
    for damage in report.damage:
        print(describe(damage))
    if any(run.source != run.target for run in report.runs):
        print("offsets differ from the old ones:")
        for run in report.runs[:_RUNS_SHOWN]:
            old, new = (f"{start} to {start + run.count - 1}" for start in (run.source, run.target))
            print(f"  {old} became {new}")
        if len(report.runs) > _RUNS_SHOWN:
            print(f"  and {len(report.runs) - _RUNS_SHOWN} more; --json prints all")
    if report.consumers_damage is not None:
        print(f"the consumers' places are not carried over: {report.consumers_damage}")
    elif report.consumers:
        print(f"consumers carried over: {', '.join(report.consumers)}")
    copied, lost = plural(report.copied, "record"), plural_or_unknown(report.lost, "record")
    print(f"{copied} copied to {target}, {lost} lost")
