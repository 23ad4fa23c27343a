"""`forebay bury`: puts an item aside that `take --lease` gave out."""

from __future__ import annotations

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument, token_argument
from forebay.cli.deadline_tokens import opened
from forebay.cli.output import talk, write_json


@click.command("bury")
@path_argument
@token_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with the item.")
@json_option
def command(path: str, token: tuple[int, int], reason: str, as_json: bool) -> int:
    """Put an item of the deadline queue PATH aside, by its token of "take --lease".

    It is kept, printed by "forebay cat", and not given out until "forebay kick". Code 3 if the
    token does not hold. With --json it is {"buried":ID}. The queue must be free.
    """
    with opened(path, "bury") as queue:
        item = queue.reclaim(*token)
        queue.bury(item, reason)
    if as_json:
        write_json({"buried": item.id})
    else:
        talk(f'item {item.id} is buried; "forebay kick" makes it pending again')
    return exits.OK
