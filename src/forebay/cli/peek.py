"""`forebay peek`: prints what a queue would deliver next, without removing it."""

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
@click.option("--after", type=int, metavar="ID", help="Fifo: start after the entry with this id.")
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
