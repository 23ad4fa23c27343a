"""`forebay take`: prints what is next, and removes it once it is written."""

from __future__ import annotations

import contextlib
import sys
import time

import click

from forebay import BeatsQueue, BeatsReader
from forebay.cli import exits
from forebay.cli.arguments import (
    check_seconds,
    framing_option,
    json_option,
    key_option,
    path_argument,
)
from forebay.cli.inspection import owner_of
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.kinds import act, refuse_options
from forebay.cli.output import write_bytes
from forebay.errors import Locked
from forebay.formats.beats.text import event_text

_BATCH_EVENTS = 1000
_LOOK_SECONDS = 0.1


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
    """Prints up to `count` events and acknowledges them; with a timeout it waits for the first.

    It does not own the queue while it waits: nobody could put then.
    """
    deadline = time.monotonic() + (timeout or 0)
    with Interrupts() as interrupts:
        try:
            while True:
                interrupts.check()
                late = time.monotonic() >= deadline
                if late or _is_ready(path, key_file):
                    with contextlib.nullcontext() if late else contextlib.suppress(Locked):
                        if _take_all(path, count, key_file, interrupts, as_json):
                            return exits.OK
                if late:
                    return exits.NOTHING
                time.sleep(_LOOK_SECONDS)
        except Interrupted as stop:
            return stop.code


def _is_ready(path: str, key_file: str | None) -> bool:
    """Says whether there may be an event, and nobody owns the queue."""
    if owner_of(path) is not None:
        return False
    with BeatsReader(path, key_file=key_file, salvage=True) as reader:
        return any(True for _ in reader.scan(unread=True))


def _take_all(
    path: str, count: int, key_file: str | None, interrupts: Interrupts, as_json: bool
) -> int:
    """Takes up to `count` events in batches; returns how many there were."""
    taken = 0
    with BeatsQueue(path, key_file=key_file) as queue:
        while taken < count:
            interrupts.check()
            batch = queue.read(min(_BATCH_EVENTS, count - taken))
            if not batch.events:
                break
            head = '{"kind":"beats",' if as_json else "{"
            lines = [head + event_text(event)[1:] + "\n" for event in batch]
            write_bytes("".join(lines).encode())
            sys.stdout.flush()
            batch.ack()
            taken += len(batch)
    return taken
