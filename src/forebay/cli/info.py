"""`forebay info`: the state of a queue, read without a lock."""

from __future__ import annotations

from typing import Any

import click

from forebay import LogReader
from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, path_argument
from forebay.cli.inspection import (
    STATES,
    damage_fields,
    describe,
    end_damage,
    newest_version,
    owner_of,
    segment_facts,
    state_of,
)
from forebay.cli.kinds import act, refuse_options
from forebay.cli.output import plural, size_text, time_text, write_facts, write_json
from forebay.errors import Damaged
from forebay.storage.quarantine import count_kept


@click.command("info")
@path_argument
@key_option
@json_option
def command(path: str, key_file: str | None, as_json: bool) -> int:
    """Tell the state of the queue PATH, even while it is in use, or after a crash.

    Of a deadline queue also when its items are due: how many by now, within a minute, an hour, a
    day and so on, counted by the indexes of its files.
    """

    def on_log() -> int:
        refuse_options("log", {"--key-file": key_file})
        return _info_log(path, as_json)

    def on_events() -> int:
        from forebay.cli.event_reports import tell_info

        return tell_info(path, key_file, as_json)

    def on_fifo() -> int:
        from forebay.cli.fifo_info import tell_info

        refuse_options("fifo", {"--key-file": key_file})
        return tell_info(path, as_json)

    def on_deadline() -> int:
        from forebay.cli.deadline_info import tell_info

        refuse_options("deadline", {"--key-file": key_file})
        return tell_info(path, as_json)

    actions = {"log": on_log, "beats": on_events, "fifo": on_fifo, "deadline": on_deadline}
    return act(path, "info", actions)


def _info_log(path: str, as_json: bool) -> int:
    with LogReader(path) as reader:
        facts = _facts(reader)
    if as_json:
        write_json(facts)
    else:
        write_facts(_text(facts))
    return exits.OK


def _facts(reader: LogReader) -> dict[str, Any]:
    owner = owner_of(reader.path)
    segments = segment_facts(reader, owner)
    damage = end_damage(reader, owner)
    kept_files, kept_bytes = count_kept(reader.directory)
    try:
        positions: dict[str, int] | None = reader.consumers()
        trouble = None
    except Damaged as error:
        positions, trouble = None, exits.message_of(error)
    tail = reader.tail
    return {
        "kind": "log",
        "path": reader.path,
        "state": state_of(reader, owner),
        "owner": owner,
        "begin": reader.begin,
        "end": reader.end,
        "durable": min(reader.durable, reader.end),
        "records": len(reader),
        "segments": len(segments),
        "bytes": sum(segment.size for segment in segments),
        "version": newest_version(reader) if segments else None,
        "last_time_ms": tail.time_ms or None if tail is not None else None,
        "consumers": _places(positions or {}, reader.end),
        "consumers_damage": trouble,
        "cursors": _places(reader.cursors(), reader.end),
        "incarnation": tail.incarnation if tail is not None else None,
        "end_damage": damage_fields(damage) if damage is not None else None,
        "end_text": describe(damage) if damage is not None else None,
        "quarantined_files": kept_files,
        "quarantined_bytes": kept_bytes,
    }


def _places(offsets: dict[str, int], end: int) -> dict[str, dict[str, int]]:
    return {
        name: {"offset": offset, "lag": max(0, end - offset)} for name, offset in offsets.items()
    }


def _text(facts: dict[str, Any]) -> dict[str, object]:
    state = STATES[facts["state"]]
    if facts["owner"] is not None:
        state = f"{state} in process {facts['owner']}"
    not_durable = facts["end"] - facts["durable"]
    rows: dict[str, object] = {
        "path": facts["path"],
        "kind": f"{facts['kind']}, version {facts['version']}"
        if facts["version"] is not None
        else facts["kind"],
        "state": state,
        "records": facts["records"],
        "begin": facts["begin"],
        "end": facts["end"],
        "durable": facts["durable"]
        if not not_durable
        else f"{facts['durable']} ({plural(not_durable, 'record')} not yet)",
        "last record": time_text(facts["last_time_ms"]),
        "segments": f"{facts['segments']} ({size_text(facts['bytes'])})",
        "incarnation": facts["incarnation"],
    }
    for kind in ("consumers", "cursors"):
        for name, place in facts[kind].items():
            rows[f"{kind[:-1]} {name}"] = f"at {place['offset']}, lag {place['lag']}"
    if facts["consumers_damage"] is not None:
        rows["consumers"] = facts["consumers_damage"]
    if facts["end_text"] is not None:
        rows["behind the end"] = facts["end_text"]
    if facts["quarantined_files"]:
        size = size_text(facts["quarantined_bytes"])
        rows["quarantine"] = f"{plural(facts['quarantined_files'], 'file')} ({size})"
    return rows
