"""`open` and `read`: for an existing queue of any kind.

They have the parameters of all kinds; the overloads tell editors and type checkers which parameters
belong to which kind.
"""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any, Literal, TypeAlias, Unpack, overload

# For annotations: a class is imported when somebody looks at them.
import forebay
from forebay.errors import InvalidOption, NotAQueue
from forebay.formats.beats.versions import Dialect
from forebay.queues.beats.options import BeatsKeywords
from forebay.queues.deadline.options import DeadlineKeywords
from forebay.queues.fifo.options import FifoKeywords
from forebay.queues.kinds import Kind, kind_named, kind_of, sure_kind_of
from forebay.queues.log.options import LogKeywords
from forebay.queues.shared.handle import CLIENT
from forebay.queues.shared.options import AnyKeywords, Duration, SyncPolicy, WhenFull

_Path: TypeAlias = str | os.PathLike[str]
AnyQueue: TypeAlias = "forebay.Log | forebay.Fifo | forebay.DeadlineQueue | forebay.BeatsQueue"
AnyReader: TypeAlias = (
    "forebay.LogReader | forebay.FifoReader | forebay.DeadlineReader | forebay.BeatsReader"
)
KindName: TypeAlias = Literal["log", "fifo", "deadline", "beats"]


@overload
def open(path: _Path, *, kind: Literal["log"], **options: Unpack[LogKeywords]) -> forebay.Log: ...
@overload
def open(
    path: _Path, *, kind: Literal["fifo"], **options: Unpack[FifoKeywords]
) -> forebay.Fifo: ...
@overload
def open(
    path: _Path, *, kind: Literal["deadline"], **options: Unpack[DeadlineKeywords]
) -> forebay.DeadlineQueue: ...
@overload
def open(
    path: _Path, *, kind: Literal["beats"], **options: Unpack[BeatsKeywords]
) -> forebay.BeatsQueue: ...
@overload
def open(
    path: _Path, *, kind: KindName | None = None, **options: Unpack[AnyKeywords]
) -> AnyQueue: ...
def open(
    path: _Path,
    *,
    kind: KindName | None = None,
    shared: bool = False,
    sync: SyncPolicy = "always",
    sync_interval_seconds: Duration = 0.1,
    max_bytes: int | None = None,
    when_full: WhenFull = "block",
    background: bool = True,
    group_readable: bool = False,
    staging_bytes: int = 1 << 20,
    mapped: bool = True,
    segment_bytes: int | None = None,
    trim_interval_seconds: Duration | None = 60.0,
    seal_seconds: Duration | None = None,
    version: str | int | None = None,
    file_bytes: int | None = None,
    max_entries: int | None = None,
    ttl_seconds: Duration = 0,
    lease_seconds: Duration = 60.0,
    max_attempts: int | None = None,
    segment_items: int = 131_072,
    compression: Literal["none", "lz4"] = "none",
    key_file: _Path | None = None,
    dialect: Dialect | None = None,
    retry_seconds: Duration | None = None,
    retry_seconds_max: Duration = 300.0,
) -> AnyQueue:
    """Opens an existing queue; raises `NotAQueue` if there is none, or it is not of `kind`.

    With a `kind`, editors and type checkers know its class and all of its options.

    Options of every kind:

    - `shared`: True shares the queue with any number of processes that say so too; a server, which
      starts and ends by itself, then owns it.
    - `sync`: what a change waits for: the disk ("always"), the next sync in the background
      ("interval"), or nothing ("os").
    - `sync_interval_seconds`: how often "interval" syncs.
    - `max_bytes`: the most that the queue may hold; None: no bound.
    - `when_full`: "block" waits for room, "reject" raises `Full`, "drop_oldest" drops the oldest;
      not for deadline queues.
    - `background`: False means that the caller calls `maintain()` from time to time.
    - `group_readable`: the group of the files may read them.

    Options of logs, fifos and deadline queues:

    - `staging_bytes`: size of the mapped buffer for single puts, which `sync` "always" does not
      use.
    - `mapped`: False uses no mapped memory.

    Options of some kinds:

    - `segment_bytes`, of all but fifos: size of a file; None: the default of the class.
    - `version`, of logs and Beats queues: version of the files that are written; None: that of the
      existing files.
    - `trim_interval_seconds`, of logs: how often records that all consumers have read are removed;
      None: never.
    - `seal_seconds`, of logs: how long a segment is written to at most, so that it can be archived;
      None: until it is full.
    - `file_bytes`, of fifos: size of a file; None: that of the existing files.
    - `max_entries`, of fifos: the most entries that the queue may hold; None: no bound.
    - `ttl_seconds`, of fifos: how long an entry lives if its push does not say; 0: for ever.
    - `lease_seconds`, of deadline queues: how long an item stays leased after it is taken.
    - `max_attempts`, of fifos and deadline queues: after so many attempts, a record that comes back
      is put aside, or buried; None: never.
    - `segment_items`, of deadline queues: how many changes are held in memory.
    - `compression`, of deadline queues: compression of their runs.
    - `key_file`, of Beats queues: holds the key of an encrypted queue.
    - `dialect`, of Beats queues: which version 2 it is, where a file does not tell.
    - `retry_seconds`, of deadline queues: how long an item rests after a failed `take`; of Beats
      queues: for how long a failed write is tried again. None: the default of the class.
    - `retry_seconds_max`, of deadline queues: the longest of these rests.

    The docstrings of `Log`, `Fifo`, `DeadlineQueue` and `BeatsQueue` say more.
    """
    given = {name: value for name, value in locals().items() if value != _DEFAULTS[name]}
    there = _shared_kind(path) if shared else sure_kind_of(path)
    found = _found(path, kind, there)
    queue: AnyQueue = found.open_queue(path, **_of_kind(found, found.queue_class, given))
    return queue


@overload
def read(path: _Path, *, kind: Literal["log"], salvage: bool = False) -> forebay.LogReader: ...
@overload
def read(path: _Path, *, kind: Literal["fifo"], salvage: bool = False) -> forebay.FifoReader: ...
@overload
def read(
    path: _Path, *, kind: Literal["deadline"], salvage: bool = False
) -> forebay.DeadlineReader: ...
@overload
def read(
    path: _Path,
    *,
    kind: Literal["beats"],
    salvage: bool = False,
    key_file: _Path | None = None,
    dialect: Dialect | None = None,
) -> forebay.BeatsReader: ...
@overload
def read(
    path: _Path,
    *,
    kind: KindName | None = None,
    salvage: bool = False,
    key_file: _Path | None = None,
    dialect: Dialect | None = None,
) -> AnyReader: ...
def read(
    path: _Path,
    *,
    kind: KindName | None = None,
    salvage: bool = False,
    key_file: _Path | None = None,
    dialect: Dialect | None = None,
) -> AnyReader:
    """Reads a queue without owning it: takes no lock, writes nothing, whether it is in use or not.

    Raises `NotAQueue` if there is none, or it is not of `kind`.

    - `kind`: what it must be; editors and type checkers then know the class of its reader.
    - `salvage`: False raises `Damaged` at what does not verify; True reads on after it and adds it
      to `damage`.
    - `key_file`, of Beats queues: holds the key of an encrypted queue.
    - `dialect`, of Beats queues: which version 2 it is, where a file does not tell.
    """
    given = {"salvage": salvage, "key_file": key_file, "dialect": dialect}
    given = {name: value for name, value in given.items() if value not in (None, False)}
    found = _found(path, kind, kind_of(path))
    reader: AnyReader = found.open_reader(path, **_of_kind(found, found.reader_class, given))
    return reader


_DEFAULTS = {
    name: parameter.default for name, parameter in inspect.signature(open).parameters.items()
}


def _shared_kind(path: _Path) -> Kind:
    """Returns the kind of a queue that another process may own, and this one not even see."""
    client: Any = importlib.import_module(CLIENT)
    kind: Kind = client.kind_at(path)
    return kind


def _found(path: _Path, kind: str | None, found: Kind) -> Kind:
    """Returns the kind that was found; refuses it if another one was asked for."""
    found.refuse_foreign(path)
    if kind is not None and kind_named(kind) is not found:
        raise NotAQueue(f"{os.fspath(path)} is {found.title}, not {kind_named(kind).title}")
    return found


def _of_kind(kind: Kind, made: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that were given; refuses any that the kind does not have."""
    options = {name: value for name, value in given.items() if name not in ("path", "kind")}
    known = inspect.signature(made).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in known.values())
    for name in options:
        if name not in known and not takes_all:
            raise InvalidOption(f"{name} has no meaning for {kind.title}")
    return options
