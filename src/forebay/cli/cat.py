"""`forebay cat`: prints records from a given place on, and skips damage on request."""

from __future__ import annotations

from datetime import datetime

import click

from forebay.cli import exits
from forebay.cli.arguments import (
    count_option,
    framing_option,
    json_option,
    key_option,
    parse_place,
    paths_argument,
    salvage_option,
)
from forebay.cli.printing import Printer
from forebay.cli.queues import find, for_each, offers, options_for
from forebay.queues.kinds import ORIGINAL


@click.command("cat")
@paths_argument
@click.option(
    "--start",
    callback=parse_place,
    metavar="PLACE",
    help="Where in a log to start: earliest (default), latest, an offset, or a time "
    "(2026-11-01T09:00Z; local time if it has no zone).",
)
@click.option(
    "--until",
    callback=parse_place,
    metavar="PLACE",
    help="Where in a log to stop: before this offset, or before the first record of this time.",
)
@click.option("--all", "everything", is_flag=True, help="All events of a Beats queue (default).")
@click.option("--unread", is_flag=True, help="Only events that are not acknowledged yet.")
@click.option("--dead", is_flag=True, help="Fifo: the entries that were put aside instead.")
@click.option("--raw", is_flag=True, help="Deadline: everything in the files, unmerged.")
@key_option
@count_option(None, least=0)
@salvage_option
@framing_option
@json_option
def command(
    paths: tuple[str, ...],
    start: str | int | datetime | None,
    until: str | int | datetime | None,
    everything: bool,
    unread: bool,
    dead: bool,
    raw: bool,
    key_file: str | None,
    count: int | None,
    salvage: bool,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print the records of each queue PATH. Takes no lock; the queue may be in use.

    A deadline queue is printed in order of deadline, buried items last. PATH may also be a single
    run or log file, which is printed as it is, or a folder of such files from the original program.

    With --json each record is an object. It starts with its kind and has "value" (null if the value
    is not text) and "value_b64"; docs/cli.md lists all fields. The command stops at damage with
    code 4. With --salvage it continues and prints
    {"damage":{"path","position","length","reason","torn","offset","count"}} in place of what is
    damaged.
    """
    if everything and unread:
        raise click.UsageError("--all and --unread exclude each other")
    given = {
        "--start": start,
        "--until": until,
        "--unread": unread,
        "--dead": dead,
        "--raw": raw,
        "--key-file": key_file,
    }

    def print_queue(path: str) -> int:
        kind = ORIGINAL if ORIGINAL.records.is_file(path) else find(path, "cat", offers("scan"))
        scan = kind.records.scan
        options_for(kind, scan, {"--unread": everything})
        options = options_for(kind, scan, given)
        if "key_file" in kind.read_options:
            options["salvage"] = salvage
        printer = Printer(kind, as_json=as_json, framing=framing, salvage=salvage, count=count)
        printer.print_all(scan(path, **options))
        return exits.OK

    return for_each(paths, print_queue)
