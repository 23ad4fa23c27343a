"""`forebay consumers`: lists the readers of a queue and their lag; removes one on request."""

from __future__ import annotations

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument, wait_option
from forebay.cli.output import talk, write_json, write_table
from forebay.cli.queues import find, has_consumers, open_for


@click.command("consumers")
@path_argument
@click.option("--forget", metavar="NAME", help="Remove a consumer; trimming stops waiting for it.")
@wait_option
@json_option
def command(path: str, forget: str | None, wait: float | None, as_json: bool) -> int:
    """List the consumers of the log PATH: name, next offset, and how many records are left.

    Cursors are the saved positions of readers in other processes, such as a Spark stream. Only
    --forget needs the lock of the queue.
    """
    kind = find(path, "consumers", has_consumers)
    with kind.open_reader(path) as reader:
        places = {"consumer": reader.consumers(), "cursor": reader.cursors()}
        end = reader.end
    if forget is not None:
        offset = places["consumer"].get(forget)
        if offset is None:
            raise exits.Failure(f"{path} has no consumer {forget!r}", exits.NOTHING)
        with open_for(kind, path, wait, owner={"background": False}) as log:
            log.forget_consumer(forget)
        if as_json:
            write_json({"forgot": forget, "offset": offset})
        else:
            talk(f"forgot consumer {forget!r}, which was at offset {offset}")
        return exits.OK
    rows = [
        (name, what, offset, max(0, end - offset))
        for what, offsets in places.items()
        for name, offset in offsets.items()
    ]
    if as_json:
        for name, what, offset, lag in rows:
            write_json({"name": name, "kind": what, "offset": offset, "lag": lag})
    else:
        write_table(("name", "kind", "offset", "lag"), rows)
    return exits.OK
