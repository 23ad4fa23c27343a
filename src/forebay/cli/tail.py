"""`forebay tail`: prints the last records, and follows the end."""

from __future__ import annotations

import time

import click

from forebay.cli import exits
from forebay.cli.arguments import (
    count_option,
    framing_option,
    json_option,
    path_argument,
    salvage_option,
)
from forebay.cli.output import plural, say
from forebay.cli.printing import Printer
from forebay.cli.queues import find, offers

_POLL_SECONDS = 0.05


@click.command("tail")
@path_argument
@count_option(10, least=0)
@click.option("-f", "--follow", is_flag=True, help="Print new records as they come, until Ctrl-C.")
@salvage_option
@framing_option
@json_option
def command(
    path: str, count: int, follow: bool, salvage: bool, framing: str | None, as_json: bool
) -> int:
    """Print the last records of the log PATH; with -f continue with what is appended.

    Takes no lock. --json, --salvage and --framing work as in "forebay cat".
    """
    kind = find(path, "tail", offers("tail"))
    printer = Printer(kind, as_json=as_json, framing=framing, salvage=salvage, flush=follow)
    for item in kind.records.tail(path, count=count, follow=follow):
        if not isinstance(item, int):
            printer.print(item)
            continue
        if item:
            say(f"{plural(item, kind.record)} removed before they could be printed")
        time.sleep(_POLL_SECONDS)
    return exits.OK
