"""`forebay requeue`: gives an item back that `take --lease` gave out, due later."""

from __future__ import annotations

import sys

import click

from forebay.cli import exits
from forebay.cli.arguments import (
    check_due,
    due_options,
    json_option,
    path_argument,
    token_argument,
)
from forebay.cli.deadline_tokens import opened
from forebay.cli.output import talk, time_text, write_json


@click.command("requeue")
@path_argument
@token_argument
@due_options
@click.option(
    "--value-file",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    help="What the item holds from now on: the bytes of a file; - is stdin.",
)
@json_option
def command(
    path: str,
    token: tuple[int, int],
    delay: float | None,
    deadline: int | None,
    value_file: str | None,
    as_json: bool,
) -> int:
    """Give an item of the deadline queue PATH back, by its token of "take --lease".

    It is due after --delay, at --deadline, or now, but never before the end of its lease: the time
    that it got is told, with --json as {"id":N,"deadline_ms":N}. Its token holds on. Code 3 if the
    token does not: it was given out again, is buried, or is gone. The queue must be free.
    """
    check_due(delay, deadline)
    value = None if value_file is None else _read(value_file)
    with opened(path, "requeue") as queue:
        item = queue.reclaim(*token)
        queue.requeue(item, delay=delay, deadline=deadline, value=value)
        requeued = queue.get(item.id)
    assert requeued is not None
    if as_json:
        write_json({"id": item.id, "deadline_ms": requeued.deadline_ms})
    else:
        talk(f"item {item.id} is due at {time_text(requeued.deadline_ms)}")
    return exits.OK


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    with open(name, "rb") as file:
        return file.read()
