"""`forebay cat`: prints records from any place on, round damage if asked to."""

from __future__ import annotations

from datetime import datetime

import click

from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import (
    json_option,
    key_option,
    parse_optional_start,
    path_argument,
    salvage_option,
)
from forebay.cli.framing import OUTPUT_FRAMINGS
from forebay.cli.inspection import end_damage, is_loss, owner_of
from forebay.cli.kinds import act, refuse_options
from forebay.cli.output import say
from forebay.cli.printing import Printer, framing_of
from forebay.frames import Damage


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
@key_option
@click.option("--count", type=click.IntRange(min=0), help="Print at most so many records.")
@salvage_option
@click.option(
    "--framing",
    type=click.Choice(OUTPUT_FRAMINGS),
    help="What separates records: a newline (default), a NUL byte, or a big-endian u32 length "
    "before each.",
)
@json_option
def command(
    path: str,
    start: str | int | datetime | None,
    everything: bool,
    unread: bool,
    key_file: str | None,
    count: int | None,
    salvage: bool,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print the records of the queue PATH, without a lock, even while it is being written.

    With --json each record of a log is {"kind":"log","offset":N,"time_ms":N,"value_b64":"..."};
    time_ms is null where the format has no times. An event is {"kind":"beats","segment":N,
    "timestamp_ns":N,"flags":N,"meta":{...},"fields":{...}}. At damage it stops with code 4; with
    --salvage it goes on and prints {"damage":{"path","position","length","reason","torn"}} in its
    place.
    """
    if everything and unread:
        raise click.UsageError("--all and --unread exclude each other")

    def cat_log() -> int:
        given = {"--key-file": key_file, "--unread": unread, "--all": everything}
        refuse_options("log", given)
        return _cat_log(path, start or "earliest", count, salvage, framing, as_json)

    def cat_events() -> int:
        from forebay.cli.event_printing import print_events

        refuse_options("beats", {"--start": start, "--framing": framing})
        return print_events(
            path, key_file=key_file, salvage=salvage, unread=unread, as_json=as_json, count=count
        )

    return act(path, "cat", {"log": cat_log, "beats": cat_events})


def _cat_log(
    path: str,
    start: str | int | datetime,
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
            _show_end(end_damage(reader, owner), printer, salvage)
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


def _show_end(damage: Damage | None, printer: Printer, salvage: bool) -> None:
    if damage is None:
        return
    if salvage:
        printer.show(damage)
    elif is_loss(damage):
        printer.damage(damage)
    else:
        say(
            f"{damage.path}, byte {damage.position}: {damage.length} bytes of an unfinished "
            "record behind the last one; nothing acknowledged is missing"
        )
