"""`live`: what a forwarder is doing, for whoever wants to look at it from another process.

A slot file in the state directory, without syncs: it tells of the present, and nothing depends on
it. The state directories of a queue's forwarders are `forward/NAME` in its directory; others are
wherever the user has put them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from forebay.errors import NotAQueue
from forebay.storage.filesystem import Directory, DiskFilesystem, lock_owner
from forebay.storage.slots import SlotFile

DIRECTORY = "forward"
NAME = "live"
_MAGIC = b"FBLV"
_BYTES = 4000
# The longest text of an error that is kept.
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a forwarder is doing.

    - `name`, `queue`, `output`: which forwarder it is; `path` is its state directory.
    - `pid`: its process; None if it does not run.
    - `state`: "sending", "waiting" (the output is away, or refuses), "idle" or "stopped".
    - `lag`: how many records wait, as far as that is known.
    - `delivered`, `set_aside`, `dropped`, `damaged`: the counts since the state was created.
    - `rate`: records a second that were delivered lately.
    - `attempts`: how often the present batch has been sent in vain.
    - `last_error`, `last_error_ms`: the last failure, and when it was.
    - `next_try_ms`: when it is sent again; None if nothing waits for that.
    - `updated_ms`: when this was written.
    """

    name: str
    queue: str
    output: str
    path: str = ""
    pid: int | None = None
    state: str = "idle"
    lag: int | None = None
    delivered: int = 0
    set_aside: int = 0
    dropped: int = 0
    damaged: int = 0
    rate: float = 0.0
    attempts: int = 0
    last_error: str | None = None
    last_error_ms: int | None = None
    next_try_ms: int | None = None
    updated_ms: int = 0


class LiveFile:
    """The file, for the forwarder that writes it."""

    def __init__(self, directory: Directory) -> None:
        self._slots = SlotFile.make(directory, NAME, _MAGIC, _BYTES)

    def write(self, live: Live) -> None:
        """Publishes what the forwarder is doing."""
        facts = asdict(live)
        for name in ("queue", "output", "last_error"):
            if facts[name] is not None:
                facts[name] = facts[name][:_TEXT_MAX]
        self._slots.write(
            json.dumps(facts, ensure_ascii=False).encode("utf-8", "replace").ljust(_BYTES)[:_BYTES]
        )

    def close(self) -> None:
        """Closes the file."""
        self._slots.close()


def read_live(path: str | os.PathLike[str]) -> Live | None:
    """Returns what the forwarder with a state directory is doing; None if there is none."""
    where = os.fspath(path)
    try:
        directory = DiskFilesystem().open_directory(where)
    except (OSError, NotAQueue):
        return None
    with contextlib.closing(directory):
        try:
            slots = SlotFile.open(directory, NAME, _MAGIC, _BYTES, write=False)
        except (OSError, NotAQueue):
            return None
        if slots is None:
            return None
        slots.close()
    try:
        facts = json.loads(slots.payload or b"")
        known = {each.name for each in fields(Live)}
        live = {name: value for name, value in facts.items() if name in known}
    except ValueError:
        return None
    owner = lock_owner(where)
    if owner is None:
        live.update(state="stopped", rate=0.0, next_try_ms=None)
    return Live(**{**live, "path": where, "pid": owner})


def forwarders_of(queue: str | os.PathLike[str]) -> Iterator[Live]:
    """Yields what the forwarders are doing whose state is in the directory of a queue."""
    folder = f"{os.fspath(queue)}/{DIRECTORY}"
    try:
        directory = DiskFilesystem().open_directory(folder)
    except (OSError, NotAQueue):
        return
    with contextlib.closing(directory):
        names = sorted(directory.names())
    for name in names:
        live = read_live(f"{folder}/{name}")
        if live is not None:
            yield live
