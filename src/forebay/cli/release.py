"""`forebay release`: takes items away for good that `take --lease` gave out."""

from __future__ import annotations

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument, tokens_argument
from forebay.cli.deadline_tokens import opened, reclaim_all
from forebay.cli.output import plural, talk, write_json


@click.command("release")
@path_argument
@tokens_argument
@json_option
def command(path: str, tokens: list[tuple[int, int]], as_json: bool) -> int:
    """Take items of the deadline queue PATH away for good, by the tokens of "take --lease".

    A token holds until the item is given out again, also when its lease has ended meanwhile. Those
    that hold are released with one commit; each that does not is told, and the code is 3. With
    --json it is {"released":N,"lost":[TOKEN,...]}. The queue must be free.
    """
    with opened(path, "release") as queue:
        items, lost = reclaim_all(queue, tokens)
        queue.release_many(items)
    if as_json:
        write_json({"released": len(items), "lost": lost})
    else:
        talk(f"{plural(len(items), 'item')} released")
    return exits.NOTHING if lost else exits.OK
