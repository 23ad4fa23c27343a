"""`forebay info`: the state of a queue, read without a lock."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, key_option, paths_argument
from forebay.cli.output import (
    as_json_object,
    plural,
    size_text,
    time_text,
    write_facts,
    write_json,
)
from forebay.cli.queues import find, for_each, offers, options_for
from forebay.queues.kinds import Kind, describe
from forebay.queues.shared.reports import STATES, QueueInfo, describe_damage, plural_of

_WITHIN = {
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
_COMMON = {field.name for field in fields(QueueInfo)}


@click.command("info")
@paths_argument
@key_option
@json_option
def command(paths: tuple[str, ...], key_file: str | None, as_json: bool) -> int:
    """Print the state of each queue PATH, even while it is in use or after a crash.

    For a deadline queue this includes when its items are due: how many now, within a minute, an
    hour, a day and so on. The indexes of its files supply the counts.
    """

    def tell(path: str) -> int:
        kind = find(path, "info", offers("describe"))
        options = options_for(kind, kind.checks.describe, {"--key-file": key_file})
        facts = describe(path, **options)
        if as_json:
            write_json(as_json_object(facts))
        else:
            write_facts(dict(_rows(facts, kind)))
        return exits.OK

    return for_each(paths, tell)


def _rows(facts: QueueInfo, kind: Kind) -> Iterator[tuple[str, object]]:
    """Yields labels and values; leaves out what is unknown or does not apply."""
    yield "path", facts.path
    version = getattr(facts, "version", None)
    yield "kind", facts.kind if version is None else f"{facts.kind}, version {version}"
    owner = "" if facts.owner is None else f" in process {facts.owner}"
    yield "state", f"{STATES[facts.state]}{owner}"
    yield plural_of(kind.record), facts.records
    yield plural_of(kind.file), f"{facts.segments} ({size_text(facts.bytes)})"
    for field in fields(facts):
        value = getattr(facts, field.name)
        if field.name not in _COMMON and field.name != "version" and value is not None:
            yield from _rows_of(field.name, value)
    for number, damage in enumerate(facts.damage, start=1):
        yield f"damage {number}", describe_damage(damage, kind.record)
    if facts.quarantined_files:
        size = size_text(facts.quarantined_bytes)
        yield "quarantine", f"{plural(facts.quarantined_files, 'file')} ({size})"


def _rows_of(name: str, value: Any) -> Iterator[tuple[str, object]]:
    label = name.replace("_", " ")
    if name in ("consumers", "cursors"):
        for key, place in value.items():
            yield f"{label[:-1]} {key}", f"at {place['offset']}, lag {place['lag']}"
    elif name == "deadlines":
        yield from _histogram(value)
    elif isinstance(value, Mapping):
        yield label, ", ".join(f"{key} {number}" for key, number in value.items())
    elif name.endswith("_ms"):
        yield label.removesuffix(" ms"), time_text(value)
    elif name.endswith("_id"):
        yield label, str(value)
    elif name.endswith("_bytes"):
        yield label, f"{value} ({size_text(value)})"
    else:
        yield label, value


def _histogram(counts: Mapping[str, int]) -> Iterator[tuple[str, object]]:
    """Yields the counts by row, with bars on a terminal."""
    most = max(1, *counts.values())
    width = len(f"{most:,}")
    for name, count in counts.items():
        if not sys.stdout.isatty():
            yield _WITHIN[name], count
        else:
            bar = "█" * (-(-count * _BAR_COLUMNS // most))
            yield _WITHIN[name], f"{count:>{width},}  {bar}"
