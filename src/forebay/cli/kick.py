"""`forebay kick`: makes buried items pending again."""

from __future__ import annotations

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument
from forebay.cli.deadline_tokens import opened
from forebay.cli.output import plural, talk, write_json
from forebay.formats.deadline.items import ID_MAX


@click.command("kick")
@path_argument
@click.argument("id", required=False, type=click.IntRange(0, ID_MAX))
@click.option("--count", type=click.IntRange(min=1), help="The oldest so many of those buried.")
@json_option
def command(path: str, id: int | None, count: int | None, as_json: bool) -> int:
    """Make the buried item ID of the deadline queue PATH pending again, or the --count oldest.

    They are due at once, and how often they were given out counts from 0 again. Code 3 if there is
    none. With --json it is {"kicked":N}. The queue must be free.
    """
    if (id is None) == (count is None):
        raise click.UsageError("give an ID or --count N")
    with opened(path, "kick") as queue:
        kicked = queue.kick(id, count=count)
    if as_json:
        write_json({"kicked": kicked})
    elif kicked or id is None:
        talk(f"{plural(kicked, 'item')} kicked")
    else:
        talk(f"{path} has no buried item {id}")
    return exits.OK if kicked else exits.NOTHING
