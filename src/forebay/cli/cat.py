"""`forebay cat`: prints records from any place on, round damage if asked to."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import click

from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import (
    framing_option,
    json_option,
    key_option,
    parse_optional_start,
    path_argument,
    salvage_option,
)
from forebay.cli.inspection import end_damage, owner_of
from forebay.cli.kinds import ORIGINAL, act, refuse_options
from forebay.cli.printing import Printer, framing_of
from forebay.damage import Damage
from forebay.queues.deadline.original import is_deadline_file


@click.command("cat")
@path_argument
@click.option(
    "--start",
    callback=parse_optional_start,
    metavar="PLACE",
    help="Where in a log to begin: earliest (default), latest, an offset, or a time "
    "(2026-11-01T09:00Z; without a zone it is local).",
)
@click.option("--all", "everything", is_flag=True, help="All events of a queue (default).")
@click.option("--unread", is_flag=True, help="Only the events that are not acknowledged.")
@click.option("--raw", is_flag=True, help="Deadline: all that the files hold, as it is.")
@key_option
@click.option("--count", type=click.IntRange(min=0), help="Print at most so many records.")
@salvage_option
@framing_option
@json_option
def command(
    path: str,
    start: str | int | datetime | None,
    everything: bool,
    unread: bool,
    raw: bool,
    key_file: str | None,
    count: int | None,
    salvage: bool,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print the records of the queue PATH, without a lock, even while it is being written.

    With --json each record of a log is {"kind":"log","offset":N,"time_ms":N,"value_b64":"..."};
    time_ms is null where the format has no times. An event is {"kind":"beats","segment":N,
    "timestamp_ns":N,"flags":N,"meta":{...},"fields":{...}}; an entry of a fifo is {"kind":"fifo",
    "id":N,"time_ms":N,"ttl_seconds":N,"expires_ms":N,"value_b64":"..."}, expires_ms null if it
    never does, and those that have expired and were not taken are printed as well.

    Of a deadline queue the live items are printed by deadline, buried ones last: {"kind":
    "deadline","type":"pending","id":N, "deadline_ms":N,"enqueue_ms":N, "requeue_ms":N,
    "dequeue_count":N,"value_b64":"..."}; a buried one has type "buried" and its "reason" at the
    end. With --raw it is all that its runs and logs hold; a tombstone has only type, id and
    deadline_ms. PATH may also be one run or log, which is printed as it is, or a folder of those
    that the original program left.

    At damage it stops with code 4; with --salvage it goes on and prints
    {"damage":{"path","position","length","reason","torn"}} in its place.
    """
    if everything and unread:
        raise click.UsageError("--all and --unread exclude each other")
    settings: Any = {"salvage": salvage, "framing": framing, "as_json": as_json, "count": count}
    given = {"--start": start, "--key-file": key_file, "--unread": unread, "--all": everything}
    if is_deadline_file(path):
        return _cat_deadline(path, ORIGINAL, given, raw=raw, **settings)

    def cat_log() -> int:
        refuse_options("log", {**given, "--start": None, "--raw": raw})
        return _cat_log(path, start or "earliest", **settings)

    def cat_events() -> int:
        from forebay.cli.event_printing import print_events

        refuse_options("beats", {"--start": start, "--framing": framing, "--raw": raw})
        return print_events(
            path, key_file=key_file, salvage=salvage, unread=unread, as_json=as_json, count=count
        )

    def cat_fifo() -> int:
        from forebay.cli.fifo_printing import print_fifo

        refuse_options("fifo", {**given, "--raw": raw})
        return print_fifo(path, **settings)

    actions = {"log": cat_log, "beats": cat_events, "fifo": cat_fifo}
    for kind in ("deadline", ORIGINAL):
        actions[kind] = partial(_cat_deadline, path, kind, given, raw=raw, **settings)
    return act(path, "cat", actions)


def _cat_deadline(path: str, kind: str, given: dict[str, Any], **options: Any) -> int:
    from forebay.cli.deadline_printing import print_deadline, print_deadline_files

    refuse_options("deadline", given)
    return (print_deadline if kind == "deadline" else print_deadline_files)(path, **options)


def _cat_log(
    path: str,
    start: str | int | datetime,
    *,
    count: int | None,
    salvage: bool,
    framing: str | None,
    as_json: bool,
) -> int:
    printer = Printer(as_json=as_json, framing=framing_of(framing, as_json), salvage=salvage)
    with LogReader(path) as reader:
        # The owner first: one that ends meanwhile has finished what it was writing.
        owner = owner_of(reader.path)
        if _print_all(reader, printer, reader.resolve(start), count):
            printer.end(end_damage(reader, owner))
    return exits.OK


def _print_all(reader: LogReader, printer: Printer, start: int, count: int | None) -> bool:
    """Prints up to `count` records; says whether it came to the end of the log."""
    for item in reader.scan(start):
        if count is not None and printer.count >= count:
            return False
        if isinstance(item, Damage):
            printer.damage(item)
        elif count is None:
            printer.batch(item)
        else:
            printer.batch(item.until(item.offset + count - printer.count))
    return count is None or printer.count < count
