"""`forebay take`: prints what is next, and removes it once it is written."""

from __future__ import annotations

import sys

import click

from forebay import EventBatch, EventQueue
from forebay.cli import exits
from forebay.cli.arguments import (
    check_seconds,
    framing_option,
    json_option,
    key_option,
    path_argument,
)
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.kinds import act, refuse_options
from forebay.cli.output import write_bytes
from forebay.errors import Empty
from forebay.formats.beats_text import event_text

_BATCH_EVENTS = 1000


@click.command("take")
@path_argument
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many at most.",
)
@click.option("--timeout", type=float, help="Wait so many seconds for the first one.")
@click.option(
    "--lease",
    type=float,
    callback=check_seconds,
    metavar="SECONDS",
    help="Deadline: do not remove them; they are due again after so long, unless they are released "
    "by the token that stands before each.",
)
@key_option
@framing_option
@json_option
def command(
    path: str,
    count: int,
    timeout: float | None,
    lease: float | None,
    key_file: str | None,
    framing: str | None,
    as_json: bool,
) -> int:
    """Print the next events, the next entries of a fifo, or items that are due, and remove them.

    Each is removed after it was written to stdout: if that fails it stays, and is the next one
    again. With --json an event is {"kind":"beats","timestamp_ns":N,"flags":N,"meta":{...},
    "fields":{...}}, and an entry or an item what "forebay cat" prints. Code 3 if there is none. The
    queue must be free.

    With --lease the items of a deadline queue stay in it. A token ID.COUNT and a tab stand before
    each value, or in JSON "token":"ID.COUNT"; "release", "requeue" and "bury" take it.
    """

    def on_events() -> int:
        refuse_options("beats", {"--framing": framing, "--lease": lease})
        return _take(path, count, timeout, key_file, as_json)

    def on_fifo() -> int:
        from forebay.cli.fifo_take import take_entries

        refuse_options("fifo", {"--key-file": key_file, "--lease": lease})
        return take_entries(path, count, timeout, framing=framing, as_json=as_json)

    def on_deadline() -> int:
        from forebay.cli.deadline_take import take_items

        refuse_options("deadline", {"--key-file": key_file})
        return take_items(path, count, timeout, lease=lease, framing=framing, as_json=as_json)

    return act(path, "take", {"beats": on_events, "fifo": on_fifo, "deadline": on_deadline})


def _take(path: str, count: int, timeout: float | None, key_file: str | None, as_json: bool) -> int:
    taken = 0
    with Interrupts() as interrupts, EventQueue(path, key_file=key_file) as queue:
        while taken < count:
            try:
                with interrupts.waiting():
                    batch = _next(queue, min(_BATCH_EVENTS, count - taken), timeout, taken)
            except Interrupted as stop:
                return stop.code
            if not batch.events:
                break
            head = '{"kind":"beats",' if as_json else "{"
            lines = [head + event_text(event)[1:] + "\n" for event in batch]
            write_bytes("".join(lines).encode())
            sys.stdout.flush()
            batch.ack()
            taken += len(batch)
    return exits.OK if taken else exits.NOTHING


def _next(queue: EventQueue, count: int, timeout: float | None, taken: int) -> EventBatch:
    try:
        return queue.read(count, timeout=timeout if not taken else None)
    except Empty:
        return EventBatch([], None, None)
