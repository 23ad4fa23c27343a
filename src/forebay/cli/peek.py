"""`forebay peek`: prints what a fifo or a deadline queue gives next; it stays."""

from __future__ import annotations

import click

from forebay import Entry, FifoReader
from forebay.cli import exits
from forebay.cli.arguments import framing_option, json_option, path_argument, salvage_option
from forebay.cli.fifo_printing import entries_text
from forebay.cli.kinds import only_for, refuse_options
from forebay.cli.output import write_bytes
from forebay.cli.printing import Printer, framing_of
from forebay.clock import SystemClock
from forebay.damage import Damage


@click.command("peek")
@path_argument
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many at most.",
)
@click.option("--after", type=int, metavar="ID", help="Fifo: begin behind the entry with this id.")
@salvage_option
@framing_option
@json_option
def command(
    path: str,
    count: int,
    after: int | None,
    salvage: bool,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print the next entries of a fifo, or items of a deadline queue, without a lock; they stay.

    Entries that have expired are passed over; those that somebody has taken and not finished with
    come first, as they would after a crash. With --json an entry is what "forebay cat" prints; its
    id, given as --after, goes on behind it. Items come by deadline, due or not; buried ones are
    passed over. Code 3 if there is none.
    """
    if only_for(path, "peek", "fifo", "deadline") == "deadline":
        from forebay.cli.deadline_printing import print_pending

        refuse_options("deadline", {"--after": after})
        return print_pending(path, salvage=salvage, framing=framing, as_json=as_json, count=count)
    framing = framing_of(framing, as_json)
    printer = Printer(as_json=as_json, framing=framing, salvage=salvage)
    left = count
    with FifoReader(path) as reader:
        now_ms = SystemClock().now_ms()
        for item in reader.scan():
            if isinstance(item, Damage):
                printer.damage(item)
                continue
            entries = [entry for entry in item.entries() if _is_next(entry, after, now_ms)]
            write_bytes(entries_text(entries[:left], framing, as_json=as_json))
            left -= len(entries[:left])
            if not left:
                break
    return exits.NOTHING if left == count else exits.OK


def _is_next(entry: Entry, after: int | None, now_ms: int) -> bool:
    if after is not None and entry.id <= after:
        return False
    return entry.expires_ms is None or entry.expires_ms > now_ms
