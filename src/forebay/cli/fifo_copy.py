"""Copies the entries of a fifo that can be read into a new one; never edits the old one.

An entry keeps its value, the time of its push and its time to live: the copy is written with the
clock at that time, so it expires when the old one would have. Ids are the same in their time, which
is ahead by a millisecond where the new numbers wrap; the rest of an id is the entry's number, which
is a new one. Entries that have expired are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from forebay import Entry, Fifo, FifoReader
from forebay.cli import exits
from forebay.cli.copying import CopyClock, write_damage
from forebay.cli.fifo_inspection import end_damage
from forebay.cli.inspection import describe, is_loss, owner_of, total_lost
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import Bar, plural, plural_or_unknown, say, write_json
from forebay.clock import SystemClock
from forebay.damage import Damage


@dataclass(slots=True)
class _Copied:
    """What a copy did."""

    copied: int = 0
    expired: int = 0
    damage: list[Damage] = field(default_factory=list)

    @property
    def lost(self) -> int | None:
        """How many entries could not be read; None if that cannot be told."""
        return total_lost(self.damage)


def recover_fifo(path: str, target: str, as_json: bool) -> int:
    """Copies all that can be read and has not expired into a new fifo."""
    with FifoReader(path) as reader, Interrupts() as interrupts:
        try:
            report = _copy(reader, target, interrupts)
        except Interrupted as stop:
            say(f"interrupted: {target} holds only a part; remove it and start again")
            return stop.code
    if as_json:
        write_damage(report.damage)
        summary = {
            "copied": report.copied,
            "expired": report.expired,
            "lost": report.lost,
            "damage": sum(1 for damage in report.damage if is_loss(damage)),
        }
        write_json({"summary": summary})
    else:
        for damage in report.damage:
            print(describe(damage))
        left_out = f"{plural(report.expired, 'entry')} left out that had expired, "
        lost = f"{plural_or_unknown(report.lost, 'entry')} lost"
        copied = f"{plural(report.copied, 'entry')} copied to {target}"
        print(f"{copied}, {left_out if report.expired else ''}{lost}")
    return exits.OK


def _copy(reader: FifoReader, target: str, interrupts: Interrupts) -> _Copied:
    report = _Copied()
    owner = owner_of(reader.path)
    clock = CopyClock()
    now_ms = SystemClock().now_ms()
    size = reader.head.file_bytes
    with (
        Fifo(target, clock=clock, file_bytes=size, sync="os", background=False) as fifo,
        Bar("recover", len(reader)) as bar,
    ):
        report.damage += reader.trouble
        for item in reader.scan():
            interrupts.check()
            if isinstance(item, Damage):
                report.damage.append(item)
                continue
            entries = item.entries()
            alive = [entry for entry in entries if (entry.expires_ms or now_ms + 1) > now_ms]
            for clock.ms, ttl, values in _runs(alive):
                fifo.push_many(values, ttl_seconds=ttl)
            report.copied += len(alive)
            report.expired += len(entries) - len(alive)
            bar.update(report.copied + report.expired)
        damage = end_damage(reader, owner)
        if damage is not None:
            report.damage.append(damage)
    return report


def _runs(entries: list[Entry]) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yields the entries of one time and one time to live together, in their order."""
    for (time_ms, ttl), run in groupby(entries, lambda entry: (entry.time_ms, entry.ttl_seconds)):
        yield time_ms, ttl, [entry.value for entry in run]
