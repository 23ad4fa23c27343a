"""Which action a verb takes on which kind of queue: a table a verb, looked up by what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from forebay import LogReader
from forebay.queues.kinds import kind_of

Action = Callable[[], int]
# What the kinds are called in messages.
NAMES = {
    "log": "a log",
    "beats": "an event queue",
    "fifo": "a fifo",
    "deadline": "a deadline queue",
}


def act(path: str, verb: str, actions: Mapping[str, Action]) -> int:
    """Does what a verb means for the queue at a path; refuses a kind that it has no meaning for."""
    return actions[only_for(path, verb, *actions)]()


def only_for(path: str, verb: str, *kinds: str) -> str:
    """Gives the kind of queue at a path; refuses one that a verb has no meaning for."""
    kind = kind_of(path).name
    if kind not in kinds:
        if kind == "log":
            # It is what no other kind takes: its reader says whether it is a queue at all.
            LogReader(path).close()
        others = " or ".join(NAMES[name] for name in kinds)
        raise click.UsageError(f'"{verb}" is for {others}; {path} is {NAMES[kind]}')
    return kind


def refuse_options(kind: str, given: Mapping[str, object]) -> None:
    """Refuses options that were given and have no meaning for a kind."""
    for name, value in given.items():
        if value not in (None, False):
            raise click.UsageError(f"{name} has no meaning for {NAMES[kind]}")
