"""`forebay tail`: prints the last records, and follows the end."""

from __future__ import annotations

import time

import click

from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument, salvage_option
from forebay.cli.follow import Follower
from forebay.cli.framing import OUTPUT_FRAMINGS
from forebay.cli.kinds import only_for
from forebay.cli.output import say
from forebay.cli.printing import Printer, framing_of
from forebay.damage import Damage
from forebay.queues.log.scanner import RecordBatch

_POLL_SECONDS = 0.05


@click.command("tail")
@path_argument
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many of the last records.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@salvage_option
@click.option(
    "--framing", type=click.Choice(OUTPUT_FRAMINGS), help='As in "forebay cat".  [default: lines]'
)
@json_option
def command(
    path: str, count: int, follow: bool, salvage: bool, framing: str | None, as_json: bool
) -> int:
    """Print the last records of the log PATH; with -f go on with what is appended.

    Takes no lock. JSON, damage and framing are those of "forebay cat".
    """
    only_for(path, "tail", "log")
    printer = Printer(
        as_json=as_json, framing=framing_of(framing, as_json), salvage=salvage, flush=follow
    )
    with LogReader(path) as reader:
        for item in reader.scan(max(reader.begin, reader.end - count)):
            _print(printer, item)
        if follow:
            _follow(reader, printer)
    return exits.OK


def _follow(reader: LogReader, printer: Printer) -> None:
    follower = Follower(reader, reader.end)
    try:
        while True:
            for item in follower.poll():
                _print(printer, item)
            if follower.dropped:
                say(f"{follower.dropped} records were removed before they were printed")
                follower.dropped = 0
            time.sleep(_POLL_SECONDS)
    finally:
        follower.close()


def _print(printer: Printer, item: RecordBatch | Damage) -> None:
    if isinstance(item, Damage):
        printer.damage(item)
    else:
        printer.batch(item)
