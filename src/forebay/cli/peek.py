"""`forebay peek`: prints what a queue gives next; it stays."""

from __future__ import annotations

import click

from forebay.cli import exits
from forebay.cli.arguments import (
    consumer_option,
    count_option,
    framing_option,
    json_option,
    key_option,
    path_argument,
    salvage_option,
)
from forebay.cli.printing import Printer
from forebay.cli.queues import find, need_consumer, offers, options_for


@click.command("peek")
@path_argument
@count_option(1)
@click.option("--after", type=int, metavar="ID", help="Fifo: begin after the entry with this id.")
@consumer_option
@key_option
@salvage_option
@framing_option
@json_option
def command(
    path: str,
    count: int,
    after: int | None,
    consumer: str | None,
    key_file: str | None,
    salvage: bool,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print what "forebay take" would print next, without a lock; it stays.

    Entries of a fifo that have expired are passed over; those that somebody has taken and not
    finished with come first, as they would after a crash. Items of a deadline queue come by
    deadline, due or not; buried ones are passed over. Code 3 if there is nothing.
    """
    kind = find(path, "peek", offers("peek"))
    given = {"--after": after, "--consumer": consumer, "--key-file": key_file}
    options = options_for(kind, kind.records.peek, given)
    need_consumer(kind, "peek", consumer)
    printer = Printer(kind, as_json=as_json, framing=framing, salvage=salvage, count=count)
    printer.print_all(kind.records.peek(path, **options))
    return exits.OK if printer.count else exits.NOTHING
