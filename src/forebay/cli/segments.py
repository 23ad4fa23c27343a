"""`forebay segments`: lists the files that hold the records of a queue."""

from __future__ import annotations

from dataclasses import fields

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, paths_argument
from forebay.cli.output import as_json_object, say, time_text, write_json, write_table
from forebay.cli.queues import find, for_each, offers, options_for
from forebay.queues.kinds import segments


@click.command("segments")
@paths_argument
@key_option
@json_option
def command(paths: tuple[str, ...], key_file: str | None, as_json: bool) -> int:
    """List the files of each queue PATH: name, records, bytes, any error, and more by kind.

    Bytes are the size of the file; the one being written is allocated ahead. For a fifo it lists
    the files of the tape, with the position and number of the first entry in each where the queue
    has noted them. For a deadline queue it lists the runs and logs in use.
    """

    def list_files(path: str) -> int:
        kind = find(path, "segments", offers("segments"))
        options = options_for(kind, kind.checks.segments, {"--key-file": key_file})
        files = segments(path, **options)
        if as_json:
            for file in files:
                write_json(as_json_object(file))
        elif files:
            names = [field.name for field in fields(files[0]) if field.name != "error"]
            rows = [[_cell(name, getattr(file, name)) for name in names] for file in files]
            columns = [name.removesuffix("_ms").replace("_", " ") for name in names]
            write_table(columns, rows)
        bad = [file for file in files if file.error is not None]
        for file in bad:
            say(f"{path}/{file.name}: {file.error}")
        return exits.DAMAGE if bad else exits.OK

    return for_each(paths, list_files)


def _cell(name: str, value: object) -> object:
    return time_text(value) if name.endswith("_ms") and isinstance(value, int) else value
