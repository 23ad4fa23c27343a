"""What `info` and `segments` tell of a fifo. Only reads, takes no lock."""

from __future__ import annotations

from typing import Any

from forebay import FifoReader
from forebay.cli import exits
from forebay.cli.fifo_inspection import STATES, end_damage, is_being_made, state_of, tape_files
from forebay.cli.inspection import damage_fields, describe, owner_of
from forebay.cli.output import (
    plural,
    say,
    size_text,
    time_text,
    write_facts,
    write_json,
    write_table,
)
from forebay.queues.fifo.scanner import EntryBatch
from forebay.storage.quarantine import count_kept

_COLUMNS = ("name", "bytes", "first position", "first number", "known")


def tell_info(path: str, as_json: bool) -> int:
    """Tells the state of a fifo."""
    with FifoReader(path) as reader:
        facts = _facts(reader)
    if as_json:
        write_json(facts)
    else:
        write_facts(_text(facts))
    return exits.OK


def list_files(path: str, as_json: bool) -> int:
    """Lists the files of a fifo's tape."""
    with FifoReader(path) as reader:
        files = tape_files(reader)
        troubled = [
            file for file in files if file.trouble is not None and not is_being_made(reader, file)
        ]
    if as_json:
        for file in files:
            write_json(
                {
                    "name": file.name,
                    "file": file.number,
                    "bytes": file.size,
                    "first_position": file.first_position,
                    "first_number": file.first_number,
                    "known": file.known,
                    "trouble": file.trouble if file in troubled else None,
                }
            )
    else:
        rows = [
            (file.name, file.size, file.first_position, file.first_number, file.known)
            for file in files
        ]
        write_table(_COLUMNS, rows)
    for file in troubled:
        say(f"{path}/{file.name}: {file.trouble}")
    return exits.DAMAGE if troubled else exits.OK


def _facts(reader: FifoReader) -> dict[str, Any]:
    owner = owner_of(reader.path)
    files = tape_files(reader)
    damage = end_damage(reader, owner)
    kept_files, kept_bytes = count_kept(reader.directory)
    tail = reader.tail
    following = next((item.ids[0] for item in reader.scan() if isinstance(item, EntryBatch)), None)
    return {
        "kind": "fifo",
        "path": reader.path,
        "state": state_of(reader, owner),
        "owner": owner,
        "size": len(reader),
        "begin": reader.begin,
        "end": reader.end,
        "durable": reader.end if tail is None else min(tail.durable, reader.end),
        "taken": len(reader.lent),
        "bytes": reader.tape_bytes,
        "files": len(files),
        "file_bytes": reader.head.file_bytes,
        "disk_bytes": sum(file.disk_bytes for file in files),
        "expired": reader.head.expired,
        "dropped": reader.head.dropped,
        "damaged": reader.head.damaged,
        "next_id": following,
        "next_time_ms": None if following is None else following >> 16,
        "incarnation": tail.incarnation if tail is not None else None,
        "end_damage": damage_fields(damage) if damage is not None else None,
        "end_text": describe(damage) if damage is not None else None,
        "quarantined_files": kept_files,
        "quarantined_bytes": kept_bytes,
    }


def _text(facts: dict[str, Any]) -> dict[str, object]:
    state = STATES[facts["state"]]
    if facts["owner"] is not None:
        state = f"{state} in process {facts['owner']}"
    files, each = plural(facts["files"], "file"), size_text(facts["file_bytes"])
    rows: dict[str, object] = {
        "path": facts["path"],
        "kind": facts["kind"],
        "state": state,
        "entries": facts["size"],
        "begin": facts["begin"],
        "end": facts["end"],
        "durable": facts["durable"],
        "bytes": f"{facts['bytes']} ({size_text(facts['bytes'])})",
        "next entry": None
        if facts["next_id"] is None
        else f"id {facts['next_id']}, of {time_text(facts['next_time_ms'])}",
        "tape": f"{files} of {each} ({size_text(facts['disk_bytes'])})",
        "incarnation": facts["incarnation"],
    }
    meanings = {
        "taken": "taken and not finished with",
        "expired": "left because their time was over",
        "dropped": "left to make room",
        "damaged": "left because they could not be read",
    }
    for name, meaning in meanings.items():
        if facts[name]:
            rows[name] = f"{facts[name]} {meaning}"
    if facts["end_text"] is not None:
        rows["behind the end"] = facts["end_text"]
    if facts["quarantined_files"]:
        size = size_text(facts["quarantined_bytes"])
        rows["quarantine"] = f"{plural(facts['quarantined_files'], 'file')} ({size})"
    return rows
