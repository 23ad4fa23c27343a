"""`forebay segments`: the segment files of a queue."""

from __future__ import annotations

import click

from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, path_argument
from forebay.cli.inspection import owner_of, segment_facts
from forebay.cli.kinds import act, refuse_options
from forebay.cli.output import say, time_text, write_json, write_table

_COLUMNS = ("name", "base", "count", "bytes", "version", "first time", "sealed")


@click.command("segments")
@path_argument
@key_option
@json_option
def command(path: str, key_file: str | None, as_json: bool) -> int:
    """List the segments of the queue PATH: name, first offset, records, bytes, version, time.

    Bytes are those of the file; the one that is being written is allocated ahead. For a fifo it
    lists the files of the tape: where in each the first entry begins, and its number, where the
    queue has noted that. For a deadline queue it lists the runs and logs that count.
    """

    def on_log() -> int:
        refuse_options("log", {"--key-file": key_file})
        return _segments_log(path, as_json)

    def on_events() -> int:
        from forebay.cli.event_reports import list_segments

        return list_segments(path, key_file, as_json)

    def on_fifo() -> int:
        from forebay.cli.fifo_info import list_files

        refuse_options("fifo", {"--key-file": key_file})
        return list_files(path, as_json)

    def on_deadline() -> int:
        from forebay.cli.deadline_info import list_files

        refuse_options("deadline", {"--key-file": key_file})
        return list_files(path, as_json)

    actions = {"log": on_log, "beats": on_events, "fifo": on_fifo, "deadline": on_deadline}
    return act(path, "segments", actions)


def _segments_log(path: str, as_json: bool) -> int:
    with LogReader(path) as reader:
        facts = segment_facts(reader, owner_of(reader.path))
    if as_json:
        for segment in facts:
            write_json(
                {
                    "name": segment.name,
                    "base": segment.base,
                    "count": segment.count,
                    "bytes": segment.size,
                    "version": segment.version,
                    "first_time_ms": segment.first_time_ms,
                    "sealed": segment.sealed,
                    "trouble": segment.trouble,
                }
            )
    else:
        rows = [
            (
                segment.name,
                segment.base,
                segment.count,
                segment.size,
                segment.version,
                time_text(segment.first_time_ms),
                segment.sealed,
            )
            for segment in facts
        ]
        write_table(_COLUMNS, rows)
    troubled = [segment for segment in facts if segment.trouble is not None]
    for segment in troubled:
        say(f"segment {segment.name}: {segment.trouble}")
    return exits.DAMAGE if troubled else exits.OK
