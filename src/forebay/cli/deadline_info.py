"""What `info` and `segments` tell of a deadline queue. Only reads, takes no lock."""

from __future__ import annotations

import sys
from typing import Any

from forebay.cli import exits
from forebay.cli.deadline_folder import Folder, FolderRun
from forebay.cli.deadline_inspection import (
    STATES,
    WHAT,
    count_items,
    next_deadline,
    state_of,
)
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
from forebay.formats.deadline.items import BURIED_BIT

_COLUMNS = ("name", "holds", "entries", "bytes", "first deadline", "last deadline")
_ROWS = {
    "overdue": "due by now",
    "minute": "within a minute",
    "hour": "within an hour",
    "day": "within a day",
    "week": "within a week",
    "month": "within 30 days",
    "year": "within a year",
    "later": "later",
}
_BAR_COLUMNS = 40


def tell_info(path: str, as_json: bool) -> int:
    """Tells the state of a deadline queue."""
    with Folder(path) as folder:
        facts = _facts(folder)
    if as_json:
        write_json(facts)
    else:
        write_facts(_text(facts))
    return exits.OK


def list_files(path: str, as_json: bool) -> int:
    """Lists the runs and logs that count."""
    with Folder(path) as folder:
        files = [_run_fields(run) for run in folder.runs]
        files += [_log_fields(name, size) for name, size in folder.logs.items()]
        damage = folder.damage
    if as_json:
        for file in files:
            write_json(file)
    else:
        rows = [
            (
                *(file["name"], file["holds"], file["entries"], file["bytes"]),
                *(time_text(file["first_deadline_ms"]), time_text(file["last_deadline_ms"])),
            )
            for file in files
        ]
        write_table(_COLUMNS, rows)
    for found in damage:
        say(describe(found))
    return exits.DAMAGE if damage else exits.OK


def _run_fields(run: FolderRun) -> dict[str, Any]:
    footer = run.run.footer if run.run is not None and run.run.footer.count else None
    return {
        "name": run.name,
        "holds": WHAT[run.kind],
        "entries": run.run.footer.count if run.run is not None else None,
        "bytes": run.size,
        "first_deadline_ms": footer and footer.first_key.deadline_ms & ~BURIED_BIT,
        "last_deadline_ms": footer and footer.last_key.deadline_ms & ~BURIED_BIT,
    }


def _log_fields(name: str, size: int) -> dict[str, Any]:
    rest = {"first_deadline_ms": None, "last_deadline_ms": None}
    return {"name": name, "holds": "log", "entries": None, "bytes": size, **rest}


def _facts(folder: Folder) -> dict[str, Any]:
    owner = owner_of(folder.path)
    counts = count_items(folder)
    manifest = folder.manifest
    kept_files, kept_bytes = folder.kept()
    return {
        "kind": "deadline",
        "path": folder.path,
        "state": state_of(folder, owner),
        "owner": owner,
        "pending": counts.pending,
        "due": counts.due["overdue"],
        # Who holds what is in the memory of the owner: from outside it is pending.
        "working": None if owner is not None else 0,
        "buried": counts.buried,
        "next_deadline_ms": next_deadline(folder),
        "deadlines": counts.due,
        "next_id": manifest.next_id if manifest is not None else None,
        "runs": len(folder.runs),
        "logs": len(folder.logs),
        "run_bytes": sum(run.size for run in folder.runs),
        "log_bytes": sum(folder.logs.values()),
        "bytes": folder.size,
        "damage": [damage_fields(damage) for damage in folder.damage],
        "damage_text": [describe(damage) for damage in folder.damage],
        "quarantined_files": kept_files,
        "quarantined_bytes": kept_bytes,
    }


def _text(facts: dict[str, Any]) -> dict[str, object]:
    state = STATES[facts["state"]]
    if facts["owner"] is not None:
        state = f"{state} in process {facts['owner']}"
    runs, logs = plural(facts["runs"], "run"), plural(facts["logs"], "log")
    rows: dict[str, object] = {
        "path": facts["path"],
        "kind": facts["kind"],
        "state": state,
        "pending": facts["pending"],
        "due": facts["due"],
        "working": "among the pending; only the owner knows"
        if facts["working"] is None
        else facts["working"],
        "buried": facts["buried"],
        "next deadline": time_text(facts["next_deadline_ms"]),
        "files": f"{runs} ({size_text(facts['run_bytes'])}), "
        f"{logs} ({size_text(facts['log_bytes'])})",
    }
    for number, text in enumerate(facts["damage_text"], start=1):
        rows[f"damage {number}"] = text
    if facts["quarantined_files"]:
        size = size_text(facts["quarantined_bytes"])
        rows["quarantine"] = f"{plural(facts['quarantined_files'], 'file')} ({size})"
    return rows | _histogram(facts["deadlines"])


def _histogram(counts: dict[str, int]) -> dict[str, object]:
    """Returns the counts by row; on a terminal with bars."""
    if not sys.stdout.isatty():
        return {_ROWS[name]: count for name, count in counts.items()}
    most = max(1, *counts.values())
    width = len(f"{most:,}")
    rows: dict[str, object] = {}
    for name, count in counts.items():
        bar = "█" * (-(-count * _BAR_COLUMNS // most))
        rows[_ROWS[name]] = f"{count:>{width},}  {bar}"
    return rows
