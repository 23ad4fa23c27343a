"""`forebay recover`: copies everything readable into a new queue; never edits the old one.

`run_copy` makes any copy and prints its result; `forebay convert` uses it, too.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, path_argument, target_option
from forebay.cli.interrupts import Interrupted
from forebay.cli.output import (
    as_json_object,
    plural,
    plural_or_unknown,
    say,
    write_json,
    write_line,
)
from forebay.cli.queues import find, offers, options_for, progress
from forebay.errors import NotAQueue
from forebay.queues.kinds import Kind, check_target, recover
from forebay.queues.shared.reports import (
    CopyReport,
    Progress,
    describe_damage,
    is_loss,
    own_fields,
)

_RUNS_SHOWN = 10


@click.command("recover")
@path_argument
@target_option
@key_option
@json_option
def command(path: str, target: str, key_file: str | None, as_json: bool) -> int:
    """Copy everything readable in the queue PATH into a new queue. PATH is not changed.

    Records keep their order and their times. Offsets start at 0 again and may differ from the old
    ones; the mapping is printed. Consumers are carried over and stay at the same records.

    The entries of a fifo also keep their time to live, counted from when they were pushed. Expired
    ones are left out and counted. Ids are new and carry the same times.

    The items of a deadline queue keep their values, deadlines and enqueue times, and buried ones
    their reasons. Ids, requeue times and attempt counts are not kept. PATH may also be a folder of
    the original program; this is how its items get into a queue.
    """
    kind = find(path, "recover", offers("copy"))
    options = options_for(kind, kind.checks.copy, {"--key-file": key_file})

    def copy(tell: Progress) -> CopyReport:
        return recover(path, target, progress=tell, **options)

    return run_copy("recover", kind, path, target, copy, as_json=as_json)


def run_copy(
    verb: str,
    kind: Kind,
    path: str,
    target: str,
    copy: Callable[[Progress], CopyReport],
    *,
    as_json: bool,
) -> int:
    """Makes a copy and prints the result."""
    try:
        check_target(path, target)
    except NotAQueue as error:
        raise exits.Failure(str(error), exits.CANNOT_CREATE) from None
    try:
        with progress(verb) as tell:
            report = copy(tell)
    except Interrupted as stop:
        say(f"interrupted: {target} is incomplete; remove it and start again")
        return stop.code
    if as_json:
        _write_json(report)
    else:
        _write_text(report, kind, target)
    return exits.OK


def _write_json(report: CopyReport) -> None:
    for damage in report.damage:
        write_json({"damage": as_json_object(damage)})
    for run in report.runs:
        write_json({"run": as_json_object(run)})
    summary = {
        "copied": report.copied,
        "lost": report.lost,
        "damage": sum(1 for damage in report.damage if is_loss(damage)),
        **own_fields(report),
    }
    write_json({"summary": summary})


def _write_text(report: CopyReport, kind: Kind, target: str) -> None:
    for damage in report.damage:
        write_line(describe_damage(damage, kind.record))
    if any(run.source != run.target for run in report.runs):
        write_line("offsets differ from the old ones:")
        for run in report.runs[:_RUNS_SHOWN]:
            old, new = (f"{start} to {start + run.count - 1}" for start in (run.source, run.target))
            write_line(f"  {old} became {new}")
        if len(report.runs) > _RUNS_SHOWN:
            write_line(f"  and {len(report.runs) - _RUNS_SHOWN} more; --json prints all")
    for note in report.notes:
        write_line(note)
    copied = plural(report.copied, kind.record)
    lost = plural_or_unknown(report.lost, kind.record)
    write_line(f"{copied} copied to {target}, {lost} lost")
