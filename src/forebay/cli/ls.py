"""`forebay ls`: lists the queues in a directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option
from forebay.cli.output import as_json_object, say, write_json, write_table
from forebay.errors import ForebayError, NotAQueue
from forebay.queues.kinds import describe
from forebay.storage.objects import is_address, joined, open_folder, plain_path, shown

_COLUMNS = ("path", "kind", "state", "owner", "records", "bytes")


@click.command("ls")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(readable=False))
@json_option
def command(paths: tuple[str, ...], as_json: bool) -> int:
    """List the queue at each PATH (default: here) and those in the directories directly below it.

    With --json prints what "forebay info" prints, one line per queue. Directories that are not
    queues are left out. A queue that cannot be read is reported on stderr, and its error decides
    the code.
    """
    code = exits.OK
    rows = []
    for path in _candidates(paths or (".",)):
        try:
            facts = describe(path)
        except NotAQueue:
            continue
        except (ForebayError, OSError) as error:
            say(exits.message_of(error, path))
            code = code or exits.code_of(error)
            continue
        if as_json:
            write_json(as_json_object(facts))
        rows.append((shown(path), facts.kind, facts.state, facts.owner, facts.records, facts.bytes))
    if not as_json:
        write_table(_COLUMNS, rows)
    return code


def _candidates(paths: tuple[str, ...]) -> Iterator[str]:
    for path in paths:
        yield path
        if is_address(path):
            with contextlib.closing(open_folder(path)) as folder:
                yield from (joined(path, name) for name in folder.folders())
            continue
        here = plain_path(path)
        with os.scandir(here) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        yield from (os.path.normpath(os.path.join(here, name)) for name in names)
