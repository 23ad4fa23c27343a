"""Which action a verb takes on which kind of queue: a table a verb, looked up by what is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import click

from forebay import LogReader
from forebay.formats.deadline.items import FileKind, parse_file_name
from forebay.queues.kinds import kind_of

Action = Callable[[], int]
# Not a queue of ours: the files that the original deadline queue left.
ORIGINAL = "original"
# What the kinds are called in messages.
NAMES = {
    "log": "a log",
    "beats": "a Beats queue",
    "fifo": "a fifo",
    "deadline": "a deadline queue",
    ORIGINAL: "a folder of the original deadline queue's files",
}
_OURS = {
    *(FileKind.WAL, FileKind.PENDING_RUN, FileKind.TOMBSTONE_RUN),
    *(FileKind.COMBINED_RUN, FileKind.DEQUEUED_RUN),
}


def act(path: str, verb: str, actions: Mapping[str, Action]) -> int:
    """Does what a verb means for the queue at a path; refuses a kind that it has no meaning for."""
    return actions[only_for(path, verb, *actions)]()


def only_for(path: str, verb: str, *kinds: str) -> str:
    """Returns the kind of queue at a path; refuses one that a verb has no meaning for."""
    kind = find_kind(path)
    if kind not in kinds:
        if kind == "log":
            # It is what no other kind takes: its reader says whether it is a queue at all.
            LogReader(path).close()
        *others, last = (NAMES[name] for name in kinds if name != ORIGINAL)
        meant = f"{', '.join(others)} or {last}" if others else last
        text = f'"{verb}" is for {meant}; {path} is {NAMES[kind]}'
        if kind == ORIGINAL:
            text += ': "forebay recover" brings them into a queue'
        raise click.UsageError(text)
    return kind


def find_kind(path: str) -> str:
    """Tells what is at a path: the name of a kind, or `ORIGINAL`."""
    kind = kind_of(path).name
    return ORIGINAL if kind == "log" and holds_original_files(path) else kind


def holds_original_files(path: str) -> bool:
    """Says whether a directory holds files of the original deadline queue."""
    parsed = map(parse_file_name, os.listdir(path))
    return any(found is not None and found[1] not in _OURS for found in parsed)


def refuse_options(kind: str, given: Mapping[str, object]) -> None:
    """Refuses options that were given and have no meaning for a kind."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise click.UsageError(f"{name} has no meaning for {NAMES[kind]}")
