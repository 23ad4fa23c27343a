"""`forebay release`, `requeue`, `bury` and `kick`: change the state of leased or buried items."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import (
    check_due,
    due_options,
    json_option,
    path_argument,
    token_argument,
    tokens_argument,
    wait_option,
)
from forebay.cli.output import as_json_object, check_stdin, plural, say, talk, time_text, write_json
from forebay.cli.queues import find, offers, open_for
from forebay.errors import LeaseLost
from forebay.formats.deadline.items import ID_MAX


@contextlib.contextmanager
def opened(path: str, verb: str, wait: float | None) -> Iterator[Any]:
    """Opens an existing queue of a kind with leases, for one change."""
    kind = find(path, verb, lambda kind: kind.leases)
    with open_for(kind, path, wait, owner={"background": False}) as queue:
        yield queue


@click.command("release")
@path_argument
@tokens_argument
@wait_option
@json_option
def release(path: str, tokens: list[tuple[int, int]], wait: float | None, as_json: bool) -> int:
    """Remove leased items from the deadline queue PATH for good, by their tokens of "take --lease".

    A token stays valid until its item is delivered again, even after its lease has expired. All
    valid tokens are released in one commit. Each invalid one is reported, and the code is 3. With
    --json prints {"released":N,"lost":[TOKEN,...]}. Needs the lock of the queue.
    """
    items: list[Any] = []
    lost = []
    with opened(path, "release", wait) as queue:
        for id, count in dict.fromkeys(tokens):
            try:
                items.append(queue.reclaim(id, count))
            except LeaseLost as error:
                say(str(error))
                lost.append(f"{id}.{count}")
        queue.release_many(items)
    if as_json:
        write_json({"released": len(items), "lost": lost})
    else:
        talk(f"{plural(len(items), 'item')} released")
    return exits.NOTHING if lost else exits.OK


@click.command("requeue")
@path_argument
@token_argument
@due_options
@click.option(
    "--value-file",
    type=click.Path(exists=True, dir_okay=False, readable=False, allow_dash=True),
    help="Replace the value of the item with the bytes of this file; - is stdin.",
)
@wait_option
@json_option
def requeue(
    path: str,
    token: tuple[int, int],
    delay: float | None,
    deadline: int | None,
    value_file: str | None,
    wait: float | None,
    as_json: bool,
) -> int:
    """Return an item to the deadline queue PATH, by its token of "take --lease".

    It is due after --delay, at --deadline, or now, but never before its lease ends. The time chosen
    is printed, with --json as {"id":N,"id_str":"N","deadline_ms":N}. The token stays valid. Code 3
    if it was not: the item was delivered again, is buried, or is gone. Needs the lock of the queue.
    """
    check_due(delay, deadline)
    value = None if value_file is None else _read(value_file)
    with opened(path, "requeue", wait) as queue:
        item = queue.reclaim(*token)
        queue.requeue(item, delay=delay, deadline_ms=deadline, value=value)
        requeued = queue.get(item.id)
    if as_json:
        write_json(as_json_object({"id": item.id, "deadline_ms": requeued.deadline_ms}))
    else:
        talk(f"item {item.id} is due at {time_text(requeued.deadline_ms)}")
    return exits.OK


@click.command("bury")
@path_argument
@token_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with the item.")
@wait_option
@json_option
def bury(path: str, token: tuple[int, int], reason: str, wait: float | None, as_json: bool) -> int:
    """Set an item of the deadline queue PATH aside, by its token of "take --lease".

    "forebay cat" prints it, but it is not delivered again until "forebay kick". Code 3 if the token
    is not valid. With --json prints {"buried":N,"buried_str":"N"}. Needs the lock of the queue.
    """
    with opened(path, "bury", wait) as queue:
        item = queue.reclaim(*token)
        queue.bury(item, reason)
    if as_json:
        write_json({"buried": item.id, "buried_str": str(item.id)})
    else:
        talk(f'item {item.id} is buried; "forebay kick" makes it pending again')
    return exits.OK


@click.command("kick")
@path_argument
@click.argument("id", required=False, type=click.IntRange(0, ID_MAX))
@click.option("--count", type=click.IntRange(min=1), help="How many, oldest first.")
@wait_option
@json_option
def kick(path: str, id: int | None, count: int | None, wait: float | None, as_json: bool) -> int:
    """Make the buried item ID of the deadline queue PATH pending again, or the --count oldest.

    They are due at once, and their attempts count from 0 again. In a fifo, brings back entries that
    were put aside ("forebay cat --dead" prints them): they go to its end, with new ids. Code 3 if
    there is no such item or entry. With --json prints {"kicked":N}. Needs the lock of the queue.
    """
    if (id is None) == (count is None):
        raise click.UsageError("give an ID or --count N")
    kind = find(path, "kick", offers("kick"))
    with open_for(kind, path, wait, owner={"background": False}) as queue:
        kicked = kind.records.kick(queue, id, count=count)
    if as_json:
        write_json({"kicked": kicked})
    elif kicked or id is None:
        talk(f"{plural(kicked, kind.record)} kicked")
    else:
        say(f"{path} has no {kind.record} {id} that was set aside")
    return exits.OK if kicked else exits.NOTHING


def _read(name: str) -> bytes:
    if name == "-":
        check_stdin()
        return sys.stdin.buffer.read()
    with open(name, "rb") as file:
        return file.read()
