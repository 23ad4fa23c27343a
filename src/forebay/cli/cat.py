"""`forebay cat`, `peek` and `tail`: print records, take no lock and remove nothing."""

from __future__ import annotations

import contextlib
from datetime import datetime

import click

from forebay.cli import exits
from forebay.cli.arguments import (
    consumer_option,
    count_option,
    framing_option,
    json_option,
    key_option,
    parse_place,
    path_argument,
    paths_argument,
    salvage_option,
)
from forebay.cli.output import plural, say
from forebay.cli.printing import Printer
from forebay.cli.queues import find, for_each, need_consumer, offers, options_for
from forebay.cli.waiting import FileWatch
from forebay.queues.archive.store import is_archive
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
def cat(
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


@click.command("peek")
@path_argument
@count_option(1)
@click.option("--after", type=int, metavar="ID", help="Fifo: start after the entry with this id.")
@consumer_option
@key_option
@salvage_option
@framing_option
@json_option
def peek(
    path: str,
    count: int,
    after: int | None,
    consumer: str | None,
    key_file: str | None,
    salvage: bool,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print what "forebay take" would print next. Takes no lock and removes nothing.

    For a fifo, expired entries are skipped, and entries that were taken but not finished come
    first, as they would after a crash. For a deadline queue, items come in order of deadline, due
    or not, and buried ones are skipped. Code 3 if there is nothing.
    """
    kind = find(path, "peek", offers("peek"))
    given = {"--after": after, "--consumer": consumer, "--key-file": key_file}
    options = options_for(kind, kind.records.peek, given)
    need_consumer(kind, "peek", consumer)
    printer = Printer(kind, as_json=as_json, framing=framing, salvage=salvage, count=count)
    printer.print_all(kind.records.peek(path, **options))
    return exits.OK if printer.count else exits.NOTHING


@click.command("tail")
@path_argument
@count_option(10, least=0)
@click.option("-f", "--follow", is_flag=True, help="Print new records as they come, until Ctrl-C.")
@salvage_option
@framing_option
@json_option
def tail(
    path: str, count: int, follow: bool, salvage: bool, framing: str | None, as_json: bool
) -> int:
    """Print the last records of the log PATH; with -f continue with what is appended.

    Takes no lock. --json, --salvage and --framing work as in "forebay cat".
    """
    kind = find(path, "tail", offers("tail"))
    printer = Printer(kind, as_json=as_json, framing=framing, salvage=salvage, flush=follow)
    if follow and is_archive(path):
        raise click.UsageError("--follow is for a queue; an archive is read as it is now")
    watched = contextlib.closing(FileWatch(path)) if follow else contextlib.nullcontext()
    with watched as watch:
        for item in kind.records.tail(path, count=count, follow=follow):
            if not isinstance(item, int):
                printer.print(item)
            elif item:
                say(f"{plural(item, kind.record)} removed before they could be printed")
            elif watch is not None:
                watch.wait()
    return exits.OK
