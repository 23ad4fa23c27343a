"""`forebay fsck`: verifies every byte of a queue and changes none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, paths_argument, wait_option
from forebay.cli.interrupts import Interrupted
from forebay.cli.output import (
    as_json_object,
    plural,
    plural_or_unknown,
    say,
    size_text,
    write_json,
    write_line,
)
from forebay.cli.queues import find, for_each, offers, open_waiting, options_for, progress
from forebay.queues.kinds import Kind, accept_losses, check
from forebay.queues.shared.reports import STATES, Report, describe_damage, own_fields


@click.command("fsck")
@paths_argument
@key_option
@click.option(
    "--accept",
    is_flag=True,
    help="Mark all damage and losses as seen: from then on they are notes, and the code is 0.",
)
@wait_option
@json_option
def command(
    paths: tuple[str, ...],
    key_file: str | None,
    accept: bool,
    wait: float | None,
    as_json: bool,
) -> int:
    """Verify each queue PATH from the first byte to the last. Read-only; takes no lock.

    Lists each damaged place and what it costs, earlier losses, files that do not belong to the
    queue, and the state of the side files. The code is 4 if there is damage or a loss that was not
    marked as seen with --accept. That option takes the lock and keeps the marks in the file
    "losses". The unfinished end that a crash leaves is reported but is not damage: those records
    were never acknowledged.
    """

    def verify(path: str) -> int:
        kind = find(path, "fsck", offers("check"))
        options = options_for(kind, kind.checks.check, {"--key-file": key_file})
        if accept and not kind.queue:
            raise click.UsageError(f"--accept does not apply to {kind.title}")
        try:
            with progress("fsck") as tell:
                report = check(path, progress=tell, **options)
        except Interrupted as stop:
            say("interrupted")
            return stop.code
        if accept:
            fresh = open_waiting(path, lambda: accept_losses(path, report.damage), wait)
            notes = (*report.notes, f"{plural(fresh, 'loss')} marked as seen now")
            report = replace(report, damage=(), notes=notes)
        if as_json:
            write_report(report)
        else:
            write_text(report, kind, where=f"{path}: " if len(paths) > 1 else "")
        return exits.DAMAGE if report.damage else exits.OK

    return for_each(paths, verify)


def summary(report: Report) -> dict[str, Any]:
    """Returns the counts, for the last line of JSON."""
    return {
        "kind": report.kind,
        "path": report.path,
        "records": report.records,
        "segments": report.segments,
        "bytes": report.bytes,
        "state": report.state,
        "damage": len(report.damage),
        "torn": len(report.torn),
        "lost": report.lost,
        "foreign": len(report.foreign),
        **own_fields(report),
    }


def write_report(report: Report) -> None:
    """Prints a report as lines of JSON, the counts last."""
    for damage in (*report.damage, *report.torn):
        write_json({"damage": as_json_object(damage)})
    for name in report.foreign:
        write_json({"foreign": name})
    for note in report.notes:
        write_json({"note": note})
    write_json({"summary": summary(report)})


def write_text(report: Report, kind: Kind, where: str = "") -> None:
    """Prints a report as lines of text, in the terms of the kind."""
    for damage in (*report.damage, *report.torn):
        write_line(describe_damage(damage, kind.record))
    for name in report.foreign:
        write_line(f"foreign: {where}{name} does not belong to {kind.title}")
    for note in report.notes:
        write_line(f"note: {where}{note}")
    if report.state not in ("open", "closed"):
        write_line(f"note: {where}{STATES[report.state]}")
    if report.damage:
        places = plural(len(report.damage), "damaged place")
        lost = plural_or_unknown(report.lost, kind.record)
        verdict = f'{places}, {lost} lost; "forebay recover" salvages the rest'
    else:
        verdict = "no damage"
    good = plural(report.records, f"good {kind.record}")
    files = plural(report.segments, kind.file)
    write_line(f"{where}{good} in {files} ({size_text(report.bytes)}): {verdict}")
