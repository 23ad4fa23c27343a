"""`forebay consumers`: who reads a queue, how far behind, and how to forget one."""

from __future__ import annotations

import click

import forebay
from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument
from forebay.cli.kinds import only_for
from forebay.cli.output import talk, write_json, write_table


@click.command("consumers")
@path_argument
@click.option("--forget", metavar="NAME", help="Remove a consumer: trimming stops waiting for it.")
@json_option
def command(path: str, forget: str | None, as_json: bool) -> int:
    """List the consumers of the log PATH: name, next offset, and how many records are left.

    Cursors are the places of readers in other processes, such as a Spark stream. Only --forget
    needs the queue to be free.
    """
    only_for(path, "consumers", "log")
    if forget is not None:
        return _forget(path, forget, as_json)
    with LogReader(path) as reader:
        found = [("consumer", *place) for place in reader.consumers().items()]
        found += [("cursor", *place) for place in reader.cursors().items()]
        end = reader.end
    rows = [(name, kind, offset, max(0, end - offset)) for kind, name, offset in found]
    if as_json:
        for name, kind, offset, lag in rows:
            write_json({"name": name, "kind": kind, "offset": offset, "lag": lag})
    else:
        write_table(("name", "kind", "offset", "lag"), rows)
    return exits.OK


def _forget(path: str, name: str, as_json: bool) -> int:
    with LogReader(path) as reader:
        offset = reader.consumers().get(name)
    if offset is None:
        raise exits.Failure(f"{path} has no consumer {name!r}", exits.NOTHING)
    with forebay.open(path, background=False) as log:
        log.forget_consumer(name)
    if as_json:
        write_json({"forgot": name, "offset": offset})
    else:
        talk(f"forgot consumer {name!r}, which stood at offset {offset}")
    return exits.OK
