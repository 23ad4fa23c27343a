"""`forebay trim`: removes what every consumer has read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument, wait_option
from forebay.cli.output import check_stdout, plural, write_json, write_line
from forebay.cli.queues import find, has_consumers, open_for
from forebay.queues.kinds import Kind


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """Which segments were removed, their records, and the consumers that keep the rest."""

    records: int
    names: list[str]
    begin: int
    end: int
    holders: list[str]
    lowest: int | None


@click.command("trim")
@path_argument
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and change nothing.")
@wait_option
@json_option
def command(path: str, dry_run: bool, wait: float | None, as_json: bool) -> int:
    """Remove whole segments of the log PATH that all consumers and cursors have passed.

    Without a consumer nothing is removed. The newest segment always stays. Needs the lock of the
    queue, except with --dry-run.
    """
    check_stdout()
    kind = find(path, "trim", has_consumers)
    trimmed = _plan(kind, path) if dry_run else _trim(kind, path, wait)
    if as_json:
        write_json(
            {
                "records": trimmed.records,
                "segments": trimmed.names,
                "begin": trimmed.begin,
                "end": trimmed.end,
                "held_by": trimmed.holders,
                "held_at": trimmed.lowest,
                "dry_run": dry_run,
            }
        )
        return exits.OK
    verb = "would be removed" if dry_run else "removed"
    names = f" ({_range(trimmed.names)})" if trimmed.names else ""
    segments, records = plural(len(trimmed.names), "segment"), plural(trimmed.records, "record")
    left = plural(trimmed.end - trimmed.begin, "record")
    write_line(f"{segments} {verb}, {records}{names}; {left} left from offset {trimmed.begin}")
    if trimmed.lowest is None:
        write_line("nothing is trimmed until there is a consumer")
    else:
        write_line(f"{', '.join(trimmed.holders)} still needs offset {trimmed.lowest} and later")
    return exits.OK


def _range(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _plan(kind: Kind, path: str) -> _Trimmed:
    with kind.open_reader(path) as reader:
        holders, lowest = _lowest(reader)
        bases = reader.segments.bases
        names = [
            reader.segments.names[base]
            for base, following in pairwise(bases)
            if lowest is not None and following <= min(lowest, reader.end)
        ]
        begin = bases[len(names)] if bases else reader.begin
        return _Trimmed(begin - reader.begin, names, begin, reader.end, holders, lowest)


def _trim(kind: Kind, path: str, wait: float | None) -> _Trimmed:
    owner = {"background": False, "trim_interval_seconds": None}
    with open_for(kind, path, wait, owner=owner) as log:
        # Opening may have recovered and adopted segments, so list them only now, as trim sees them.
        before = _names(kind, path)
        records = log.trim()
        after = set(_names(kind, path))
        begin, end = log.begin, log.end
        with kind.open_reader(path) as reader:
            holders, lowest = _lowest(reader)
    names = [name for name in before if name not in after]
    return _Trimmed(records, names, begin, end, holders, lowest)


def _names(kind: Kind, path: str) -> list[str]:
    with kind.open_reader(path) as reader:
        return [reader.segments.names[base] for base in reader.segments.bases]


def _lowest(reader: Any) -> tuple[list[str], int | None]:
    places = [*reader.consumers().items(), *reader.cursors().items()]
    lowest = min((offset for _, offset in places), default=None)
    return [name for name, offset in places if offset == lowest], lowest
