"""`forebay archive`: brings finished segments of a queue to object storage or a directory."""

from __future__ import annotations

import time
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import check_seconds, json_option, key_option, path_argument
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import Bar, as_json_object, plural, say, size_text, write_json, write_line
from forebay.queues.archive.archiver import Archiver, ArchiveReport
from forebay.queues.shared.reports import describe_damage

_PAUSE_SECONDS_MAX = 60.0


@click.command("archive")
@path_argument
@click.argument("address")
@click.option("--host", metavar="NAME", help="First part below ADDRESS.  [default: this host]")
@click.option("--name", metavar="NAME", help="Second part.  [default: last part of PATH]")
@click.option(
    "--trim",
    is_flag=True,
    help="Log: let the host drop what was archived, read back and verified, once all readers have "
    "passed it.",
)
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C, also after errors of ADDRESS.")
@click.option(
    "--interval",
    type=float,
    default=10.0,
    show_default=True,
    callback=check_seconds,
    metavar="SECONDS",
    help="How often --follow looks for finished segments.",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DAYS",
    help="Remove from ADDRESS what went up longer ago.  [default: keep]",
)
@click.option(
    "--keep-bytes",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Remove the oldest segments from ADDRESS above this size.  [default: keep]",
)
@click.option("--group-readable", is_flag=True, help="A directory: modes 0640 and 0750.")
@key_option
@json_option
def command(
    path: str,
    address: str,
    follow: bool,
    interval: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Copy the finished segments of the queue PATH to ADDRESS/HOST/NAME, those that are not there.

    PATH is a log or a Beats queue, in use or not. ADDRESS is a directory, s3://BUCKET/..., or
    another address of pyarrow.fs. The other verbs read the archive at ADDRESS/HOST/NAME.

    Killed at any moment, the next run goes on. Nothing leaves the host, except with --trim. The
    newest segment of an open queue is not finished, so the archive ends before it; the output says
    where. Code 4 if a segment could not be read here, or did not verify there.
    """
    with Interrupts() as interrupts:
        try:
            with Archiver(path, address, **options) as archiver:
                if not follow:
                    return _run(archiver, interrupts, as_json=as_json)
                _follow(archiver, interrupts, interval, as_json=as_json)
        except Interrupted as stop:
            say("interrupted; the next run goes on")
            return stop.code
    return exits.OK


def _follow(archiver: Archiver, interrupts: Interrupts, interval: float, *, as_json: bool) -> None:
    pause = 1.0
    while True:
        try:
            _run(archiver, interrupts, as_json=as_json, quiet=True)
            pause, seconds = 1.0, interval
        except OSError as error:
            seconds, pause = pause, min(2 * pause, _PAUSE_SECONDS_MAX)
            say(f"{exits.message_of(error, archiver.address)}; next try in {seconds:.0f} s")
        with interrupts.waiting():
            time.sleep(seconds)


def _run(archiver: Archiver, interrupts: Interrupts, *, as_json: bool, quiet: bool = False) -> int:
    """Makes one pass and prints what it did; `quiet`: only if it did something."""
    with Bar("archive") as bar:

        def tell(done: int, total: int | None) -> None:
            interrupts.check()
            bar.update(done, size_text(done), total=total)

        report = archiver.run(tell)
    changed = report.segments or report.trimmed or report.removed or report.lost or report.damage
    if as_json and (changed or not quiet):
        write_json(as_json_object(report), flush=True)
    elif changed or not quiet:
        _write_text(report)
    return exits.DAMAGE if report.damage else exits.OK


def _write_text(report: ArchiveReport) -> None:
    for damage in report.damage:
        write_line(describe_damage(damage))
    if report.damage:
        write_line("note: damaged segments, and what follows them, stay on the host")
    if report.lost:
        write_line(f"{plural(report.lost, 'record')} were dropped here before they went up")
    size = size_text(report.bytes)
    write_line(f"{plural(report.segments, 'segment')} ({size}) went up to {report.address}")
    if report.removed:
        write_line(f"{plural(report.removed, 'segment')} removed there by retention")
    if report.verified:
        write_line(f"{plural(report.verified, 'segment')} read back and verified")
    if report.trimmed:
        write_line(f"{plural(report.trimmed, 'record')} removed here")
    waiting = "" if not report.waiting else _waiting(report.waiting)
    write_line(f"the archive holds offsets {report.begin} to {report.end}{waiting}")


def _waiting(count: int) -> str:
    verb = "waits" if count == 1 else "wait"
    return f"; {plural(count, 'record')} {verb} here in a segment that is not finished"
