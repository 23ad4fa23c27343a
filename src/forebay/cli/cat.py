"""`forebay cat`: prints records from any place on, round damage if asked to."""

from __future__ import annotations

from datetime import datetime

import click

from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, parse_start, path_argument, salvage_option
from forebay.cli.framing import OUTPUT_FRAMINGS
from forebay.cli.inspection import end_damage, is_loss, owner_of
from forebay.cli.output import say
from forebay.cli.printing import Printer, framing_of
from forebay.frames import Damage


@click.command("cat")
@path_argument
@click.option(
    "--start",
    callback=parse_start,
    metavar="PLACE",
    default="earliest",
    show_default=True,
    help="Where to begin: earliest, latest, an offset, or a time (2026-11-01T09:00Z; without a "
    "zone it is local).",
)
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
    start: str | int | datetime,
    count: int | None,
    salvage: bool,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print the records of the log PATH, without a lock, even while it is being written.

    With --json each record is {"kind":"log","offset":N,"time_ms":N,"value_b64":"..."}; time_ms is
    null where the format has no times. At damage it stops with code 4; with --salvage it goes on
    and prints {"damage":{"path","position","length","reason","torn"}} in its place.
    """
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
